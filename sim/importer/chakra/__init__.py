"""Execution traces of torch (Chakra), for shapes."""

from sim.importer.chakra.execution_trace import gradients_of, read_chakra

__all__ = ["gradients_of", "read_chakra"]
