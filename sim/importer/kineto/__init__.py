"""Traces of torch.profiler (Kineto): of one rank, or of all."""

from sim.importer.kineto.importing import read_kineto

__all__ = ["read_kineto"]
