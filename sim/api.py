"""The facade: what ``import sim`` offers, and all that ``app`` needs for its work."""

import hashlib
import os
from dataclasses import replace
from typing import Any, Literal

from sim.costs.scaling import scale
from sim.engine.bucketing import assign, check_reaches
from sim.engine.run import run
from sim.formats import documents, pasting
from sim.formats.documents import to_text
from sim.formats.pasting import bucket_indices_json
from sim.formats.perfetto import perfetto_json
from sim.formats.records import find_records, load_record
from sim.formats.tables import sweep_csv
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Agreement
from sim.nouns.hardware import Hardware
from sim.nouns.records import Record
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.tuner.grid import sweep
from sim.tuner.recommend import tune
from sim.verdict import scoring
from sim.verdict.metrics import summarize

__all__ = [
    "agreement",
    "assign",
    "bucket_indices_json",
    "digest",
    "find_records",
    "load_assignment",
    "load_hardware",
    "load_record",
    "load_workload",
    "parse_hardware",
    "parse_workload",
    "perfetto_json",
    "scale",
    "simulate",
    "snippet",
    "summarize",
    "sweep",
    "sweep_csv",
    "to_text",
    "tune",
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
    return run(workload, hardware, assignment, engine, iteration)


def parse_workload(text: str | bytes, source: str) -> Workload:
    """A Workload from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Workload, source)


def parse_hardware(text: str | bytes, source: str) -> Hardware:
    """A Hardware from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Hardware, source)


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes stock DistributedDataParallel use ``assignment``, which it is checked to reach.

    Raises:
        NotModelledError: no keyword of DistributedDataParallel reaches these buckets.
        AssignmentError: ``ddp_kwargs`` reach other buckets than these, or they do not fit ``workload``.
    """
    text = pasting.snippet(assignment, workload)
    check_reaches(workload, assignment)
    return text


def digest(noun: Any) -> str:
    """SHA-256 of a noun's JSON text, in hex."""
    return hashlib.sha256(to_text(noun).encode()).hexdigest()


def agreement(record: Record, copies: bool = True) -> Agreement:
    """A measured record against what the model of today predicts for it.

    ``copies`` False switches the copies into and out of buckets off in the model, to show their effect.
    """
    hardware = record.hardware
    if not copies:
        hardware = replace(hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
    predictions = {}
    for candidate in record.candidates:
        assert candidate.asked is not None
        timeline = simulate(record.workload, hardware, candidate.asked)
        predictions[candidate.name] = summarize(timeline)
    return scoring.agree(record, predictions)
