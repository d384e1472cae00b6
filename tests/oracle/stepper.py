"""CONTRACT's "How time runs", one nanosecond at a time.

Written from the contract's words, sharing nothing with ``sim.clock``, ``sim.systems`` or ``sim.costs`` but
the nouns.
Slow and plain on purpose: it looks at every nanosecond, takes from each piece of work what is done of it in
that one at its rate, and asks whether any is left.
Two ranks are stepped side by side, each asking in each nanosecond whether the other has come.
"""

import itertools
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Curve, Hardware
from sim.nouns.workload import Workload

FULL = 2**20  # how much of a ns is done in a ns that nothing slows down

Span = tuple[str, int, int, int | None, int | None]  # kind, start, end, gradient, bucket


def small(hardware: Hardware) -> tuple[int, float]:
    """From how many bytes on a message is not small (0: none is), and what a small one stretches by."""
    curve, none = hardware.all_reduce, (0, 1.0)
    if not hardware.shared_connection or hardware.comm_channels == 1 or hardware.world_size == 1:
        return none
    rate = min((Fraction(p.duration_ns, p.num_bytes) for p in curve if p.num_bytes), default=Fraction(0))
    larger = [p for p in curve if 4 * rate * p.num_bytes >= p.duration_ns]
    if not larger or larger[0] is curve[0]:
        return none
    few = curve[: curve.index(larger[0])]
    before, after = few[-1], larger[0]
    run = after.num_bytes - before.num_bytes
    rise = Fraction(after.duration_ns - before.duration_ns, run)
    edge = next(
        before.num_bytes + more
        for more in range(1, run + 1)
        if 4 * rate * (before.num_bytes + more) >= before.duration_ns + rise * more
    )
    other = [p for p in curve if p.num_bytes <= max(2 << 20, after.num_bytes)][-1]
    return edge, round(1 + 0.75 * other.duration_ns / median(p.duration_ns for p in few), 4)


def half_even(value: Fraction) -> int:
    """Nearest integer, half to even."""
    floor = value.numerator // value.denominator
    rest = value - floor
    if rest == Fraction(1, 2):
        return floor + floor % 2
    return floor + (rest > Fraction(1, 2))


def service(curve: Curve, num_bytes: int, world_size: int) -> int:
    """Linear between points; below the first straight to what no bytes take, by the flattest line through it
    and another, between nothing and the first's time; beyond the last with the slope of the last two, and at
    least as its bytes grow (those of the last point, less what no bytes take where that is a point); world
    size 1 costs nothing."""
    if world_size == 1:
        return 0
    points = [(point.num_bytes, point.duration_ns) for point in curve]
    (first_size, first_time), no_bytes_ns = points[0], Fraction(0)
    if first_size and len(points) > 1:
        slope = min(Fraction(time - first_time, size - first_size) for size, time in points[1:])
        no_bytes_ns = min(max(no_bytes_ns, first_time - slope * first_size), Fraction(first_time))
    if first_size:
        points.insert(0, (0, half_even(no_bytes_ns)))
    for (size, time), (next_size, next_time) in itertools.pairwise(points):
        if num_bytes <= next_size:
            return half_even(time + Fraction(next_time - time, next_size - size) * (num_bytes - size))
    (last_size, last_time), slopes = points[-1], [Fraction(0)]
    if last_size:
        slopes.append(Fraction(last_time - (first_time if first_size == 0 else 0), last_size))
    if len(curve) > 1:
        slopes.append(Fraction(last_time - points[-2][1], last_size - points[-2][0]))
    return half_even(last_time + max(slopes) * (num_bytes - last_size))


def copy(num_bytes: int, bytes_per_s: float | None) -> int:
    """Time to copy; null is free."""
    return 0 if bytes_per_s is None else half_even(num_bytes * 10**9 / Fraction(bytes_per_s))


@dataclass
class Fate:
    """What became of one backward pass, in ns."""

    ready: list[int]
    launch: list[int]
    start: list[int]
    late: list[int]
    end: list[int]
    copy_out_start: list[int]
    available: list[int]
    service: list[int]
    wire: list[int]
    compute: list[Span] = field(default_factory=list)
    backward_end: int = 0
    sync_end: int = 0


