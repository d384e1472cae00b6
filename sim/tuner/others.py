"""The best size of other systems' buckets, for who asks for it: ZeRO's, Megatron's, and what FSDP2 wraps.

All else is a system's default. Every size at which a step changes is simulated, or sizes on a logarithmic
grid where they are too many.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.costs.doubts import missing_curve
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import one_of
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.fsdp2 import blocks_of
from sim.systems.megatron import (
    MegatronSettings,
    default_bucket_size,
    is_all_bf16,
    lay_out_buffers,
    read_megatron_settings,
)
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.systems.zero import (
    STAGES,
    FlatGroup,
    ZeroSettings,
    elements_of,
    lay_out,
    plan_flushes,
    plan_messages,
    read_zero_settings,
)
from sim.tuner.caps import find_roundest

OTHERS = (*STAGES, "megatron", "fully_shard")
_WORK = 20_000  # gradients simulated, in all that is tried of one system
_FEWEST = 3  # tries, however many gradients there are

Interval = tuple[int, int]  # the lowest and the highest of the sizes that make one step, in elements


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSize:
    """The best that was tried, and its step; ``complete``: nothing was left out; ``how`` says it in words."""

    assignment: Assignment
    step_ns: int
    complete: bool
    how: str


def best_of(workload: Workload, hardware: Hardware, policy: str, *, most: int | None = None) -> BestSize:
    """The setting of ``policy`` (one of ``OTHERS``) with the shortest step.

    ``zero1`` and ``zero2``: ``reduce_bucket_size``. ``megatron``: ``bucket_size``, with overlap on, without
    which buckets are not cut. ``fully_shard``: ``units``, of ``unit_choices``. ``most`` settings are tried:
    by default the fewer, the more gradients there are.

    Raises:
        InputError, NotModelledError: the system does not train this workload as it is, or the hardware lacks
            the curve of a collective.
    """
    one_of("policy", policy, OTHERS)
    limit = max(_FEWEST, _WORK // len(workload.gradients)) if most is None else most
    if policy == "fully_shard":
        return _best_units(workload, hardware, limit)
    if policy == "megatron":
        default = default_bucket_size(hardware.world_size)
        fixed = megatron_settings(workload)
        intervals, complete = megatron_intervals(workload, hardware.world_size, limit)
        return _best_size(workload, hardware, policy, "bucket_size", intervals, complete, default, **fixed)
    settings = read_zero_settings({}, STAGES[policy], workload)
    if hardware.world_size > 1 and hardware.all_gather is None:
        raise NotModelledError(f"{policy}: {missing_curve(hardware, 'all_gather')}")
    intervals, complete = zero_intervals(workload, settings, hardware.world_size, limit)
    default = settings.reduce_bucket_size
    return _best_size(workload, hardware, policy, "reduce_bucket_size", intervals, complete, default)


def _best_size(
    workload: Workload,
    hardware: Hardware,
    policy: str,
    setting: str,
    intervals: list[Interval],
    complete: bool,
    default: int,
    **fixed: Any,
) -> BestSize:
    """The shortest step over a size of each interval, of equal ones that of the largest size: ``default`` if
    it lies in the interval, else the roundest."""
    tried = []
    for low, high in intervals:
        size = default if low <= default <= high else int(find_roundest(low, high, 1))
        options: dict[str, Any] = {setting: size, **fixed}
        assignment = assign(workload, policy, **options)
        tried.append((simulated_step_ns(workload, hardware, assignment), -low, assignment))
    step_ns, _, best = min(tried, key=lambda one: one[:2])
    how = f"all {len(tried)} sizes that differ" if complete else f"{len(tried)} sizes on a logarithmic grid"
    return BestSize(assignment=best, step_ns=step_ns, complete=complete, how=how)


def _intervals(
    workload: Workload, interval_of: Callable[[int], Interval], least: int, default: int, most: int
) -> tuple[list[Interval], bool]:
    """Every interval of sizes from ``least`` on, ascending, and whether these are all.

    Where there are more than ``most``, at most so many: those of ``default`` and of sizes on a logarithmic
    grid from the smallest gradient to all elements.
    """
    intervals = [interval_of(least)]
    while intervals[-1][1] < NO_LIMIT and len(intervals) <= most:
        intervals.append(interval_of(intervals[-1][1] + 1))
    if len(intervals) <= most:
        return intervals, True
    sizes = [gradient.elements for gradient in workload.gradients if gradient.elements]
    grid = {default, *np.geomspace(min(sizes), sum(sizes), most - 1).astype(np.int64).tolist()}
    return sorted({interval_of(size) for size in grid}), False


def zero_intervals(
    workload: Workload, settings: ZeroSettings, world_size: int, most: int
) -> tuple[list[Interval], bool]:
    """Intervals of ``reduce_bucket_size`` (elements), that of DeepSpeed's default among them (A5.1, A5.2)."""
    groups = lay_out(workload, world_size)

    def interval_of(size: int) -> Interval:
        return _zero_interval(workload, replace(settings, reduce_bucket_size=size), groups)

    return _intervals(workload, interval_of, 1, settings.reduce_bucket_size, most)


