"""Workloads and machines that a cause is built into."""

from collections.abc import Sequence
from typing import Any

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade

MS = 1_000_000
MB = 1_000_000


def workload(ready_ms: Sequence[float], sizes_mb: Sequence[float], *, pace: float = 1.0) -> Workload:
    """Gradient k is ready at ``ready_ms[k]`` of a backward of 100 ms, all of it times ``pace``; the step is
    backward and 50 ms more."""
    return handmade(
        [round(time * pace * MS) for time in ready_ms],
        [round(size * MB) for size in sizes_mb],
        name="built",
        names="layers.{}.weight",
        forward_ns=45 * MS,
        backward_ns=round(100 * pace * MS),
        optimizer_ns=5 * MS,
    )


def hardware(*, latency_ms: float = 0.0, ms_per_mb: float = 1.0, **machine: Any) -> Hardware:
    """Two ranks; a collective takes ``latency_ms + ms_per_mb`` a MB."""
    points = (
        CurvePoint(num_bytes=0, duration_ns=round(latency_ms * MS)),
        CurvePoint(num_bytes=1000 * MB, duration_ns=round((latency_ms + 1000 * ms_per_mb) * MS)),
    )
    return Hardware(name="built", **{"world_size": 2, "all_reduce": points, **machine})
