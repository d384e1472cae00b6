"""Where ranks run: this machine, or a cluster in a box. Starts their processes, watches and ends them."""
