"""The exact optimum over contiguous partitions on one FIFO channel, by labels that cannot be compared.

A prefix of the ready order, cut somehow, leaves behind three times: when its last bucket was launched,
when its collective ended, and when it was copied back. Every later time is monotone in all three, so a
prefix that is no better than another in any of them can be dropped; the rest are kept. Slower than the search
with deadlines (``exact``), and exact where that one is not: to the last nanosecond of copies that are rounded
one by one, and where launches take longer than what they launch.
"""

from dataclasses import dataclass

import numpy as np

from sim.costs.service_time import all_reduce_ns
from sim.systems.cut import NO_LIMIT
from sim.tuner.search.bound import affine_minorants, least_service_ns, least_services_ns
from sim.tuner.search.exact import KNOWN
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem
from sim.units import transfer_ns

MAX_LABELS = 400  # per prefix; beyond it the search gives up its claim to be exact
FEW_LABELS = 2  # per prefix in the first search, whose answer is the limit that prunes the second


def applies(problem: Problem) -> bool:
    """Whether the search covers this case: one run, one channel, nothing stretches or blocks the lane."""
    return problem.effects.in_force <= KNOWN and problem.has_one_run


@dataclass(slots=True, eq=False)
class _Label:
    """One way to cut a prefix: its three times in ns, where its last bucket begins, and the label before."""

    launch: int
    end: int
    available: int
    start: int
    before: "_Label | None"


def best_by_labels(
    problem: Problem, upper_bound_ns: int, max_bytes: int = NO_LIMIT
) -> tuple[Buckets | None, bool]:
    """The partition with the least ``sync_end_ns``, if it is below ``upper_bound_ns``.

    Returns:
        The buckets in launch order, None if no partition is better than ``upper_bound_ns``; and
        whether the search was complete (not cut short at ``MAX_LABELS``).
    """
    best, complete = _search(problem, upper_bound_ns, max_bytes, FEW_LABELS)
    if not complete:
        limit = upper_bound_ns if best is None else best.available
        better, complete = _search(problem, limit, max_bytes, MAX_LABELS)
        best = better or best
    return _trace(best, problem.order), complete


def _search(problem: Problem, limit: int, max_bytes: int, max_labels: int) -> tuple[_Label | None, bool]:
    """The best label of the whole order below ``limit``, and whether no front outgrew ``max_labels``."""
    hardware, count = problem.hardware, len(problem)
    ready = problem.ready.tolist()
    wire_before, copied_before, dense_before = (
        [0, *np.cumsum(sizes).tolist()] for sizes in (problem.wire, problem.copied, problem.dense)
    )
    cost, out_rate = hardware.launch_cost_ns, hardware.copy_out_bytes_per_s

    # The least time that the gradients after a prefix need, however they are cut.
    lines = affine_minorants(problem.curve)
    rest = [int(time) for time in np.floor(least_services_ns(problem))]
    # And the least time that its copies back need; the last copy holds at least the last gradient.
    back_rest = [
        max(0, transfer_ns(copied_before[-1] - copied_before[at], out_rate) - (count - at) // 2 - 1)
        for at in range(count)
    ] + [0]
    last_back = transfer_ns(copied_before[-1] - copied_before[-2], out_rate)
    rest = [time + last_back for time in rest[:-1]] + [0]
    least_next = [int(least_service_ns(lines, size, 1)) for size in problem.wire.tolist()]
    not_before = [0] * (count + 1)
    for at in range(count - 1, -1, -1):
        not_before[at] = max(not_before[at + 1], ready[at] + cost + rest[at])

    best: _Label | None = None
    complete = True
    fronts: list[list[_Label]] = [[] for _ in range(count + 1)]
    fronts[0] = [_Label(0, 0, problem.lane_end, 0, None)]
    service_memo: dict[int, int] = {}
    for at in range(count):
        front = fronts[at]
        fronts[at] = []
        if not_before[at] >= limit or not front:
            continue
        for stop in range(at + 1, count + 1):
            if ready[stop - 1] + cost >= limit:
                break
            if dense_before[stop] - dense_before[at] > max_bytes and stop > at + 1:
                break
            wire = wire_before[stop] - wire_before[at]
            service = service_memo.get(wire)
            if service is None:
                service = service_memo[wire] = all_reduce_ns(hardware, wire)
            back = transfer_ns(copied_before[stop] - copied_before[at], out_rate)
            for label in front:
                launch = max(label.launch, ready[stop - 1]) + cost
                end = max(label.end, launch) + service
                available = max(label.available, end) + back
                if available + back_rest[stop] >= limit or end + rest[stop] >= limit:
                    continue
                if stop == count:
                    best, limit = _Label(launch, end, available, at, label), available
                    continue
                # The next bucket waits so long in any case, so labels need not differ below that.
                launch = max(launch, ready[stop])
                end = max(end, launch + cost)
                available = max(available, end + least_next[stop])
                if not _insert(fronts[stop], _Label(launch, end, available, at, label)):
                    continue
                if len(fronts[stop]) > max_labels:
                    fronts[stop].sort(key=lambda kept: (kept.end, kept.available))
                    del fronts[stop][max_labels // 2 :]
                    complete = False
    return best, complete


def _insert(front: list[_Label], made: _Label) -> bool:
    """Keep ``made`` unless a label of the front is as good in all three times; drop what it beats."""
    for kept in front:
        if kept.end <= made.end and kept.available <= made.available and kept.launch <= made.launch:
            return False
    front[:] = [
        kept
        for kept in front
        if not (made.end <= kept.end and made.available <= kept.available and made.launch <= kept.launch)
    ]
    front.append(made)
    return True


def _trace(label: _Label | None, order: tuple[int, ...]) -> Buckets | None:
    if label is None:
        return None
    buckets, stop = [], len(order)
    while label.before is not None:
        buckets.append(order[label.start : stop])
        stop, label = label.start, label.before
    return tuple(reversed(buckets))
