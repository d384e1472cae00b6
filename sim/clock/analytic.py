"""Plays a program, or those of ranks that meet, by the compiled clock."""

from collections.abc import Sequence

import numpy as np

from sim.clock.compiled import RanksPlayed, play_ranks
from sim.clock.instants import BEGAN, ENDED, LAUNCHED, STARTED, TAKEN
from sim.clock.likeness import check_ranks
from sim.clock.outcome import Ledger, Outcome
from sim.clock.program import BackwardEnd, CopyBack, Launch, Program, Ready, Work
from sim.clock.simpy_ranks import play_world
from sim.clock.variants import follows, launch_order, make_sheet
from sim.nouns.timeline import ComputeSpan


def play(program: Program) -> Outcome:
    """The outcome of a program, to the nanosecond what ``simpy_clock.play`` says."""
    return _play([program], [0], meet=False)[0]


def play_together(programs: Sequence[Program], begins_ns: Sequence[int]) -> tuple[Outcome, ...]:
    """What ``simpy_ranks.play_world`` says of ranks that meet in each collective.

    Raises:
        InputError, NotModelledError: as there.
    """
    check_ranks(programs, begins_ns)
    if follows(programs[0]):  # in an order that time alone decides
        return play_world(programs, begins_ns)
    return _play(programs, begins_ns, meet=True)


def play_on_machines(program: Program, services_ns: Sequence[Sequence[int]]) -> RanksPlayed:
    """``program`` with other service times of its collectives: [machine][collective], in ns.

    No collective may follow another.
    """
    order = launch_order(program)
    assert not follows(program), "collectives that follow others differ in more than their service"
    machines = len(services_ns)
    services = np.array(services_ns, np.int64).reshape(machines, len(order))[:, list(order)]
    return play_ranks(
        make_sheet([program], order, services),
        *(np.zeros(machines, np.int64), np.ones(machines), np.full(machines, -1), 0),
        np.zeros(machines, np.int64),
        meet=False,
    )


def _play(programs: Sequence[Program], begins_ns: Sequence[int], *, meet: bool) -> tuple[Outcome, ...]:
    order = launch_order(programs[0])
    services = np.array(
        [[one.collectives[number].service_ns for number in order] for one in programs], np.int64
    )
    ranks = len(programs)
    begins = np.array(begins_ns, np.int64)
    still = np.full(ranks, -1)
    played = play_ranks(
        make_sheet(programs, order, services, whole=True),
        np.arange(ranks),
        np.ones(ranks),
        still,
        0,
        begins,
        meet=meet,
        logs=True,
    )
    return tuple(
        _outcome(program, order, played, rank, begin)
        for rank, (program, begin) in enumerate(zip(programs, begins_ns, strict=True))
    )


def _outcome(program: Program, order: Sequence[int], played: RanksPlayed, rank: int, begin: int) -> Outcome:
    """The outcome that a rank's log tells, in ns from the start of its own backward."""
    assert played.sync_ends[rank] >= begin, "the lane waits for what is never launched"
    ledger, blocks = Ledger(program), program.effects.launch_blocks_compute
    began, ended = ((played.items[rank, which] - begin).tolist() for which in (BEGAN, ENDED))
    for item, start, end in zip(program.lane, began, ended, strict=False):
        if isinstance(item, Work):
            if item.duration_ns:
                ledger.compute.append(
                    ComputeSpan(
                        kind=item.kind, start_ns=start, end_ns=end, gradient=item.gradient, bucket=item.bucket
                    )
                )
        elif isinstance(item, Ready):
            ledger.ready[item.bucket] = start
        elif isinstance(item, CopyBack):
            ledger.copy_out_start[item.bucket], ledger.available[item.bucket] = start, end
        elif isinstance(item, Launch):
            if blocks and program.effects.launch_cost_ns:
                bucket = program.collectives[item.collective].bucket
                ledger.compute.append(ComputeSpan(kind="launch", start_ns=start, end_ns=end, bucket=bucket))
        elif isinstance(item, BackwardEnd):
            ledger.backward_end = start
    log = played.log[rank] - begin
    ends, usables = played.ends[rank] - begin, played.usables[rank] - begin
    columns = (log[LAUNCHED], log[TAKEN], log[STARTED], ends, usables)
    for number, launch, taken, start, end, usable in zip(order, *(c.tolist() for c in columns), strict=True):
        ledger.launch[number], ledger.start[number], ledger.end[number] = launch, start, end
        ledger.late[number], ledger.usable[number] = start - taken, usable
    return ledger.outcome(int(played.sync_ends[rank]) - begin)
