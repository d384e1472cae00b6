"""What all tests share: Hypothesis without deadlines, and the executors that sweeps are spread over."""

from hypothesis import HealthCheck, settings

from tests.executors import dask, executor, processes, threads

__all__ = ["dask", "executor", "processes", "threads"]

settings.register_profile(
    "house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")
