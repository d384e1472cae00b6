"""A step as a program: what the compute lane does, in order, and the collectives that it launches.

Every system writes programs (one file each), and both engines play any program. What is decided by the order
of the gradients alone (which bucket is complete when, what may be launched where) is decided when the program
is written; what depends on time (channels, waits, slow-downs) is the engines'.
"""

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import NamedTuple

from sim.clock.small_messages import small_messages
from sim.nouns.collective import Collective
from sim.nouns.early_launch import EarlyLaunch
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import SpanKind
from sim.nouns.workload import Workload


class Work(NamedTuple):
    """The lane is busy for ``duration_ns``."""

    kind: SpanKind
    duration_ns: int
    gradient: int | None = None
    bucket: int | None = None


class Ready(NamedTuple):
    """From here on the bucket is complete: nothing that it holds is missing."""

    bucket: int


class Launch(NamedTuple):
    """The lane has come to where the collective is launched: on the lane, or beside it."""

    collective: int


class Wait(NamedTuple):
    """The lane stands still until the collective's result can be used."""

    collective: int


class CopyBack(NamedTuple):
    """The lane copies a bucket's result back to its gradients, which are available then."""

    bucket: int
    duration_ns: int


class BackwardEnd(NamedTuple):
    """Backward is over: what follows is waiting and copying back, or what a system does after backward."""


LaneItem = Work | Ready | Launch | Wait | CopyBack | BackwardEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the machine does to any program: channels, the cost of a launch in ns, and slow-downs.

    Collectives of fewer than ``small_bytes`` take ``small_slowdown`` times as long beside a larger one, which
    they do not slow.

    The defaults are no effect. A field added here needs its value in ``effects_of``, and in
    ``variants.factors_of`` for the compiled clock; ``in_force`` then keeps faster clocks and searches that do
    not know it away.
    """

    channels: int = 1
    launch_cost_ns: int = 0
    launch_blocks_compute: bool = False
    compute_slowdown: Fraction = Fraction(1)
    comm_slowdown: Fraction = Fraction(1)
    channel_slowdown: Fraction = Fraction(1)
    copy_in_slowdown: Fraction = Fraction(1)
    copy_out_slowdown: Fraction = Fraction(1)
    comm_copy_out_slowdown: Fraction = Fraction(1)
    small_bytes: int = 0
    small_slowdown: Fraction = Fraction(1)

    @property
    def in_force(self) -> frozenset[str]:
        """Names of the fields that can make any program end at another time than without effects."""
        names = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        if self.channels == 1:
            names -= {"channel_slowdown", "small_bytes", "small_slowdown"}
        if not self.launch_cost_ns:
            names.discard("launch_blocks_compute")
        return frozenset(names)

    @property
    def stretches(self) -> bool:
        """Whether any slow-down is in force."""
        return any(name.endswith("_slowdown") for name in self.in_force)


def effects_of(workload: Workload, hardware: Hardware) -> Effects:
    """What ``hardware`` does, without what the recorded times of ``workload`` contain already."""
    included = workload.ready_includes
    small_bytes, small_slowdown = small_messages(hardware)
    return Effects(
        channels=hardware.comm_channels,
        launch_cost_ns=hardware.launch_cost_ns,
        launch_blocks_compute=hardware.launch_blocks_compute and "launch" not in included,
        compute_slowdown=Fraction(1) if "interference" in included else Fraction(hardware.compute_slowdown),
        comm_slowdown=Fraction(hardware.comm_slowdown),
        channel_slowdown=Fraction(hardware.channel_slowdown),
        copy_in_slowdown=Fraction(hardware.copy_in_slowdown),
        copy_out_slowdown=Fraction(hardware.copy_out_slowdown),
        comm_copy_out_slowdown=Fraction(hardware.comm_copy_out_slowdown),
        small_bytes=small_bytes,
        small_slowdown=Fraction(small_slowdown),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One micro-batch, from before its forward to the end of what follows its backward; times in ns.

    ``lane`` starts with backward. ``carriers`` holds, for each bucket, the collectives that carry it: none
    where it is not sent, several where they follow each other. ``before_forward`` and ``after_sync`` are
    blocking collectives, one after the other; ``before_forward_ns`` (for ``before_forward_for``) and
    ``after_sync_ns`` what else is done there. ``hidden_ns`` is how much of ``before_forward`` runs beside
    forward. ``optimizer_ns`` is the optimizer's step, 0 in a micro-batch that has none. ``early_launches``
    are buckets that are sent before all of their gradients are ready.
    """

    lane: tuple[LaneItem, ...]
    collectives: tuple[Collective, ...]
    carriers: tuple[tuple[int, ...], ...]
    effects: Effects
    before_forward: tuple[Collective, ...] = ()
    before_forward_ns: int = 0
    before_forward_for: str = "parameters"
    hidden_ns: int = 0
    after_sync: tuple[Collective, ...] = ()
    after_sync_ns: int = 0
    optimizer_ns: int = 0
    early_launches: tuple[EarlyLaunch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pre_forward_ns(self) -> int:
        """All that a system does before the module's forward, or adds to it."""
        gathered = sum(collective.service_ns for collective in self.before_forward) - self.hidden_ns
        return self.before_forward_ns + gathered

    @property
    def before_forward_parts(self) -> tuple[tuple[str, int], ...]:
        """``pre_forward_ns`` by what it is for."""
        parts: dict[str, int] = {}
        for collective in self.before_forward:
            parts[collective.purpose] = parts.get(collective.purpose, 0) + collective.service_ns
        parts["parameters"] = parts.get("parameters", 0) - self.hidden_ns
        parts[self.before_forward_for] = parts.get(self.before_forward_for, 0) + self.before_forward_ns
        return tuple((what, took) for what, took in parts.items() if took)

    @property
    def post_sync_ns(self) -> int:
        """All that a system does once gradients are available, apart from the optimizer's step."""
        return self.after_sync_ns + sum(collective.service_ns for collective in self.after_sync)


def works(workload: Workload) -> list[tuple[int, int]]:
    """Backward cut at its gradients: (gradient, its own work in ns), in ready order; the tail is left out."""
    cut, before = [], 0
    for index in workload.order():
        ready = workload.gradients[index].ready_ns
        assert ready is not None
        cut.append((index, ready - before))
        before = ready
    return cut


def tail_ns(workload: Workload) -> int:
    """Backward's work after the last gradient."""
    order = workload.order()
    return workload.backward_ns - ((workload.gradients[order[-1]].ready_ns or 0) if order else 0)
