"""Workloads and machines that a cause is built into."""

from collections.abc import Sequence
from typing import Any

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload

MS = 1_000_000
MB = 1_000_000


def workload(ready_ms: Sequence[float], sizes_mb: Sequence[float], *, pace: float = 1.0) -> Workload:
    """Gradient k is ready at ``ready_ms[k]`` of a backward of 100 ms, all of it times ``pace``; the step is
    backward and 50 ms more."""
    return Workload(
        name="built",
        gradients=tuple(
            Gradient(
                index=index,
                name=f"layers.{index}.weight",
                shape=(round(size * MB / 4),),
                dtype="float32",
                num_bytes=round(size * MB),
                ready_ns=round(time * pace * MS),
            )
            for index, (time, size) in enumerate(zip(ready_ms, sizes_mb, strict=True))
        ),
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
