"""The exact optimum over contiguous partitions on one FIFO channel, by labels that cannot be compared.

A prefix of the ready order, cut somehow, leaves behind three times: when its last bucket was launched,
when its collective ended, and when it was copied back. Every later time is monotone in all three, so a
prefix that is no better than another in any of them can be dropped; the rest are kept. Earliest finish
alone is not enough: with copies back in order, a later finish with less copied can win.
"""

from dataclasses import dataclass
from fractions import Fraction

from sim.costs.collectives import all_reduce_ns
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.bound import affine_minorants, least_service_ns
from sim.tuner.partitions import Buckets, runs
from sim.tuner.prefixes import Prefixes
from sim.units import transfer_ns

MAX_LABELS = 400  # per prefix; beyond it the search gives up its claim to be exact
FEW_LABELS = 2  # per prefix in the first search, whose answer is the limit that prunes the second


def applies(workload: Workload, hardware: Hardware) -> bool:
    """Whether the exact search covers this case: one run, one channel, nothing that stretches or
    blocks the compute lane."""
    blocking = hardware.launch_blocks_compute and "launch" not in workload.ready_includes
    slowed = hardware.compute_slowdown != 1 and "interference" not in workload.ready_includes
    return (
        len(runs(workload)) == 1
        and hardware.comm_channels == 1
        and hardware.comm_slowdown == hardware.comm_copy_out_slowdown == 1
        and hardware.copy_in_slowdown == hardware.copy_out_slowdown == 1
        and not slowed
        and not (blocking and hardware.launch_cost_ns)
    )


@dataclass(slots=True, eq=False)
class _Label:
    """One way to cut a prefix: its three times in ns, where its last bucket began, and its own prefix."""

    launch: int
    end: int
    available: int
    start: int
    before: "_Label | None"


def exact_optimum(workload: Workload, hardware: Hardware, upper_bound_ns: int) -> tuple[Buckets | None, bool]:
    """The partition with the least ``sync_end_ns``, if it is below ``upper_bound_ns``.

    Returns:
        The buckets in launch order, None if no partition is better than ``upper_bound_ns``; and
        whether the search was complete (not cut short at ``MAX_LABELS``).
    """
    best, complete = _search(workload, hardware, upper_bound_ns, FEW_LABELS)
    if not complete:
        limit = upper_bound_ns if best is None else best.available
        better, complete = _search(workload, hardware, limit, MAX_LABELS)
        best = better or best
    (order,) = runs(workload)
    return _trace(best, order), complete


def _search(
    workload: Workload, hardware: Hardware, limit: int, max_labels: int
) -> tuple[_Label | None, bool]:
    """The best label of the whole order below ``limit``, and whether no front outgrew ``max_labels``."""
    prefixes = Prefixes(workload, hardware)
    count = len(prefixes.order)
    ready, compute_end = prefixes.ready, prefixes.compute_end
    wire_before, copied_before = prefixes.wire, prefixes.copied
    cost, out_rate = hardware.launch_cost_ns, hardware.copy_out_bytes_per_s

    # Least time that the rest needs after a prefix, whatever is done with it.
    lines = affine_minorants(hardware.all_reduce) if hardware.world_size > 1 else [(Fraction(0), Fraction(0))]
    rest = [
        int(least_service_ns(lines, wire_before[-1] - wire_before[at], count - at)) for at in range(count)
    ] + [0]
    # And the least time that its copies back need; the last copy holds at least the last gradient.
    back_rest = [
        max(0, transfer_ns(copied_before[-1] - copied_before[at], out_rate) - (count - at) // 2 - 1)
        for at in range(count)
    ] + [0]
    last_back = transfer_ns(copied_before[-1] - copied_before[-2], out_rate)
    rest = [time + last_back for time in rest[:-1]] + [0]
    least_next = [
        int(least_service_ns(lines, wire_before[at + 1] - wire_before[at], 1)) for at in range(count)
    ]
    not_before = [0] * (count + 1)
    for at in range(count - 1, -1, -1):
        not_before[at] = max(not_before[at + 1], ready[at] + cost + rest[at])

    best: _Label | None = None
    complete = True
    fronts: list[list[_Label]] = [[] for _ in range(count + 1)]
    fronts[0] = [_Label(0, 0, compute_end, 0, None)]
    service_memo: dict[int, int] = {}
    for at in range(count):
        front = fronts[at]
        fronts[at] = []
        if not_before[at] >= limit or not front:
            continue
        for stop in range(at + 1, count + 1):
            if ready[stop - 1] + cost >= limit:
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
                # What the next bucket waits for anyway is no difference between labels.
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


def _trace(label: _Label | None, order: list[int]) -> Buckets | None:
    if label is None:
        return None
    buckets, stop = [], len(order)
    while label.before is not None:
        buckets.append(tuple(order[label.start : stop]))
        stop, label = label.start, label.before
    return tuple(reversed(buckets))
