"""The facade: what ``import sim`` offers, and all that ``app`` needs for its work."""

import os
from typing import Literal

from sim.engine import lanes, recurrence
from sim.engine.bucketing import assign
from sim.engine.outcome import make_timeline
from sim.engine.plan import make_plan
from sim.errors import InputError
from sim.formats import documents
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.verdict.metrics import summarize

__all__ = [
    "assign",
    "load_assignment",
    "load_hardware",
    "load_workload",
    "simulate",
    "summarize",
]

Engine = Literal["simpy", "analytic"]


def load_workload(path: str | os.PathLike[str]) -> Workload:
    """A Workload from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Workload)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """A Hardware from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Hardware)


def load_assignment(path: str | os.PathLike[str]) -> Assignment:
    """An Assignment from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Assignment)


def simulate(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    engine: Engine = "simpy",
    *,
    iteration: Iteration = "steady",
) -> Timeline:
    """What happens in one step under ``assignment``.

    Args:
        workload: what backward makes ready, and when.
        hardware: what the machine carries.
        assignment: how the gradients are cut; it must fit the workload (A8.3).
        engine: ``simpy`` (every system and effect) or ``analytic`` (the recurrence); equal to the ns.
        iteration: which iteration the assignment belongs to: ``"steady"``, 1, 2 or 3.
    """
    plan = make_plan(workload, hardware, assignment)
    if engine == "simpy":
        outcome = lanes.play(plan)
    elif engine == "analytic":
        outcome = recurrence.solve(plan)
    else:
        raise InputError(f"engine: {engine!r} is not legal; give 'simpy' or 'analytic'")
    return make_timeline(
        workload, hardware, assignment, plan, outcome, engine=engine, iteration=iteration
    )
