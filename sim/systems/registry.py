"""Every system that reduces gradients, by policy: how it cuts buckets, and what a step under it does.

``assign`` says which buckets a system makes of a workload, in which order; ``write`` what a step with them
is, as programs, one a micro-batch; ``construct`` what it sends before the first step; ``hold`` what its
buckets hold in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.clock.program import Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective
from sim.nouns.hardware import Hardware
from sim.nouns.memory import Holding
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.systems import (
    ddp,
    ddp_assignment,
    fsdp2,
    last_hook,
    megatron,
    textbook,
    zero,
)
from sim.systems.bucketing import Caps
from sim.systems.ddp_assignment import job_switches

Assign = Callable[[Workload, str, Caps, dict[str, Any], Iteration], Assignment]
Write = Callable[[Workload, Hardware, Assignment, Iteration], tuple[Program, ...]]
Construct = Callable[[Workload, Assignment], tuple[Collective, ...]]
Hold = Callable[[Timeline], tuple[Holding, ...]]


def _nothing(workload: Workload, assignment: Assignment) -> tuple[Collective, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system; the module says what each function does. ``takes_caps``: it takes the sizes in ``Caps``."""

    assign: Assign
    write: Write
    hold: Hold
    construct: Construct = _nothing
    takes_caps: bool = False


_DDP = System(
    assign=ddp_assignment.assign,
    write=ddp.write,
    hold=ddp.hold,
    construct=ddp.construct,
)
_LAST_HOOK = System(assign=last_hook.assign, write=last_hook.write, hold=textbook.hold, takes_caps=True)
SYSTEMS = {
    "ddp": replace(_DDP, takes_caps=True),
    "per-parameter": _DDP,
    "single": _DDP,
    **{
        policy: System(
            assign=textbook.assign,
            write=textbook.write,
            hold=textbook.hold,
            takes_caps=style.by_size,
        )
        for policy, style in textbook.STYLES.items()
    },
    "last-hook": _LAST_HOOK,
    "last-hook-safe": _LAST_HOOK,
    **{
        policy: System(assign=zero.assign, write=zero.write, hold=zero.hold, construct=zero.construct)
        for policy in zero.STAGES
    },
    "megatron": System(assign=megatron.assign, write=megatron.write, hold=megatron.hold),
    fsdp2.POLICY: System(assign=fsdp2.assign, write=fsdp2.write, hold=fsdp2.hold),
}
_WRITERS: dict[str, Write] = {
    "explicit": ddp.write,
    **{name: system.write for name, system in SYSTEMS.items()},
}
POLICIES = tuple(SYSTEMS)


def assign(
    workload: Workload,
    policy: str = "ddp",
    bucket_cap_mb: float | None = None,
    *,
    first_bucket_mb: float | None = None,
    bucket_cap_mb_list: Sequence[float] | None = None,
    set_last_bucket_cap: bool = False,
    iteration: Iteration = "steady",
    **options: Any,
) -> Assignment:
    """The buckets that a policy makes of ``workload``.

    Args:
        workload: what backward makes ready.
        policy: one of ``POLICIES``. ``per-parameter`` is each gradient its own bucket in ready order,
            launched by DDP's rules: what ``bucket_cap_mb=0`` gives; ``single`` one bucket per dtype and
            device.
        bucket_cap_mb: MiB, torch's name; None is DDP's default with its 1 MiB first bucket (A2.1).
        first_bucket_mb: MiB, cap of the first bucket: short for ``bucket_cap_mb_list=[first, cap]``.
        bucket_cap_mb_list: MiB, one cap a bucket (torch >= 2.11).
        set_last_bucket_cap: ``DDP_SET_LAST_BUCKET_CAP=1`` (A2.5).
        iteration: ``"steady"``, or the number of a training step (A2.2-A2.6).
        options: switches of the system, by its own names: ``DistributedDataParallel``'s, DeepSpeed's. DDP's
            that are not given are those of the job that the workload was recorded from.

    Raises:
        InputError: an argument is not legal.
        NotModelledError: a policy or switch that is not modelled.
    """
    is_number = isinstance(iteration, int) and not isinstance(iteration, bool) and iteration >= 1
    if iteration != "steady" and not is_number:
        raise InputError(f"iteration: {iteration!r} is not legal; give 'steady', 1, 2 or 3")
    if not isinstance(set_last_bucket_cap, bool):
        raise InputError(f"set_last_bucket_cap: {set_last_bucket_cap!r} is not legal; give true or false")
    if policy not in SYSTEMS:
        raise NotModelledError(f"policy: {policy!r} is not modelled; give one of {', '.join(POLICIES)}")
    caps = Caps(
        bucket_cap_mb=bucket_cap_mb,
        first_bucket_mb=first_bucket_mb,
        bucket_cap_mb_list=bucket_cap_mb_list,
        set_last_bucket_cap=set_last_bucket_cap,
    )
    if not SYSTEMS[policy].takes_caps and caps != Caps():
        raise InputError(
            f"policy: {policy!r} takes no bucket caps; "
            f"{', '.join(name for name, system in SYSTEMS.items() if system.takes_caps)} do"
        )
    if SYSTEMS[policy].assign is ddp_assignment.assign:
        options = job_switches(workload, options) | options
    made = SYSTEMS[policy].assign(workload, policy, caps, options, iteration)
    return replace(made, provenance={"source": "sim.assign", "workload": workload.name})


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration = "steady"
) -> tuple[Program, ...]:
    """The programs of one step under ``assignment``, one a micro-batch, in order.

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3).
        InputError, NotModelledError: a policy or switch that is not legal or not modelled, or a step that is
            too long to be played.
    """
    if assignment.policy not in _WRITERS:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is not modelled; give one of {', '.join(_WRITERS)}"
        )
    seen = ddp_assignment.as_compiled(workload, assignment)
    programs = _WRITERS[assignment.policy](seen, hardware, assignment, iteration)
    for program in (programs[0], *programs[-2:]):  # others are like the last but one
        program.check_length(hardware.name)
    return programs


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """What the buckets of a timeline hold in memory on one rank, and when."""
    return SYSTEMS.get(timeline.assignment.policy, _DDP).hold(timeline)
