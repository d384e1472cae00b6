"""Tasks spread over an executor: results come in order, errors as ``SimError``, and nothing is left over."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sim.errors import MachineError, SimError

Task = TypeVar("Task")
Result = TypeVar("Result")


def process_pool(most: int | None = None) -> ProcessPoolExecutor:
    """A pool of spawned processes: ``most`` at most, and no more than there are cores.

    Spawned, since a fork of a process with threads (torch's, streamlit's) may hang. A spawned process imports
    the script that started it: what the script runs belongs under ``if __name__ == "__main__":``.
    """
    cores = os.cpu_count() or 1
    return ProcessPoolExecutor(
        max_workers=cores if most is None else max(1, min(most, cores)),
        mp_context=multiprocessing.get_context("spawn"),
    )


@contextmanager
def _for_the_parent(executor: Executor) -> Iterator[None]:
    """What ``executor`` starts here never gets Ctrl-C, which is for the parent: it shuts the pool down.

    Blocked for a moment, the parent gets it afterwards. A worker ended by Ctrl-C while starting breaks the
    pool, and a pool that breaks after its tasks were cancelled hangs in CPython 3.11 (gh-107219).
    """
    if not isinstance(executor, ProcessPoolExecutor) or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spread(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: Executor
) -> Generator[Result, None, None]:
    """``function`` of each task, in order, as results come in; on any error the rest is cancelled.

    Raises:
        SimError: as a worker raised it.
        MachineError: a worker died, or raised anything else.
    """
    futures: list[Future[Result]] = []
    try:
        with _for_the_parent(executor):
            futures.extend(executor.submit(function, task) for task in tasks)
        for future in futures:
            yield future.result()
    except SimError:
        raise
    except BrokenExecutor as error:
        raise MachineError(
            f"sweep: a worker process died ({error}); a script that sweeps needs its own lines under "
            'if __name__ == "__main__":, as each worker imports it'
        ) from error
    except Exception as error:
        raise MachineError(f"sweep: a worker of {type(executor).__name__} failed: {error!r}") from error
    finally:
        for future in futures:
            future.cancel()
