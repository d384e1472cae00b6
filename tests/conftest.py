"""What all tests share: Hypothesis without deadlines, the executors of sweeps, and Ctrl-C."""

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import tries
from tests.executors import dask, executor, processes, threads

__all__ = ["dask", "executor", "processes", "threads"]

settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    max_examples=tries(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
# A shell that starts the tests in the background has SIGINT ignored in them, and in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that look at the same ranks, or drive the same browser, go to one of several workers.

    Tests of one module share its ranks; all browser tests share one server; boxes clean up after each other.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
        elif item.get_closest_marker("dist") and not item.get_closest_marker("xdist_group"):
            module = item.getparent(pytest.Module)
            assert module is not None
            item.add_marker(
                pytest.mark.xdist_group("box" if hasattr(module.obj, "needs_box") else module.name)
            )
