"""The best step by ``reduce_bucket_size`` of ZeRO-1 or ZeRO-2; the rest is default (A5.1, A5.2)."""

from dataclasses import replace

from sim.costs.doubts import missing_curve
from sim.errors import NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
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
from sim.tuner.reach.size_reach import Interval, SizeReach, best_size, find_intervals, most_tries, try_sizes


def find_zero(workload: Workload, hardware: Hardware, policy: str, most: int | None = None) -> SizeReach:
    """The ``reduce_bucket_size`` with the shortest step under ``policy``, ``zero1`` or ``zero2``.

    Every size (in elements) at which a step changes is simulated; if there are more than ``most`` (by
    default ``most_tries``), sizes on a logarithmic grid. Of equal steps the largest size is taken.

    Raises:
        InputError, NotModelledError: DeepSpeed does not train this workload as it is, or the hardware has no
            all-gather curve, without which ``step()`` has no time.
    """
    settings = read_zero_settings({}, STAGES[policy], workload)
    if hardware.world_size > 1 and hardware.all_gather is None:
        raise NotModelledError(f"{policy}: {missing_curve(hardware, 'all_gather')}")
    limit = most_tries(workload) if most is None else most
    intervals, complete = size_intervals(workload, settings, hardware.world_size, limit)
    name = "reduce_bucket_size"
    tried = try_sizes(workload, hardware, policy, name, intervals, settings.reduce_bucket_size)
    return best_size(tried, complete=complete)


def size_intervals(
    workload: Workload, settings: ZeroSettings, world_size: int, most: int
) -> tuple[list[Interval], bool]:
    """``find_intervals`` of ``reduce_bucket_size`` (elements), that of DeepSpeed's default among them."""
    groups = lay_out(workload, world_size)

    def interval_of(size: int) -> Interval:
        return _interval(workload, replace(settings, reduce_bucket_size=size), groups)

    return find_intervals(workload, interval_of, 1, settings.reduce_bucket_size, most)


def _interval(workload: Workload, settings: ZeroSettings, groups: dict[int, FlatGroup]) -> Interval:
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
