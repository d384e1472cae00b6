"""What is benchmarked: a model of any number of tensors, and machines on which it is worth cutting well."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from sim.costs.service_time import service_ns
from sim.formats.documents import load
from sim.nouns.hardware import SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade

MEASURED = Path(__file__).parents[1] / "traces" / "hardware" / "box-2x4gbit.json"
MIB = 1 << 20
BLOCK = 40
PIECE = 8 * MIB  # a bucket of medium size: backward is as long as the wire needs in such pieces
_WIDTHS = (128, 256, 512, 1024)


def _curve(latency_ns: float, ns_per_byte: float, power: float) -> tuple[CurvePoint, ...]:
    """``latency + bytes ** power``, as fast as ``ns_per_byte`` at 1 MiB; affine for a power of 1."""
    sizes = [0, *(1 << exponent for exponent in range(12, 30))]
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=round(latency_ns + ns_per_byte * MIB * (size / MIB) ** power))
        for size in sizes
    )


def _one_channel(hardware: Hardware) -> Hardware:
    return replace(
        hardware,
        name="measured curve, copies, one channel",
        comm_channels=1,
        launch_blocks_compute=False,
        **dict.fromkeys(SLOWDOWNS, 1.0),
    )


@cache
def machine(name: str) -> Hardware:
    """One of ``MACHINES``."""
    if name == "affine":
        return Hardware(name=name, world_size=8, all_reduce=_curve(300_000, 0.6, 1.0))
    if name == "concave":
        return Hardware(name=name, world_size=8, all_reduce=_curve(300_000, 0.9, 0.9))
    measured = load(MEASURED, Hardware)
    return _one_channel(measured) if name == "measured" else measured


MACHINES = {
    "affine": "affine curve, no copies",
    "concave": "concave curve, no copies",
    "measured": "measured curve, copies in and out",
    "two channels": "measured: two channels, blocking launches, slow-downs",
}


@cache
def model(count: int, machine_name: str) -> Workload:
    """``count`` tensors, weights and biases in turn, whose backward lasts about as long as sending them.

    Gradients are ready from the last to the first. Every block of 40 tensors has a pace of its own, so that
    the wire falls behind backward in some, and catches up in others.
    """
    hardware = machine(machine_name)
    draw = np.random.default_rng(count)
    rows = draw.choice(_WIDTHS, size=count)
    shapes = [(int(row),) if index % 2 else (int(row), 256) for index, row in enumerate(rows)]
    sizes = np.array([4 * int(np.prod(shape)) for shape in shapes])
    pace = np.repeat(draw.uniform(0.3, 2.0, size=-(-count // BLOCK)), BLOCK)[:count]
    work = (sizes[::-1] + 16_000) * pace * draw.uniform(0.5, 1.5, size=count)
    wire_ns = service_ns(hardware.all_reduce, PIECE) * float(sizes.sum()) / PIECE
    ready = np.cumsum(work * (wire_ns / work.sum())).astype(np.int64)[::-1]
    backward_ns = int(ready[0]) + 1_000_000
    return handmade(
        ready.tolist(),
        name=f"{count} tensors",
        shapes=shapes,
        forward_ns=backward_ns // 2,
        backward_ns=backward_ns,
        optimizer_ns=backward_ns // 20,
    )
