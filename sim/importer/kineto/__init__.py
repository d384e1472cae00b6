"""Traces of torch.profiler (Kineto): of one rank, or of all."""

from sim.importer.kineto.trace_import import read_kineto

__all__ = ["read_kineto"]
