"""A step as a program: what the compute lane does, in order, and the collectives that it launches.

Every system writes programs (one file each), and both clocks play any program. What is decided by the order
of the gradients alone (which bucket is complete when, what may be launched where) is decided when the program
is written; what depends on time (channels, waits, slow-downs) is the clocks'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import takewhile, zip_longest
from math import ceil, prod
from statistics import median
from typing import NamedTuple

from sim.errors import InputError, NotModelledError
from sim.nouns.collective import Collective, EarlyLaunch
from sim.nouns.hardware import Curve, Hardware
from sim.nouns.workload import Workload
from sim.units import MIB, format_number

FULL_SPEED = 1 << 20  # of work that nothing slows down, in 2**-20 ns a ns
MOST_NS = 1 << 42  # of work in a step, 73 minutes: in 2**-20 ns it fits an int64
_MOST_SLOWED = 1 << 19  # times: what takes so much longer than ``MOST_NS`` fits an int64, too

# What the lane is at, and its items. The model's own work and the rest of a step, longer on a slower rank;
# what a system computes: around backward, in hooks, to fill a bucket; a launch, on the lane or beside it;
# standing still until a collective's result can be used; copying it back to the gradients. Marks, which take
# no time: a bucket is complete; backward begins, is over; gradients are synchronised. The lane may have
# nothing to do, or stand still for some time, which slows nothing and is not slowed down.
FORWARD, BACKWARD, OPTIMIZER, REST, AROUND, HOOK, COPY_IN, LAUNCH, WAIT, COPY_BACK = range(10)
READY, BACKWARD_BEGIN, BACKWARD_END, SYNC_END, IDLE, STALLED = range(10, 16)


class Item(NamedTuple):
    """One item of the lane. ``collective``: of a launch or a wait; ``bucket``: of a copy back or a mark."""

    kind: int
    duration_ns: int = 0
    collective: int = -1
    gradient: int | None = None
    bucket: int | None = None


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


class Machine(NamedTuple):
    """What the machine does to any program: channels, the cost of a launch in ns, and how fast work goes
    while the lane is ``idle`` (or stands still), ``computing``, ``copying_in`` and ``copying_out``.

    Collectives of fewer than ``small_bytes`` are small messages. The defaults are no effect. What is added
    here needs its value in ``machine_of``; ``in_force`` then keeps searches that do not know it away.
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
        return frozenset(name for name in self._fields if getattr(self, name) != self._field_defaults[name])


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


