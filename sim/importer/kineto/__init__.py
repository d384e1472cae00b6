"""Traces of torch.profiler (Kineto): of one rank, or of all."""
