"""All-reduce times of others: nccl-tests and OSU, as text, JSON and CSV."""

from sim.importer.links.link_hardware import read_nccl_tests

__all__ = ["read_nccl_tests"]
