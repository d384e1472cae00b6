"""``--table README.md``: the benchmarks' tables, written anew as each row is there."""

import os
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sim.formats.files import write_atomically
from tests.bench import table

VERSIONS = ("bucketsim", "numpy", "numba", "simpy")
LOAD = os.getloadavg()[0]  # as pytest begins


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tables go."""
    parser.addoption("--table", type=Path, help="write the tables of the benchmarks here, row by row")


def pytest_benchmark_update_machine_info(config: object, machine_info: dict[str, Any]) -> None:
    """Versions, and how busy the machine was when it began."""
    machine_info["versions"] = {name: version(name) for name in VERSIONS}
    machine_info["load"] = LOAD


def pytest_configure(config: pytest.Config) -> None:
    """A run that is ended from outside closes what it has started, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    target = config.getoption("--table", default=None)
    if target is not None:
        config.pluginmanager.register(Tables(config, target))


class Tables:
    """What is measured by now, on its page: a run that is cut off has written what it has."""

    def __init__(self, config: pytest.Config, target: Path) -> None:
        """Write to ``target`` once there is a row."""
        self._config, self._target = config, target
        self._rows: list[table.Row] = []
        self._conditions = ""
        self._wanted = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the rows to come, and look at the machine before it is busy."""
        self._wanted = sum("benchmark" in getattr(item, "fixturenames", ()) for item in session.items)
        hook = self._config.hook
        info = hook.pytest_benchmark_generate_machine_info(config=self._config)
        hook.pytest_benchmark_update_machine_info(config=self._config, machine_info=info)
        commit = hook.pytest_benchmark_generate_commit_info(config=self._config)
        self._conditions = table.conditions(info, commit)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Write what a benchmark has measured."""
        measured = getattr(item, "funcargs", {}).get("benchmark")
        if measured is None or measured.stats is None or "table" not in measured.extra_info:
            return
        stats = measured.stats.stats
        self._rows.append(measured.extra_info | {"median": stats.median, "iqr": stats.iqr})
        missing = self._wanted - len(self._rows)
        write_atomically(self._target, table.tell(self._rows, self._conditions, missing))
