"""Every system that reduces gradients, by policy: how it cuts buckets, and what a step under it does.

``assign`` says which buckets a system makes of a workload, in which order; ``plan`` reads an assignment's
settings, once, to what a step with them is: programs, one a micro-batch, what is sent before the first step,
what buckets hold in memory, and the lines to paste. ``explain`` tells the collectives of a system's first
iterations, without their times; ``snippet``, ``megatron_flags`` and ``deepspeed_config`` are what a job's own
script takes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, NamedTuple

from sim.clock.program import Program
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment, assigned
from sim.nouns.checks import Legal
from sim.nouns.collective import Collective, Event, ExplainedIteration, Explanation
from sim.nouns.ddp_switches import HOOKS, OLDEST, SUPPORTED_SINCE, read_switches
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.systems import ddp, ddp_assignment, fsdp2, megatron, textbook, zero
from sim.systems.step_writer import Plan
from sim.units import format_size


class System(NamedTuple):
    """One system. ``assign``: how it cuts by other than its settings; None: its plan says."""

    plan: Callable[[Workload, Assignment, int | None], Plan]
    assign: Callable[[Workload, str, Mapping[str, Any], dict[str, Any], Iteration], Assignment] | None = None


SYSTEMS = {
    **dict.fromkeys(("ddp", "per-parameter", "single"), System(ddp.plan, ddp_assignment.assign)),
    **dict.fromkeys(textbook.STYLES, System(textbook.plan, textbook.assign)),
    **dict.fromkeys(zero.STAGES, System(zero.plan)),
    megatron.SYSTEM: System(megatron.plan),
    fsdp2.POLICY: System(fsdp2.plan),
}
POLICIES = tuple(SYSTEMS)
MAX_ITERATIONS = 1000  # that are explained
_PLANNED = {"explicit": SYSTEMS["ddp"], **SYSTEMS}
_BY_SIZE = ("ddp", *textbook.BY_SIZE)  # in MiB
_FACTS = {one.name for one in fields(Event)} & {one.name for one in fields(Collective)}


def assign(
    workload: Workload,
    policy: str = "ddp",
    bucket_cap_mb: float | None = None,
    *,
    first_bucket_mb: float | None = None,
    bucket_cap_mb_list: Sequence[float] | None = None,
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
        iteration: ``"steady"``, or the number of a training step (A2.2-A2.6).
        options: switches of the system, by its own names: ``DistributedDataParallel``'s, DeepSpeed's. DDP's
            that are not given are those of the job that the workload was recorded from.

    Raises:
        InputError: an argument is not legal.
        NotModelledError: a policy or switch that is not modelled.
    """
    if iteration != "steady" and not Legal(kind=int, least=1).holds(iteration):
        raise InputError(f"iteration: {iteration!r} is not legal; give 'steady', 1, 2 or 3")
    if policy not in SYSTEMS:
        raise NotModelledError(f"policy: {policy!r} is not modelled; give one of {', '.join(POLICIES)}")
    sizes = {
        "bucket_cap_mb": bucket_cap_mb,
        "first_bucket_mb": first_bucket_mb,
        "bucket_cap_mb_list": bucket_cap_mb_list,
    }
    caps = {name: size for name, size in sizes.items() if size is not None}
    if caps and policy not in _BY_SIZE:
        raise InputError(f"policy: {policy!r} takes no bucket caps; {', '.join(_BY_SIZE)} do")
    if policy in DDP_POLICIES:
        options = ddp_assignment.job_switches(workload, options) | options
    if (cut := SYSTEMS[policy].assign) is not None:
        made = cut(workload, policy, caps, options, iteration)
    else:
        proposed = Assignment(policy=policy, bucket_indices=((0,),), settings=options)
        made = assigned(workload, policy, SYSTEMS[policy].plan(workload, proposed, None).buckets, options)
    return replace(made, provenance={"source": "sim.assign", "workload": workload.name})


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> Plan:
    """What the system of ``assignment`` does with ``workload`` on so many ranks; None where it is not known.

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3), or has other buckets than its
            settings make.
        InputError, NotModelledError: a policy or switch that is not legal or not modelled.
    """
    policy = assignment.policy
    assignment.check_fits(workload)
    made = _PLANNED[policy].plan(workload, assignment, world_size)
    if made.buckets != assignment.bucket_indices:
        raise AssignmentError(
            f"bucket_indices: not the buckets that {policy} makes with these settings{made.why}"
        )
    return made


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration = "steady"
) -> tuple[Program, ...]:
    """The programs of one step under ``assignment``, one a micro-batch, in order.

    Raises:
        AssignmentError, InputError, NotModelledError: as ``plan``, or a step that is too long to be played.
    """
    return plan(workload, assignment, hardware.world_size).write(hardware, iteration)


def explain(
    workload: Workload, policy: str = "ddp", *, world_size: int = 2, iterations: int = 3, **options: Any
) -> Explanation:
    """What happens in the first ``iterations`` training steps under a policy: collectives, bytes, triggers.

    Args:
        options: as ``assign`` takes them: caps and switches.

    Raises:
        InputError: an argument is not legal. NotModelledError: a policy or switch that is not modelled.
    """
    Legal(kind=int, least=1, most=MAX_ITERATIONS).take("iterations", iterations)
    # Hardware on which everything can be sent and nothing takes time.
    curves: dict[str, Any] = dict.fromkeys(CURVES, (CurvePoint(num_bytes=0, duration_ns=0),))
    hardware, told = Hardware(name="without times", world_size=world_size, **curves), []
    for number in range(1, iterations + 1):
        assignment = assign(workload, policy, iteration=number, **options)
        if number == 1:
            construction = plan(workload, assignment, world_size).construct()
        programs = write(workload, hardware, assignment, number)
        sent = (_events(workload, each.collectives, place) for place, each in enumerate(programs, start=1))
        told.append(
            ExplainedIteration(
                iteration=number,
                bucket_indices=assignment.bucket_indices,
                events=tuple(chain.from_iterable(sent)),
                notes=tuple(dict.fromkeys(note for program in programs for note in program.notes)),
            )
        )
    return Explanation(
        policy=policy,
        workload=workload.name,
        world_size=world_size,
        options={name: value for name, value in options.items() if value is not None},
        construction=tuple(_events(workload, construction, 1)),
        iterations=tuple(told),
        provenance={"source": "sim.explain", "workload": workload.name},
    )


