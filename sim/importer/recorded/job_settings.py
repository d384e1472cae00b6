"""What a job does that its prediction has to know: micro-batches, switches, hooks; the parts of a step."""

from collections import Counter
from typing import Any

from sim.errors import NotModelledError
from sim.nouns.ddp_switches import ARGUMENTS
from sim.nouns.hardware import Hardware
from sim.nouns.live import Calibration, StepParts
from sim.nouns.recording import Recording
from sim.nouns.report import Report
from sim.systems.hook_table import HOOKS

_KEPT_SWITCHES = [one.name for one in ARGUMENTS if one.recorded and not one.default]
_HOOKS = {f"{one.name}_hook": one.name for one in HOOKS.values() if one.recorded}


def accumulation(window: Recording) -> tuple[int, int]:
    """Micro-batches a step and how many of them reduce, in most steps of the window."""
    counts: Counter[tuple[int, int]] = Counter(
        (len(step.backwards), sum(one.synchronised for one in step.backwards))
        for rank in window.ranks
        for step in rank.steps
    )
    return counts.most_common(1)[0][0]


def switches(ddp: dict[str, Any]) -> dict[str, Any]:
    """Arguments of DistributedDataParallel that are on."""
    return {name: True for name in _KEPT_SWITCHES if ddp.get(name)}


def settings(hook: str | None, counts: tuple[int, int]) -> dict[str, Any]:
    """The ``settings`` of the job's assignment: its communication hook and its micro-batches.

    Raises:
        NotModelledError: a hook that is not modelled, or micro-batches of which only some reduce.
    """
    found: dict[str, Any] = {}
    if hook is not None:
        if hook not in _HOOKS:
            raise NotModelledError(
                f"comm_hook: {hook!r} is not modelled here; modelled are {', '.join(_HOOKS)} and none"
            )
        found["comm_hook"] = _HOOKS[hook]
    count, reduced = counts
    if count > 1:
        found["accumulation_steps"] = count
        if reduced == count:
            found["no_sync"] = False
        elif reduced != 1:
            raise NotModelledError(
                f"accumulation: of {count} backwards a step {reduced} reduce; modelled are one or all of them"
            )
    return found


def notes(window: Recording, contains_effects: bool, hardware: Hardware | None) -> tuple[str, ...]:
    """What was assumed, a sentence each."""
    told = []
    if contains_effects:
        told.append(
            "The recorded times contain DDP's own copies, launches and interference, as they were under the "
            "buckets that the job had."
        )
    if hardware is None:
        missing = " Ranks are missing, so this is an upper bound." if window.missing_ranks else ""
        told.append(
            "No machine was given: what an all-reduce takes is read off the job's own buckets, waits within "
            "a collective included. It holds for sizes like theirs; of others it is a guess." + missing
        )
    if window.missing_ranks:
        ranks = ", ".join(map(str, window.missing_ranks[:8]))
        more = f" and {len(window.missing_ranks) - 8} more" if len(window.missing_ranks) > 8 else ""
        told.append(f"No file of rank {ranks}{more}: if the slowest is among them, it is not seen.")
    return tuple(told)


def parts(calibration: Calibration, report: Report) -> StepParts:
    """The parts of a predicted step, over all its micro-batches."""
    workload, count = calibration.workload, calibration.accumulation[0]
    exposed = report.sync_end_ns - report.backward_end_ns
    is_each_reduced = calibration.settings.get("no_sync") is False
    earlier_backward = report.backward_end_ns if is_each_reduced else workload.backward_ns
    forward = count * workload.forward_ns
    backward = (count - 1) * earlier_backward + report.backward_end_ns
    sync = (count if is_each_reduced else 1) * exposed
    optimizer = report.optimizer_ns + report.post_sync_ns
    return StepParts(
        before_ns=report.step_ns - forward - backward - sync - optimizer,
        forward_ns=forward,
        backward_ns=backward,
        sync_ns=sync,
        optimizer_ns=optimizer,
        step_ns=report.step_ns,
    )
