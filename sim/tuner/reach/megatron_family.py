"""What Megatron-LM's ``--ddp-bucket-size`` and ``--ddp-num-buckets`` reach (A9.2)."""

from typing import Any

import numpy as np

from sim.metrics.step import step_ns
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.megatron_layout import lay_out_buffers
from sim.systems.megatron_settings import default_bucket_size, is_all_bf16, read_megatron_settings
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import find_roundest
from sim.tuner.reach.zero_family import FEWEST, WORK, SizeReach

BUCKET_SIZE = "ddp-bucket-size"
NUM_BUCKETS = "ddp-num-buckets"


def find_megatron(workload: Workload, hardware: Hardware, most: int | None = None) -> dict[str, SizeReach]:
    """The ``bucket_size`` and the ``num_buckets`` with the shortest step, by the names of their flags.

    With ``overlap_grad_reduce``, without which buckets are not cut, and for bfloat16 parameters with fp32
    gradients, as Megatron-LM trains them; all else is the default. Every size (in elements) at which buckets
    change is simulated; where they are more than ``most`` (by default ``WORK`` over the number of gradients,
    at least ``FEWEST``), sizes on a logarithmic grid. Of equal steps the largest size, or the fewest buckets.

    Raises:
        InputError, NotModelledError: Megatron does not train this workload as it is.
    """
    fixed = fixed_settings(workload)
    read_megatron_settings(fixed, workload)
    limit = max(FEWEST, WORK // len(workload.gradients)) if most is None else most
    intervals, complete = bucket_intervals(workload, hardware.world_size, limit)
    total = sum(gradient.elements for gradient in workload.gradients)
    default = default_bucket_size(hardware.world_size)
    sizes, counts = [], []
    for low, high in intervals:
        tell("trying Megatron's bucket sizes")
        size = default if low <= default <= high else int(find_roundest(low, high, 1))
        assignment = assign(workload, "megatron", bucket_size=size, **fixed)
        took = step_ns(simulate(workload, hardware, assignment, "analytic"))
        sizes.append((took, -low, assignment))
        count = total // (high + 1) + 1  # the fewest that make a size of this interval, if any do
        if low <= total // count <= high:
            counts.append((took, count, assign(workload, "megatron", num_buckets=count, **fixed)))
    what = f"all {len(sizes)} sizes that differ" if complete else f"{len(sizes)} sizes on a logarithmic grid"
    found = {}
    for name, tried in ((BUCKET_SIZE, sizes), (NUM_BUCKETS, counts)):
        took, _, assignment = min(tried, key=lambda each: each[:2])
        how = what if name == BUCKET_SIZE else f"{len(tried)} numbers, one for each size that they make"
        found[name] = SizeReach(assignment=assignment, step_ns=took, complete=complete, how=how)
    return found


def fixed_settings(workload: Workload) -> dict[str, Any]:
    """What the families leave as Megatron-LM has it."""
    return {"overlap_grad_reduce": True} | ({"grad_reduce_in_fp32": True} if is_all_bf16(workload) else {})


def bucket_intervals(workload: Workload, world_size: int, most: int) -> tuple[list[tuple[int, int]], bool]:
    """Sizes in elements that cut the same buckets, lowest and highest of each, ascending; and whether all.

    Otherwise they are at most ``most``, around sizes on a logarithmic grid, the default among them.
    """
    intervals = [_interval(workload, 0)]
    while intervals[-1][1] < NO_LIMIT and len(intervals) <= most:
        intervals.append(_interval(workload, intervals[-1][1] + 1))
    if len(intervals) <= most:
        return intervals, True
    sizes = [gradient.elements for gradient in workload.gradients]
    between = np.geomspace(max(1, min(sizes)), sum(sizes), most - 1)
    grid = {default_bucket_size(world_size), *between.astype(np.int64).tolist()}
    return sorted({_interval(workload, size) for size in grid}), False


def _interval(workload: Workload, size: int) -> tuple[int, int]:
    """The sizes that cut what ``size`` cuts: above what a bucket had before it closed, up to what it has."""
    settings = read_megatron_settings({"overlap_grad_reduce": True, "bucket_size": size}, workload)
    low, high = 0, NO_LIMIT
    for bucket in lay_out_buffers(workload, settings, None):
        if bucket.elements < size:
            low = max(low, bucket.elements + 1)
            continue
        high = min(high, bucket.elements)
        if len(bucket.members) > 1:
            low = max(low, bucket.elements - workload.gradients[bucket.members[-1]].elements + 1)
    return low, high
