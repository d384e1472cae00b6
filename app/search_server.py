"""Imported by the process that searches are forked from, and nowhere else: what it loads, each of them has.

Machine code is loaded where it is first called, so one search is made here.
"""

import __main__
import sim
from app import searcher, two_tensors
from app.launch import MAIN

__all__ = ["searcher"]

__main__.__file__ = str(
    MAIN
)  # else multiprocessing imports the server's main module, the page, for each search
sim.tune(two_tensors.WORKLOAD, two_tensors.HARDWARE)
