"""One step from workload, hardware and assignment to its timeline, by either engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from sim.clock import simpy_clock
from sim.clock.program import Program
from sim.clock.timeline import Outcome, make_timeline
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import plan, write

Engine = Literal["simpy", "analytic"]
ENGINES = get_args(Engine)


def simulate(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    engine: Engine = "simpy",
    *,
    iteration: Iteration = "steady",
    slowest: Workload | None = None,
) -> Timeline:
    """What happens in one step under ``assignment``.

    Args:
        workload: what backward makes ready, and when.
        hardware: what the machine carries.
        assignment: how the gradients are cut; it must fit the workload (A8.3).
        engine: ``simpy`` (the readable clock) or ``analytic`` (compiled code); equal to the ns.
        iteration: which iteration the assignment belongs to: ``"steady"``, 1, 2 or 3.
        slowest: the workload as the slowest other rank runs it: the same gradients at other times. Both ranks
            begin the step together, and each collective starts once both have come to it; its ``late_ns``
            says for how long this rank waited. None: no rank is later than this one.

    Raises:
        AssignmentError: the assignment does not fit ``workload`` or ``slowest`` (A8.3).
        InputError, NotModelledError: an argument that is not legal, a system or switch that is not modelled,
            or a ``slowest`` that does not send what this rank sends.
    """
    if engine not in ENGINES:
        raise InputError(f"engine: {engine!r} is not legal; give 'simpy' or 'analytic'")
    planned = plan(workload, assignment, hardware.world_size)
    programs = planned.write(hardware, iteration)
    ranks = [programs]
    if slowest is not None and hardware.world_size == 1:
        raise InputError("slowest: there is no other rank; hardware has world_size=1")
    if slowest is not None:
        try:
            ranks.append(write(slowest, hardware, assignment, iteration))
        except AssignmentError as error:
            raise AssignmentError(f"slowest: {error}") from None
    outcomes, _ = _play_step(ranks, engine)
    batches: list[Timeline] = []
    for number, outcome in enumerate(outcomes):
        is_last = number == len(programs) - 1
        if number and outcome is outcomes[number - 1] and not is_last:
            batches.append(batches[-1])  # alike micro-batches are one
            continue
        timeline = make_timeline(
            outcome,
            workload=planned.workload,
            hardware=hardware,
            assignment=assignment,
            earlier=tuple(batches) if is_last else (),
            engine=engine,
            iteration=iteration,
            slowest=slowest,
        )
        batches.append(timeline)
    return replace(batches[-1], buffer_bytes=planned.buffer_bytes())


def simulated_step_ns(workload: Workload, hardware: Hardware, assignment: Assignment) -> int:
    """How long the whole step is, in ns, by the analytic engine; in less time than ``simulate`` takes."""
    programs = write(workload, hardware, assignment)
    return _play_step([programs], "analytic")[1]


def _play_step(ranks: Sequence[Sequence[Program]], engine: Engine) -> tuple[list[Outcome], int]:
    """What becomes of the first rank's micro-batches beside the others', and when they are over.

    All ranks begin the step in the same instant, and each micro-batch where they ended the one before.
    """
    play_together = simpy_clock.play_together
    if engine == "analytic":
        from sim.clock.play import play_together  # numba, which SimPy does without

    outcomes: list[Outcome] = []
    ends = [0] * len(ranks)
    for programs in zip(*ranks, strict=True):
        if len(ranks) == 1 and outcomes and programs[0] == outcomes[-1].program:
            played: tuple[Outcome, ...] = (outcomes[-1],)  # equal neighbours are played once
        else:
            try:
                played = play_together(programs, ends)
            except (InputError, NotModelledError) as error:
                raise type(error)(f"slowest: {error}") from None
        ends = [end + outcome.lane_end_ns for end, outcome in zip(ends, played, strict=True)]
        outcomes.append(played[0])
    return outcomes, ends[0]
