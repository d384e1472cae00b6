"""Times that were measured elsewhere, handed to pytest-benchmark, whose timer stands still until then."""

from collections.abc import Sequence
from typing import Any


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


def hand_over(benchmark: Any, seconds: Sequence[float]) -> None:
    """Each of ``seconds`` as a round of ``benchmark``, whose timer is ``CLOCK``."""
    rest = iter(seconds)
    benchmark.pedantic(lambda: CLOCK.move(next(rest)), rounds=len(seconds), iterations=1)
