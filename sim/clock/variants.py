"""The programs that ranks run, as arrays: one micro-batch of a step, as each kind of rank runs it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.likeness import check_alike
from sim.clock.program import CopyBack, Effects, LaneItem, Launch, Program, Wait, Work
from sim.clock.sheet import (
    BACKWARD,
    COPY_BACK,
    COPY_IN,
    IDLE,
    LAUNCH,
    MOST_NS,
    OTHER_WORK,
    STALLED,
    WAIT,
    Factors,
    Sequels,
    Sheet,
)
from sim.errors import NotModelledError
from sim.nouns.workload import Workload

# Fields of ``Effects`` that ``plain`` plays.
_KNOWN_TO_PLAIN = frozenset({"channels", "launch_cost_ns", "launch_blocks_compute"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lanes:
    """One micro-batch as each *variant* runs it: the ranks that have a workload and an iteration in common.

    ``sheet``: of each item of the lane that takes time or waits, what it is; one row of services. ``tails``
    [variants]: the first item that waits. ``until_ns`` [variants, items]: the running sum of backward's work
    at pace 1. ``paced_before_ns`` and ``paced_after_ns`` [variants]: what comes before backward and after
    synchronisation and follows a rank's pace; ``before_ns`` and ``after_ns``: what does not. ``order``: the
    program's number of each collective, in the order of launches, chained ones last.
    """

    programs: tuple[Program, ...]
    sheet: Sheet
    tails: Ints
    until_ns: Ints
    paced_before_ns: Ints
    before_ns: Ints
    paced_after_ns: Ints
    after_ns: Ints
    order: tuple[int, ...]
    is_compiled: bool
    is_plain: bool

    @property
    def services_ns(self) -> Ints:
        """Of each collective, in ``order``."""
        row: Ints = self.sheet.services[0]
        return row

    def with_services(self, services_ns: Ints) -> "Lanes":
        """The same with other service times, in ``order``."""
        return replace(self, sheet=self.sheet._replace(services=services_ns[None, :]))

    @property
    def longest_ns(self) -> float:
        """More than any rank's micro-batch can take at pace 1."""
        factors = self.sheet.factors
        launches = self.sheet.kinds.shape[1] * factors.launch_cost_ns
        slow = factors.compute * factors.copy_in * factors.copy_out
        busy = float(self.sheet.durations.sum(axis=1).max()) + launches
        beside = factors.comm * factors.comm_copy_out * max(factors.channel, factors.small)
        sent = float(self.services_ns.sum()) * beside
        around = self.paced_before_ns + self.before_ns + self.paced_after_ns + self.after_ns
        return float(busy * slow + sent + around.max())


def timed_items(program: Program) -> list[int]:
    """Places of the lane's items that take or wait for time."""
    return [
        place
        for place, item in enumerate(program.lane)
        if isinstance(item, (Launch, Wait, CopyBack)) or (isinstance(item, Work) and item.duration_ns)
    ]


