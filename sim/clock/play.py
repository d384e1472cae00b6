"""The compiled clock: what ``simpy_clock`` plays, as machine code, to the nanosecond.

Ranks come to collectives in the order of their launches (where none follows another), so what a rank does
until it comes to one depends on others only by when the last of them came to those before. Many ranks are
therefore played in turns: each until it comes to the next collective, then the last of them is known to all.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.clock import simpy_clock
from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.clock.program import (
    COPY_BACK,
    COPY_IN,
    FULL_SPEED,
    IDLE,
    LAUNCH,
    OPTIMIZER,
    READY,
    STALLED,
    WAIT,
    Machine,
    Program,
    check_ranks,
)
from sim.clock.timeline import Outcome

NEVER = 1 << 62
_FEWEST_RANKS = 8192  # that are worth a thread

# A rank between turns: columns of its state, and of each of its tasks (the last is the lane), of which what
# is left is in 2**-20 ns.
_ITEM, _BUSY, _NOW, _LAST_LAUNCH, _QUEUED, _TAKEN, _SERVED, _AWAITED = range(8)
_SETTLING, _FOLLOWING, _HELD, END, _PAUSE = range(8, 13)
_NUMBER, _LEFT, _SINCE, _RATE, _DUE = range(5)
# Of each collective what happened when.
_LAUNCHED, _CAME, _STARTED = range(3)


class Sheet(NamedTuple):
    """One micro-batch as each variant of a rank runs it.

    ``kinds``, ``durations``, ``numbers`` [variants, items]: of each item of the lane what it is, for how many
    ns, and the collective of a launch or a wait. ``services`` [rows, collectives]: in ns, one row for all
    ranks or one a rank. Of each collective: ``small``: whether it is a small message, 1 or 0; ``roots``: the
    rank that is waited for, -1: the last; ``queued``: its service if it waited for its channel, -1: the same;
    ``settles``: ns from its end until its result can be used; ``holds``: whether it keeps its channel until
    then, 1 or 0; ``follower``: the first that is launched because it ended; ``next``: of one that follows
    another, the next that follows the same, -1: none. The last five are empty where there is no such thing.
    """

    machine: Machine
    kinds: Ints
    durations: Ints
    numbers: Ints
    services: Ints
    small: Ints
    roots: Ints
    queued: Ints
    settles: Ints
    holds: Ints
    follower: Ints
    next: Ints


class Ranks(NamedTuple):
    """Ranks on their way; all arrays are by rank.

    ``variants``: which variant each runs, ``rows``: with which row of services. ``paces``: factor on the
    model's own work. ``stalled``: the item behind which the lane stands still; -1: none. ``queue`` holds the
    times of launches, in their order; ``line`` the collectives that were launched, where they are not simply
    one after the other; ``later`` the collectives that still settle, and those that are to follow, with their
    times; ``behind``: which waited for their channel, 1 or 0. ``came``: when it came to each collective (had
    launched it, and a channel for it), where ranks meet; ``ends`` and ``usables``: when it ended there and
    its result could be used; ``passed`` and ``log``, where they are kept: when each item was through, and
    what happened to each collective when.
    """

    variants: Ints
    rows: Ints
    paces: Floats
    stalled: Ints
    states: Ints
    tasks: Ints
    queue: Ints
    line: Ints
    waiting: Ints
    later: Ints
    behind: Ints
    came: Ints
    ends: Ints
    usables: Ints
    passed: Ints
    log: Ints


@compiled
def assemble(
    sheet: Sheet,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    stall_ns: int,
    begins: Ints,
    meet: bool,
    logs: bool,
) -> Ranks:
    """Ranks that stand where their micro-batch begins, at ``begins`` ns; see ``play_ranks``."""
    ranks, count, items = begins.size, sheet.services.shape[1], sheet.kinds.shape[1]
    channels = min(sheet.machine.channels, max(count, 1))
    follows, settles = sheet.follower.size > 0, sheet.settles.size > 0
    states = np.zeros((ranks, _PAUSE + 1), np.int64)
    rows = np.zeros(ranks, np.int64)
    for rank in range(ranks):
        state = states[rank]
        state[_NOW] = state[_LAST_LAUNCH] = begins[rank]
        state[_BUSY], state[END], state[_PAUSE] = IDLE, -1, stall_ns if stalled[rank] >= 0 else 0
        rows[rank] = rank if sheet.services.shape[0] > 1 else 0
    ends = np.full((ranks, count), -1)
    return Ranks(
        variants,
        rows,
        paces,
        stalled,
        states,
        np.zeros((ranks, channels + 1, _DUE + 1), np.int64),
        np.zeros((ranks, count), np.int64),
        np.zeros((ranks, count if follows else 0), np.int64),
        np.zeros((ranks, channels), np.int64),
        np.zeros((ranks, 3, count if settles else 0), np.int64),
        np.zeros((ranks, sheet.queued.size), np.int64),
        np.zeros((ranks, count if meet else 0), np.int64),
        ends,
        np.full((ranks, count), -1) if settles else ends,
        np.zeros((ranks, items if logs else 0), np.int64),
        np.zeros((ranks, 3, count if logs else 0), np.int64),
    )


@compiled
def _use(sheet: Sheet, ranks: Ranks, rank: int, number: int, now: int, following: int) -> int:
    """A collective's result is there: how many are to follow now, those that follow it included."""
    ranks.usables[rank, number] = now
    if sheet.follower.size > 0:
        one = sheet.follower[number]
        while one >= 0:
            ranks.later[rank, 1, following], ranks.later[rank, 2, following] = one, now
            following += 1
            one = sheet.next[one]
    return following


