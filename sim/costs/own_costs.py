"""What DDP itself costs on a GPU where nobody measured it: with the range that it is known to.

A curve of collectives holds no copy, no hook and no launch. PyTorch's own benchmark of DDP
(benchmarks/distributed/ddp of pytorch/pytorch, its README: DGX-1 V100, torch 1.4) shows what they take: one
GPU under DDP takes 2 to 10 ms longer than without it for models of 161 and 314 gradients, of which copies at
the memory's bandwidth explain 0.5 to 1.6; caps of 1 MiB make the step 0.3 to 3.8 % longer than 25, never
shorter, with some 60 to 150 buckets more. A H100 whose host is ahead is at the lower ends: 3 us a gradient
with its copy, 5 us a launch (traces/gpu).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.errors import InputError
from sim.nouns.gpus import GPUS, GpuSheet
from sim.nouns.hardware import Hardware
from sim.units import format_number

# What DDP itself takes on a GPU, where nobody measured it: a factor on each is fitted within its range.
UNMEASURED_COSTS = ("hook_cost_ns", "launch_cost_ns", "copy_in_bytes_per_s", "copy_out_bytes_per_s")
FACTORS = ("link", "tilt", *UNMEASURED_COSTS, "comm_slowdown", "compute_slowdown")
# What is taken, and 95 % of where it lies. A hook, in ns: 10 to 27 us a gradient in that benchmark; at least
# a kernel of a few us, which is all where the host is far ahead of the GPU.
HOOK_NS = (3_000, 15_000, 30_000)
# A launch, on the lane, in ns: events of both streams and a kernel's launch take 5 us at least (nccl-tests'
# smallest messages take 7 to 30 in all), and 60 us a bucket are the 3.8 % of that benchmark. The 40 us were
# chosen after its sign of cap 1 against 25 had been seen: of that sign they are no prediction.
LAUNCH_NS = (5_000, 40_000, 100_000)
# Share of the memory's bandwidth that copies of gradients reach, each byte read and written: large ones 80 to
# 90 %, small ones less.
COPY_SHARE = (0.35, 0.8, 1.0)
# NCCL's kernels take a few multiprocessors and some bandwidth from computing, and computing from them. How
# much is not known: 1 is taken, so that one measured step can still fix it (``sim.anchor``).
SLOWDOWNS = {"compute_slowdown": (1.0, 1.2), "comm_slowdown": (1.0, 1.5)}

# GPUs by generation, as NCCL tells them
OF_GENERATION = {
    "volta": ("v100-sxm2",),
    "turing": ("t4", "rtx-2080-ti"),
    "ampere": ("a100-40gb-sxm", "a100-80gb-sxm", "a40", "rtx-a5000", "rtx-3090", "l4", "rtx-4090"),
    "hopper": ("h100-sxm", "h100-pcie", "h200-sxm"),
    "blackwell": ("b200-sxm", "rtx-pro-6000-blackwell"),
}

_WORDS = {
    "hook_cost_ns": "a gradient's hook",
    "launch_cost_ns": "a bucket's launch",
    "copy_in_bytes_per_s": "copies into buckets",
    "copy_out_bytes_per_s": "copies out of buckets",
    "compute_slowdown": "computing beside communication",
    "comm_slowdown": "communication beside computing",
}


def with_own_costs(hardware: Hardware, gpus: Sequence[GpuSheet] = ()) -> Hardware:
    """``hardware`` with what DDP costs on one of ``gpus``, each cost with its range in ``spread.ranges``.

    What ``hardware`` has already stays. Without ``gpus`` it may be any of the table. One rank needs no DDP.
    """
    if hardware.world_size == 1:
        return hardware
    rates = [gpu.bytes_per_s / 2 for gpu in gpus or GPUS.values()]
    middle = math.exp(sum(map(math.log, rates)) / len(rates))
    copies = (min(rates) * COPY_SHARE[0], middle * COPY_SHARE[1], max(rates) * COPY_SHARE[2])
    low_middle_high: dict[str, tuple[float, float, float]] = {
        "hook_cost_ns": HOOK_NS,
        "launch_cost_ns": LAUNCH_NS,
        "copy_in_bytes_per_s": copies,
        "copy_out_bytes_per_s": copies,
        **{name: (low, low, high) for name, (low, high) in SLOWDOWNS.items()},
    }
    bare = _bare(hardware)
    unknown = [name for name in low_middle_high if getattr(hardware, name) == getattr(bare, name)]
    ranges = {name: {"low": low_middle_high[name][0], "high": low_middle_high[name][2]} for name in unknown}
    values: dict[str, Any] = {name: low_middle_high[name][1] for name in unknown}
    known = hardware.spread.get("ranges", {})
    spread = {**hardware.spread, "ranges": {**known, **ranges}}
    if "launch_cost_ns" in unknown:
        values["launch_blocks_compute"] = True
    return replace(hardware, **values, spread=spread)


def with_measured(hardware: Hardware, **fields: Any) -> Hardware:
    """``hardware`` with ``fields`` that are known now, so that no range of theirs is left."""
    left = {name: ends for name, ends in hardware.spread.get("ranges", {}).items() if name not in fields}
    spread = {name: known for name, known in hardware.spread.items() if name != "ranges"}
    return replace(hardware, **fields, spread={**spread, "ranges": left} if left else spread)


def without_own_costs(hardware: Hardware) -> Hardware:
    """``hardware`` without the costs that are of other machines: one step that was measured holds them."""
    ranges = hardware.spread.get("ranges", {})
    fields = {name: getattr(_bare(hardware), name) for name in _WORDS if name in ranges}
    if "launch_cost_ns" in fields:
        fields["launch_blocks_compute"] = False
    return with_measured(hardware, **fields)


def _bare(hardware: Hardware) -> Hardware:
    return Hardware(name=hardware.name, world_size=1, all_reduce=hardware.all_reduce)


def is_unmeasured(hardware: Hardware, name: str) -> bool:
    """Whether the field ``name`` is a figure of other machines, with a range."""
    return name in hardware.spread.get("ranges", {})


def told_unmeasured(hardware: Hardware) -> tuple[str, ...]:
    """A sentence on the costs of DDP's own that are not measured; none where all are."""
    told = [
        f"{words} {_amounts(name, getattr(hardware, name), hardware.spread['ranges'][name])}"
        for name, words in _WORDS.items()
        if is_unmeasured(hardware, name)
    ]
    return () if not told else (f"not measured on this machine, but as others have it: {', '.join(told)}",)


