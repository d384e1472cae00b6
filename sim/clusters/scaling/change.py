"""Two neighbours of a series: the old best cap against the new one, and what the wire takes for each."""

from dataclasses import dataclass, replace
from functools import cached_property

from sim.clusters.scaling.cap_steps import Tuned
from sim.clusters.scaling.carried import Carried, shifted, with_curve
from sim.clusters.scaling.wire import bucket_ns, bucket_sizes, wire_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Curve
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.tuner.search.as_searched import Searched
from sim.tuner.spread.gain import NOTHING
from sim.units import format_ms, format_number, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One machine, its best cap in MiB with that cap's step, and whether all caps are within 0.1 % of it."""

    carried: Carried
    best_mb: float
    best_ns: int
    all_are_alike: bool

    @property
    def gpus(self) -> str:
        """The machine in words: its number of GPUs."""
        ranks = self.carried.hardware.world_size
        return f"{ranks} GPU{'s' if ranks > 1 else ''}"

    @property
    def curve(self) -> Curve:
        """The all-reduce curve of the machine."""
        return self.carried.hardware.all_reduce


def side_of(tuned: Tuned, carried: Carried) -> Side:
    """What is kept of a machine's caps for its neighbours."""
    return Side(
        carried=replace(carried, hardware=tuned.scorer.problem.hardware),
        best_mb=tuned.best_mb,
        best_ns=tuned.best_ns,
        all_are_alike=tuned.all_are_alike,
    )


class BestCapChange:
    """The old best cap against the new one on the new machine.

    ``old_sizes``, ``new_sizes``: bytes on the wire of the buckets of each. ``old_wire_ns``, ``new_wire_ns``:
    what the wire takes for them, before and after.
    """

    def __init__(self, workload: Workload, before: Side, after: Side) -> None:
        self.workload, self.before, self.after = workload, before, after
        self.old, self.new = (assign(workload, bucket_cap_mb=side.best_mb) for side in (before, after))
        self.old_sizes, self.new_sizes = (bucket_sizes(workload, made) for made in (self.old, self.new))
        curves = before.curve, after.curve
        self.old_wire_ns, self.new_wire_ns = (
            (wire_ns(curves[0], sizes), wire_ns(curves[1], sizes))
            for sizes in (self.old_sizes, self.new_sizes)
        )

    @cached_property
    def bucket_ns(self) -> tuple[int, int] | None:
        """What the wire takes for one bucket more with the bytes the same, before and after.

        It is told by the buckets of the two caps, or, if both make as many, by those of the old cap against
        one bucket of all bytes. None if NCCL sends some of them by another method than the rest, or if the
        curve bends between them.
        """
        sizes = {*self.old_sizes, *self.new_sizes}
        if any(len(set(map(side.carried.method, sizes))) > 1 for side in (self.before, self.after)):
            return None
        same_count = len(self.new_sizes) == len(self.old_sizes)
        others = [sum(self.old_sizes)] if same_count else self.new_sizes
        was, now = (
            bucket_ns(side.curve, self.old_sizes, others, min(sizes)) for side in (self.before, self.after)
        )
        return None if was is None or now is None else (was, now)

    @cached_property
    def halves(self) -> tuple[int, int] | None:
        """What the old cap loses on two machines in between: the old one with the new cost of a bucket, and
        the new one with the old cost. None where no cost of a bucket is known."""
        if self.bucket_ns is None:
            return None
        was, now = self.bucket_ns
        return (
            self.lost_ns(shifted(self.before.curve, now - was)),
            self.lost_ns(shifted(self.after.curve, was - now)),
        )

    @cached_property
    def lost_before_ns(self) -> int:
        """What the old cap loses on the new machine with the all-reduces of the old one."""
        return self.lost_ns(self.before.curve)

    def lost_ns(self, curve: Curve) -> int:
        """By how much the old cap's step is longer than the new one's, on the new machine with this curve."""
        asked = Searched(self.workload, with_curve(self.after.carried.hardware, curve))
        ends = [asked.scorer.sync_end_ns(made.bucket_indices) for made in (self.old, self.new)]
        return asked.times * (ends[0] - ends[1])

    def matters(self, lost_ns: int) -> bool:
        """Whether so much is more than 0.1 % of the new machine's best step."""
        return lost_ns > NOTHING * self.after.best_ns

    def timeline(self, side: Side, made: Assignment) -> Timeline:
        """The step on a machine under one of the two assignments."""
        return simulate(self.workload, side.carried.hardware, made, "analytic")

    @property
    def opening(self) -> str:
        """The beginning of a sentence: by how much the old cap's step is longer on the new machine."""
        lost = self.lost_ns(self.after.curve)
        old, new = len(self.old_sizes), len(self.new_sizes)
        counts = f"{buckets(old)} instead of {new}" if old != new else f"both make {buckets(old)}"
        return (
            f"at {self.after.gpus} bucket_cap_mb={format_number(self.before.best_mb, 6)}, the best at "
            f"{self.before.gpus}, "
            f"would take {format_ms(lost)} ({format_percent(lost / self.after.best_ns)}) longer than "
            f"{format_number(self.after.best_mb, 6)} ({counts})"
        )

    @property
    def old_buckets(self) -> str:
        """The old cap's buckets, counted, with what they take on the wire."""
        was, now = self.old_wire_ns
        return (
            f"{_taken(len(self.old_sizes))} {format_ms(now)} on the wire ({format_ms(was)} at "
            f"{self.before.gpus})"
        )

    @property
    def all_buckets(self) -> str:
        """The buckets of both caps, counted, with what they take on the wire."""
        was, now = zip(self.old_wire_ns, self.new_wire_ns, strict=True)
        new = f"the {buckets(len(self.new_sizes))} of {format_number(self.after.best_mb, 6)}"
        return (
            f"{_taken(len(self.old_sizes))} {format_ms(now[0])} on the wire, {new} {format_ms(now[1])} "
            f"({format_ms(was[0])} and {format_ms(was[1])} at {self.before.gpus})"
        )


def buckets(count: int) -> str:
    """So many buckets, in words."""
    return f"{count} bucket{'' if count == 1 else 's'}"


def _taken(count: int) -> str:
    return f"its {buckets(count)} take{'s' if count == 1 else ''}"