@compiled
def _end(
    sheet: Sheet, ranks: Ranks, rank: int, number: int, now: int, settling: int, following: int, held: int
) -> tuple[int, int, int]:
    """A collective has ended: how many settle and follow now, and how many channels are held by those."""
    ranks.ends[rank, number] = now
    if sheet.settles.size > 0 and sheet.settles[number] > 0:
        ranks.later[rank, 0, settling] = number
        return settling + 1, following, held + sheet.holds[number]
    return settling, _use(sheet, ranks, rank, number, now, following), held


@compiled
def advance(sheet: Sheet, ranks: Ranks, last: Ints, until: int) -> None:
    """Play each rank until it comes to collective ``until``, or where there is none to its end.

    On entry each rank stands in the instant in which it came to the collective before ``until``, and ``last``
    holds when the last rank came to each of those before. The loop is one function: cut into several, it
    takes two to four times as long.
    """
    machine, small, services = sheet.machine, sheet.small, sheet.services
    kinds, durations, numbers, settles, holds = (
        sheet.kinds,
        sheet.durations,
        sheet.numbers,
        sheet.settles,
        sheet.holds,
    )
    tasks, queue, line, waiting, later = ranks.tasks, ranks.queue, ranks.line, ranks.waiting, ranks.later
    behind, ends, usables, passed, log = ranks.behind, ranks.ends, ranks.usables, ranks.passed, ranks.log
    channels, items = tasks.shape[1] - 1, kinds.shape[1]
    lane = channels  # its row of ``tasks``, behind those of the channels
    has_sequels, can_follow, keeps = settles.size > 0, sheet.follower.size > 0, passed.shape[1] > 0
    has_queued = sheet.queued.size > 0
    for rank in range(ranks.variants.size):
        variant, row, state = ranks.variants[rank], ranks.rows[rank], ranks.states[rank]
        item, busy, now, launched = state[_ITEM], state[_BUSY], state[_NOW], state[_LAST_LAUNCH]
        queued, taken, served, awaited = state[_QUEUED], state[_TAKEN], state[_SERVED], state[_AWAITED]
        settling, following, held = state[_SETTLING], state[_FOLLOWING], state[_HELD]
        end, pause = state[END], state[_PAUSE]
        while True:
            # All that happens at this instant without taking time.
            has_come = settled = False
            while not settled:
                settled = True
                kept = 0
                for k in range(awaited):
                    number = waiting[rank, k]
                    if last[number] > now:
                        waiting[rank, kept] = number
                        kept += 1
                        continue
                    if keeps:
                        log[rank, _STARTED, number] = now
                    service = services[row, number]
                    if has_queued and behind[rank, number] and sheet.queued[number] >= 0:
                        service = sheet.queued[number]
                    if service > 0:
                        tasks[rank, served, _NUMBER] = number
                        tasks[rank, served, _LEFT] = service * FULL_SPEED
                        tasks[rank, served, _RATE] = 0
                        served += 1
                    else:
                        settled = False
                        if has_sequels:
                            settling, following, held = _end(
                                sheet, ranks, rank, number, now, settling, following, held
                            )
                        else:
                            ends[rank, number] = now
                awaited = kept
                while busy == IDLE:
                    if pause > 0 and item == ranks.stalled[rank] + 1:
                        busy = STALLED
                        tasks[rank, lane, _LEFT], tasks[rank, lane, _RATE] = pause * FULL_SPEED, 0
                        pause = 0
                        break
                    if item == items:
                        break
                    kind = kinds[variant, item]
                    if kind == WAIT and usables[rank, numbers[variant, item]] < 0:
                        break
                    duration = durations[variant, item]
                    if kind <= OPTIMIZER:
                        duration = int(np.rint(duration * ranks.paces[rank]))
                    elif kind == LAUNCH:
                        if machine.launch_blocks_compute:
                            duration = machine.launch_cost_ns
                        if duration == 0:
                            if machine.launch_blocks_compute:
                                queue[rank, queued] = now
                            else:
                                launched = max(launched, now) + machine.launch_cost_ns
                                queue[rank, queued] = launched
                            if can_follow:
                                line[rank, queued] = numbers[variant, item]
                            queued += 1
                    if keeps:
                        passed[rank, item] = now
                    if duration > 0:
                        busy = kind
                        tasks[rank, lane, _LEFT], tasks[rank, lane, _RATE] = duration * FULL_SPEED, 0
                    item += 1
                if busy == IDLE and item == items and end < 0:
                    end = now
                if taken < queued and queue[rank, taken] <= now and served + awaited + held < channels:
                    number = line[rank, taken] if can_follow else taken
                    if keeps:
                        log[rank, _LAUNCHED, number], log[rank, _CAME, number] = queue[rank, taken], now
                    if has_queued:
                        behind[rank, number] = queue[rank, taken] < now
                    waiting[rank, awaited] = number
                    awaited += 1
                    taken += 1
                    if taken > until:
                        has_come = True
                        break
                    settled = False
                kept = 0
                for k in range(settling):
                    number = later[rank, 0, k]
                    if ends[rank, number] + settles[number] > now:
                        later[rank, 0, kept] = number
                        kept += 1
                        continue
                    held -= holds[number]
                    settled = False
                    following = _use(sheet, ranks, rank, number, now, following)
                settling = kept
                if settled and following > 0:
                    # Callbacks come after all else of this instant, in the order of their collectives.
                    while True:
                        due = -1
                        for k in range(following):
                            if later[rank, 2, k] <= now and (
                                due < 0 or later[rank, 1, k] < later[rank, 1, due]
                            ):
                                due = k
                        if due < 0:
                            break
                        number = later[rank, 1, due]
                        following -= 1
                        later[rank, 1, due], later[rank, 2, due] = (
                            later[rank, 1, following],
                            later[rank, 2, following],
                        )
                        place = queued
                        while place > taken and queue[rank, place - 1] > now:
                            queue[rank, place], line[rank, place] = (
                                queue[rank, place - 1],
                                line[rank, place - 1],
                            )
                            place -= 1
                        queue[rank, place], line[rank, place] = now, number
                        queued += 1
                        settled = False
            if has_come:
                break
            # How fast work goes from here on, and when it ends at that rate.
            rates = machine.computing
            if busy == COPY_IN:
                rates = machine.copying_in
            elif busy == COPY_BACK:
                rates = machine.copying_out
            elif busy in (IDLE, STALLED):
                rates = machine.idle
            own = rates.lane if served > 0 else FULL_SPEED
            larger = served
            if served > 1:
                for k in range(served):
                    larger -= small[tasks[rank, k, _NUMBER]]
            sent = rates.shared if larger > 1 else rates.alone
            light = rates.alone if served < 2 else rates.small if larger > 0 else rates.shared
            then = NEVER
            if taken < queued and served + awaited + held < channels:
                then = queue[rank, taken]
            for k in range(awaited):
                then = min(then, last[waiting[rank, k]])
            for k in range(settling):
                then = min(then, ends[rank, later[rank, 0, k]] + settles[later[rank, 0, k]])
            for k in range(following):
                then = min(then, later[rank, 2, k])
            working = served + (busy != IDLE)
            for k in range(working):
                task = k if k < served else lane
                rate = own if task == lane else light if small[tasks[rank, task, _NUMBER]] else sent
                if rate != tasks[rank, task, _RATE]:
                    tasks[rank, task, _LEFT] -= (now - tasks[rank, task, _SINCE]) * tasks[rank, task, _RATE]
                    tasks[rank, task, _SINCE], tasks[rank, task, _RATE] = now, rate
                    tasks[rank, task, _DUE] = now + (tasks[rank, task, _LEFT] + rate - 1) // rate
                then = min(then, tasks[rank, task, _DUE])
            if then == NEVER:
                break  # nothing is left, or the lane waits for what is never launched
            now = then
            kept = 0
            for k in range(served):
                if tasks[rank, k, _DUE] == now:
                    number = tasks[rank, k, _NUMBER]
                    if has_sequels:
                        settling, following, held = _end(
                            sheet, ranks, rank, number, now, settling, following, held
                        )
                    else:
                        ends[rank, number] = now
                else:
                    if kept < k:
                        tasks[rank, kept] = tasks[rank, k]
                    kept += 1
            served = kept
            if busy != IDLE and tasks[rank, lane, _DUE] == now:
                if busy == LAUNCH:
                    queue[rank, queued] = now
                    if can_follow:
                        line[rank, queued] = numbers[variant, item - 1]
                    queued += 1
                if keeps and busy != STALLED:
                    passed[rank, item - 1] = now
                busy = IDLE
        state[_ITEM], state[_BUSY], state[_NOW], state[_LAST_LAUNCH] = item, busy, now, launched
        state[_QUEUED], state[_TAKEN], state[_SERVED], state[_AWAITED] = queued, taken, served, awaited
        state[_SETTLING], state[_FOLLOWING], state[_HELD] = settling, following, held
        state[END], state[_PAUSE] = end, pause
        if until < ranks.came.shape[1]:
            ranks.came[rank, until] = now


