"""Ranks of the compiled clock, each stepped from instant to instant.

The loop is one function: cut into several, it takes two to four times as long.
"""

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.clock.program import FULL_SPEED
from sim.clock.sheet import (
    ALONE,
    BACKWARD,
    COPY_IN,
    IDLE,
    LAUNCH,
    OTHER_WORK,
    OWN,
    SHARED,
    SMALL,
    STALLED,
    WAIT,
    Sequels,
    Sheet,
)

NEVER = 1 << 62

# A rank between turns: columns of its state, and of each of its tasks (the last is the lane), of which what
# is left is in 2**-20 ns.
_ITEM, BUSY, NOW, LAST_LAUNCH, _QUEUED, _TAKEN, _SERVED, _AWAITED = range(8)
_SETTLING, _FOLLOWING, _HELD, END, PAUSE, COMM, OVERLAPPED = range(8, 15)
_NUMBER, _LEFT, _SINCE, _RATE, _DUE = range(5)
STATE, TASK = OVERLAPPED + 1, _DUE + 1  # so many columns of each
# The log of a rank: of each item when it began and ended, of each collective what happened when.
BEGAN, ENDED = range(2)
LAUNCHED, TAKEN, STARTED = range(3)


@compiled
def _use(
    rank: int, number: int, now: int, sequels: Sequels, usables: Ints, later: Ints, following: int
) -> int:
    """A collective's result is there: how many are to follow now, those that follow it included."""
    usables[rank, number] = now
    if sequels.follower.size > 0:
        one = sequels.follower[number]
        while one >= 0:
            later[rank, 1, following], later[rank, 2, following] = one, now
            following += 1
            one = sequels.next[one]
    return following


@compiled
def _end(
    rank: int,
    number: int,
    now: int,
    sequels: Sequels,
    ends: Ints,
    usables: Ints,
    later: Ints,
    settling: int,
    following: int,
    held: int,
) -> tuple[int, int, int]:
    """A collective has ended: how many settle and follow now, and how many channels are held by those."""
    ends[rank, number] = now
    if sequels.settles.size > 0 and sequels.settles[number] > 0:
        later[rank, 0, settling] = number
        return settling + 1, following, held + sequels.holds[number]
    return settling, _use(rank, number, now, sequels, usables, later, following), held


