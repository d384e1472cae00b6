"""The caps that are as good as any: true intervals of ``bucket_cap_mb``, not points of a grid."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from sim.clock.arrays import Flags
from sim.nouns.recommendation import Gain, Plateau
from sim.systems.registry import assign
from sim.tuner.reach.families import CapRow
from sim.tuner.spread.draws import NO_ITERATIONS, Draws
from sim.tuner.spread.judgement import Judge
from sim.units import MIB, format_mib_range

TOLERANCE = 0.01
MOST_PLAYED = 1 << 22  # draws times gradients, of all caps that are played
_MOST_STRETCHES = 4
_BYTE_MB = 2.0**-20
_TOUCHES = 1.005  # the same number, told to three digits


def find_plateau(
    rows: Sequence[CapRow],
    judge: Judge,
    gain: Gain,
    *,
    default_step_ns: int,
) -> Plateau:
    """The plateau of all layouts that a cap can make.

    A cap is as good as the recommendation unless ``judge`` finds the recommendation significantly better;
    DDP's default is judged by ``gain``, in the same way. With fewer than two recorded iterations nothing is
    significant: then a cap is as good if its step is within 1 % of the best cap's. With very many layouts of
    very many gradients only those nearest to the best are played; the others are judged by their nominal
    step.
    """
    draws = judge.draws
    steps = draws.times * np.array([row.sync_end_ns for row in rows], dtype=np.float64) + judge.rest_ns
    best = int(steps.argmin())
    near = steps <= steps[best] * (1 + TOLERANCE)
    default_is_near = bool(default_step_ns <= steps[best] * (1 + TOLERANCE))
    decided_by_noise = NO_ITERATIONS not in draws.not_known
    alike = near
    if decided_by_noise:
        alike = np.array([judge.is_as_good_nominally(step) for step in steps.tolist()])
        affordable = max(1, MOST_PLAYED // (len(draws) * max(1, len(draws.problem))))
        nearest = np.argsort(steps, kind="stable")[:affordable]
        for at in nearest.tolist():
            made = assign(draws.problem.asked, bucket_cap_mb=rows[at].cap_mb)
            alike[at] = judge.is_as_good(made, round(steps[at]))
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
        alike_holds_default=gain.significant is False or (default_is_near and not decided_by_noise),
        alike_is_flat=bool(alike.all()),
    )
    return replace(plateau, sentence=tell_plateau(plateau))


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
        if not plateau.alike_mb:
            best = _stretches_words([(plateau.low_mb, plateau.high_mb)])
            default = "cannot be told apart from it" if plateau.alike_holds_default else "is not either"
            none = f"No cap is as good as what is recommended, the best ({best}) included"
            return f"{none}; DDP's default {default}."
        alike, stretches = "cannot be told apart from what is recommended", plateau.alike_mb
        is_flat, inside = plateau.alike_is_flat, plateau.alike_holds_default
    else:
        alike, stretches = f"are within {plateau.tolerance:.0%} of the best cap", plateau.stretches_mb
        is_flat, inside = plateau.is_flat, plateau.holds_default
    where = "is among them" if inside else "is not among them"
    if plateau.alike_holds_default and not inside:
        where = "is not among them, but the difference is not significant"
    start = "The curve is flat: caps" if is_flat else "Caps"
    return f"{start} of {_stretches_words(stretches)} {alike}; DDP's default {where}."


def _stretches_words(stretches_mb: Sequence[tuple[float, float]]) -> str:
    """Stretches of caps in words; of many the widest, by how many times its first cap the last is."""
    widest = sorted(_merged(stretches_mb), key=lambda ends: (ends[0] + _BYTE_MB) / (ends[1] + _BYTE_MB))
    words = [format_mib_range(low, high) for low, high in sorted(widest[:_MOST_STRETCHES])]
    more = len(widest) - len(words)
    if more:
        return f"{', '.join(words)} MiB and {more} narrower stretch{'es' if more > 1 else ''}"
    return (", ".join(words[:-1]) + " and " if len(words) > 1 else "") + f"{words[-1]} MiB"


def _merged(stretches_mb: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches between which nobody sets a cap told as one."""
    merged: list[tuple[float, float]] = []
    for low, high in stretches_mb:
        if merged and low <= merged[-1][1] * _TOUCHES:
            low = merged.pop()[0]
        merged.append((low, high))
    return merged
