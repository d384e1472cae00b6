"""What all tests share: Hypothesis without deadlines, the executors of sweeps, and Ctrl-C."""

import gc
import importlib
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.compiling import one_at_a_time
from tests.effort import IS_WHOLE, tries
from tests.executors import dask, executor, processes, threads

__all__ = ["dask", "executor", "processes", "threads"]

settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    max_examples=tries(100),
    derandomize=not IS_WHOLE,  # `make test` tries the same examples everywhere, `make test-all` new ones
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
# A shell that starts the tests in the background has SIGINT ignored in them, and in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _kernels_compiled_once() -> Iterator[None]:
    with one_at_a_time():
        yield


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """All tests of a file go to one of several workers: they share its ranks, its server, its records.

    Files that share a browser go together too: its first page costs more than any three after it. (``--dist
    loadgroup`` does not do it: xdist 3.8 writes its groups where pytest 9 does not look.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "browser" if file.startswith("tests/app/browser/") else file


def pytest_collection(session: pytest.Session) -> None:
    """Each of several workers imports a share of the test modules before it collects them all.

    In a fresh clone pytest rewrites the asserts of every module, for more time than all else of collection,
    and keeps it on the disk. So the workers share that work too, where each would do it all.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root = session.config.rootpath
    files = sorted(file for named in session.config.args for file in (root / named).rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collection imports it again, and tells
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """All tests and what they import stay: streamlit looks through all objects after every run of a page."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # what takes long comes first as it is
    return ByFile(config, log)
