"""bucketsim: how gradient buckets overlap backward, which assignment is best, and the proof."""

from sim.api import assign, load_assignment, load_hardware, load_workload, simulate, summarize

__all__ = ["assign", "load_assignment", "load_hardware", "load_workload", "simulate", "summarize"]
