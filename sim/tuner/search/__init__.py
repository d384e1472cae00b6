"""The best contiguous partition of one workload on one machine, and its proof."""
