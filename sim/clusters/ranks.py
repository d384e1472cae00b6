"""How the ranks of one job differ: their pace, interruptions and work, and what is drawn for each of them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from sim.clock.arrays import Floats, Ints
from sim.errors import InputError
from sim.formats import documents
from sim.nouns.checks import Checked, Count, Positive, check
from sim.nouns.workload import Workload
from sim.units import format_number

SMALLEST_PACE, LARGEST_PACE = 1e-3, 1e3
MOST_RECORDED = 200  # iterations of a workload that are drawn from
NO_ITERATIONS = "how a rank's iterations vary: no recorded iterations, and no pace_jitter"
NO_FORWARD = "how forward and optimizer vary: only backward was recorded"
NOT_TOGETHER = "whether ranks' iterations vary together: each rank draws from the recorded ones by itself"
Sigma = Annotated[float, Ge(0), Le(2)]  # of a lognormal factor: at 2, one rank in 40 is 50 times as slow


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks(Checked):
    """Ranks ``first`` to ``first + count - 1``, all of whose compute takes ``pace`` times as long."""

    first: Count
    count: Positive = 1
    pace: Annotated[float, Ge(SMALLEST_PACE), Le(LARGEST_PACE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks ``first`` to ``first + count - 1`` run the same model at the times of another ``workload``.

    ``workload`` is what that one is called: in a file of ranks its file, as seen from that file's directory.
    """

    first: Count
    count: Positive = 1
    workload: str

    def __post_init__(self) -> None:
        check(self)
        if not self.workload:
            raise InputError("workload: an empty name is not legal; name another workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How the ranks of a job differ from each other and from step to step.

    A pace is a factor on all that a rank computes in a step: forward, loss, backward and optimizer, not
    copies, hooks or launches. ``pace_jitter`` is the sigma of a lognormal factor of mean 1 drawn for each
    rank and step, ``pace_spread`` that of one drawn once for each rank (the GPU lottery). ``slow`` ranks are
    known to be slow; where such ranges overlap, paces multiply, to a factor within the same limits.
    ``groups`` run other workloads, and do not overlap. With ``stall_probability``, in each step, a rank
    stands still for ``stall_ns`` somewhere in its backward: its lane is idle, so that nothing stretches the
    stall and it stretches nothing.
    """

    KIND: ClassVar[str] = "ranks"
    name: str
    pace_jitter: Sigma = 0.0
    pace_spread: Sigma = 0.0
    slow: tuple[SlowRanks, ...] = ()
    groups: tuple[RankGroup, ...] = ()
    stall_probability: Annotated[float, Ge(0), Le(1)] = 0.0
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
        for before, after in pairwise(sorted(self.groups, key=lambda group: group.first)):
            if after.first < before.first + before.count:
                raise InputError(f"groups: rank {after.first} is in two groups; it runs one workload")

    def check_fits(self, world_size: int) -> None:
        """Raise ``InputError`` where a range goes beyond the ranks that there are."""
        parts: tuple[tuple[str, Sequence[SlowRanks | RankGroup]], ...] = (
            ("slow", self.slow),
            ("groups", self.groups),
        )
        for name, ranges in parts:
            for number, one in enumerate(ranges):
                if one.first + one.count > world_size:
                    raise InputError(
                        f"{name}.{number}: ranks {one.first} to {one.first + one.count - 1} are not legal; "
                        f"the hardware has world_size {world_size}, ranks 0 to {world_size - 1}"
                    )


def load_ranks(path: str | os.PathLike[str]) -> Ranks:
    """A Ranks from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Ranks)


