"""One micro-batch of all ranks of a job, by the fastest way that plays it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.clock import simpy_clock
from sim.clock.arrays import Floats, Ints
from sim.clock.play import END, Sheet, make_sheet, play_ranks
from sim.clock.program import BACKWARD, OPTIMIZER, STALLED, Item, Program, check_alike, check_length
from sim.errors import NotModelledError
from sim.nouns.workload import Workload

MOST_ITEMS = 2_000_000  # of all ranks' lanes together that SimPy is asked to play: some minutes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lanes:
    """One micro-batch as each *variant* runs it: the ranks that have a workload and an iteration in common.

    ``sheet``: what they run; one row of services. ``until_ns`` [variants, items]: the running sum of
    backward's work at pace 1.
    """

    programs: tuple[Program, ...]
    sheet: Sheet
    until_ns: Ints

    @property
    def count(self) -> int:
        """How many collectives there are."""
        return len(self.programs[0].collectives)

    @property
    def services_ns(self) -> Ints:
        """Of each collective."""
        row: Ints = self.sheet.services[0]
        return row

    def with_services(self, services_ns: Ints) -> "Lanes":
        """The same with other service times."""
        return replace(self, sheet=self.sheet._replace(services=services_ns[None, :]))

    def work_ns(self, pace: float) -> float:
        """At least as much as any rank has to do in this micro-batch, at no more than ``pace``."""
        launches = self.sheet.kinds.shape[1] * self.sheet.machine.launch_cost_ns
        lane = float(self.sheet.durations.sum(axis=1).max())
        return lane * max(1.0, pace) + float(launches + self.services_ns.sum())


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
        if program.machine != first.machine:
            raise NotModelledError(
                f"groups: the times of {workloads[number].name!r} include other effects than those of "
                f"{workloads[0].name!r}; make their ready_includes alike"
            )
    sheet = make_sheet(programs, [[one.service_ns for one in first.collectives]])
    return Lanes(
        programs=tuple(programs),
        sheet=sheet,
        until_ns=np.where(sheet.kinds == BACKWARD, sheet.durations, 0).cumsum(axis=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """What each rank brings into one micro-batch: its variant, its pace, the item of its lane that is
    interrupted (-1: none), and when it begins, ns on one clock; all [ranks]."""

    variants: Ints
    paces: Floats
    stalled: Ints
    stall_ns: int
    begins_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Met:
    """What became of a micro-batch, in ns on the clock of ``Together``.

    ``lane_ends_ns`` [ranks]: when a rank is through with it. ``came_ns`` [ranks, collectives]: when a rank
    came to a collective, that is, had launched it and had a channel for it. ``last_ns`` [collectives]: when
    the last rank came to it. ``ends_ns`` [ranks, collectives]: when it ended on a rank.
    """

    lane_ends_ns: Ints
    came_ns: Ints
    last_ns: Ints
    ends_ns: Ints


def check_times(lanes: Lanes, ranks: Together) -> None:
    """Raise ``InputError`` for a step that is too long to be played."""
    check_length("ranks", lanes.work_ns(float(ranks.paces.max())) + ranks.stall_ns)


def play(lanes: Lanes, ranks: Together) -> Met:
    """Ranks through one micro-batch: by SimPy where collectives follow each other, else compiled.

    Raises:
        InputError: a step that is too long.
        NotModelledError: only SimPy can play this, and there are too many ranks for it.
    """
    check_times(lanes, ranks)
    if lanes.programs[0].follows:
        return play_by_simpy(lanes, ranks)
    played, last = play_ranks(
        lanes.sheet, ranks.variants, ranks.paces, ranks.stalled, ranks.stall_ns, ranks.begins_ns
    )
    return Met(
        lane_ends_ns=played.states[:, END].copy(), came_ns=played.came, last_ns=last, ends_ns=played.ends
    )


def play_by_simpy(lanes: Lanes, ranks: Together) -> Met:
    """As ``play``, but always by SimPy."""
    items = ranks.begins_ns.size * lanes.sheet.kinds.shape[1]
    if items > MOST_ITEMS:
        raise NotModelledError(
            f"ranks: collectives that follow each other are played one by one, and {items:,} items of "
            f"{ranks.begins_ns.size:,} ranks are too many for that; give at most {MOST_ITEMS:,}"
        )
    roots = [one.root for one in lanes.programs[0].collectives]
    columns = (ranks.variants.tolist(), ranks.paces.tolist(), ranks.stalled.tolist())
    programs = [_as_run(lanes, *row, ranks.stall_ns) for row in zip(*columns, strict=True)]
    outcomes = simpy_clock.play_together(programs, ranks.begins_ns.tolist())
    begins, shape = ranks.begins_ns[:, None], (len(outcomes), lanes.count)
    came = begins + np.array([one.taken_ns for one in outcomes], np.int64).reshape(shape)
    return Met(
        lane_ends_ns=ranks.begins_ns + np.array([one.lane_end_ns for one in outcomes]),
        came_ns=came,
        last_ns=np.array(
            [of.max() if root is None else of[root] for of, root in zip(came.T, roots, strict=True)]
        ),
        ends_ns=begins + np.array([one.end_ns for one in outcomes], np.int64).reshape(shape),
    )


def _as_run(lanes: Lanes, variant: int, pace: float, stalled: int, stall_ns: int) -> Program:
    """The program of one rank at its pace, with its interruption and the services of ``lanes``."""
    program = lanes.programs[variant]
    lane = [
        item._replace(duration_ns=round(item.duration_ns * pace)) if item.kind <= OPTIMIZER else item
        for item in program.lane
    ]
    if stalled >= 0:
        lane.insert(stalled + 1, Item(STALLED, stall_ns))
    services = zip(program.collectives, lanes.services_ns.tolist(), strict=True)
    collectives = tuple(replace(one, service_ns=service) for one, service in services)
    return replace(program, lane=tuple(lane), collectives=collectives)