def machine_of(workload: Workload, hardware: Hardware, small_by: Hardware | None = None) -> Machine:
    """What ``hardware`` does, without what the recorded times of ``workload`` contain already; ``small_by``:
    whose curve says which messages are small, None: that of ``hardware``."""
    included = workload.ready_includes
    small_bytes, small = small_messages(small_by or hardware)
    channel = hardware.channel_slowdown if hardware.comm_channels > 1 else 1.0
    compute = 1.0 if "interference" in included else hardware.compute_slowdown

    def rates(comm: float, *lane: float) -> Rates:
        return Rates(rate_of(*lane), rate_of(comm), rate_of(comm, channel), rate_of(comm, small))

    return Machine(
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


# Small messages on channels that share one connection, as gloo's do: they wait, and slow nothing. Gloo cuts
# an all-reduce into segments, of which two are in flight in each of its two halves, and all channels send
# through the one connection that two ranks have. A small message that is sent beside a larger one waits
# behind those segments, in either half, and the larger one does not notice. On average 1.5 of the 2 in flight
# in each half are still to be sent; a message up to 4 MiB has 4.
_WAITED = Fraction(3, 4)
_MOST_WIRE = Fraction(1, 4)  # of a small message's time
_USUAL_BYTES = 2 * MIB  # of what a small message waits behind: a gradient of a layer


def small_messages(hardware: Hardware) -> tuple[int, float]:
    """From how many bytes on a message is not small, and how much longer a small one takes beside others.

    A message is small where less than a quarter of its time is the wire's, at the best rate of the all-reduce
    curve; 0 bytes and a factor of 1 where nothing is.
    """
    shares = hardware.shared_connection and hardware.comm_channels > 1 and hardware.world_size > 1
    return _by_curve(hardware.all_reduce if shares else ())


@lru_cache(maxsize=256)
def _by_curve(curve: Curve) -> tuple[int, float]:
    rates = [Fraction(point.duration_ns, point.num_bytes) for point in curve if point.num_bytes]
    edge = min(rates, default=Fraction(0)) / _MOST_WIRE  # ns a byte of a message that is just not small
    small = list(takewhile(lambda point: edge * point.num_bytes < point.duration_ns, curve))
    if not small or len(small) == len(curve):
        return 0, 1.0
    before, after = curve[len(small) - 1], curve[len(small)]
    slope = Fraction(after.duration_ns - before.duration_ns, after.num_bytes - before.num_bytes)
    num_bytes = ceil((before.duration_ns - slope * before.num_bytes) / (edge - slope))
    longest = max(_USUAL_BYTES, after.num_bytes)
    waits = _WAITED * [point.duration_ns for point in curve if point.num_bytes <= longest][-1]
    usual = median(point.duration_ns for point in small)
    return num_bytes, round(1 + float(waits) / usual, 4)


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

    ``collectives`` are in the order of their launches on the lane; those that follow another stand anywhere
    between. ``carriers``: of each bucket the collectives that carry it, none where it is not sent, several
    where they follow each other. ``around_for``: what is computed before backward, beside forward.
    ``early_launches``: buckets that are sent before all of their gradients are ready.
    """

    lane: tuple[Item, ...]
    collectives: tuple[Collective, ...]
    carriers: tuple[tuple[int, ...], ...]
    machine: Machine
    around_for: str = "parameters"
    early_launches: tuple[EarlyLaunch, ...] = ()
    notes: tuple[str, ...] = ()

    def check_length(self, whose: str) -> None:
        """Raise ``InputError`` if it is longer than can be played."""
        lane = sum([item.duration_ns for item in self.lane])
        launches = len(self.collectives) * self.machine.launch_cost_ns
        check_length(whose, lane + launches + sum(one.service_ns for one in self.collectives))

    @property
    def before(self) -> tuple[Collective, ...]:
        """What is launched before backward begins."""
        return tuple(one for one in self.collectives if one.phase in ("before forward", "forward"))

    @property
    def after(self) -> tuple[Collective, ...]:
        """What is launched once gradients are synchronised."""
        return tuple(one for one in self.collectives if one.phase == "step")

    @property
    def of_backward(self) -> slice:
        """The places of the collectives that are launched between."""
        return slice(len(self.before), len(self.collectives) - len(self.after))

    def place(self, mark: int, otherwise: int) -> int:
        """The place of an item that occurs once in the lane; ``otherwise`` where it does not."""
        return next((at for at, item in enumerate(self.lane) if item.kind == mark), otherwise)


def check_ranks(programs: Sequence[Program]) -> None:
    """Raise unless all launch the same collectives in one order, on machines alike.

    Raises:
        InputError: they send something else, or in another order; of collectives that follow others, whose
            order time alone decides, each is compared with the other rank's.
        NotModelledError: effects of the machine that are in the recorded times of some alone.
    """
    first = programs[0]
    for rank, program in enumerate(programs):
        if program is first:
            continue
        for place, (mine, theirs) in enumerate(zip_longest(_launched(first), _launched(program))):
            if mine != theirs:
                words = [
                    f"{one.kind} of {one.elements} {one.dtype}, bucket {one.bucket}" if one else "none"
                    for one in (theirs, mine)
                ]
                raise InputError(
                    f"rank {rank}: its collective {place} is {words[0]}, and {words[1]} on the first; give "
                    f"the same model under the same assignment"
                )
        if program.machine != first.machine:
            raise NotModelledError(
                f"rank {rank}: its times include other effects than the first rank's; make their "
                f"ready_includes alike"
            )


def _launched(program: Program) -> list[Collective]:
    """What travels, in the order of launches, those that follow others last: without phase and gradient, in
    which ranks may differ."""
    in_order = sorted(program.collectives, key=lambda one: one.after is not None)
    return [replace(one, phase="backward", gradient=None) for one in in_order]
