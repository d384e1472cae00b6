"""The programs that ranks run, as arrays: one micro-batch of a step, as each kind of rank runs it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.clock.arrays import Ints
from sim.clock.likeness import check_alike
from sim.clock.program import CopyBack, Effects, LaneItem, Launch, Program, Wait, Work
from sim.clock.sheet import (
    BACKWARD,
    COPY_BACK,
    COPY_IN,
    LAUNCH,
    OTHER_WORK,
    STALLED,
    WAIT,
    Machine,
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

    def work_ns(self, pace: float) -> float:
        """At least as much as any rank has to do in this micro-batch, at no more than ``pace``."""
        around = self.paced_before_ns + self.before_ns + self.paced_after_ns + self.after_ns
        launches = self.sheet.kinds.shape[1] * self.sheet.machine.launch_cost_ns
        lane = float((self.sheet.durations.sum(axis=1) + around).max())
        return lane * max(1.0, pace) + float(launches + self.services_ns.sum())


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
    return Sheet(machine_of(effects), *arrays, services_ns, small, sequels)


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


def machine_of(effects: Effects) -> Machine:
    """``effects`` as the clock reads them; the one place where a ``Machine`` is made."""
    by_kind = {BACKWARD: effects.computing, OTHER_WORK: effects.computing, LAUNCH: effects.computing}
    by_kind |= {COPY_IN: effects.copying_in, COPY_BACK: effects.copying_out}
    rates = [by_kind.get(kind, effects.idle) for kind in range(STALLED + 1)]
    return Machine(
        channels=effects.channels,
        launch_cost_ns=effects.launch_cost_ns,
        blocks=effects.launch_blocks_compute,
        rates=np.array(rates, np.int64),
        small_bytes=effects.small_bytes,
    )
