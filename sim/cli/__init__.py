"""The command line: words and calls, nothing else."""
