"""One step from workload, hardware and assignment to its timeline, by either engine."""

from collections.abc import Callable

from sim.engine import lanes, recurrence
from sim.engine.outcome import Outcome, make_timeline
from sim.engine.program import Program
from sim.engine.systems import write
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload

Play = Callable[[Program], Outcome]

ENGINES: dict[str, Play] = {"simpy": lanes.play, "analytic": recurrence.solve}


def run(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    engine: str = "simpy",
    iteration: Iteration = "steady",
) -> Timeline:
    """The timeline of one step. Raises ``InputError`` where ``engine`` is not one of ``ENGINES``."""
    if engine not in ENGINES:
        raise InputError(f"engine: {engine!r} is not legal; give 'simpy' or 'analytic'")
    *before, last = write(workload, hardware, assignment, iteration)
    return make_timeline(
        workload,
        hardware,
        assignment,
        last,
        ENGINES[engine](last),
        accumulation_ns=_accumulation_ns(workload, before, ENGINES[engine]),
        engine=engine,
        iteration=iteration,
    )


def _accumulation_ns(workload: Workload, programs: list[Program], play: Play) -> int:
    """What the micro-batches before the last take; equal neighbours are played once."""
    total = took = 0
    known: Program | None = None
    for program in programs:
        if program != known:
            known, took = program, play(program).sync_end_ns
        total += program.pre_forward_ns + workload.forward_ns + workload.loss_ns + took + program.post_sync_ns
    return total
