"""Imported by the process that searches are forked from, and nowhere else: what it loads, each of them has.

Machine code is loaded where it is first called, so one search is made here.
"""

import sim
from app import searcher, two_tensors

__all__ = ["searcher"]

sim.tune(two_tensors.WORKLOAD, two_tensors.HARDWARE)