def load_groups(path: str | os.PathLike[str], ranks: Ranks) -> dict[str, Workload]:
    """The workloads that the groups of ``ranks`` name, as files seen from the directory of its file ``path``.

    Raises ``InputError`` as any loading of a Workload, after the file of ranks and the field.
    """
    loaded: dict[str, Workload] = {}
    for number, group in enumerate(ranks.groups):
        if group.workload not in loaded:
            try:
                loaded[group.workload] = documents.load(Path(path).parent / group.workload, Workload)
            except InputError as error:
                raise InputError(f"{path}: groups.{number}.workload: {error}") from error
    return loaded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """The ranks of a job.

    ``variants``: the workloads that ranks may run in a step. Those of group g begin at ``starts[g]`` and are
    ``counts[g]``, one for each recorded iteration. ``groups`` [ranks]: each rank's group. ``paces`` [ranks]:
    the factor on what each rank computes, as far as ``ranks`` names it.
    """

    ranks: Ranks
    variants: tuple[Workload, ...]
    starts: Ints
    counts: Ints
    groups: Ints
    paces: Floats
    not_known: tuple[str, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.groups.size


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


def make_crew(workload: Workload, world_size: int, ranks: Ranks, others: Mapping[str, Workload]) -> Crew:
    """The crew of a job of ``world_size`` ranks; ``others`` are the workloads that ``ranks.groups`` name.

    Raises:
        InputError: ``ranks`` names a rank or a workload that does not exist, or a workload of another model;
            or the paces of a rank have a product that is not legal.
    """
    ranks.check_fits(world_size)
    groups, paces = np.zeros(world_size, np.int64), np.ones(world_size)
    kinds = [workload]
    for number, group in enumerate(ranks.groups):
        if group.workload not in others:
            raise InputError(
                f"groups.{number}.workload: {group.workload!r} is not given; "
                f"there are {', '.join(map(repr, others)) or 'none'}"
            )
        other = others[group.workload]
        _check_same_model(workload, other, f"groups.{number}.workload")
        groups[group.first : group.first + group.count] = len(kinds)
        kinds.append(other)
    for slow in ranks.slow:
        paces[slow.first : slow.first + slow.count] *= slow.pace
    beyond = np.flatnonzero((paces < SMALLEST_PACE) | (paces > LARGEST_PACE))
    if beyond.size:
        raise InputError(
            f"slow: the paces of rank {beyond[0]} make {format_number(paces[beyond[0]], 6)} together; give "
            f"factors whose "
            f"product is {format_number(SMALLEST_PACE, 6)} to {format_number(LARGEST_PACE, 6)}"
        )
    notes: list[str] = []
    rows = [_recorded(kind, notes) for kind in kinds]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    used = counts[np.unique(groups)]
    if ranks.pace_jitter and (used > 1).any():
        notes.append("recorded iterations are drawn, and pace_jitter comes on top of what they vary")
    if (used > 1).any():
        notes.append(f"intervals leave out that no more than {used[used > 1].min()} iterations were recorded")
    return Crew(
        ranks=ranks,
        variants=tuple(variant for row in rows for variant in row),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        groups=groups,
        paces=paces,
        not_known=_not_known(ranks, used.tolist(), world_size),
        notes=tuple(notes),
    )


def _not_known(ranks: Ranks, recorded: Sequence[int], world_size: int) -> tuple[str, ...]:
    """Sentences on what does not vary as it was not recorded; ``recorded``: iterations of each workload."""
    drawn = [count for count in recorded if count > 1]
    unknown = []
    if not ranks.pace_jitter:
        if len(drawn) < len(recorded):
            unknown.append(NO_ITERATIONS)
        if drawn:
            unknown.append(NO_FORWARD)
    if drawn and world_size > 1:
        unknown.append(NOT_TOGETHER)
    if drawn and not ranks.pace_jitter and world_size > min(drawn):
        unknown.append(
            f"iterations rarer than 1 in {min(drawn)}, as many as were recorded: of {world_size:,} ranks one "
            f"may have one in most steps"
        )
    return tuple(unknown)


def _check_same_model(workload: Workload, other: Workload, field: str) -> None:
    """Raise ``InputError`` if the gradients differ in number, size or dtype."""
    mine = [(one.num_bytes, one.dtype) for one in workload.gradients]
    theirs = [(one.num_bytes, one.dtype) for one in other.gradients]
    if mine != theirs:
        raise InputError(
            f"{field}: {other.name!r} has other gradients than {workload.name!r}; all ranks train one model"
        )


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
    if len(whole) < len(rows):
        notes.append(
            f"{workload.name}: {len(rows) - len(whole)} of {len(rows)} recorded iterations left out: "
            f"a gradient missed"
        )
    if len(whole) > MOST_RECORDED:
        notes.append(f"{workload.name}: {MOST_RECORDED} of {len(whole)} recorded iterations are drawn from")
        kept = np.linspace(0, len(whole) - 1, MOST_RECORDED).round().astype(int).tolist()
        whole = [whole[k] for k in kept]
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


class Dice:
    """What one job draws: a pace for each rank once, and the rest anew in each step.

    All assignments with as many ``micro_batches`` meet the same draws. In each micro-batch a rank draws one
    of its recorded iterations.
    """

    def __init__(self, crew: Crew, seed: np.random.SeedSequence, micro_batches: int) -> None:
        self.crew, self._micro_batches = crew, micro_batches
        spreading, *rest = (np.random.default_rng(child) for child in seed.spawn(4))
        self._pacing, self._choosing, self._stalling = rest
        self.spread = crew.paces * _lognormal(crew.ranks.pace_spread, len(crew), spreading)

    def step(self) -> Brought:
        """Draw the next step."""
        crew, ranks, count = self.crew, self.crew.ranks, len(self.crew)
        variants = np.tile(crew.starts[crew.groups], (self._micro_batches, 1))
        if len(crew.variants) > len(crew.starts):
            share = self._choosing.random(variants.shape)
            variants = variants + np.floor(share * crew.counts[crew.groups]).astype(np.int64)
        stalled, where = np.empty(0, np.int64), np.empty(0)
        if ranks.stall_probability:
            stalled = np.flatnonzero(self._stalling.random(count) < ranks.stall_probability)
            where = self._stalling.random(count)[stalled]
        return Brought(
            variants=variants,
            paces=self.spread * _lognormal(ranks.pace_jitter, count, self._pacing),
            stalled=stalled,
            where=where,
        )


def _lognormal(sigma: float, count: int, generator: np.random.Generator) -> Floats:
    """``count`` lognormal factors of mean 1; ``sigma`` is the standard deviation of their logarithm."""
    if not sigma:
        return np.ones(count)
    return np.exp(sigma * generator.standard_normal(count) - sigma * sigma / 2)
