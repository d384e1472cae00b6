"""What a transfer costs: measured curves, what they are in a step, and what-if scaling."""
