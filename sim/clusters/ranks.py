"""How the ranks of one job differ: their pace, interruptions and work, and what is drawn for each of them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.errors import InputError
from sim.formats import documents
from sim.nouns.checks import Checked, Count, Legal, Positive, check
from sim.nouns.workload import Workload
from sim.units import format_number

PACE = Legal(kind=float, least=1e-3, most=1e3)
MOST_RECORDED = 200  # iterations of a workload that are drawn from
NO_ITERATIONS = "how a rank's iterations vary: no recorded iterations, and no pace_jitter"
NO_FORWARD = "how forward and optimizer vary: only backward was recorded"
NOT_TOGETHER = "whether ranks' iterations vary together: each rank draws from the recorded ones by itself"
# Of a lognormal factor: at 2, one rank in 40 is 50 times as slow.
Sigma = Annotated[float, Legal(kind=float, most=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks(Checked):
    """Ranks ``first`` to ``first + count - 1``, all of whose compute takes ``pace`` times as long."""

    first: Count
    count: Positive = 1
    pace: Annotated[float, PACE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How the ranks of a job differ from each other and from step to step.

    A pace is a factor on all that a rank computes in a step: forward, loss, backward and optimizer, not
    copies, hooks or launches. ``pace_jitter`` is the sigma of a lognormal factor of mean 1 drawn for each
    rank and step, ``pace_spread`` that of one drawn once for each rank (the GPU lottery). ``slow`` ranks are
    known to be slow; where such ranges overlap, paces multiply, to a factor within the same limits. With
    ``stall_probability``, in each step, a rank stands still for ``stall_ns`` somewhere in its backward: its
    lane is idle, so that nothing stretches the stall and it stretches nothing.
    """

    KIND: ClassVar[str] = "ranks"
    name: str
    pace_jitter: Sigma = 0.0
    pace_spread: Sigma = 0.0
    slow: tuple[SlowRanks, ...] = ()
    stall_probability: Annotated[float, Legal(kind=float, most=1)] = 0.0
    stall_ns: Count = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if (self.stall_probability > 0) != (self.stall_ns > 0):
            raise InputError(
                f"stall_ns: {self.stall_ns} with stall_probability "
                f"{format_number(self.stall_probability, 6)} is not legal; "
                f"give both above 0, or neither"
            )

    def check_fits(self, world_size: int) -> None:
        """Raise ``InputError`` where a range goes beyond the ranks that there are."""
        for number, one in enumerate(self.slow):
            if one.first + one.count > world_size:
                raise InputError(
                    f"slow.{number}: ranks {one.first} to {one.first + one.count - 1} are not legal; the "
                    f"hardware has world_size {world_size}, ranks 0 to {world_size - 1}"
                )


def load_ranks(path: str | os.PathLike[str]) -> Ranks:
    """A Ranks from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Ranks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Brought:
    """What one step draws: each rank's variant [micro-batches, ranks] and pace [ranks], and its
    interruptions.

    ``stalled``: the ranks that are interrupted. ``where``: the share of the step's backward that each of them
    has done by then.
    """

    variants: Ints
    paces: Floats
    stalled: Ints
    where: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """The ranks of a job.

    ``variants``: the workloads that a rank may run in a step, one for each recorded iteration. ``paces``
    [ranks]: the factor on what each rank computes, as far as ``ranks`` names it.
    """

    ranks: Ranks
    variants: tuple[Workload, ...]
    paces: Floats
    not_known: tuple[str, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.paces.size

    def steps(self, seed: np.random.SeedSequence, micro_batches: int) -> Iterator[Brought]:
        """What one job draws, step after step: a pace for each rank once, and the rest anew in each step.

        All assignments with as many ``micro_batches`` meet the same draws. In each micro-batch a rank draws
        one of its recorded iterations.
        """
        spreading, pacing, choosing, stalling = (np.random.default_rng(child) for child in seed.spawn(4))
        spread = self.paces * _lognormal(self.ranks.pace_spread, len(self), spreading)
        while True:
            variants = np.zeros((micro_batches, len(self)), np.int64)
            if len(self.variants) > 1:
                share = choosing.random(variants.shape)
                variants = np.floor(share * len(self.variants)).astype(np.int64)
            stalled = np.flatnonzero(stalling.random(len(self)) < self.ranks.stall_probability)
            where = stalling.random(len(self))[stalled]
            paces = spread * _lognormal(self.ranks.pace_jitter, len(self), pacing)
            yield Brought(variants=variants, paces=paces, stalled=stalled, where=where)


def _lognormal(sigma: float, count: int, generator: np.random.Generator) -> Floats:
    """``count`` lognormal factors of mean 1; ``sigma`` is the standard deviation of their logarithm."""
    if not sigma:
        return np.ones(count)
    return np.exp(sigma * generator.standard_normal(count) - sigma * sigma / 2)


def make_crew(workload: Workload, world_size: int, ranks: Ranks) -> Crew:
    """The crew of a job of ``world_size`` ranks.

    Raises:
        InputError: ``ranks`` names a rank that does not exist, or the paces of a rank have a product that is
            not legal.
    """
    ranks.check_fits(world_size)
    paces = np.ones(world_size)
    for slow in ranks.slow:
        paces[slow.first : slow.first + slow.count] *= slow.pace
    for pace in (paces.min(), paces.max()):
        PACE.take("slow: paces of one rank together", float(pace))
    notes: list[str] = []
    variants = _recorded(workload, notes)
    recorded = len(variants) if len(variants) > 1 else 0
    if recorded and ranks.pace_jitter:
        notes.append("recorded iterations are drawn, and pace_jitter comes on top of what they vary")
    if recorded:
        notes.append(f"intervals leave out that no more than {recorded} iterations were recorded")
    not_known = [] if ranks.pace_jitter else [NO_FORWARD if recorded else NO_ITERATIONS]
    if recorded and world_size > 1:
        not_known.append(NOT_TOGETHER)
    if recorded and not ranks.pace_jitter and world_size > recorded:
        not_known.append(
            f"iterations rarer than 1 in {recorded}, as many as were recorded: of {world_size:,} ranks one "
            f"may have one in most steps"
        )
    told = {"not_known": tuple(not_known), "notes": tuple(notes)}
    return Crew(ranks=ranks, variants=tuple(variants), paces=paces, **told)


def _recorded(workload: Workload, notes: list[str]) -> Sequence[Workload]:
    """A workload for each recorded iteration that saw every gradient; with fewer than two, ``workload``.

    As in the tuner's draws, each has the nominal ready order and the nominal time from its last gradient to
    the end of backward.
    """
    order = workload.order()
    rows = [[sample[index] for index in order] for sample in workload.samples]
    whole = [[time for time in row if time is not None] for row in rows if None not in row]
    if len(whole) < 2 or not order:
        return [workload]
    whole = whole[:: -(-len(whole) // MOST_RECORDED)]
    if len(whole) < len(rows):
        notes.append(
            f"{len(whole)} of {len(rows)} recorded iterations are drawn from, whole ones, 200 at most"
        )
    tail = workload.backward_ns - (workload.gradients[order[-1]].ready_ns or 0)
    made = []
    for row in np.maximum.accumulate(np.array(whole, dtype=np.int64), axis=1).tolist():
        times = dict(zip(order, row, strict=True))
        made.append(
            replace(
                workload,
                gradients=tuple(replace(g, ready_ns=times.get(g.index)) for g in workload.gradients),
                ready_order=order,
                backward_ns=row[-1] + tail,
                samples=(),
            )
        )
    return made
