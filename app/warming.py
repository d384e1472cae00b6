"""What the first visitor would wait for: imported, and loaded as machine code, while the browser starts."""

import pkgutil
from importlib import import_module

import pandas  # noqa: F401 - first, as in main

import sim
from app import figures, garbage
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload

_WORKLOAD = Workload(
    name="two tensors",
    gradients=tuple(
        Gradient(index=index, name=str(index), shape=(4,), dtype="float32", num_bytes=16, ready_ns=2 - index)
        for index in range(2)
    ),
    forward_ns=1,
    backward_ns=3,
    optimizer_ns=1,
)
_HARDWARE = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1),))


def warm_up() -> None:
    """Import what needs no server that runs, as caches and components do, and play a step.

    What is there then is no garbage: to look through it takes 0.1 s each time.
    """
    for module in pkgutil.iter_modules(figures.__path__, f"{figures.__name__}."):
        import_module(module.name)
    played = sim.simulate(_WORKLOAD, _HARDWARE, sim.assign(_WORKLOAD), "analytic")
    sim.summarize(played)
    sim.critical_path(played)
    garbage.begin()
