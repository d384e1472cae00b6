"""One step from workload, hardware and assignment to its timeline, by either engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from sim.clock import simpy_clock
from sim.clock.program import Program, check_alike
from sim.clock.timeline import Outcome, Play, PlayTogether, make_timeline
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import plan, write, write_plan

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
    play, play_together = _clock(engine)
    planned = plan(workload, assignment, hardware.world_size)
    programs = write_plan(planned, hardware, iteration)
    if slowest is None:
        outcomes = _play_each(programs, play)
    else:
        others = _write_slowest(slowest, hardware, assignment, iteration)
        outcomes = _play_beside(workload, programs, slowest, others, play_together)
    batches: list[Timeline] = []
    for number, outcome in enumerate(outcomes):
        if number and outcome is outcomes[number - 1] and number < len(programs) - 1:
            batches.append(batches[-1])  # alike micro-batches are one
            continue
        timeline = make_timeline(
            planned.workload,
            hardware,
            assignment,
            outcome,
            earlier=tuple(batches) if number == len(programs) - 1 else (),
            engine=engine,
            iteration=iteration,
            slowest=slowest,
        )
        batches.append(timeline)
    return replace(batches[-1], holdings=planned.hold(batches[-1]))


def simulated_step_ns(workload: Workload, hardware: Hardware, assignment: Assignment) -> int:
    """How long the whole step is, in ns, by the analytic engine; in less time than ``simulate`` takes."""
    play, _ = _clock("analytic")
    programs = write(workload, hardware, assignment)
    micro_batches_ns = _micro_batches_ns(workload, programs, _play_each(programs, play))
    return micro_batches_ns + programs[-1].optimizer_ns


def _write_slowest(
    slowest: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    if hardware.world_size == 1:
        raise InputError("slowest: there is no other rank; hardware has world_size=1")
    try:
        return write(slowest, hardware, assignment, iteration)
    except AssignmentError as error:
        raise AssignmentError(f"slowest: {error}") from None


def _clock(engine: Engine) -> tuple[Play, PlayTogether]:
    """What plays one rank, and what plays ranks that meet."""
    if engine == "simpy":
        return simpy_clock.play, simpy_clock.play_together
    from sim.clock import play  # numba, which SimPy does without

    return play.play, play.play_together


def _play_beside(
    workload: Workload,
    programs: Sequence[Program],
    slowest: Workload,
    others: Sequence[Program],
    play_together: PlayTogether,
) -> list[Outcome]:
    """What becomes of ``programs``, a step's micro-batches, beside a rank that runs ``others``.

    Both ranks begin the step in the same instant; what the other one takes longer before a backward makes it
    late there, micro-batch by micro-batch. Collectives before forward and after synchronisation do not wait.
    """
    outcomes = []
    begin = theirs_begin = 0
    for number, (mine, theirs) in enumerate(zip(programs, others, strict=True)):
        check_alike(mine, theirs, number)
        begin += mine.pre_forward_ns + workload.forward_ns + workload.loss_ns
        theirs_begin += theirs.pre_forward_ns + slowest.forward_ns + slowest.loss_ns
        try:
            outcome, other = play_together((mine, theirs), (begin, theirs_begin))
        except NotModelledError as error:
            raise NotModelledError(f"slowest: {error}") from None
        begin += outcome.sync_end_ns + mine.post_sync_ns
        theirs_begin += other.sync_end_ns + theirs.post_sync_ns
        outcomes.append(outcome)
    return outcomes


def _play_each(programs: Sequence[Program], play: Play) -> list[Outcome]:
    """Outcomes one a program; equal neighbours are played once."""
    outcomes: list[Outcome] = []
    for number, program in enumerate(programs):
        known = number > 0 and program == programs[number - 1]
        outcomes.append(outcomes[-1] if known else play(program))
    return outcomes


def _micro_batches_ns(workload: Workload, programs: Sequence[Program], outcomes: Sequence[Outcome]) -> int:
    """What micro-batches take, without the optimizer's step."""
    each = workload.forward_ns + workload.loss_ns
    return sum(
        program.pre_forward_ns + each + outcome.sync_end_ns + program.post_sync_ns
        for program, outcome in zip(programs, outcomes, strict=True)
    )