def collectives(timeline: Timeline) -> tuple[Collective, ...]:
    """All collectives of a timeline's step: of each micro-batch before forward, in backward and behind it."""
    return tuple(
        one
        for batch in timeline.micro_batches
        for one in (*batch.before, *(played.collective for played in batch.collectives), *batch.after)
    )


def _events(workload: Workload, collectives: Iterable[Collective], micro_batch: int) -> Iterator[Event]:
    for one in collectives:
        name = None if one.gradient is None else workload.gradients[one.gradient].name
        facts = {fact: getattr(one, fact) for fact in _FACTS}
        yield Event(micro_batch=micro_batch, name=name, **facts)


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes DistributedDataParallel use ``assignment`` on ``model``, as ``ddp_model``; of
    ``fully_shard``, what wraps the modules of ``model``.

    The lines use keywords of stock DistributedDataParallel if these reach the buckets, which is checked;
    else ``sim.apply``, which needs bucketsim where the script trains. The first line says which torch has all
    of it; with an older one ``sim.apply`` gives DDP the same buckets.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its keywords reach other buckets.
        InputError: a keyword that is no name.
        NotModelledError: an assignment of another system than DistributedDataParallel, or switches that
            ``sim.apply`` refuses.
    """
    assignment.check_fits(workload)
    if assignment.policy == fsdp2.POLICY:
        return plan(workload, assignment, None).lines()
    _check_policy(assignment, "DistributedDataParallel", DDP_POLICIES)
    read_switches(assignment)  # files may hold anything, and lines names and values of switches
    kwargs, hook = assignment.ddp_kwargs, assignment.settings.get("comm_hook")
    if assignment.by_keywords:
        ddp_assignment.check_reaches(workload, assignment)
        since = ddp_assignment.torch_needed(kwargs)
        arguments = ", ".join(["model", *(f"{name}={value!r}" for name, value in kwargs.items())])
        lines = ["import torch", "", f"ddp_model = torch.nn.parallel.DistributedDataParallel({arguments})"]
    else:
        kwargs = {name: value for name, value in kwargs.items() if name not in CAP_KWARGS}
        since = max(SUPPORTED_SINCE, ddp_assignment.torch_needed(kwargs))
        # Without ``made_for``: by ``bucket_bytes`` sim.apply refuses another model.
        told = {name: getattr(assignment, name) for name in ("bucket_indices", "bucket_bytes")}
        lines = [
            "# No keyword of DistributedDataParallel reaches these buckets: needs bucketsim where it trains.",
            "import sim",
            "from sim.nouns.assignment import Assignment",
            "",
            "assignment = Assignment(",
            *(f"    {name}={value!r}," for name, value in (told | {"ddp_kwargs": kwargs}).items() if value),
            ")",
            "ddp_model = sim.apply(model, assignment)",
        ]
    if hook is not None:
        imported, name = hook_call(hook)
        lines += ["", imported, f"ddp_model.register_comm_hook(None, {name})"]
    needs = f"needs torch '>={since[0]}.{since[1]}'" if since > OLDEST else "any torch from 2.4 on"
    ahead = [
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {needs}",
        *(
            f"# Set elsewhere, and part of this assignment: {name}={value!r}"
            for name, value in assignment.settings.items()
            if name != "comm_hook"
        ),
    ]
    return "\n".join([*ahead, *lines]) + "\n"


def hook_call(name: str) -> tuple[str, str]:
    """The import of a communication hook of torch's, and the hook, as Python."""
    module = HOOKS[name].module
    return f"from torch.distributed.algorithms.ddp_comm_hooks import {module}", f"{module}.{name}_hook"


def megatron_flags(assignment: Assignment, workload: Workload) -> str:
    """Flags to add to Megatron-LM's training script; what is set elsewhere is told in a comment.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its buckets are not these settings'.
        InputError: a setting that is not legal.
        NotModelledError: an assignment of another system than Megatron-Core's, or a setting not modelled.
    """
    _check_policy(assignment, "Megatron-Core", (megatron.SYSTEM,))
    made_for = assignment.made_for
    return plan(workload, assignment, None if made_for is None else made_for.world_size).lines()


def deepspeed_config(assignment: Assignment, workload: Workload) -> str:
    """The JSON text to merge into DeepSpeed's configuration; batch size and optimizer are yours to add.

    Raises:
        AssignmentError, InputError, NotModelledError: as ``megatron_flags``, of ZeRO.
    """
    _check_policy(assignment, "DeepSpeed", tuple(zero.STAGES))
    return plan(workload, assignment, None).lines()


def _check_policy(assignment: Assignment, whose: str, policies: Sequence[str]) -> None:
    if assignment.policy not in policies:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of {whose}, whose lines these are; they are written "
            f"for {', '.join(policies)}"
        )
