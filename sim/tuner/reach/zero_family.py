"""What ``reduce_bucket_size`` of ZeRO-1 and ZeRO-2 reaches; all else is DeepSpeed's default (A5.1, A5.2)."""

from dataclasses import dataclass, replace

import numpy as np

from sim.errors import NotModelledError
from sim.metrics.step import step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.systems.zero import STAGES
from sim.systems.zero_flushes import plan_flushes, plan_messages
from sim.systems.zero_layout import FlatGroup, ProcessGroup, lay_out
from sim.systems.zero_settings import ZeroSettings, read_zero_settings
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import find_roundest

WORK = 20_000  # gradients simulated, in all sizes of one stage
FEWEST = 3  # sizes, however many gradients there are


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReach:
    """The best size's assignment and whole step; ``complete``: every set of flushes was simulated."""

    assignment: Assignment
    step_ns: int
    complete: bool
    how: str


def find_zero(workload: Workload, hardware: Hardware, policy: str, most: int | None = None) -> SizeReach:
    """The ``reduce_bucket_size`` with the shortest step under ``policy``, ``zero1`` or ``zero2``.

    Every size (in elements) at which a step changes is simulated; where they are more than ``most`` (by
    default ``WORK`` over the number of gradients, at least ``FEWEST``), sizes on a logarithmic grid. Of equal
    steps the largest size.

    Raises:
        InputError, NotModelledError: DeepSpeed does not train this workload as it is, or the hardware has no
            all-gather curve, without which ``step()`` has no time.
    """
    settings = read_zero_settings({}, STAGES[policy], workload)
    if hardware.world_size > 1 and hardware.all_gather is None:
        raise NotModelledError(
            f"{policy}: hardware {hardware.name!r} has no all_gather curve; its step() gathers all parameters"
        )
    limit = max(FEWEST, WORK // len(workload.gradients)) if most is None else most
    intervals, complete = size_intervals(workload, settings, hardware.world_size, limit)
    found = []
    for low, high in intervals:
        tell("trying ZeRO's bucket sizes")
        size = settings.reduce_bucket_size
        if not low <= size <= high:
            size = int(find_roundest(low, high, 1))
        assignment = assign(workload, policy, reduce_bucket_size=size)
        found.append((step_ns(simulate(workload, hardware, assignment, "analytic")), -low, assignment))
    took, _, assignment = min(found, key=lambda each: each[:2])
    what = f"all {len(found)} sizes that differ" if complete else f"{len(found)} sizes on a logarithmic grid"
    return SizeReach(assignment=assignment, step_ns=took, complete=complete, how=what)


def size_intervals(
    workload: Workload, settings: ZeroSettings, world_size: int, most: int
) -> tuple[list[tuple[int, int]], bool]:
    """Sizes in elements that make the same step, lowest and highest of each, ascending; and whether all.

    Otherwise they are at most ``most``, around sizes on a logarithmic grid from the smallest gradient to all
    elements, DeepSpeed's default among them.
    """
    groups = lay_out(workload, settings, world_size)
    intervals = [_interval(workload, replace(settings, reduce_bucket_size=1), groups)]
    while intervals[-1][1] < NO_LIMIT and len(intervals) <= most:
        above = replace(settings, reduce_bucket_size=intervals[-1][1] + 1)
        intervals.append(_interval(workload, above, groups))
    if len(intervals) <= most:
        return intervals, True
    sizes = [gradient.elements for gradient in workload.gradients]
    between = np.geomspace(min(size for size in sizes if size), sum(sizes), most - 1)
    grid = {settings.reduce_bucket_size, *between.astype(np.int64).tolist()}
    thinned = {_interval(workload, replace(settings, reduce_bucket_size=size), groups) for size in grid}
    return sorted(thinned), False


def _interval(workload: Workload, settings: ZeroSettings, groups: dict[int, FlatGroup]) -> tuple[int, int]:
    """The sizes at which every comparison with ``reduce_bucket_size`` comes out as under ``settings``.

    Compared are what a flush holds, that with what it did not take any more, and where one that is too large
    is split (A5.2, A5.4, A5.7).
    """
    size = settings.reduce_bucket_size
    everyone = ProcessGroup(0, 1, 1)  # of whom nothing is asked here
    flushes = plan_flushes(workload, settings)
    compared = []
    for number, flush in enumerate(flushes):
        held = sum(workload.gradients[index].elements for index in flush.members)
        compared.append(held)
        if number + 1 < len(flushes):
            compared.append(held + workload.gradients[flushes[number + 1].members[0]].elements)
        if held > size:
            for message in plan_messages(workload, flush, settings, groups, everyone):
                compared += [message.elements - message.slices[-1].elements, message.elements]
    low = max((value for value in compared if value <= size), default=1)
    high = min((value for value in compared if value > size), default=NO_LIMIT + 1) - 1
    return max(low, 1), high