@compiled
def play_alone(
    machine: Machine, kinds: Ints, durations: Ints, numbers: Ints, services: Ints, small: Ints
) -> int:
    """When one rank, alone from 0 ns on, has its gradients.

    Arguments as in ``Sheet``, of one variant and one row; collectives do not settle or follow.
    """
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    sheet = Sheet(
        machine,
        kinds.reshape(1, -1),
        durations.reshape(1, -1),
        numbers.reshape(1, -1),
        services.reshape(1, -1),
        small,
        none,
        none,
        none,
        none,
        none,
        none,
    )
    ranks = assemble(sheet, one, np.ones(1), one - 1, 0, one, False, False)
    advance(sheet, ranks, np.full(services.size, -NEVER), services.size)
    return int(ranks.states[0, END])


def make_sheet(programs: Sequence[Program], services_ns: Sequence[Sequence[int]]) -> Sheet:
    """What is played: ``programs`` as variants, ``services_ns`` [rows][collectives]."""
    first, count = programs[0], len(programs[0].collectives)
    items = np.zeros((3, len(programs), max(len(program.lane) for program in programs)), np.int64)
    items[0] = READY  # shorter lanes are filled up with what takes no time
    for variant, program in enumerate(programs):
        items[:, variant, : len(program.lane)] = np.array([item[:3] for item in program.lane], np.int64).T
    sizes = np.array([one.num_bytes for one in first.collectives], np.int64)
    queued, settles, holds, follower, behind = (np.zeros(0, np.int64) for _ in range(5))
    if any(one.queued_ns is not None for one in first.collectives):
        waited = [-1 if one.queued_ns is None else one.queued_ns for one in first.collectives]
        queued = np.array(waited, np.int64)
    if first.follows or any(one.settle_ns for one in first.collectives):
        settles = np.array([one.settle_ns for one in first.collectives])
        holds = np.array([one.settle_ns > 0 and one.holds_channel for one in first.collectives], np.int64)
    if first.follows:
        follower, behind = np.full((2, count), -1)
        for k in reversed(range(count)):  # so that the first that follows comes first
            if (after := first.collectives[k].after) is not None:
                follower[after], behind[k] = k, follower[after]
    return Sheet(
        first.machine,
        items[0],
        items[1],
        items[2],
        np.array(services_ns, np.int64).reshape(len(services_ns), count),
        (sizes < first.machine.small_bytes).astype(np.int64),
        np.array([-1 if one.root is None else one.root for one in first.collectives], np.int64),
        queued,
        settles,
        holds,
        follower,
        behind,
    )


