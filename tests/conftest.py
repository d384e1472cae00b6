"""What all tests share: Hypothesis without deadlines, kernels compiled once, executors of sweeps, Ctrl-C."""

import fcntl
import gc
import importlib
import importlib.util
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from numba.core.dispatcher import Dispatcher
from xdist.scheduler import LoadScopeScheduling

from sim.tuner.sweep import process_pool
from tests.effort import IS_WHOLE, tries

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

_COMPILE = Dispatcher.compile
_LOCKS = tempfile.gettempdir()  # of all workers, also while a test has a temporary directory of its own


@pytest.fixture(scope="session", autouse=True)
def _kernels_compiled_once() -> Iterator[None]:
    """A kernel is compiled by one worker of several, and read from the disk by the others.

    In a fresh clone all workers would compile the same kernels: half a minute of processor time each.
    """
    mine = threading.RLock()
    held: set[str] = set()  # several: those that a kernel calls are compiled while it is

    def compile_alone(dispatcher: Any, signature: Any) -> Any:
        name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}"
        with mine:
            if name in held or not hasattr(dispatcher, "bucketsim_digest"):  # numba's own, a part of ours
                return _COMPILE(dispatcher, signature)
            # Who waits for a kernel holds only those that call it, so that no two wait for each other.
            with open(Path(_LOCKS, f"compiling-bucketsim-{os.getuid()}-{name}"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                held.add(name)
                try:
                    return _COMPILE(dispatcher, signature)
                finally:
                    held.remove(name)

    with mock.patch.object(Dispatcher, "compile", compile_alone):
        yield


EXECUTORS = ("threads", "processes", "dask")


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with process_pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    """A cluster of dask's in this process: its own scheduler, worker, messages and pickles."""
    if importlib.util.find_spec("distributed") is None:
        missing = "no dask: pip install 'bucketsim[dask]'"
        if os.environ.get("BUCKETSIM_REQUIRE_DASK") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp://"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Executor:
    made: Executor = request.getfixturevalue(request.param)
    return made


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
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root = session.config.rootpath
    files = sorted(file for named in session.config.args for file in (root / named).rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collection imports it again, and tells
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.fixture(scope="module", autouse=True)
def _garbage_goes_with_its_file() -> Iterator[None]:
    """To look for it meanwhile would take a tenth of the tests' time; all that is imported by then stays."""
    gc.freeze()
    yield
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for pools that it starts is not left for the end, when nobody has anything else to do; the
    dashboard's server comes after tests that, in a fresh clone, compile what it runs."""
    items.sort(key=lambda item: str(item.path).replace("app/browser", "cli/~"))
    items.sort(key=lambda item: item.path.name != "test_tuner_sweep.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # what takes long comes first as it is
    return ByFile(config, log)
