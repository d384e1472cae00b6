"""One micro-batch of all ranks, by the fastest way that plays it."""

from dataclasses import dataclass, replace

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.compiled import play_ranks
from sim.clock.plain import play_plain
from sim.clock.program import Program, Work, check_length
from sim.clock.simpy_ranks import play_world
from sim.clock.variants import Lanes, timed_items
from sim.errors import NotModelledError

MOST_ITEMS = 2_000_000  # of all ranks' lanes together that SimPy is asked to play: some minutes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """What each rank brings into one micro-batch: its variant, its pace, the item of its lane that is
    interrupted (-1: none), and when its backward starts, ns on one clock; all [ranks]."""

    variants: Ints
    paces: Floats
    stalled: Ints
    stall_ns: int
    begins_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Met:
    """What became of a micro-batch, in ns on the clock of ``Together``.

    ``sync_ends_ns`` [ranks]: when a rank has its gradients. ``came_ns`` [ranks, collectives]: when a rank
    came to a collective, that is, had launched it and had a channel for it. ``last_ns`` [collectives]: when
    the last rank came to it. ``ends_ns`` [ranks, collectives]: when it ended on a rank. Collectives are in
    the order of launches.
    """

    sync_ends_ns: Ints
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
    if not lanes.is_compiled:
        return play_by_simpy(lanes, ranks)
    brought = ranks.variants, ranks.paces, ranks.stalled, ranks.stall_ns, ranks.begins_ns
    if lanes.is_plain:
        syncs, came, last, ended = play_plain(
            lanes.sheet.machine,
            lanes.sheet.kinds,
            lanes.sheet.durations,
            lanes.sheet.numbers,
            lanes.tails,
            lanes.services_ns,
            *brought,
        )
        return Met(sync_ends_ns=syncs, came_ns=came, last_ns=last, ends_ns=np.broadcast_to(ended, came.shape))
    played = play_ranks(lanes.sheet, *brought)
    return Met(sync_ends_ns=played.sync_ends, came_ns=played.came, last_ns=played.last, ends_ns=played.ends)


def play_by_simpy(lanes: Lanes, ranks: Together) -> Met:
    """As ``play``, but always by SimPy."""
    items = ranks.begins_ns.size * lanes.sheet.kinds.shape[1]
    if items > MOST_ITEMS:
        raise NotModelledError(
            f"ranks: collectives that follow each other are played one by one, and {items:,} items of "
            f"{ranks.begins_ns.size:,} ranks are too many for that; give at most {MOST_ITEMS:,}"
        )
    variants, paces, stalled = ranks.variants.tolist(), ranks.paces.tolist(), ranks.stalled.tolist()
    programs = [_as_run(lanes, *row) for row in zip(variants, paces, strict=True)]
    pauses = [_pause_of(lanes, *row, ranks.stall_ns) for row in zip(variants, stalled, strict=True)]
    begins = ranks.begins_ns.tolist()
    outcomes = play_world(programs, begins, pauses)
    shape, order = (len(outcomes), len(lanes.order)), lanes.order
    came = np.array([[one.taken_ns[k] for k in order] for one in outcomes], np.int64).reshape(shape)
    ends = np.array([[one.end_ns[k] for k in order] for one in outcomes], np.int64).reshape(shape)
    came += ranks.begins_ns[:, None]
    return Met(
        sync_ends_ns=np.array([o.sync_end_ns + begin for o, begin in zip(outcomes, begins, strict=True)]),
        came_ns=came,
        last_ns=came.max(axis=0),
        ends_ns=ends + ranks.begins_ns[:, None],
    )


def _as_run(lanes: Lanes, variant: int, pace: float) -> Program:
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


def _pause_of(lanes: Lanes, variant: int, stalled: int, stall_ns: int) -> tuple[int, int] | None:
    """Behind which place of the program's lane it stands still, and for how long; None for ``stalled`` -1."""
    return None if stalled < 0 else (timed_items(lanes.programs[variant])[stalled], stall_ns)