def make_lanes(workloads: Sequence[Workload], programs: Sequence[Program], micro_batch: int) -> Lanes:
    """The arrays of one micro-batch; ``programs`` are those of ``workloads``, variant by variant.

    Raises:
        InputError: variants that do not launch the same collectives.
        NotModelledError: variants whose times contain different effects of the machine.
    """
    first = programs[0]
    for number, program in enumerate(programs):
        if program is not first:
            check_alike(first, program, micro_batch, workloads[number].name)
        if program.effects != first.effects:
            raise NotModelledError(
                f"groups: the times of {workloads[number].name!r} include other effects than those of "
                f"{workloads[0].name!r}; make their ready_includes alike"
            )
    order = launch_order(first)
    services = _ints([first.collectives[number].service_ns for number in order])[None, :]
    sheet = make_sheet(programs, order, services)
    kinds, durations = sheet.kinds, sheet.durations
    width = kinds.shape[1]
    is_wait = (kinds == WAIT) | (kinds == COPY_BACK)
    tails = np.where(is_wait.any(axis=1), is_wait.argmax(axis=1), width)
    after_first_wait = np.arange(width)[None, :] >= tails[:, None]
    own = [workload.forward_ns + workload.loss_ns for workload in workloads]
    waits_last = not ((kinds == LAUNCH) & after_first_wait).any()
    return Lanes(
        programs=tuple(programs),
        sheet=sheet,
        tails=tails.astype(np.int64),
        until_ns=np.where(kinds == BACKWARD, durations, 0).cumsum(axis=1),
        paced_before_ns=_ints(own),
        before_ns=_ints([program.pre_forward_ns for program in programs]),
        paced_after_ns=_ints([program.optimizer_ns for program in programs]),
        after_ns=_ints([program.post_sync_ns for program in programs]),
        order=order,
        is_compiled=not follows(first),
        is_plain=bool(waits_last)
        and first.effects.in_force <= _KNOWN_TO_PLAIN
        and not sheet.sequels.settles.size,
    )


def make_sheet(
    programs: Sequence[Program], order: Sequence[int], services_ns: Ints, *, whole: bool = False
) -> Sheet:
    """What the clock plays: ``programs`` as variants, ``services_ns`` [rows, collectives] in ``order``."""
    effects = programs[0].effects
    arrays = encode(programs, order, whole=whole)
    sequels = sequels_of(programs[0], order)
    collectives = programs[0].collectives
    small = _ints([collectives[number].num_bytes < effects.small_bytes for number in order])
    return Sheet(factors_of(effects), grains_of(effects), *arrays, services_ns, small, sequels)


def follows(program: Program) -> bool:
    """Whether any collective follows another, so that time alone orders them."""
    return any(one.after is not None for one in program.collectives)


def launch_order(program: Program) -> tuple[int, ...]:
    """Collectives in the order of their launches, those that follow others last."""
    launched = [item.collective for item in program.lane if isinstance(item, Launch)]
    return (*launched, *(number for number, one in enumerate(program.collectives) if one.after is not None))


def encode(
    programs: Sequence[Program], order: Sequence[int], *, whole: bool = False
) -> tuple[Ints, Ints, Ints]:
    """The lanes' items [programs, items]: what, for how many ns, and of a launch or wait the place of its
    collective in ``order``; filled up with work of no length. ``whole``: also those that neither take nor
    wait for time.
    """
    place = {number: k for k, number in enumerate(order)}
    rows = [
        [
            _item(program.lane[at], place)
            for at in (range(len(program.lane)) if whole else timed_items(program))
        ]
        for program in programs
    ]
    width = max(1, *(len(row) for row in rows))
    table = np.array([row + [(OTHER_WORK, 0, 0)] * (width - len(row)) for row in rows], dtype=np.int64)
    kinds, durations, numbers = (table[:, :, column].copy() for column in range(3))
    return kinds, durations, numbers


def sequels_of(program: Program, order: Sequence[int]) -> Sequels:
    """What happens after each collective, in ``order``."""
    ordered = [program.collectives[number] for number in order]
    none = _ints([])
    settles, holds, first, after = none, none, none, none
    if follows(program) or any(one.settle_ns for one in ordered):
        settles = _ints([one.settle_ns for one in ordered])
        holds = _ints([one.settle_ns > 0 and one.holds_channel for one in ordered])
    if follows(program):
        place = {number: k for k, number in enumerate(order)}
        first, after = np.full((2, len(order)), -1)
        for k in reversed(range(len(order))):  # so that the first that follows comes first
            if (behind := ordered[k].after) is not None:
                first[place[behind]], after[k] = k, first[place[behind]]
    return Sequels(settles, holds, first, after)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _item(item: LaneItem, place: dict[int, int]) -> tuple[int, int, int]:
    if isinstance(item, Work):
        kind = {"backward": BACKWARD, "copy_in": COPY_IN}.get(item.kind, OTHER_WORK)
        return kind, item.duration_ns, 0
    if isinstance(item, Launch):
        return LAUNCH, 0, place[item.collective]
    if isinstance(item, Wait):
        return WAIT, 0, place[item.collective]
    if isinstance(item, CopyBack):
        return COPY_BACK, item.duration_ns, 0
    return OTHER_WORK, 0, 0