@compiled
def advance(
    sheet: Sheet,
    services: Ints,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    states: Ints,
    tasks: Ints,
    queue: Ints,
    line: Ints,
    waiting: Ints,
    later: Ints,
    ends: Ints,
    usables: Ints,
    passed: Ints,
    log: Ints,
    came: Ints,
    last: Ints,
    until: int,
) -> None:
    """Play each rank until it comes to collective ``until``, or where there is none to its end.

    On entry each rank stands in the instant in which it came to the collective before ``until``, and ``last``
    holds when the last rank came to each of those before. ``queue`` holds the times of launches, in their
    order, ``queued`` so far, of which ``taken`` have had a channel; ``line`` the collectives that were
    launched, where they are not simply one after the other; ``later`` the collectives that still settle, and
    those that are to follow, with their times.
    """
    machine, sequels, small = sheet.machine, sheet.sequels, sheet.small
    kinds, durations, numbers = sheet.kinds, sheet.durations, sheet.numbers
    channels, items = tasks.shape[1] - 1, kinds.shape[1]
    lane = channels  # its row of ``tasks``, behind those of the channels
    has_sequels, can_follow, keeps = sequels.settles.size > 0, sequels.follower.size > 0, passed.shape[2] > 0
    for rank in range(variants.size):
        variant, row, state = variants[rank], rank if services.shape[0] > 1 else 0, states[rank]
        item, busy, now, launched = state[_ITEM], state[BUSY], state[NOW], state[LAST_LAUNCH]
        queued, taken, served, awaited = state[_QUEUED], state[_TAKEN], state[_SERVED], state[_AWAITED]
        settling, following, held = state[_SETTLING], state[_FOLLOWING], state[_HELD]
        end, pause, comm_ns, overlapped_ns = state[END], state[PAUSE], state[COMM], state[OVERLAPPED]
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
                        log[rank, STARTED, number] = now
                    if services[row, number] > 0:
                        tasks[rank, served, _NUMBER] = number
                        tasks[rank, served, _LEFT] = services[row, number] * FULL_SPEED
                        tasks[rank, served, _RATE] = 0
                        served += 1
                    else:
                        settled = False
                        if has_sequels:
                            settling, following, held = _end(
                                rank, number, now, sequels, ends, usables, later, settling, following, held
                            )
                        else:
                            ends[rank, number] = now
                awaited = kept
                while busy == IDLE:
                    if pause > 0 and item == stalled[rank] + 1:
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
                    if kind == BACKWARD:
                        duration = int(np.rint(duration * paces[rank]))
                    elif kind == LAUNCH:
                        if machine.blocks:
                            duration = machine.launch_cost_ns
                        if duration == 0:
                            if machine.blocks:
                                queue[rank, queued] = now
                            else:
                                launched = max(launched, now) + machine.launch_cost_ns
                                queue[rank, queued] = launched
                            if can_follow:
                                line[rank, queued] = numbers[variant, item]
                            queued += 1
                    if keeps:
                        passed[rank, BEGAN, item] = passed[rank, ENDED, item] = now
                    if duration > 0:
                        busy = kind
                        tasks[rank, lane, _LEFT], tasks[rank, lane, _RATE] = duration * FULL_SPEED, 0
                    item += 1
                if busy == IDLE and item == items and end < 0:
                    end = now
                if taken < queued and queue[rank, taken] <= now and served + awaited + held < channels:
                    number = line[rank, taken] if can_follow else taken
                    if keeps:
                        log[rank, LAUNCHED, number], log[rank, TAKEN, number] = queue[rank, taken], now
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
                    if ends[rank, number] + sequels.settles[number] > now:
                        later[rank, 0, kept] = number
                        kept += 1
                        continue
                    held -= sequels.holds[number]
                    settled = False
                    following = _use(rank, number, now, sequels, usables, later, following)
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
            own = machine.rates[busy, OWN] if served > 0 else FULL_SPEED
            larger = served
            if served > 1:
                for k in range(served):
                    larger -= small[tasks[rank, k, _NUMBER]]
            sent = machine.rates[busy, SHARED if larger > 1 else ALONE]
            light = machine.rates[busy, ALONE if served < 2 else SMALL if larger > 0 else SHARED]
            then = NEVER
            if taken < queued and served + awaited + held < channels:
                then = queue[rank, taken]
            for k in range(awaited):
                then = min(then, last[waiting[rank, k]])
            for k in range(settling):
                then = min(then, ends[rank, later[rank, 0, k]] + sequels.settles[later[rank, 0, k]])
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
            if served > 0:
                comm_ns += then - now
                if busy in (BACKWARD, OTHER_WORK, COPY_IN, LAUNCH):
                    overlapped_ns += then - now
            now = then
            kept = 0
            for k in range(served):
                if tasks[rank, k, _DUE] == now:
                    number = tasks[rank, k, _NUMBER]
                    if has_sequels:
                        settling, following, held = _end(
                            rank, number, now, sequels, ends, usables, later, settling, following, held
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
                    passed[rank, ENDED, item - 1] = now
                busy = IDLE
        state[_ITEM], state[BUSY], state[NOW], state[LAST_LAUNCH] = item, busy, now, launched
        state[_QUEUED], state[_TAKEN], state[_SERVED], state[_AWAITED] = queued, taken, served, awaited
        state[_SETTLING], state[_FOLLOWING], state[_HELD] = settling, following, held
        state[END], state[PAUSE], state[COMM], state[OVERLAPPED] = end, pause, comm_ns, overlapped_ns
        if until < came.shape[1]:
            came[rank, until] = now
