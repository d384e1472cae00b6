"""How far single steps range under one cap."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPoint:
    """``low_ns`` to ``high_ns``: 95 of 100 steps under ``cap_mb`` (MiB; None is DDP's default) lie there."""

    cap_mb: float | None
    low_ns: int
    high_ns: int
