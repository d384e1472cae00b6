"""Workloads, machines and measurements written by hand: what a test does not say is as plain as it can be."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload


def handmade(
    ready_ns: Sequence[int | None],
    num_bytes: int | Sequence[int] = 8,
    *,
    name: str = "w",
    names: str | Sequence[str] = "p{}",
    shapes: Sequence[tuple[int, ...]] | None = None,
    dtypes: str | Sequence[str] = "float32",
    sparse: Collection[int] = (),
    **step: Any,
) -> Workload:
    """Gradient k is ready at ``ready_ns[k]``; its bytes are ``num_bytes``, one for all, or of ``shapes[k]``.

    ``sparse``: indices of those that are. ``step`` is the workload's; of the times that are not given,
    backward ends with its last gradient, and the others are 0.
    """
    places = range(len(ready_ns))
    kinds = [dtypes for _ in places] if isinstance(dtypes, str) else dtypes
    if shapes is not None:
        sizes = [math.prod(shape) * DTYPE_BYTES[kind] for shape, kind in zip(shapes, kinds, strict=True)]
    else:
        sizes = [num_bytes for _ in places] if isinstance(num_bytes, int) else list(num_bytes)
        shapes = [
            () if size % DTYPE_BYTES[kind] else (size // DTYPE_BYTES[kind],)
            for size, kind in zip(sizes, kinds, strict=True)
        ]
    gradients = tuple(
        Gradient(
            index=place,
            name=names.format(place) if isinstance(names, str) else names[place],
            shape=tuple(shapes[place]),
            dtype=kinds[place],
            num_bytes=sizes[place],
            ready_ns=ready_ns[place],
            sparse=place in sparse,
        )
        for place in places
    )
    backward_ns = max((time for time in ready_ns if time is not None), default=0)
    times = {"forward_ns": 0, "backward_ns": backward_ns, "optimizer_ns": 0}
    return Workload(name=name, gradients=gradients, **times | step)


def points(times: Mapping[int, int]) -> Curve:
    """A curve from ns by bytes."""
    return tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in times.items())


def wired(all_reduce: Mapping[int, int], *, name: str = "h", world_size: int = 2, **machine: Any) -> Hardware:
    """A machine whose all-reduces take these ns by bytes, with what else ``machine`` has."""
    return Hardware(name=name, world_size=world_size, all_reduce=points(all_reduce), **machine)


def seen_bucket(index: int, ready_ns: int, launch_ns: int, end_ns: int | None) -> MeasuredBucket:
    """A bucket as gloo tells it, which is without its start."""
    return MeasuredBucket(index=index, ready_ns=ready_ns, launch_ns=launch_ns, start_ns=None, end_ns=end_ns)


def measurement(
    name: str, asked: Assignment | None, iterations: Iterable[MeasuredIteration], **more: Any
) -> Measurement:
    """A candidate of a paced replay on two ranks over gloo, which had the buckets that were asked for."""
    given = {
        "role": "candidate",
        "mode": "paced",
        "backend": "gloo",
        "world_size": 2,
        "observed": None if asked is None else asked.bucket_indices,
        "plain_backward_ns": 0,
        "plain_step_ns": 0,
        "dropped_warmup": 0,
    }
    return Measurement(name=name, asked=asked, iterations=tuple(iterations), **given | more)
