"""How far single steps range under one cap."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPoint:
    """``low_ns`` to ``high_ns``: 95 of 100 steps under ``cap_mb`` (MiB; None is DDP's default) lie there.

    It is read from ``draws`` drawn steps; ``iterations`` recorded ones are behind them, 0 where none were
    recorded and all-reduces or an estimate alone vary.
    """

    cap_mb: float | None
    low_ns: int
    high_ns: int
    draws: int = 0
    iterations: int = 0
