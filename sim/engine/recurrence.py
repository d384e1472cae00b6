"""The twin without SimPy: the same semantics as closed recurrences, or stepped where work stretches.

Independent of ``lanes`` on purpose: each is the other's oracle.
"""

import heapq
from collections import deque
from fractions import Fraction

from sim.engine.outcome import Outcome
from sim.engine.plan import Plan
from sim.nouns.timeline import ComputeSpan


def solve(plan: Plan) -> Outcome:
    """The outcome of a plan, to the nanosecond what ``lanes.play`` says."""
    return _step(plan) if plan.stretches else _recur(plan)


def _finalize(plan: Plan, compute_end: int, end: list[int]) -> tuple[list[int], list[int]]:
    """Waits and copies back strictly in bucket order (A3.10): copy-out starts and ends."""
    starts, ends = [], []
    time = compute_end
    for finished, copy_out in zip(end, plan.copy_out_ns, strict=True):
        time = max(time, finished)
        starts.append(time)
        time += copy_out
        ends.append(time)
    return starts, ends


def _recur(plan: Plan) -> Outcome:
    count = len(plan.wire_bytes)
    pending = plan.pending
    ready, launch, spans = [0] * count, [0] * count, []
    next_bucket = lane = last_launch = 0
    for gradient, work, copy_in, bucket in zip(
        plan.gradients, plan.work_ns, plan.copy_in_ns, plan.bucket_of, strict=True
    ):
        if work:
            spans.append(ComputeSpan(kind="backward", start_ns=lane, end_ns=lane + work, gradient=gradient))
            lane += work
        if copy_in:
            spans.append(ComputeSpan(kind="copy_in", start_ns=lane, end_ns=lane + copy_in, gradient=gradient))
            lane += copy_in
        pending[bucket] -= 1
        if pending[bucket]:
            continue
        ready[bucket] = lane
        cost = plan.launch_cost_ns
        while next_bucket < count and pending[next_bucket] == 0:
            if plan.launch_blocks_compute:
                if cost:
                    spans.append(
                        ComputeSpan(kind="launch", start_ns=lane, end_ns=lane + cost, bucket=next_bucket)
                    )
                lane += cost
                launch[next_bucket] = lane
            else:
                last_launch = launch[next_bucket] = max(last_launch, lane) + cost
            next_bucket += 1
    if plan.tail_ns:
        spans.append(ComputeSpan(kind="backward", start_ns=lane, end_ns=lane + plan.tail_ns))
    lane += plan.tail_ns

    free = [0] * plan.channels
    start, end = [0] * count, [0] * count
    for bucket in range(count):
        start[bucket] = max(launch[bucket], heapq.heappop(free))
        end[bucket] = start[bucket] + plan.service_ns[bucket]
        heapq.heappush(free, end[bucket])
    copy_starts, copy_ends = _finalize(plan, lane, end)
    return Outcome(
        compute=tuple(spans),
        ready_ns=tuple(ready),
        launch_ns=tuple(launch),
        start_ns=tuple(start),
        end_ns=tuple(end),
        copy_out_start_ns=tuple(copy_starts),
        available_ns=tuple(copy_ends),
        backward_end_ns=lane,
    )


def _program(plan: Plan) -> deque[tuple[str, int, int]]:
    """The compute lane as (kind, number, duration): what it does if nothing blocks it, in order.

    ``release`` marks the instant at which buckets up to ``number`` may be launched.
    """
    pending = plan.pending
    program: deque[tuple[str, int, int]] = deque()
    next_bucket = 0
    for gradient, work, copy_in, bucket in zip(
        plan.gradients, plan.work_ns, plan.copy_in_ns, plan.bucket_of, strict=True
    ):
        program.append(("backward", gradient, work))
        program.append(("copy_in", gradient, copy_in))
        pending[bucket] -= 1
        if pending[bucket]:
            continue
        program.append(("ready", bucket, 0))
        while next_bucket < len(pending) and pending[next_bucket] == 0:
            blocks = plan.launch_blocks_compute
            program.append(("launch" if blocks else "release", next_bucket, plan.launch_cost_ns * blocks))
            next_bucket += 1
    program.append(("tail", -1, plan.tail_ns))
    return program


