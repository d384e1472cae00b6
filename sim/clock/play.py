"""The compiled clock: what ``simpy_clock`` plays, as machine code, to the nanosecond.

All ranks take channels for their collectives in one order, so what a rank does until it comes to one depends
on others only by when the last of them came to those before. Ranks are therefore played in turns: each until
it comes to the next collective, then the last of them is known to all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.clock import program as lane
from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.clock.program import Machine, Program, check_length, check_ranks
from sim.clock.timeline import Outcome
from sim.errors import NotModelledError

NEVER = 1 << 62

# Columns of a lane's items, and of collectives: ns alone, and if it waited for its channel; whether it is a
# small message, and whether it keeps its channel while it settles, 1 or 0; ns until its result can be used;
# the collective that it follows and the rank that is waited for, -1: none, the last.
KIND, DURATION, NUMBER = range(3)
SERVICE, QUEUED, SMALL, HOLDS, SETTLE, AFTER, ROOT = range(7)
# Of each collective what happened when: its log, as in ``Outcome``; -1: not yet.
LAUNCHED, TAKEN, STARTED, ENDED, USABLE = range(5)
# A rank between turns: columns of its state, and of what is under way. That is a row for the lane (``_AT``:
# the kind of its item) and one for each collective that has a channel or settles. Left is in 2**-20 ns.
_ITEM, _NOW, _LAST_LAUNCH, _QUEUED, _TAKEN, _ROWS, _FREE, END = range(8)
_AT, _OF, _LEFT, _SINCE, _RATE, _DUE = range(6)
_CAME, _SENT, _SETTLES = range(3)


class Sheet(NamedTuple):
    """One micro-batch as each variant of a rank runs it: ``lanes`` [variants, items, columns], of which the
    shorter are filled up with what takes no time, and ``collectives`` [collectives, columns]."""

    machine: Machine
    lanes: Ints
    collectives: Ints


class Ranks(NamedTuple):
    """Ranks on their way; all arrays are by rank.

    ``variants``: which variant each runs. ``paces``: factor on the model's own work. ``stalled``: the item
    behind which the lane stands still for ``stall_ns``; -1: none. ``queue`` holds time and number of each
    launch in their order, ``log`` what happened to collectives, and ``ended``, where it is kept, when the
    lane was through with each item.
    """

    variants: Ints
    paces: Floats
    stalled: Ints
    stall_ns: int
    states: Ints
    tasks: Ints
    queue: Ints
    log: Ints
    ended: Ints


@compiled
def assemble(
    sheet: Sheet, variants: Ints, paces: Floats, stalled: Ints, stall_ns: int, begins: Ints, keeps: bool
) -> Ranks:
    """Ranks that stand where their micro-batch begins, at ``begins`` ns; see ``play_ranks``."""
    ranks, count, items = begins.size, sheet.collectives.shape[0], sheet.lanes.shape[1]
    most = min(count, sheet.machine.channels)
    for number in range(count):
        if sheet.collectives[number, SETTLE] > 0:
            most = count  # of those under way, since some settle without a channel
    states = np.zeros((ranks, END + 1), np.int64)
    tasks = np.zeros((ranks, 1 + most, _DUE + 1), np.int64)
    for rank in range(ranks):
        states[rank, _NOW] = states[rank, _LAST_LAUNCH] = begins[rank]
        states[rank, _ROWS], states[rank, _FREE] = 1, sheet.machine.channels
        states[rank, END], tasks[rank, 0, _AT] = -1, lane.IDLE
    queue, log = np.zeros((ranks, count, 2), np.int64), np.full((ranks, count, USABLE + 1), -1)
    ended = np.zeros((ranks, items if keeps else 0), np.int64)
    return Ranks(variants, paces, stalled, stall_ns, states, tasks, queue, log, ended)


@compiled
def advance(sheet: Sheet, ranks: Ranks, last: Ints, until: int) -> None:
    """Play each rank until it has taken a channel for one collective more than ``until``, or to its end.

    ``last``: when the last rank came to each collective that all of them have come to. The loop is one
    function: cut into several, it takes two to four times as long.
    """
    machine, lanes, collectives = sheet.machine, sheet.lanes, sheet.collectives
    tasks, queue, log, ended = ranks.tasks, ranks.queue, ranks.log, ranks.ended
    items, count, keeps = lanes.shape[1], collectives.shape[0], ended.shape[1] > 0
    cost = machine.launch_cost_ns
    blocks, follows = machine.launch_blocks_compute and cost > 0, False
    for number in range(count):
        follows = follows or collectives[number, AFTER] >= 0
    for rank in range(ranks.variants.size):
        variant, state = ranks.variants[rank], ranks.states[rank]
        item, now, launched, queued = state[_ITEM], state[_NOW], state[_LAST_LAUNCH], state[_QUEUED]
        taken, rows, free, busy = state[_TAKEN], state[_ROWS], state[_FREE], tasks[rank, 0, _AT]
        has_come = False
        while not has_come:
            # All that happens at this instant without taking time.
            settled = False
            while not settled:
                settled = True
                kept = 1
                for k in range(1, rows):
                    number, at, due = tasks[rank, k, _OF], tasks[rank, k, _AT], tasks[rank, k, _DUE]
                    if at == _CAME:
                        due = last[number]
                        if due <= now:
                            at = _SENT
                            log[rank, number, STARTED] = now
                            has_waited = log[rank, number, TAKEN] > log[rank, number, LAUNCHED]
                            service = collectives[number, QUEUED if has_waited else SERVICE]
                            tasks[rank, k, _LEFT], tasks[rank, k, _RATE] = service * lane.FULL_SPEED, 0
                            due = NEVER if service > 0 else now
                    if at == _SENT and due <= now:
                        at = _SETTLES
                        log[rank, number, ENDED] = now
                        due = now + collectives[number, SETTLE]
                        free += 1 - collectives[number, HOLDS]
                    if at == _SETTLES and due <= now:
                        log[rank, number, USABLE] = now
                        free += collectives[number, HOLDS]
                        continue
                    for part in range(_DUE):
                        tasks[rank, kept, part] = tasks[rank, k, part]
                    tasks[rank, kept, _AT], tasks[rank, kept, _DUE] = at, due
                    kept += 1
                rows = kept
                while busy != lane.IDLE or item < items:
                    if busy == lane.IDLE:
                        kind, duration = lanes[variant, item, KIND], lanes[variant, item, DURATION]
                        if kind == lane.WAIT and log[rank, lanes[variant, item, NUMBER], USABLE] < 0:
                            break
                        if kind <= lane.REST:
                            duration = int(np.rint(duration * ranks.paces[rank]))
                        elif kind == lane.LAUNCH and blocks:
                            duration = cost
                        busy = kind
                        tasks[rank, 0, _LEFT], tasks[rank, 0, _RATE] = duration * lane.FULL_SPEED, 0
                        tasks[rank, 0, _DUE] = NEVER if duration > 0 else now
                    if tasks[rank, 0, _DUE] > now:
                        break
                    was, busy = busy, lane.IDLE
                    if was == lane.STALLED:
                        continue
                    if was == lane.LAUNCH:
                        number = lanes[variant, item, NUMBER]
                        launched = now if blocks else max(launched, now) + cost
                        log[rank, number, LAUNCHED] = launched
                        queue[rank, queued, 0], queue[rank, queued, 1] = launched, number
                        queued += 1
                    if keeps:
                        ended[rank, item] = now
                    if item == ranks.stalled[rank]:
                        busy = lane.STALLED
                        tasks[rank, 0, _LEFT], tasks[rank, 0, _RATE] = ranks.stall_ns * lane.FULL_SPEED, 0
                        tasks[rank, 0, _DUE] = NEVER
                    item += 1
                if item == items and busy == lane.IDLE and state[END] < 0:
                    state[END] = now
                if taken < queued and free > 0 and queue[rank, taken, 0] <= now:
                    tasks[rank, rows, _OF], tasks[rank, rows, _AT] = queue[rank, taken, 1], _CAME
                    log[rank, queue[rank, taken, 1], TAKEN] = now
                    rows, taken, free = rows + 1, taken + 1, free - 1
                    if taken > until:
                        has_come = True
                        break
                    settled = False
                elif follows:
                    # Callbacks come after all else of this instant, in the order of their collectives.
                    for number in range(count):
                        after = collectives[number, AFTER]
                        if after < 0 or log[rank, number, LAUNCHED] >= 0 or log[rank, after, USABLE] < 0:
                            continue
                        place = queued
                        while place > taken and queue[rank, place - 1, 0] > now:
                            earlier = queue[rank, place - 1]
                            queue[rank, place, 0], queue[rank, place, 1] = earlier[0], earlier[1]
                            place -= 1
                        log[rank, number, LAUNCHED] = now
                        queue[rank, place, 0], queue[rank, place, 1] = now, number
                        queued += 1
                        settled = False
            if has_come:
                break
            # How fast work goes from here on, and when it ends at that rate.
            rates = machine.computing
            if busy == lane.COPY_IN:
                rates = machine.copying_in
            elif busy == lane.COPY_BACK:
                rates = machine.copying_out
            elif busy in (lane.IDLE, lane.STALLED):
                rates = machine.idle
            under_way = larger = 0
            for k in range(1, rows):
                if tasks[rank, k, _AT] == _SENT:
                    under_way += 1
                    larger += 1 - collectives[tasks[rank, k, _OF], SMALL]
            own = rates.lane if under_way > 0 else lane.FULL_SPEED
            heavy = rates.shared if larger > 1 else rates.alone
            light = rates.alone if under_way < 2 else rates.small if larger > 0 else rates.shared
            then = queue[rank, taken, 0] if taken < queued and free > 0 else NEVER
            for k in range(0 if busy != lane.IDLE else 1, rows):
                if k == 0 or tasks[rank, k, _AT] == _SENT:
                    rate = own
                    if k > 0:
                        rate = light if collectives[tasks[rank, k, _OF], SMALL] else heavy
                    if rate != tasks[rank, k, _RATE]:
                        tasks[rank, k, _LEFT] -= (now - tasks[rank, k, _SINCE]) * tasks[rank, k, _RATE]
                        tasks[rank, k, _SINCE], tasks[rank, k, _RATE] = now, rate
                        tasks[rank, k, _DUE] = now + (tasks[rank, k, _LEFT] + rate - 1) // rate
                then = min(then, tasks[rank, k, _DUE])
            if then == NEVER:
                break  # nothing is left, or the lane waits for what is never launched
            now = then
        state[_ITEM], state[_NOW], state[_LAST_LAUNCH], state[_QUEUED] = item, now, launched, queued
        state[_TAKEN], state[_ROWS], state[_FREE], tasks[rank, 0, _AT] = taken, rows, free, busy


def make_sheet(programs: Sequence[Program]) -> Sheet:
    """What is played: ``programs`` as variants.

    Raises:
        InputError, NotModelledError: they do not launch the same, see ``check_ranks``.
    """
    check_ranks(programs)
    first = programs[0]
    lanes = np.zeros((len(programs), max(len(program.lane) for program in programs), 3), np.int64)
    lanes[:, :, KIND] = lane.READY
    for variant, program in enumerate(programs):
        for column, values in zip(range(NUMBER + 1), zip(*program.lane, strict=True), strict=False):
            lanes[variant, : len(values), column] = values
    collectives = [
        (
            one.service_ns,
            one.service_ns if one.queued_ns is None else one.queued_ns,
            one.num_bytes < first.machine.small_bytes,
            one.settle_ns > 0 and one.holds_channel,
            one.settle_ns,
            -1 if one.after is None else one.after,
            -1 if one.root is None else one.root,
        )
        for one in first.collectives
    ]
    return Sheet(first.machine, lanes, np.array(collectives, np.int64).reshape(-1, ROOT + 1))


def play_ranks(
    sheet: Sheet,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    stall_ns: int,
    begins: Ints,
    *,
    keeps: bool = False,
) -> Ranks:
    """One micro-batch of ranks that begin it at ``begins``, ns; by rank all that ``Ranks`` says of them.

    ``keeps``: keep when the lane was through with each item. The ranks are returned, each at its end
    (``states[:, END]``), with times on the clock of ``begins``.

    Raises:
        InputError: a step that is too long.
        NotModelledError: ranks that come to their collectives in different orders.
    """
    count = sheet.collectives.shape[0]
    lane_ns = float(sheet.lanes[:, :, DURATION].sum(axis=1).max() * max(1.0, paces.max()))
    launches_ns = sheet.lanes.shape[1] * sheet.machine.launch_cost_ns
    check_length("ranks", lane_ns + launches_ns + float(sheet.collectives[:, SERVICE].sum()) + stall_ns)
    ranks = assemble(sheet, variants, paces, stalled, stall_ns, begins, keeps)
    meet = begins.size > 1
    last = np.full(count, NEVER if meet else -NEVER)
    for turn in range(0 if meet else count, count + 1):
        advance(sheet, ranks, last, turn)
        if turn < count:
            numbers = ranks.queue[:, turn, 1]
            number = numbers[0]
            if ranks.states[:, _TAKEN].min() <= turn or (numbers != number).any():
                raise NotModelledError("ranks: they come to their collectives in different orders")
            came, root = ranks.log[:, number, TAKEN], sheet.collectives[number, ROOT]
            last[number] = came.max() if root < 0 else came[root]
    return ranks


def play(program: Program) -> Outcome:
    """The outcome of a program, to the nanosecond what ``simpy_clock.play`` says."""
    return play_together((program,), (0,))[0]


def play_together(programs: Sequence[Program], begins_ns: Sequence[int]) -> tuple[Outcome, ...]:
    """What ``simpy_clock.play_together`` says of ranks that meet in each collective.

    Raises:
        InputError, NotModelledError: as there.
    """
    order, begins = np.arange(len(programs)), np.array(begins_ns, np.int64)
    ranks = play_ranks(make_sheet(programs), order, np.ones(order.size), order * 0 - 1, 0, begins, keeps=True)
    assert (ranks.states[:, END] >= begins).all(), "a lane waits for what is never launched"
    ended = (ranks.ended - begins[:, None]).tolist()
    logs = (ranks.log - begins[:, None, None]).transpose(0, 2, 1).tolist()
    return tuple(
        Outcome(program, tuple(passed[: len(program.lane)]), *map(tuple, times))
        for program, passed, times in zip(programs, ended, logs, strict=True)
    )
