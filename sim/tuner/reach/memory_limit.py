"""Memory as a constraint: what fits a limit, what would, and what a limit on the largest bucket costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from sim.metrics.bucket_memory import buffer_memory
from sim.nouns.assignment import DDP_POLICIES, Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.memory import Memory, MemoryPoint
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate
from sim.units import format_size

# A step (ns) and the buckets that reach it, under a limit on the largest bucket (bytes; None is no limit).
OptimumUnder = Callable[[int | None], tuple[int, Assignment]]

_SMALLEST_LIMIT = 256  # of all gradients' bytes, the part at which a ladder begins

# Switches that make DDP hold less memory in the same buckets, in the order in which they are proposed: in
# words, as arguments of DistributedDataParallel, and as other settings.
_REMEDIES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("gradient_as_bucket_view=True", {"gradient_as_bucket_view": True}, {}),
    (
        "gradient_as_bucket_view=True and batched_grad_copy=False",
        {"gradient_as_bucket_view": True, "batched_grad_copy": False},
        {},
    ),
    (
        "gradient_as_bucket_view=True and zero_grad(set_to_none=False)",
        {"gradient_as_bucket_view": True},
        {"set_to_none": False},
    ),
)


def fits(memory: Memory, limit_bytes: int | None) -> bool:
    """Whether buckets never hold more than ``limit_bytes`` at once; None is no limit."""
    return limit_bytes is None or memory.peak_bytes <= limit_bytes


def memory_of(workload: Workload, hardware: Hardware, assignment: Assignment) -> Memory:
    """What the buckets of ``assignment`` cost on one rank in a steady step."""
    return buffer_memory(simulate(workload, hardware, assignment, "analytic"))


def explain_misfit(workload: Workload, hardware: Hardware, assignment: Assignment, limit_bytes: int) -> str:
    """One sentence: what buckets hold, why it is too much, and which switch of the system would fit.

    Every switch that is proposed has been simulated with these buckets, and fits.
    """
    memory = memory_of(workload, hardware, assignment)
    said = (
        f"buckets hold {format_size(memory.peak_bytes)} at their peak "
        f"({format_size(memory.buffers_bytes)} of them all the time), more than the limit of "
        f"{format_size(limit_bytes)}"
    )
    least = memory
    for words, ddp_kwargs, settings in _REMEDIES if assignment.policy in DDP_POLICIES else ():
        changed = replace(
            assignment,
            ddp_kwargs=assignment.ddp_kwargs | ddp_kwargs,
            settings=assignment.settings | settings,
        )
        needs = memory_of(workload, hardware, changed)
        if fits(needs, limit_bytes):
            return f"{said}; with {words} they hold {format_size(needs.peak_bytes)}, which fits"
        least = min(least, needs, key=lambda each: each.peak_bytes)
    if least.peak_bytes == memory.peak_bytes:
        return f"{said}; no switch of {assignment.policy} that leaves its buckets alone makes them hold less"
    return f"{said}; the least that a switch makes of it is {format_size(least.peak_bytes)}"


def limit_ladder(gradient_bytes: Sequence[int]) -> tuple[int, ...]:
    """Limits on the largest bucket worth asking about, in bytes, ascending.

    Powers of two from a 256th of all gradients to all of them, and the largest gradient: no bucket that
    holds it is smaller.
    """
    total, largest = sum(gradient_bytes), max(gradient_bytes)
    powers = takewhile(lambda size: size < total, (1 << exponent for exponent in range(63)))
    return tuple(sorted({largest, *(size for size in powers if size * _SMALLEST_LIMIT >= total)}))


def trade_off(
    optimum_under: OptimumUnder, gradient_bytes: Sequence[int], limits: Sequence[int] | None = None
) -> tuple[MemoryPoint, ...]:
    """The best step under each limit on the largest bucket, ascending; the last point has no limit.

    What reaches a step under one limit is legal under every looser one, so no point is slower than one
    before it, even where ``optimum_under`` only searches. A limit below the largest gradient cannot be
    reached and is not asked for.

    Args:
        optimum_under: the best buckets whose largest has at most so many parameter bytes.
        gradient_bytes: of each gradient, by index.
        limits: in bytes; None is ``limit_ladder``.
    """
    largest = max(gradient_bytes)
    asked = sorted(set(limit_ladder(gradient_bytes) if limits is None else limits))
    rows: list[tuple[int | None, tuple[int, int, int] | None]] = []
    best: tuple[int, int, int] | None = None  # step, largest bucket, number of buckets
    for limit in (*asked, None):
        if limit is not None and limit < largest:
            rows.append((limit, None))
            continue
        step_ns, assignment = optimum_under(limit)
        buckets = assignment.bucket_indices
        size = max(sum(gradient_bytes[index] for index in bucket) for bucket in buckets)
        assert limit is None or size <= limit, f"a bucket of {size} bytes under a limit of {limit}"
        if best is None or (step_ns, size) < best[:2]:
            best = (step_ns, size, len(buckets))
        rows.append((limit, best))
    reached = [row for _, row in rows if row is not None]
    fronts = {row[:2] for row in reached if not any(_beats(other, row) for other in reached)}
    points = []
    for limit, row in rows:
        on_front = row is not None and row[:2] in fronts
        if row is not None:
            fronts.discard(row[:2])  # one point for each place on the front
        points.append(
            MemoryPoint(
                limit_bytes=limit,
                step_ns=row and row[0],
                largest_bucket_bytes=row and row[1],
                num_buckets=row and row[2],
                on_front=on_front,
            )
        )
    return tuple(points)


def _beats(other: tuple[int, int, int], row: tuple[int, int, int]) -> bool:
    """Whether ``other`` is no slower and no larger, and one of the two is better."""
    return other[0] <= row[0] and other[1] <= row[1] and other[:2] != row[:2]
