"""The smallest step that has all there is to load before a first visitor waits for it."""

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload

WORKLOAD = Workload(
    name="two tensors",
    gradients=tuple(
        Gradient(index=index, name=str(index), shape=(4,), dtype="float32", num_bytes=16, ready_ns=2 - index)
        for index in range(2)
    ),
    forward_ns=1,
    backward_ns=3,
    optimizer_ns=1,
)
HARDWARE = Hardware(
    name="any",
    world_size=2,
    all_reduce=(CurvePoint(num_bytes=0, duration_ns=1), CurvePoint(num_bytes=16, duration_ns=2)),
    comm_channels=2,
    channel_slowdown=2.0,
    compute_slowdown=1.1,
    comm_slowdown=1.1,
)
