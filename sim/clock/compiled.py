"""The compiled clock: what ``simpy_clock`` and ``simpy_ranks`` play, as machine code, to the nanosecond.

Ranks come to collectives in the order of their launches (where none follows another), so what a rank does
until it comes to one depends on others only by when the last of them came to those before. Many ranks are
therefore played in turns: each until it comes to the next collective, then the last of them is known to all.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.instants import (
    BUSY,
    COMM,
    END,
    LAST_LAUNCH,
    NEVER,
    NOW,
    OVERLAPPED,
    PAUSE,
    STATE,
    TASK,
    advance,
)
from sim.clock.machine_code import compiled
from sim.clock.sheet import IDLE, Machine, Sequels, Sheet

_FEWEST_RANKS = 8192  # that are worth a thread


class RanksPlayed(NamedTuple):
    """What became of each rank, in ns on one clock.

    ``sync_ends`` [ranks]: when it has its gradients; ``came`` [ranks, collectives]: when it came to each (had
    launched it, and a channel for it); ``last`` [collectives]: when the last rank did; ``ends`` and
    ``usables`` [ranks, collectives]: when it ended there and its result could be used. ``comm``,
    ``overlapped`` [ranks]: for how long any collective was under way, and beside the computing lane.
    ``items`` [ranks, 2, items] and ``log`` [ranks, 3, collectives], where they were asked for.
    """

    sync_ends: Ints
    came: Ints
    last: Ints
    ends: Ints
    usables: Ints
    comm: Ints
    overlapped: Ints
    items: Ints
    log: Ints


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
) -> RanksPlayed:
    """One micro-batch of ranks whose backward starts at ``begins``, ns; all other arguments by rank too.

    Args:
        sheet: what they run; collectives that follow others are for ranks that do not ``meet``.
        variants: which variant each runs.
        paces: factor on backward's own work.
        stalled: the item after which the lane stands still for ``stall_ns``; -1: none.
        stall_ns: see there.
        begins: see above.
        meet: whether a collective starts when the last rank has come to it. False: as soon as each has.
        logs: keep when each item and each collective began and ended.
    """
    sheet = sheet._replace(services=np.ascontiguousarray(sheet.services))  # one layout: compiled once
    ranks, count, items = begins.size, sheet.services.shape[1], sheet.kinds.shape[1]
    channels = min(sheet.machine.channels, max(count, 1))
    follows, settles = sheet.sequels.follower.size > 0, sheet.sequels.settles.size > 0
    last = np.zeros(count, np.int64) if meet else np.full(count, -NEVER)
    came = np.zeros((ranks, count if meet else 0), np.int64)
    state = np.zeros((ranks, STATE), np.int64)
    state[:, PAUSE] = np.where(stalled >= 0, stall_ns, 0)
    state[:, NOW] = state[:, LAST_LAUNCH] = begins
    state[:, BUSY], state[:, END] = IDLE, -1
    tasks = np.zeros((ranks, channels + 1, TASK), np.int64)
    queues = np.zeros((ranks, count), np.int64)
    lines = np.zeros((ranks, count if follows else 0), np.int64)
    waiting = np.zeros((ranks, channels), np.int64)
    later = np.zeros((ranks, 3, count if follows or settles else 0), np.int64)
    ends = np.full((ranks, count), -1, np.int64)
    usables = np.full((ranks, count), -1, np.int64) if settles else ends
    passed = np.zeros((ranks, 2, items if logs else 0), np.int64)
    log = np.zeros((ranks, 3, count if logs else 0), np.int64)

    def play(some: slice, turn: int) -> None:
        advance(
            sheet,
            sheet.services[some] if sheet.services.shape[0] > 1 else sheet.services,
            variants[some],
            paces[some],
            stalled[some],
            state[some],
            tasks[some],
            queues[some],
            lines[some],
            waiting[some],
            later[some],
            ends[some],
            usables[some],
            passed[some],
            log[some],
            came[some],
            last,
            turn,
        )

    workers = max(1, min(os.cpu_count() or 1, ranks // _FEWEST_RANKS))
    edges = [ranks * k // workers for k in range(workers + 1)]
    parts = [slice(first, stop) for first, stop in pairwise(edges)]
    with ThreadPoolExecutor(workers) as pool:  # starts no thread before it is given work
        for turn in range(0 if meet else count, count + 1):
            if workers == 1:
                play(parts[0], turn)
            else:
                list(pool.map(play, parts, [turn] * workers))
            if turn < count:
                last[turn] = came[:, turn].max()
    return RanksPlayed(
        state[:, END].copy(),
        came,
        last,
        ends,
        usables,
        state[:, COMM].copy(),
        state[:, OVERLAPPED].copy(),
        passed,
        log,
    )


@compiled
def play_alone(
    machine: Machine,
    kinds: Ints,
    durations: Ints,
    numbers: Ints,
    services: Ints,
    small: Ints,
) -> int:
    """When one rank, alone from 0 ns on, has its gradients.

    Arguments as in ``Sheet``, of one variant and one row; collectives do not settle or follow.
    """
    count = services.size
    channels = min(machine.channels, max(count, 1))
    state = np.zeros((1, STATE), np.int64)
    state[0, BUSY], state[0, END] = IDLE, -1
    none, none_a_rank = np.zeros(0, np.int64), np.zeros((1, 0), np.int64)
    ends = np.full((1, count), -1)
    nothing = np.zeros((1, 3, 0), np.int64)
    sheet = Sheet(
        machine,
        kinds.reshape(1, -1),
        durations.reshape(1, -1),
        numbers.reshape(1, -1),
        services.reshape(1, -1),
        small,
        Sequels(none, none, none, none),
    )
    advance(
        sheet,
        sheet.services,
        np.zeros(1, np.int64),
        np.ones(1),
        np.full(1, -1),
        state,
        np.zeros((1, channels + 1, TASK), np.int64),
        np.zeros((1, count), np.int64),
        none_a_rank,
        np.zeros((1, channels), np.int64),
        nothing,
        ends,
        ends,
        nothing,
        nothing,
        none_a_rank,
        np.full(count, -NEVER),
        count,
    )
    return int(state[0, END])
