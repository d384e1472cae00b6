"""The sequence of collectives of a system's first iterations, without their times."""

from collections.abc import Iterable
from typing import Any

from sim.clock.program import Program
from sim.errors import InputError
from sim.nouns.collective import Collective
from sim.nouns.explanation import Event, ExplainedIteration, Explanation
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import assign, plan, write

MAX_ITERATIONS = 1000


def explain(
    workload: Workload, policy: str = "ddp", *, world_size: int = 2, iterations: int = 3, **options: Any
) -> Explanation:
    """What happens in the first ``iterations`` training steps under a policy: collectives, bytes, triggers.

    Args:
        options: as ``assign`` takes them: caps and switches.

    Raises:
        InputError: an argument is not legal. NotModelledError: a policy or switch that is not modelled.
    """
    hardware = _without_times(world_size)
    told = []
    first = assign(workload, policy, iteration=1, **options)
    is_number = isinstance(iterations, int) and not isinstance(iterations, bool)
    if not is_number or not 1 <= iterations <= MAX_ITERATIONS:
        raise InputError(f"iterations: {iterations} is not legal; give an integer 1 to {MAX_ITERATIONS}")
    for number in range(1, iterations + 1):
        assignment = assign(workload, policy, iteration=number, **options)
        programs = write(workload, hardware, assignment, number)
        told.append(
            ExplainedIteration(
                iteration=number,
                bucket_indices=assignment.bucket_indices,
                events=tuple(
                    event
                    for micro_batch, program in enumerate(programs, start=1)
                    for event in _events(workload, _in_order(program), micro_batch)
                ),
                notes=tuple(dict.fromkeys(note for program in programs for note in program.notes)),
            )
        )
    return Explanation(
        policy=policy,
        workload=workload.name,
        world_size=world_size,
        options={name: value for name, value in options.items() if value is not None},
        construction=tuple(_events(workload, plan(workload, first, world_size).construct(), 1)),
        iterations=tuple(told),
        provenance={"source": "sim.explain", "workload": workload.name},
    )


def collectives(timeline: Timeline) -> tuple[Collective, ...]:
    """All collectives of a timeline's step: of each micro-batch before forward, in backward and behind it."""
    programs = write(timeline.workload, timeline.hardware, timeline.assignment, timeline.iteration)
    return tuple(collective for program in programs for collective in _in_order(program))


def _in_order(program: Program) -> Iterable[Collective]:
    return (*program.before_forward, *program.collectives, *program.after_sync)


def _events(workload: Workload, collectives: Iterable[Collective], micro_batch: int) -> Iterable[Event]:
    for collective in collectives:
        index = collective.gradient
        yield Event(
            kind=collective.kind,
            elements=collective.elements,
            dtype=collective.dtype,
            num_bytes=collective.num_bytes,
            phase=collective.phase,
            purpose=collective.purpose,
            micro_batch=micro_batch,
            gradient=index,
            name=None if index is None else workload.gradients[index].name,
            bucket=collective.bucket,
            root=collective.root,
        )


def _without_times(world_size: int) -> Hardware:
    """Hardware on which everything can be sent and nothing takes time."""
    free = (CurvePoint(num_bytes=0, duration_ns=0),)
    return Hardware(
        name="without times",
        world_size=world_size,
        all_reduce=free,
        reduce_scatter=free,
        all_gather=free,
        broadcast=free,
    )
