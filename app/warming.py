"""What the first visitor would wait for: imported, and loaded as machine code, while the browser starts."""

import pkgutil
from importlib import import_module

import pandas  # noqa: F401 - first, as in main

import sim
from app import figures
from app.two_tensors import HARDWARE, WORKLOAD


def warm_up() -> None:
    """Import what needs no server that runs, as caches and components do, and play a step."""
    for module in pkgutil.iter_modules(figures.__path__, f"{figures.__name__}."):
        import_module(module.name)
    played = sim.simulate(WORKLOAD, HARDWARE, sim.assign(WORKLOAD), "analytic")
    sim.summarize(played)
    sim.critical_path(played)
