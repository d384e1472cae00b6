"""One step from workload, hardware and assignment to its timeline, by either engine."""

from sim.engine import lanes, recurrence
from sim.engine.outcome import make_timeline
from sim.engine.plan import make_plan
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload

ENGINES = {"simpy": lanes.play, "analytic": recurrence.solve}


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
    plan = make_plan(workload, hardware, assignment)
    outcome = ENGINES[engine](plan)
    return make_timeline(workload, hardware, assignment, plan, outcome, engine=engine, iteration=iteration)