@lru_cache(maxsize=256)
def grains_of(effects: Effects) -> Floats:
    """The least distance between the end of stretched work and a half of a ns, other than none at all.

    There is one entry for each kind of work on the lane; the entry ``IDLE`` holds for collectives. Where a
    float is off by less than this distance, it tells on which side of the half the exact end lies.

    Slow-downs are fractions p/q. Remaining work is then a multiple of 1/D, where D is the least common
    multiple of all p, and a duration is a multiple of 1/(D * q). So the distance of a duration from a half is
    a multiple of 1/(2 * D * q).
    """
    channels = (Fraction(1), effects.channel_slowdown, effects.small_slowdown)
    beside = (Fraction(1), effects.comm_slowdown, effects.comm_copy_out_slowdown)
    if not effects.stretches:
        return np.zeros(STALLED + 1)
    made = np.full(STALLED + 1, _grain([effects.compute_slowdown]))
    made[COPY_IN] = _grain([effects.compute_slowdown * effects.copy_in_slowdown])
    made[COPY_BACK] = _grain([effects.copy_out_slowdown])
    made[IDLE] = _grain([one * other for one in beside for other in channels])
    return made


def _grain(factors: Sequence[Fraction]) -> float:
    units = math.lcm(*(factor.numerator for factor in factors))
    return float(Fraction(1, 2 * units * math.lcm(*(factor.denominator for factor in factors))))


def factors_of(effects: Effects) -> Factors:
    """``effects`` as the clock reads them; the one place where ``Factors`` are made."""
    return Factors(
        channels=effects.channels,
        launch_cost_ns=effects.launch_cost_ns,
        blocks=effects.launch_blocks_compute,
        compute=float(effects.compute_slowdown),
        comm=float(effects.comm_slowdown),
        channel=float(effects.channel_slowdown),
        copy_in=float(effects.copy_in_slowdown),
        copy_out=float(effects.copy_out_slowdown),
        comm_copy_out=float(effects.comm_copy_out_slowdown),
        small=float(effects.small_slowdown),
    )


def too_long(program: Program, services_ns: Sequence[int]) -> bool:
    """Whether a step may take more than 2**50 ns (13 days), beyond which floats are not exact."""
    lane = sum(item.duration_ns for item in program.lane if isinstance(item, (Work, CopyBack)))
    launches = len(program.collectives) * program.effects.launch_cost_ns
    return lane + launches + sum(services_ns) > MOST_NS


def as_run(lanes: Lanes, variant: int, pace: float) -> Program:
    """The program of one rank at its pace, with the services of ``lanes``."""
    program = lanes.programs[variant]
    lane = list(program.lane)
    for at in timed_items(program):
        item = lane[at]
        if isinstance(item, Work) and item.kind == "backward":
            lane[at] = item._replace(duration_ns=round(item.duration_ns * pace))
    services = dict(zip(lanes.order, lanes.services_ns.tolist(), strict=True))
    collectives = tuple(
        replace(one, service_ns=services[number]) for number, one in enumerate(program.collectives)
    )
    return replace(program, lane=tuple(lane), collectives=collectives)


def pause_of(lanes: Lanes, variant: int, stalled: int, stall_ns: int) -> tuple[int, int] | None:
    """Behind which place of the program's lane it stands still, and for how long; None for ``stalled`` -1."""
    return None if stalled < 0 else (timed_items(lanes.programs[variant])[stalled], stall_ns)
