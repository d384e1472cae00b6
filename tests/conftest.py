"""What all tests share: Hypothesis without deadlines, the executors of sweeps, and Ctrl-C."""

import signal

from hypothesis import HealthCheck, settings

from tests.executors import dask, executor, processes, threads

__all__ = ["dask", "executor", "processes", "threads"]

settings.register_profile(
    "house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")
# A shell that starts the tests in the background has SIGINT ignored in them, and in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
