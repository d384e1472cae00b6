"""What NCCL's own cost model says of a collective, from published figures of the machine alone."""