def told_uncounted(hardware: Hardware) -> tuple[str, ...]:
    """A sentence where the costs of DDP's own are 0 and nobody measured that they are; else none.

    What was calibrated is in ``spread``, and a measured step (``sim.anchor``) holds them all.
    """
    bare = _bare(hardware)
    known = [name for name in _WORDS if name in hardware.spread or is_unmeasured(hardware, name)]
    is_free = all(getattr(hardware, name) == getattr(bare, name) for name in _WORDS)
    if hardware.world_size == 1 or known or not is_free or "anchored" in hardware.provenance:
        return ()
    return ("nothing but collectives is counted: launches, copies, hooks and slow-downs are not known",)


def _amounts(name: str, taken: float, ends: dict[str, float]) -> str:
    scale, unit = (1e3, " us") if name.endswith("_ns") else (1.0, " times")
    scale, unit = (1e9, " GB/s") if name.endswith("_per_s") else (scale, unit)
    return (
        f"{format_number(ends['low'] / scale)} to {format_number(ends['high'] / scale)}{unit} "
        f"({format_number(taken / scale)} taken)"
    )


# Times that each byte of a gradient passes the memory bus.
COPY_PASSES = 2  # read and written: into and out of a bucket (A3.4)
ACCUMULATE_PASSES = 3  # two read, one written: AccumulateGrad's addition in place (A3.12)


def with_memory_bandwidth(hardware: Hardware, bytes_per_s: float) -> Hardware:
    """``hardware`` with the rates of copies and additions that a memory of ``bytes_per_s`` allows.

    Rates that were measured stay. The bandwidth is a data sheet's, so that these times are the least.

    Raises:
        InputError: a bandwidth below what rates may be.
    """
    if not bytes_per_s >= ACCUMULATE_PASSES:
        raise InputError(f"memory bandwidth: {bytes_per_s} is not legal; give bytes/s, such as 696e9")
    copies, additions = bytes_per_s / COPY_PASSES, bytes_per_s / ACCUMULATE_PASSES
    rates = {
        "copy_in_bytes_per_s": copies,
        "copy_out_bytes_per_s": copies,
        "accumulate_bytes_per_s": additions,
    }
    unknown = [name for name in rates if getattr(hardware, name) is None or is_unmeasured(hardware, name)]
    return with_measured(hardware, **{name: rates[name] for name in unknown})
