"""A lane: one thing that a replay runs once in every round."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a lane's steps go.

    ``accumulation_steps`` micro-batches, all but the last under ``no_sync`` (A3.12); ``set_to_none`` is
    ``zero_grad``'s argument between steps; ``environment`` is set while a step is under way, for what DDP
    reads when it rebuilds its buckets (A2.5).
    """

    accumulation_steps: int = 1
    set_to_none: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Set ``environment`` for the block, and put back what was there before."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The plain backward, DDP without communication (noop), or a candidate (stock or traced).

    ``step`` runs one step and returns its times in ns: ``step`` from a common start, ``backward_end`` and
    ``sync_end`` from the start of backward, and in a traced lane ``buckets``. ``observe`` reads back the
    buckets that are really used, in launch order, by parameter index; None in the plain lane.
    """

    name: str
    step: Callable[[], dict[str, Any]]
    observe: Callable[[], list[list[int]]] | None = None
    is_traced: bool = False
