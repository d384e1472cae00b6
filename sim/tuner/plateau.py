"""The caps that are as good as the best cap: true intervals of ``bucket_cap_mb``, not points of a grid."""

from collections.abc import Sequence
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
from sim.tuner.gain import NOTHING
from sim.tuner.robust import play_steps
from sim.units import MIB

TOLERANCE = 0.01
MOST_PLAYED = 1 << 22  # draws times gradients, of all caps that are played

Flags = NDArray[np.bool_]


def find_plateau(
    rows: Sequence[CapRow],
    default: Assignment,
    draws: Draws,
    robust: Robust,
    *,
    default_sync_end_ns: int,
    rest_ns: int,
) -> Plateau:
    """The plateau of all layouts that a cap can make; ``rest_ns`` is the step without ``sync_end``.

    A cap can be told apart from the best where the best's gain over it is significant, as ``judge_gain`` has
    it: over paired draws its 95 % interval is above 0, and it is more than the noise of a step and more than
    0.1 % of it. Where fewer than two iterations were recorded it is 1 % of the step instead. With very many
    layouts of very many gradients only those nearest to the best are played; the others are judged by
    their nominal step.
    """
    steps = np.array([row.sync_end_ns for row in rows], dtype=np.float64) + rest_ns
    best = int(steps.argmin())
    near = steps <= steps[best] * (1 + TOLERANCE)
    default_step = default_sync_end_ns + rest_ns
    default_is_near = bool(default_step <= steps[best] * (1 + TOLERANCE))
    decided_by_noise = robust.noise_ns is not None and NO_ITERATIONS not in robust.not_known
    alike, default_is_alike = near, default_is_near
    if robust.noise_ns is not None and decided_by_noise:
        least = max(float(robust.noise_ns), NOTHING * steps[best])
        alike = steps - steps[best] <= least
        best_steps = _play(rows[best], draws, rest_ns)
        affordable = max(1, MOST_PLAYED // (len(draws) * max(1, len(draws.problem))))
        for at in np.argsort(steps, kind="stable")[:affordable].tolist():
            alike[at] = _is_alike(_play(rows[at], draws, rest_ns).minus(best_steps), least)
        default_is_alike = _is_alike(play_steps(draws, default, rest_ns).minus(best_steps), least)
    around = next(stretch for stretch in _stretches(rows, near, draws) if stretch[0] <= best <= stretch[1])
    return Plateau(
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


def _play(row: CapRow, draws: Draws, rest_ns: int) -> Steps:
    return play_steps(draws, assign(draws.problem.workload, bucket_cap_mb=row.cap_mb), rest_ns)


def _is_alike(loss: Steps, least: float) -> bool:
    """Whether a paired loss against the best is not significant."""
    estimate = estimate_mean(loss)
    return estimate.low <= 0 or estimate.value <= least


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
