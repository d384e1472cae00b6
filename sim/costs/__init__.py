"""What a transfer costs: measured curves, what-if scaling, machines as graphs, NCCL's own cost model."""
