"""Many ranks whose work stretches: each stepped from instant to instant, and stopped at each collective.

A rank comes to collectives in the order of their launches, so what it does until it comes to one depends on
others only by when the last rank came to those before it. Ranks are therefore played in turns: each until it
comes to the next collective, then the latest of them is known to all. What remains of stretched work is the
sum of two floats, as in ``clock.bulk``; where that cannot tell how a duration rounds, the answer is not sure.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.bulk import Factors, exact_product, rounded_end, work_left
from sim.clock.machine_code import compiled
from sim.clock.variants import BACKWARD, COPY_BACK, COPY_IN, IDLE, LAUNCH, STALLED, WAIT

_NEVER = 1 << 62
_FEWEST_RANKS = 8192  # that are worth a thread

# A rank's state between turns: columns of its whole numbers, of those of its tasks, of their floats.
_ITEM, _BUSY, _NOW, _LAUNCHED, _TURN, _TAKEN, _SERVED, _AWAITED, _END, _SURE, _PAUSE = range(11)
_NUMBER, _WHOLE, _BEGAN, _SINCE, _DUE, _CHANGES, _CLEAR = range(7)
_LEFT, _LEFT_LOW, _RATE, _RATE_LOW = range(4)


def play_stretched(
    factors: Factors,
    grains: Floats,
    kinds: Ints,
    durations: Ints,
    numbers: Ints,
    services: Ints,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    stall_ns: int,
    begins: Ints,
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    """One micro-batch of ranks whose backward starts at ``begins``; arrays as in ``Lanes``, and by rank.

    Returns:
        When each rank has its gradients [ranks], when it came to each collective [ranks, collectives], when
        the last rank did [collectives], when it ended on each rank [ranks, collectives], and whether all that
        is sure.
    """
    ranks, count = begins.size, services.size
    channels = min(factors.channels, max(count, 1))
    came = np.zeros((ranks, count), np.int64)
    last = np.zeros(count, np.int64)
    state = np.zeros((ranks, 11), np.int64)
    state[:, _PAUSE] = np.where(stalled >= 0, stall_ns, 0)
    state[:, _NOW] = state[:, _LAUNCHED] = begins
    state[:, _BUSY], state[:, _END], state[:, _SURE] = IDLE, -1, 1
    tasks = np.zeros((ranks, channels + 1, 7), np.int64)  # the last is the lane
    rests = np.zeros((ranks, channels + 1, 4), np.float64)
    queues = np.zeros((ranks, count), np.int64)  # when each collective was launched
    waiting = np.zeros((ranks, channels), np.int64)
    ends = np.full((ranks, count), -1, np.int64)

    def advance(some: slice, turn: int) -> None:
        _advance_all(
            factors,
            grains,
            kinds,
            durations,
            numbers,
            services,
            variants[some],
            paces[some],
            stalled[some],
            state[some],
            tasks[some],
            rests[some],
            queues[some],
            waiting[some],
            ends[some],
            came[some],
            last,
            turn,
        )

    workers = max(1, min(os.cpu_count() or 1, ranks // _FEWEST_RANKS))
    edges = [ranks * k // workers for k in range(workers + 1)]
    parts = [slice(first, stop) for first, stop in pairwise(edges)]
    with ThreadPoolExecutor(workers) as pool:  # starts no thread before it is given work
        for turn in range(count + 1):
            if workers == 1:
                advance(parts[0], turn)
            else:
                list(pool.map(advance, parts, [turn] * workers))
            if turn < count:
                last[turn] = came[:, turn].max()
    return state[:, _END].copy(), came, last, ends, bool(state[:, _SURE].all())


@compiled
def _advance_all(
    factors: Factors,
    grains: Floats,
    kinds: Ints,
    durations: Ints,
    numbers: Ints,
    services: Ints,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    state: Ints,
    tasks: Ints,
    rests: Floats,
    queues: Ints,
    waiting: Ints,
    ends: Ints,
    came: Ints,
    last: Ints,
    turn: int,
) -> None:
    for rank in range(variants.size):
        variant = variants[rank]
        _advance(
            factors,
            grains,
            kinds[variant],
            durations[variant],
            numbers[variant],
            services,
            paces[rank],
            stalled[rank],
            state[rank],
            tasks[rank],
            rests[rank],
            queues[rank],
            waiting[rank],
            ends[rank],
            last,
            turn,
        )
        if turn < services.size:
            came[rank, turn] = state[rank, _NOW]


@compiled
def _advance(
    factors: Factors,
    grains: Floats,
    kinds: Ints,
    durations: Ints,
    numbers: Ints,
    services: Ints,
    pace: float,
    stalled: int,
    state: Ints,
    tasks: Ints,
    rests: Floats,
    queue: Ints,
    waiting: Ints,
    ends: Ints,
    last: Ints,
    until: int,
) -> None:
    """Play one rank until it comes to collective ``until``, or where there is none to its end.

    When the last rank came to those before is known (``last``); the rank stands within the instant in which
    it came to the one before.
    """
    lane = tasks.shape[0] - 1
    items, count = kinds.size, services.size
    item, busy, now, launched = state[_ITEM], state[_BUSY], state[_NOW], state[_LAUNCHED]
    turn, begun, served, awaited = state[_TURN], state[_TAKEN], state[_SERVED], state[_AWAITED]
    end, sure, pause = state[_END], state[_SURE] == 1, state[_PAUSE]
    while True:
        # All that happens at this instant without taking time.
        came = settled = False
        while not settled:
            kept = 0
            for k in range(awaited):
                number = waiting[k]
                if last[number] > now:
                    waiting[kept] = number
                    kept += 1
                elif services[number] > 0:
                    tasks[served, _NUMBER] = number
                    tasks[served, _WHOLE] = services[number]
                    tasks[served, _BEGAN] = now
                    rests[served, _RATE] = 0.0
                    served += 1
                else:
                    ends[number] = now
            awaited = kept
            while busy == IDLE:
                if pause > 0 and item == stalled + 1:
                    busy = STALLED
                    tasks[lane, _WHOLE], tasks[lane, _BEGAN], rests[lane, _RATE] = pause, now, 0.0
                    pause = 0
                    break
                if item == items:
                    break
                kind = kinds[item]
                if kind == WAIT and ends[numbers[item]] < 0:
                    break
                duration = durations[item]
                if kind == BACKWARD:
                    duration = int(np.rint(duration * pace))
                elif kind == LAUNCH:
                    if factors.blocks:
                        duration = factors.launch_cost_ns
                    else:
                        launched = max(launched, now) + factors.launch_cost_ns
                        queue[turn] = launched
                        turn += 1
                if duration > 0:
                    busy = kind
                    tasks[lane, _WHOLE], tasks[lane, _BEGAN], rests[lane, _RATE] = duration, now, 0.0
                elif kind == LAUNCH and factors.blocks:
                    queue[turn] = now
                    turn += 1
                item += 1
            if busy == IDLE and item == items and end < 0:
                end = now
            settled = True
            if begun < turn and queue[begun] <= now and served + awaited < lane:
                waiting[awaited] = begun
                awaited += 1
                begun += 1
                if begun > until:
                    came = True
                else:
                    settled = False
        if came or (end >= 0 and until == count and served + awaited == 0):
            break
        # How much work stretches from here on, and when it ends at that rate: the whole is rounded, once.
        comm, comm_low, compute, compute_low = 1.0, 0.0, 1.0, 0.0
        if busy not in (IDLE, STALLED):
            comm = factors.comm_copy_out if busy == COPY_BACK else factors.comm
        if served > 1:
            comm, comm_low = exact_product(comm, factors.channel)
        if served > 0 and busy != STALLED:
            compute = factors.copy_out if busy == COPY_BACK else factors.compute
            if busy == COPY_IN:
                compute, compute_low = exact_product(compute, factors.copy_in)
        then = _NEVER
        if begun < turn and served + awaited < lane:
            then = queue[begun]
        for k in range(awaited):
            then = min(then, last[waiting[k]])
        working = served + (busy != IDLE)
        for k in range(working):
            task = k if k < served else lane
            new, new_low = (compute, compute_low) if task == lane else (comm, comm_low)
            if new != rests[task, _RATE] or new_low != rests[task, _RATE_LOW]:
                is_fresh = rests[task, _RATE] == 0.0
                if is_fresh:
                    rests[task, _LEFT], rests[task, _LEFT_LOW] = float(tasks[task, _WHOLE]), 0.0
                    tasks[task, _CHANGES] = 0
                else:
                    left, left_low, is_exact = work_left(
                        rests[task, _LEFT],
                        rests[task, _LEFT_LOW],
                        float(now - tasks[task, _SINCE]),
                        rests[task, _RATE],
                        rests[task, _RATE_LOW],
                    )
                    rests[task, _LEFT], rests[task, _LEFT_LOW] = left, left_low
                    tasks[task, _CHANGES] += not is_exact
                tasks[task, _SINCE] = now
                rests[task, _RATE], rests[task, _RATE_LOW] = new, new_low
                if is_fresh and new == 1.0:
                    tasks[task, _DUE], tasks[task, _CLEAR] = now + tasks[task, _WHOLE], 1
                    then = min(then, tasks[task, _DUE])
                    continue
                lasts, clear = rounded_end(
                    float(now - tasks[task, _BEGAN]),
                    rests[task, _LEFT],
                    rests[task, _LEFT_LOW],
                    new,
                    new_low,
                    float(tasks[task, _WHOLE]),
                    tasks[task, _CHANGES],
                )
                if not clear:
                    about = float(now - tasks[task, _BEGAN]) + rests[task, _LEFT] * new
                    doubt = (tasks[task, _CHANGES] + 1) * (about + tasks[task, _WHOLE] * new) * 2.0**-94
                    if doubt < grains[busy if task == lane else IDLE]:
                        # Nearer to a half than it can come: it is a half, which is rounded to even.
                        lasts, clear = int(np.floor(about)), True
                        lasts += lasts & 1
                tasks[task, _DUE] = tasks[task, _BEGAN] + lasts
                tasks[task, _CLEAR] = clear
            then = min(then, tasks[task, _DUE])
        for k in range(working):  # a rounding decides where a task ends now, or would with one ns less
            task = k if k < served else lane
            sure &= tasks[task, _CLEAR] == 1 or tasks[task, _DUE] > then + 1
        now = then
        kept = 0
        for k in range(served):
            if tasks[k, _DUE] == now:
                ends[tasks[k, _NUMBER]] = now
            else:
                if kept < k:
                    tasks[kept], rests[kept] = tasks[k], rests[k]
                kept += 1
        served = kept
        if busy != IDLE and tasks[lane, _DUE] == now:
            if busy == LAUNCH:
                queue[turn] = now
                turn += 1
            busy = IDLE
    state[_ITEM], state[_BUSY], state[_NOW], state[_LAUNCHED] = item, busy, now, launched
    state[_TURN], state[_TAKEN], state[_SERVED], state[_AWAITED] = turn, begun, served, awaited
    state[_END], state[_SURE], state[_PAUSE] = end, int(sure), pause