def _zero_interval(workload: Workload, settings: ZeroSettings, groups: dict[int, FlatGroup]) -> Interval:
    """The sizes at which every comparison with ``reduce_bucket_size`` comes out as under ``settings``.

    Compared are the elements of each flush, the same plus the gradient that did not fit any more, and the
    elements at which a flush that is too large is split (A5.2, A5.4, A5.7).
    """
    size = settings.reduce_bucket_size
    flushes = plan_flushes(workload, settings)
    compared = []
    for number, flush in enumerate(flushes):
        held = sum(workload.gradients[index].elements for index in flush.members)
        compared.append(held)
        if number + 1 < len(flushes):
            compared.append(held + workload.gradients[flushes[number + 1].members[0]].elements)
        if held > size:
            for message in plan_messages(workload, flush, settings, groups):
                compared += [elements_of(message[:-1]), elements_of(message)]
    low = max((value for value in compared if value <= size), default=1)
    high = min((value for value in compared if value > size), default=NO_LIMIT + 1) - 1
    return max(low, 1), high


def megatron_settings(workload: Workload) -> dict[str, Any]:
    """What is held fixed: bfloat16 parameters have fp32 gradients, as Megatron-LM trains them."""
    return {"overlap_grad_reduce": True} | ({"grad_reduce_in_fp32": True} if is_all_bf16(workload) else {})


def megatron_intervals(workload: Workload, world_size: int, most: int) -> tuple[list[Interval], bool]:
    """Intervals of ``bucket_size`` (elements) that cut the same buckets, the default's among them (A9.2)."""
    settings = read_megatron_settings(megatron_settings(workload), workload)

    def interval_of(size: int) -> Interval:
        return _megatron_interval(workload, replace(settings, bucket_size=size), size)

    return _intervals(workload, interval_of, 0, default_bucket_size(world_size), most)


def _megatron_interval(workload: Workload, settings: MegatronSettings, size: int) -> Interval:
    """The least and the largest size (elements) that cut the same buckets as ``size``."""
    low, high = 0, NO_LIMIT
    for bucket in lay_out_buffers(workload, settings, None):
        if bucket.elements < size:
            low = max(low, bucket.elements + 1)
            continue
        high = min(high, bucket.elements)
        if len(bucket.members) > 1:
            low = max(low, bucket.elements - workload.gradients[bucket.members[-1]].elements + 1)
    return low, high


def _best_units(workload: Workload, hardware: Hardware, most: int) -> BestSize:
    """The units with the shortest step, of equal ones the fewest (A10.1). What is not tried may be better."""
    found = []
    choices = unit_choices(workload)
    for units in choices[:most]:
        try:
            assignment = assign(workload, "fully_shard", units=units)
        except (InputError, NotModelledError):
            if units:
                continue  # refused: a module with parameters of its own holds other units, too
            raise
        took = simulated_step_ns(workload, hardware, assignment)
        found.append((took, len(assignment.bucket_indices), assignment))
    took, _, assignment = min(found, key=lambda each: each[:2])
    ways = f"{len(found)} of {len(choices)} ways to wrap"
    how = f"{ways} (the root alone, every layer, blocks in groups of one size)"
    return BestSize(assignment=assignment, step_ns=took, complete=False, how=how)


def unit_choices(workload: Workload) -> list[str]:
    """Ways to wrap a model, as ``units`` takes them: the root alone, every layer, 1, 2, … blocks a unit."""
    blocks = blocks_of(workload)
    layers = dict.fromkeys(gradient.name.rpartition(".")[0] for gradient in workload.gradients)
    choices = ["", ",".join(filter(None, layers))]
    for size in range(1, len(blocks) + 1):
        groups = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        if size == 1 or len(groups) != -(-len(blocks) // (size - 1)):
            choices.append(",".join("+".join(group) for group in groups))
    return list(dict.fromkeys(choices))
