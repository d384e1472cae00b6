"""bucketsim: how gradient buckets overlap backward, which assignment is best, and the proof.

``__init__.pyi`` beside this file lists what is offered. Each name is loaded on first use, so that the worker
on a measured rank imports its own modules without anything that only the simulator needs.
"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """For each name that is offered the module that it lives in, and its name there."""
    listed = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        name.asname or name.name: (node.module or "", name.name)
        for node in listed.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name == "plot":  # a module of its own: whoever plots waits for plotly
        return import_module("sim.plot")
    if name not in _homes():
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    module, name_there = _homes()[name]
    globals()[name] = offered = getattr(import_module(module), name_there)
    return offered


def __dir__() -> list[str]:
    return sorted(_homes())
