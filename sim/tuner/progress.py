"""A long search tells what it is doing, so that whoever waits can show it, or stop it by raising."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listened_to(listener: Listener | None) -> Iterator[None]:
    """In the block, and in this thread, ``tell`` calls ``listener``; what that raises ends the search."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(words: str) -> None:
    """Say what comes next: called between the parts of a search, of some milliseconds each."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(words)
