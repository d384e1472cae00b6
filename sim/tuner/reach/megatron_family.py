"""The best step that Megatron-LM's ``--ddp-bucket-size`` can reach (A9.2)."""

from dataclasses import replace
from typing import Any

from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.megatron import (
    MegatronSettings,
    default_bucket_size,
    is_all_bf16,
    lay_out_buffers,
    read_megatron_settings,
)
from sim.tuner.reach.size_reach import Interval, SizeReach, best_size, find_intervals, most_tries, try_sizes

BUCKET_SIZE = "ddp-bucket-size"


def find_megatron(workload: Workload, hardware: Hardware, most: int | None = None) -> SizeReach:
    """The ``bucket_size`` with the shortest step.

    ``overlap_grad_reduce`` is on, without which buckets are not cut, and bfloat16 parameters have fp32
    gradients, as Megatron-LM trains them; all else is the default. Every size (in elements) at which buckets
    change is simulated; if there are more than ``most`` (by default ``most_tries``), sizes on a
    logarithmic grid. Of equal steps the largest size is taken.

    Raises:
        InputError, NotModelledError: Megatron does not train this workload as it is.
    """
    fixed = fixed_settings(workload)
    read_megatron_settings(fixed, workload)
    limit = most_tries(workload) if most is None else most
    intervals, complete = bucket_intervals(workload, hardware.world_size, limit)
    default = default_bucket_size(hardware.world_size)
    tried = try_sizes(workload, hardware, "megatron", "bucket_size", intervals, default, **fixed)
    return best_size(tried, complete=complete)


def fixed_settings(workload: Workload) -> dict[str, Any]:
    """The settings that are held fixed, as Megatron-LM trains this workload."""
    return {"overlap_grad_reduce": True} | ({"grad_reduce_in_fp32": True} if is_all_bf16(workload) else {})


def bucket_intervals(workload: Workload, world_size: int, most: int) -> tuple[list[Interval], bool]:
    """Intervals of ``bucket_size`` (elements) that cut the same buckets, and whether these are all of them.

    If there are more than ``most``, that of the default size is among them (see ``find_intervals``).
    """
    default = default_bucket_size(world_size)
    settings = read_megatron_settings({"overlap_grad_reduce": True}, workload)
    return find_intervals(workload, lambda size: _interval(workload, settings, size), 0, default, most)


def _interval(workload: Workload, settings: MegatronSettings, size: int) -> Interval:
    """The least and the largest size (elements) that cut the same buckets as ``size``."""
    low, high = 0, NO_LIMIT
    for bucket in lay_out_buffers(workload, replace(settings, bucket_size=size), None):
        if bucket.elements < size:
            low = max(low, bucket.elements + 1)
            continue
        high = min(high, bucket.elements)
        if len(bucket.members) > 1:
            low = max(low, bucket.elements - workload.gradients[bucket.members[-1]].elements + 1)
    return low, high
