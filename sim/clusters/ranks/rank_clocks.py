"""What each rank's own clock would have written, and the way back: clocks aligned by the ends of collectives.

A collective ends on all ranks in the same instant (where nothing stretches it). What a rank's clock shows in
that instant, less what the first rank's shows, is therefore its offset. Importers of traces tell offsets in
the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.errors import InputError
from sim.nouns.ranks import Ranks
from sim.nouns.step_distribution import ClockReading


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clocks:
    """By rank: ns by which its clock is ahead at instant 0, and ns that it gains in each ns."""

    offsets_ns: Ints
    drifts: Floats


def draw_clocks(ranks: Ranks, world_size: int, seed: np.random.SeedSequence) -> Clocks:
    """Offsets and drifts of a job's clocks, normal around 0."""
    generator = np.random.default_rng(seed)
    offsets = ranks.clock_offset_ns * generator.standard_normal(world_size)
    return Clocks(
        offsets_ns=np.rint(offsets).astype(np.int64),
        drifts=ranks.clock_drift * generator.standard_normal(world_size),
    )


def as_clocked(times_ns: Ints, clocks: Clocks) -> Ints:
    """What each rank's clock shows at ``times_ns`` [ranks, collectives]."""
    gained = np.rint(times_ns * clocks.drifts[:, None]).astype(np.int64)
    return np.asarray(times_ns + clocks.offsets_ns[:, None] + gained)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlignedStep:
    """Arrivals on the first rank's clock.

    ``came_ns`` [ranks, collectives]; ``offsets_ns`` [ranks]: what each clock showed more than the first;
    ``scatters_ns`` [ranks]: the largest distance of an aligned end from its collective's median, which says
    how far an arrival may be off.
    """

    came_ns: Ints
    offsets_ns: Ints
    scatters_ns: Ints


def align(came_ns: Ints, ends_ns: Ints) -> AlignedStep:
    """Arrivals of one step by the first rank's clock, which the ends of its collectives tell.

    Both are ns by each rank's own clock [ranks, collectives]. Raises ``InputError`` without a collective.
    """
    if not ends_ns.size:
        raise InputError("ends_ns: no collective, whose end would tell the clocks apart")
    offsets = np.rint(np.median(ends_ns - ends_ns[0], axis=1)).astype(np.int64)
    ends = ends_ns - offsets[:, None]
    scatters = np.abs(ends - np.median(ends, axis=0)).max(axis=1)
    return AlignedStep(
        came_ns=came_ns - offsets[:, None],
        offsets_ns=offsets,
        scatters_ns=np.rint(scatters).astype(np.int64),
    )


def read_clocks(steps: Sequence[tuple[Ints, Ints]], clocks: Clocks) -> ClockReading | None:
    """How often and how exactly raw clocks, and aligned ones, tell which rank came last to a collective.

    ``steps`` are true arrivals and ends [ranks, collectives]. None where no collective had one last rank.
    """
    told = raw_right = aligned_right = 0
    raw_errors: list[float] = []
    aligned_errors: list[float] = []
    for came, ends in steps:
        waits = came.max(axis=0) - came
        alone = (waits == 0).sum(axis=0) == 1
        if not alone.any() or len(came) < 2:
            continue
        clocked = as_clocked(came, clocks)
        aligned = align(clocked, as_clocked(ends, clocks)).came_ns
        last = came.argmax(axis=0)[alone]
        told += len(last)
        raw_right += int((clocked.argmax(axis=0)[alone] == last).sum())
        aligned_right += int((aligned.argmax(axis=0)[alone] == last).sum())
        for read, errors in ((clocked, raw_errors), (aligned, aligned_errors)):
            errors.append(float(np.abs(read.max(axis=0) - read - waits)[:, alone].mean()))
    if not told:
        return None
    return ClockReading(
        steps=len(steps),
        collectives=told,
        raw_right=raw_right / told,
        aligned_right=aligned_right / told,
        raw_error_ns=round(float(np.mean(raw_errors))),
        aligned_error_ns=round(float(np.mean(aligned_errors))),
    )
