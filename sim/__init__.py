"""bucketsim: how gradient buckets overlap backward, which assignment is best, and the proof.

``__init__.pyi`` beside this file lists what is offered. Each name is loaded on first use, so that the worker
on a measured rank imports its own modules without anything that only the simulator needs.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_LISTED = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
# By the name that is offered the module that it lives in, and its name there.
_HOMES = {as_: (home, name) for home, name, as_ in re.findall(r"from (\S+) import (\w+) as (\w+)", _LISTED)}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_HOMES)
    if name == "plot":  # a module of its own: whoever plots waits for plotly
        return import_module("sim.plot")
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    module, name_there = _HOMES[name]
    globals()[name] = offered = getattr(import_module(module), name_there)
    return offered


def __dir__() -> list[str]:
    return sorted(_HOMES)
