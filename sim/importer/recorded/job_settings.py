"""How a recorded job ran: DDP's switches, micro-batches, hook, and the buckets that it had."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sim.importer.recorded.kept_steps import Kept
from sim.nouns.ddp_switches import ARGUMENTS
from sim.nouns.workload import AsRun
from sim.systems.comm_hooks import HOOKS

_HOOKS = {f"{one.name}_hook": one.name for one in HOOKS.values() if one.recorded}
_MANY = 0.2  # of all steps


def job_of(kept: Sequence[Kept]) -> tuple[AsRun, tuple[str, ...]]:
    """The job, and a sentence on each thing that it did and that is not modelled: it is taken as not done."""
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
    found, untold = switches_told(header.ddp, header.comm_hook), []
    if header.comm_hook is not None and "comm_hook" not in found:
        untold.append(
            f"comm_hook: {header.comm_hook!r} is not modelled here; modelled are {', '.join(_HOOKS)} and none"
        )
    count, reduced = accumulation(kept)
    if count > 1:
        found["accumulation_steps"] = count
        if reduced == count:
            found["no_sync"] = False
        elif reduced != 1:
            untold.append(
                f"accumulation: of {count} backwards a step {reduced} reduce; modelled are one or all of them"
            )
    buckets = layouts[-1].bucket_indices if layouts else ()
    everything = list(range(len(header.parameters)))
    is_whole = sorted(index for bucket in buckets for index in bucket) == everything
    return AsRun(switches=found, bucket_indices=buckets if is_whole else ()), tuple(untold)


def accumulation(kept: Sequence[Kept]) -> tuple[int, int]:
    """Micro-batches that a step has, and how many of them reduce.

    The fewest that many steps have: further ones, under ``no_sync`` in some steps, were run to be measured
    alone (A3.12), and a step now and then that has fewer is the end of an epoch.
    """
    counts = Counter(
        (len(step.backwards), sum(one.synchronised for one in step.backwards))
        for rank in kept
        for step in rank.steps
        if step.backwards[-1].synchronised
    )
    return min((one for one in counts if counts[one] >= _MANY * counts.total()), default=(1, 1))


def switches_told(ddp: Mapping[str, Any], hook: str | None) -> dict[str, Any]:
    """Switches that DDP told of itself, where not at their defaults, each by one name; a hook if modelled."""
    found: dict[str, Any] = {}
    for one in ARGUMENTS:
        value = ddp.get(one.name)
        if (one.recorded or one.logged) and value is not None and value != one.default:
            found[one.alias_of or one.name] = value
    return found | ({"comm_hook": _HOOKS[hook]} if hook in _HOOKS else {})
