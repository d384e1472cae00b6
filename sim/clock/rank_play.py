"""One micro-batch of all ranks, by the fastest way that is exact."""

from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.compiled import play_ranks
from sim.clock.plain import play_plain
from sim.clock.sheet import MOST_NS
from sim.clock.simpy_ranks import play_world
from sim.clock.variants import Lanes, as_run, pause_of
from sim.errors import InputError, NotModelledError

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
    the order of launches. ``by_simpy``: SimPy played it, as the compiled loops could not, or not to the ns.
    """

    sync_ends_ns: Ints
    came_ns: Ints
    last_ns: Ints
    ends_ns: Ints
    by_simpy: bool


def check_times(lanes: Lanes, ranks: Together) -> None:
    """Raise ``InputError`` for times beyond 2**50 ns, past which floats are not exact."""
    if lanes.longest_ns * max(1.0, float(ranks.paces.max())) + ranks.stall_ns > MOST_NS:
        raise InputError(f"ranks: at these paces a step could take more than {MOST_NS} ns; look at the times")


def play(lanes: Lanes, ranks: Together) -> Met:
    """Ranks through one micro-batch: compiled where that is exact, else by SimPy.

    Raises:
        InputError: times beyond 2**50 ns.
        NotModelledError: only SimPy can play this, and there are too many ranks for it.
    """
    check_times(lanes, ranks)
    if not lanes.is_compiled:
        return play_by_simpy(lanes, ranks)
    brought = ranks.variants, ranks.paces, ranks.stalled, ranks.stall_ns, ranks.begins_ns
    if lanes.is_plain:
        syncs, came, last, ended = play_plain(
            lanes.sheet.factors,
            lanes.sheet.kinds,
            lanes.sheet.durations,
            lanes.sheet.numbers,
            lanes.tails,
            lanes.services_ns,
            *brought,
        )
        return Met(
            sync_ends_ns=syncs,
            came_ns=came,
            last_ns=last,
            ends_ns=np.broadcast_to(ended, came.shape),
            by_simpy=False,
        )
    played = play_ranks(lanes.sheet, *brought)
    if not played.is_sure.all():
        return play_by_simpy(lanes, ranks)
    return Met(
        sync_ends_ns=played.sync_ends,
        came_ns=played.came,
        last_ns=played.last,
        ends_ns=played.ends,
        by_simpy=False,
    )


def play_by_simpy(lanes: Lanes, ranks: Together) -> Met:
    """As ``play``, but always by SimPy."""
    items = ranks.begins_ns.size * lanes.sheet.kinds.shape[1]
    if items > MOST_ITEMS:
        why = (
            "a duration falls between two ns so that only exact fractions tell to which it is rounded"
            if lanes.is_compiled
            else "collectives that follow each other are played one by one"
        )
        raise NotModelledError(
            f"ranks: {why}, and {items:,} items of {ranks.begins_ns.size:,} ranks are too many for that; "
            f"give at most {MOST_ITEMS:,}"
        )
    variants, paces, stalled = ranks.variants.tolist(), ranks.paces.tolist(), ranks.stalled.tolist()
    programs = [as_run(lanes, *row) for row in zip(variants, paces, strict=True)]
    pauses = [pause_of(lanes, *row, ranks.stall_ns) for row in zip(variants, stalled, strict=True)]
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
        by_simpy=True,
    )
