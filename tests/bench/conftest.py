"""What pytest-benchmark writes down about the machine, beside its own; and that it does if it is ended."""

import os
import signal
from importlib.metadata import version
from typing import Any

VERSIONS = ("bucketsim", "numpy", "numba", "simpy")
LOAD = os.getloadavg()[0]  # as pytest begins


def pytest_benchmark_update_machine_info(config: object, machine_info: dict[str, Any]) -> None:
    """Versions, and how busy the machine was when it began."""
    machine_info["versions"] = {name: version(name) for name in VERSIONS}
    machine_info["load"] = LOAD


def pytest_configure(config: object) -> None:
    """A run that is cut off writes what it has, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