@dataclass
class _Work:
    kind: str
    left: int
    start: int
    gradient: int | None = None
    bucket: int | None = None


def step_through(
    workload: Workload, hardware: Hardware, assignment: Assignment, slowest: Workload | None = None
) -> Fate:
    """Play one backward pass under ``assignment``, beside that of the slowest other rank if there is one.

    Both begin their forward in the same nanosecond.
    """
    count = len(assignment.bucket_indices)
    ranks = [workload] if slowest is None else [workload, slowest]
    fates = [Fate(*([0] * count for _ in range(7)), [], []) for _ in ranks]
    came = [0] * count  # ranks that have come to each collective
    under_way = [
        (rank.forward_ns + rank.loss_ns, _backward(rank, hardware, assignment, fate, came, len(ranks)))
        for rank, fate in zip(ranks, fates, strict=True)
    ]
    clock = min(begin for begin, _ in under_way)
    while under_way:
        here = [rank for rank in under_way if rank[0] <= clock]
        happened = True
        while happened:  # each of them is asked, not until the first that says so
            happened = sum(next(backward) for _, backward in here) > 0
        for rank in here:
            try:
                rank[1].send(True)
            except StopIteration:
                under_way.remove(rank)
        clock += 1
    return fates[0]


def _backward(
    workload: Workload, hardware: Hardware, assignment: Assignment, fate: Fate, came: list[int], ranks: int
) -> Generator[bool, bool | None, None]:
    """One rank's backward, by turns with others.

    In each nanosecond it yields whether anything happened; sent True, since nothing did anywhere, it goes to
    the next one.
    """
    buckets = assignment.bucket_indices
    count = len(buckets)
    includes = workload.ready_includes
    copies_in = None if "copy_in" in includes else hardware.copy_in_bytes_per_s
    views = assignment.ddp_kwargs.get("gradient_as_bucket_view", False)
    copies_out = None if views else hardware.copy_out_bytes_per_s
    launch_on_lane = hardware.launch_blocks_compute and "launch" not in includes
    slow_compute = Fraction(1 if "interference" in includes else hardware.compute_slowdown)
    slow_in, slow_out = Fraction(hardware.copy_in_slowdown), Fraction(hardware.copy_out_slowdown)
    slow_comm_by_copy = Fraction(hardware.comm_copy_out_slowdown)
    small_bytes, small_factor = small(hardware)
    slow_comm, slow_channel = Fraction(hardware.comm_slowdown), Fraction(hardware.channel_slowdown)

    def wire(index: int) -> int:
        gradient = workload.gradients[index]
        return gradient.num_bytes if gradient.wire_bytes is None else gradient.wire_bytes

    def copied(index: int) -> int:
        return 0 if workload.gradients[index].sparse else wire(index)

    order = workload.ready_order
    if order is None:
        order = tuple(sorted(range(len(workload.gradients)), reverse=True))
        order = tuple(sorted(order, key=lambda index: workload.gradients[index].ready_ns or 0))
    home = {index: k for k, bucket in enumerate(buckets) for index in bucket}
    fate.wire = [sum(wire(index) for index in bucket) for bucket in buckets]
    fate.service = [service(hardware.all_reduce, size, hardware.world_size) for size in fate.wire]

    lane: deque[tuple[str, int, int | None, int | None]] = deque()
    reached = 0
    for index in order:
        ready = workload.gradients[index].ready_ns
        assert ready is not None
        lane.append(("backward", ready - reached, index, None))
        lane.append(("copy_in", copy(copied(index), copies_in), index, None))
        reached = ready
    lane.append(("backward", workload.backward_ns - reached, None, None))

    missing = [len(bucket) for bucket in buckets]
    turn = 0  # A3.5: the bucket whose launch is next
    may_launch: deque[int] = deque()  # launches beside the lane, waiting for their turn
    launched_at: tuple[int, int] | None = None  # (bucket, instant) of the launch under way beside the lane
    waiting: deque[int] = deque()  # launched, first come first served
    spinning: list[int] = []  # on a channel, waiting for other ranks
    on_lane: _Work | None = None
    active: list[_Work] = []  # collectives
    over = False  # the compute lane
    back: _Work | None = None  # the copy out of a bucket that is under way
    to_copy_out = deque(range(count))
    reduced: set[int] = set()
    now = 0

    def finished_copy(index: int) -> None:
        nonlocal turn
        k = home[index]
        missing[k] -= 1
        if missing[k]:
            return
        fate.ready[k] = now
        on: list[int] = []
        while turn < count and missing[turn] == 0:
            on.append(turn)
            turn += 1
        if launch_on_lane:
            for k in reversed(on):
                lane.appendleft(("launch", hardware.launch_cost_ns, None, k))
        else:
            may_launch.extend(on)

    def finish_lane(work: _Work) -> None:
        nonlocal over
        if now > work.start:
            fate.compute.append((work.kind, work.start, now, work.gradient, work.bucket))
        if work.kind == "copy_in":
            assert work.gradient is not None
            finished_copy(work.gradient)
        elif work.kind == "launch":
            assert work.bucket is not None
            fate.launch[work.bucket] = now
            waiting.append(work.bucket)
        elif work.gradient is None:
            fate.backward_end, over = now, True

    def beside_others(work: _Work) -> Fraction:
        others = [other for other in active if other is not work]
        larger = [other for other in others if fate.wire[other.bucket or 0] >= small_bytes]
        if fate.wire[work.bucket or 0] >= small_bytes:
            return slow_channel if larger else Fraction(1)
        if larger:
            return Fraction(small_factor)
        return slow_channel if others else Fraction(1)

    def rate(work: _Work) -> int:
        slow = Fraction(1)
        if work.kind == "all_reduce":
            slow *= slow_comm if on_lane else 1
            slow *= slow_comm_by_copy if back else 1
            slow *= beside_others(work)
        elif active:
            slow *= slow_compute if work is on_lane else 1
            slow *= {"copy_in": slow_in, "copy_out": slow_out}.get(work.kind, 1)
        return half_even(FULL / slow)

    def everything() -> list[_Work]:
        return [*active, *([on_lane] if on_lane else []), *([back] if back else [])]

    while True:
        while True:
            changed = False
            # What is over by the rates that were in force up to this instant.
            if on_lane is not None and on_lane.left <= 0:
                done, on_lane, changed = on_lane, None, True
                finish_lane(done)
            for work in [work for work in active if work.left <= 0]:
                assert work.bucket is not None
                active.remove(work)
                fate.end[work.bucket] = now
                reduced.add(work.bucket)
                changed = True
            if back is not None and back.left <= 0:
                fate.available[to_copy_out.popleft()] = now
                back, changed = None, True
            # What begins, and what takes no time.
            while on_lane is None and lane:
                kind, duration, gradient, bucket = lane.popleft()
                work = _Work(kind, duration * FULL, now, gradient, bucket)
                if duration:
                    on_lane = work
                else:
                    finish_lane(work)
            while launched_at is not None or may_launch:
                if launched_at is None:
                    launched_at = (may_launch.popleft(), now + hardware.launch_cost_ns)
                if launched_at[1] > now:
                    break
                fate.launch[launched_at[0]] = now
                waiting.append(launched_at[0])
                launched_at = None
            while waiting and len(active) + len(spinning) < hardware.comm_channels:
                spinning.append(waiting.popleft())
                came[spinning[-1]] += 1
                fate.late[spinning[-1]] = -now
                changed = True
            for k in [k for k in spinning if came[k] == ranks]:
                spinning.remove(k)
                fate.start[k] = now
                fate.late[k] += now
                changed = True
                if fate.service[k]:
                    active.append(_Work("all_reduce", fate.service[k] * FULL, now, bucket=k))
                else:
                    fate.end[k] = now
                    reduced.add(k)
            while over and back is None and to_copy_out and to_copy_out[0] in reduced:
                k = to_copy_out[0]
                fate.copy_out_start[k] = now
                if took := sum(copy(copied(index), copies_out) for index in buckets[k]):
                    back = _Work("copy_out", took * FULL, now, bucket=k)
                else:
                    fate.available[to_copy_out.popleft()] = now
            if (yield changed):
                break
        if over and not to_copy_out and not active and not waiting and launched_at is None:
            break
        for work in everything():
            work.left -= rate(work)
        now += 1

    fate.sync_end = max(fate.backward_end, *fate.available)
