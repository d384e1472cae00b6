"""The executors that sweeps are spread over, as fixtures: threads, processes, dask."""

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from sim.tuner.sweep import process_pool

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
