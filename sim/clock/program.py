"""A step as a program: what the compute lane does, in order, and the collectives that it launches.

Every system writes programs (one file each), and both engines play any program. What is decided by the order
of the gradients alone (which bucket is complete when, what may be launched where) is decided when the program
is written; what depends on time (channels, waits, slow-downs) is the engines'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import NamedTuple

from sim.clock.small_messages import small_messages
from sim.errors import InputError
from sim.nouns.collective import Collective
from sim.nouns.early_launch import EarlyLaunch
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import SpanKind
from sim.nouns.workload import Workload
from sim.units import format_number

FULL_SPEED = 1 << 20  # of work that nothing slows down, in 2**-20 ns a ns
MOST_NS = 1 << 42  # of work in a step, 73 minutes: in 2**-20 ns it fits an int64
_MOST_SLOWED = 1 << 19  # times: what takes so much longer than ``MOST_NS`` fits an int64, too


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


class Rates(NamedTuple):
    """How fast work goes while the lane is at one thing, each in 2**-20ths of full speed.

    ``lane``: the lane's own, beside a collective. Of collectives ``alone``: one beside no other; ``shared``:
    beside another; ``small``: a small message beside a larger one.
    """

    lane: int = FULL_SPEED
    alone: int = FULL_SPEED
    shared: int = FULL_SPEED
    small: int = FULL_SPEED


_FULL = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the machine does to any program: channels, the cost of a launch in ns, and how fast work goes
    while the lane is ``idle``, ``computing``, ``copying_in`` and ``copying_out``.

    Collectives of fewer than ``small_bytes`` are small messages. The defaults are no effect. What is added
    here needs its value in ``effects_of``, and in ``variants.machine_of`` for the compiled clock;
    ``in_force`` then keeps faster clocks and searches that do not know it away.
    """

    channels: int = 1
    launch_cost_ns: int = 0
    launch_blocks_compute: bool = False
    idle: Rates = _FULL
    computing: Rates = _FULL
    copying_in: Rates = _FULL
    copying_out: Rates = _FULL
    small_bytes: int = 0

    @property
    def in_force(self) -> frozenset[str]:
        """Names of the fields that can make any program end at another time than without effects."""
        return frozenset(one.name for one in fields(self) if getattr(self, one.name) != one.default)

    @property
    def stretches(self) -> bool:
        """Whether any work can be slowed down."""
        return bool(self.in_force & {"idle", "computing", "copying_in", "copying_out"})


@lru_cache(maxsize=1024)
def rate_of(*slow_downs: float) -> int:
    """The rate of work that takes the product of ``slow_downs`` as long: full speed over it, half to even.

    Raises:
        InputError: together they are more than can be counted with.
    """
    slowed = prod(map(Fraction, slow_downs), start=Fraction(1))
    if slowed > _MOST_SLOWED:
        raise InputError(
            f"slow-downs: {format_number(float(slowed))} times as long is not legal; give factors whose "
            f"product is at most {_MOST_SLOWED}"
        )
    return round(FULL_SPEED / slowed)


def effects_of(workload: Workload, hardware: Hardware, small_by: Hardware | None = None) -> Effects:
    """What ``hardware`` does, without what the recorded times of ``workload`` contain already.

    ``small_by``: whose curve says which messages are small; None: that of ``hardware``.
    """
    included = workload.ready_includes
    small_bytes, small = small_messages(small_by or hardware)
    channel = hardware.channel_slowdown if hardware.comm_channels > 1 else 1.0
    compute = 1.0 if "interference" in included else hardware.compute_slowdown

    def rates(comm: float, *lane: float) -> Rates:
        return Rates(rate_of(*lane), rate_of(comm), rate_of(comm, channel), rate_of(comm, small))

    return Effects(
        channels=hardware.comm_channels,
        launch_cost_ns=hardware.launch_cost_ns,
        launch_blocks_compute=hardware.launch_blocks_compute
        and hardware.launch_cost_ns > 0
        and "launch" not in included,
        idle=rates(1.0),
        computing=rates(hardware.comm_slowdown, compute),
        copying_in=rates(hardware.comm_slowdown, compute, hardware.copy_in_slowdown),
        copying_out=rates(hardware.comm_copy_out_slowdown, hardware.copy_out_slowdown),
        small_bytes=small_bytes,
    )


def check_length(whose: str, work_ns: float) -> None:
    """Raise ``InputError`` if a step of so much work is more than the clocks count with."""
    if work_ns > MOST_NS:
        raise InputError(
            f"{whose}: a step could take {format_number(float(work_ns))} ns, more than can be counted with, "
            f"{MOST_NS} (73 minutes); look at the recorded times, all_reduce, launch_cost_ns and the "
            f"bandwidths of copies"
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

    def check_length(self, whose: str, services_ns: Sequence[int] | None = None) -> None:
        """Raise ``InputError`` if it is longer than can be played, where its collectives take so long."""
        lane = sum(item.duration_ns for item in self.lane if isinstance(item, (Work, CopyBack)))
        launches = len(self.collectives) * self.effects.launch_cost_ns
        sent = [one.service_ns for one in self.collectives] if services_ns is None else services_ns
        check_length(whose, lane + launches + sum(sent))

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
