"""Long searches run in processes of their own, as Python computes in one thread of a process at a time.

In the server's a search would take half of its time from every page, and could be ended only where it tells
how far it is.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any, TypeVar, cast

from app import searcher
from app.searcher import Progress
from sim.errors import MachineError

Found = TypeVar("Found")

_FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
_EVERY_S = 0.05


def get_ready() -> None:
    """Start the process that searches are forked from, while nobody waits for it."""
    if _FORKS:
        _CONTEXT.set_forkserver_preload(["app.search_server"])
        forkserver.ensure_running()


def apart(search: Callable[..., Found], *arguments: object, progress: Progress) -> Found:
    """What ``search(*arguments, progress=progress)`` finds, in a process of its own.

    Args:
        search: a function of a module; it is pickled by its name.
        arguments: of it; they are pickled, and so is what it finds.
        progress: told in words how far it is, and the last words again twenty times a second; where it
            raises, the search is ended, and that raised.

    Raises:
        MachineError: its process was ended from outside.
        Exception: what the search raises.
    """
    answers, asked = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=searcher.answer, args=(asked, search, arguments), daemon=True)
    process.start()
    asked.close()
    words = "searching"
    try:
        while True:
            progress(words)
            if not answers.poll(_EVERY_S):
                continue
            kind, value = answers.recv()
            if kind == "found":
                return cast(Found, value)
            if kind == "raised":
                raise value
            words = value
    except EOFError:
        raise MachineError(
            "the search was ended from outside, such as by a machine that ran out of memory"
        ) from None
    finally:
        process.kill()
        process.join()
        answers.close()