def _step(plan: Plan) -> Outcome:
    """From event to event, with exact fractions of remaining work."""
    count = len(plan.wire_bytes)
    program = _program(plan)
    ready, launch, start, end = [0] * count, [0] * count, [0] * count, [0] * count
    spans: list[ComputeSpan] = []
    to_launch: deque[tuple[int, int]] = deque()  # (time, bucket), in order, beside the compute lane
    last_launch = 0
    queue: deque[int] = deque()  # launched, waiting for a channel
    serving: dict[int, Fraction] = {}  # bucket -> work that remains
    lane_item: tuple[str, int, int] | None = None
    lane_start, lane_left = 0, Fraction(0)
    compute_end: int | None = None
    copy_starts, copy_ends = [0] * count, [0] * count
    reduced: set[int] = set()
    back = 0  # the bucket that is copied back next
    copying: Fraction | None = None  # what remains of its copy
    now = 0

    while True:
        # Everything that happens at this instant without taking time.
        while lane_item is None and program:
            kind, number, duration = program.popleft()
            if duration:
                lane_item, lane_start, lane_left = (kind, number, duration), now, Fraction(duration)
            elif kind == "ready":
                ready[number] = now
            elif kind == "launch":
                launch[number] = now
                queue.append(number)
            elif kind == "release":
                last_launch = max(last_launch, now) + plan.launch_cost_ns
                to_launch.append((last_launch, number))
            elif kind == "tail":
                compute_end = now
        while to_launch and to_launch[0][0] == now:
            bucket = to_launch.popleft()[1]
            launch[bucket] = now
            queue.append(bucket)
        while queue and len(serving) < plan.channels:
            bucket = queue.popleft()
            start[bucket] = now
            if plan.service_ns[bucket]:
                serving[bucket] = Fraction(plan.service_ns[bucket])
            else:
                end[bucket] = now
                reduced.add(bucket)
        while compute_end is not None and copying is None and back in reduced:
            copy_starts[back] = now
            if plan.copy_out_ns[back]:
                copying = Fraction(plan.copy_out_ns[back])
            else:
                copy_ends[back] = now
                back += 1
        # Rates until the next instant, and which instant that is.
        copy_factor = plan.copy_out_slowdown if serving else Fraction(1)
        lane_factor = plan.compute_slowdown if serving else Fraction(1)
        if serving and lane_item is not None and lane_item[0] == "copy_in":
            lane_factor *= plan.copy_in_slowdown
        comm_factor = plan.comm_slowdown if lane_item else Fraction(1)
        if copying is not None:
            comm_factor *= plan.comm_copy_out_slowdown
        if len(serving) > 1:
            comm_factor *= plan.channel_slowdown
        ends = {
            bucket: start[bucket] + round(now - start[bucket] + left * comm_factor)
            for bucket, left in serving.items()
        }
        lane_end = lane_start + round(now - lane_start + lane_left * lane_factor) if lane_item else None
        instants = [*ends.values(), *(time for time, _ in to_launch)]
        if lane_end is not None:
            instants.append(lane_end)
        copy_end = None
        if copying is not None:
            began = copy_starts[back]
            copy_end = began + round(now - began + copying * copy_factor)
            instants.append(copy_end)
        if not instants:
            break
        then = min(instants)
        elapsed = then - now
        for bucket, finish in ends.items():
            if finish == then:
                del serving[bucket]
                reduced.add(bucket)
                end[bucket] = then
            else:
                serving[bucket] -= elapsed / comm_factor
        if lane_item:
            if lane_end == then:
                spans.append(_span(lane_item, lane_start, then))
                if lane_item[0] == "launch":
                    launch[lane_item[1]] = then
                    queue.append(lane_item[1])
                elif lane_item[0] == "tail":
                    compute_end = then
                lane_item = None
            else:
                lane_left -= elapsed / lane_factor
        if copying is not None:
            if copy_end == then:
                copy_ends[back] = then
                copying, back = None, back + 1
            else:
                copying -= elapsed / copy_factor
        now = then

    assert compute_end is not None
    return Outcome(
        compute=tuple(spans),
        ready_ns=tuple(ready),
        launch_ns=tuple(launch),
        start_ns=tuple(start),
        end_ns=tuple(end),
        copy_out_start_ns=tuple(copy_starts),
        available_ns=tuple(copy_ends),
        backward_end_ns=compute_end,
    )


def _span(item: tuple[str, int, int], start: int, end: int) -> ComputeSpan:
    kind, number, _ = item
    if kind == "launch":
        return ComputeSpan(kind="launch", start_ns=start, end_ns=end, bucket=number)
    if kind == "copy_in":
        return ComputeSpan(kind="copy_in", start_ns=start, end_ns=end, gradient=number)
    return ComputeSpan(
        kind="backward", start_ns=start, end_ns=end, gradient=number if kind == "backward" else None
    )
