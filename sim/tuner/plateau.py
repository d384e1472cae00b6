"""The caps that are as good as the best cap: true intervals of ``bucket_cap_mb``, not points of a grid."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from sim.engine.systems import assign
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Plateau
from sim.nouns.robust import Robust
from sim.tuner.crossed import Steps, estimate_mean
from sim.tuner.draws import NO_ITERATIONS, Draws
from sim.tuner.families import CapRow
from sim.tuner.gain import NOTHING, SMALL
from sim.tuner.robust import play_steps
from sim.units import MIB

TOLERANCE = 0.01
MOST_PLAYED = 1 << 22  # draws times gradients, of all caps that are played
_MOST_STRETCHES = 4
_BYTE_MB = 2.0**-20

Flags = NDArray[np.bool_]


def find_plateau(
    rows: Sequence[CapRow],
    default: Assignment,
    draws: Draws,
    robust: Robust,
    *,
    default_sync_end_ns: int,
    rest_ns: int,
    max_bytes: int,
) -> Plateau:
    """The plateau of all layouts that a cap can make and whose buckets hold ``max_bytes`` at most.

    ``rest_ns`` is the step without ``sync_end``. The default is on it only if it keeps to ``max_bytes`` too.

    A cap can be told apart from the best where the best's gain over it is significant, as ``judge_gain`` has
    it: over paired draws its 95 % interval is above 0, and it is more than 0.1 % of the step, and more than
    the noise of a step unless it is 1 % of it. Where fewer than two iterations were recorded it is 1 % of the
    step instead. With very many layouts of very many gradients only those nearest to the best are played;
    the others are judged by their nominal step.
    """
    steps = np.array([row.sync_end_ns for row in rows], dtype=np.float64) + rest_ns
    steps[[row.largest_bytes > max_bytes for row in rows]] = np.inf
    best = int(steps.argmin())
    near = steps <= steps[best] * (1 + TOLERANCE)
    allowed = max(default.bucket_bytes or (0,)) <= max_bytes
    default_is_near = allowed and bool(default_sync_end_ns + rest_ns <= steps[best] * (1 + TOLERANCE))
    decided_by_noise = robust.noise_ns is not None and NO_ITERATIONS not in robust.not_known
    alike, default_is_alike = near, default_is_near
    if robust.noise_ns is not None and decided_by_noise:
        least = max(min(float(robust.noise_ns), SMALL * steps[best]), NOTHING * steps[best])
        alike = steps - steps[best] <= least
        best_steps = _play(rows[best], draws, rest_ns)
        affordable = max(1, MOST_PLAYED // (len(draws) * max(1, len(draws.problem))))
        nearest = np.argsort(steps, kind="stable")[: min(affordable, int(np.isfinite(steps).sum()))]
        for at in nearest.tolist():
            alike[at] = _is_alike(_play(rows[at], draws, rest_ns).minus(best_steps), least)
        lost = play_steps(draws, default, rest_ns).minus(best_steps)
        default_is_alike = allowed and _is_alike(lost, least)
    around = next(stretch for stretch in _stretches(rows, near, draws) if stretch[0] <= best <= stretch[1])
    plateau = Plateau(
        tolerance=TOLERANCE,
        caps_mb=tuple(row.cap_mb for row, is_near in zip(rows, near.tolist(), strict=True) if is_near),
        stretches_mb=tuple((low, high) for _, _, low, high in _stretches(rows, near, draws)),
        low_mb=around[2],
        high_mb=around[3],
        holds_default=default_is_near,
        is_flat=bool(near.all()),
        decided_by="noise" if decided_by_noise else "tolerance",
        alike_mb=tuple((low, high) for _, _, low, high in _stretches(rows, alike, draws)),
        alike_holds_default=default_is_alike,
        alike_is_flat=bool(alike.all()),
    )
    return replace(plateau, sentence=tell_plateau(plateau))


def _play(row: CapRow, draws: Draws, rest_ns: int) -> Steps:
    return play_steps(draws, assign(draws.problem.workload, bucket_cap_mb=row.cap_mb), rest_ns)


def _is_alike(loss: Steps, least: float) -> bool:
    """Whether a paired loss against the best is not significant."""
    estimate = estimate_mean(loss)
    return bool(estimate.low <= 0 or estimate.value <= least)


def _stretches(rows: Sequence[CapRow], good: Flags, draws: Draws) -> list[tuple[int, int, float, float]]:
    """Unbroken stretches of good rows: first and last row, first and last cap in MiB."""
    all_of_it = draws.problem.workload.total_bytes + 1
    made = []
    for is_good, group in groupby(range(len(rows)), key=good.tolist().__getitem__):
        members = list(group)
        if is_good:
            first, last = rows[members[0]], rows[members[-1]]
            high = all_of_it if last.high_bytes is None else last.high_bytes
            made.append((members[0], members[-1], first.low_bytes / MIB, high / MIB))
    return made


def tell_plateau(plateau: Plateau) -> str:
    """What the flat part of the curve means for the reader."""
    if plateau.decided_by == "noise":
        alike, stretches = "cannot be told apart from the best", plateau.alike_mb
        holds_default, is_flat = plateau.alike_holds_default, plateau.alike_is_flat
    else:
        alike, stretches = f"are within {plateau.tolerance:.0%} of the best", plateau.stretches_mb
        holds_default, is_flat = plateau.holds_default, plateau.is_flat
    inside = "DDP's default is among them" if holds_default else "DDP's default is not"
    start = "The curve is flat: caps" if is_flat else "Caps"
    return f"{start} of {_stretches_words(stretches)} {alike}; {inside}."


def _stretches_words(stretches_mb: Sequence[tuple[float, float]]) -> str:
    """Stretches of caps in words; of many the widest, by how many times its first cap the last is."""
    widest = sorted(stretches_mb, key=lambda ends: (ends[0] + _BYTE_MB) / (ends[1] + _BYTE_MB))
    words = [
        _mib(low) if _mib(low) == _mib(high) else f"{_mib(low)} to {_mib(high)}"
        for low, high in sorted(widest[:_MOST_STRETCHES])
    ]
    more = len(widest) - len(words)
    if more:
        return f"{', '.join(words)} MiB and {more} narrower stretch{'es' if more > 1 else ''}"
    return (", ".join(words[:-1]) + " and " if len(words) > 1 else "") + f"{words[-1]} MiB"


def _mib(value: float) -> str:
    """A number of MiB to three digits, never in powers of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
