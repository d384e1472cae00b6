"""How the ranks of one job differ: their pace, their interruptions, their work; and their files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.checks import Checked, Count, Positive, check
from sim.nouns.workload import Workload
from sim.units import format_number

SMALLEST_PACE, LARGEST_PACE = 1e-3, 1e3
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