def play_ranks(
    sheet: Sheet,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    stall_ns: int,
    begins: Ints,
    *,
    meet: bool = True,
    logs: bool = False,
) -> tuple[Ranks, Ints]:
    """One micro-batch of ranks that begin it at ``begins``, ns; all other arguments by rank too.

    Args:
        sheet: what they run; collectives that follow others are for ranks that do not ``meet``.
        variants: which variant each runs.
        paces: factor on the model's own work.
        stalled: the item after which the lane stands still for ``stall_ns``; -1: none.
        stall_ns: see there.
        begins: see above.
        meet: whether a collective starts when the last rank has come to it. False: as soon as each has.
        logs: keep when each item and each collective began and ended.

    Returns:
        The ranks, each at its end, and when the last of them came to each collective.
    """
    count = sheet.services.shape[1]
    last = np.zeros(count, np.int64) if meet else np.full(count, -NEVER)
    ranks = assemble(sheet, variants, paces, stalled, stall_ns, begins, meet, logs)
    workers = max(1, min(os.cpu_count() or 1, begins.size // _FEWEST_RANKS))
    edges = [begins.size * k // workers for k in range(workers + 1)]
    parts = [Ranks._make(column[first:stop] for column in ranks) for first, stop in pairwise(edges)]
    with ThreadPoolExecutor(workers) as pool:  # starts no thread before it is given work
        for turn in range(0 if meet else count, count + 1):
            if workers == 1:
                advance(sheet, ranks, last, turn)
            else:
                list(pool.map(lambda part, turn=turn: advance(sheet, part, last, turn), parts))
            if turn < count:
                root = sheet.roots[turn]
                last[turn] = ranks.came[:, turn].max() if root < 0 else ranks.came[root, turn]
    return ranks, last


def play(program: Program) -> Outcome:
    """The outcome of a program, to the nanosecond what ``simpy_clock.play`` says."""
    return play_together((program,), (0,))[0]


def play_together(programs: Sequence[Program], begins_ns: Sequence[int]) -> tuple[Outcome, ...]:
    """What ``simpy_clock.play_together`` says of ranks that meet in each collective.

    Raises:
        InputError, NotModelledError: as there.
    """
    check_ranks(programs, begins_ns)
    meet = len(programs) > 1
    if meet and programs[0].follows:  # in an order that time alone decides
        return simpy_clock.play_together(programs, begins_ns)
    sheet = make_sheet(programs, [[one.service_ns for one in of.collectives] for of in programs])
    order, begins = np.arange(len(programs)), np.array(begins_ns, np.int64)
    ranks, _ = play_ranks(sheet, order, np.ones(order.size), order * 0 - 1, 0, begins, meet=meet, logs=True)
    assert (ranks.states[:, END] >= begins).all(), "a lane waits for what is never launched"
    columns = (ranks.passed, *ranks.log.transpose(1, 0, 2), ranks.ends, ranks.usables)
    told = zip(programs, *((column - begins[:, None]).tolist() for column in columns), strict=True)
    return tuple(
        Outcome(program, tuple(passed[: len(program.lane)]), *map(tuple, times))
        for program, passed, *times in told
    )
