"""What one knows of a record at a glance: what was measured where, and how well it was predicted."""

from dataclasses import dataclass

from app.figures.parity import ParityPoint, step_points
from app.library import LIVE
from sim.nouns.comparison import Agreement
from sim.nouns.measurement import Mode
from sim.nouns.records import Record
from sim.units import format_number

UPLOADED = "upload: "  # what the name of an uploaded record begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A record before it is scored: what its files say of it. ``date`` is ISO's day, "" where not told."""

    workload: str
    place: str
    ranks: int
    backend: str
    mode: Mode
    tests: str
    candidates: int
    date: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a record was predicted; errors as shares of the measured step.

    ``passed`` is None for a trace, whose steps are predicted from its own parts.
    """

    median_step_error: float
    worst_step_error: float
    order_right: int
    order_pairs: int
    passed: bool | None
    points: tuple[ParityPoint, ...]


def kind_of(name: str) -> str:
    """The kind of a record: its folder, or where it came from."""
    for prefix in (LIVE, UPLOADED):
        if name.startswith(prefix):
            return prefix.rstrip(": ")
    return name.split("/")[0] if "/" in name else "record"


def card_of(record: Record) -> Card:
    """What the files of a record say of it."""
    first = record.candidates[0] if record.candidates else record.measurements[0]
    place = _text(first.environment.get("place")) or record.hardware.name
    return Card(
        workload=record.workload.name,
        place=place,
        ranks=first.world_size,
        backend=first.backend,
        mode=first.mode,
        tests=_tests(record, place),
        candidates=len(record.candidates),
        date=_text(first.provenance.get("date"))[:10],
        torch=_text(first.environment.get("torch")),
    )


def score_of(agreement: Agreement, name: str) -> Score:
    """An agreement, boiled down; ``name`` is that of the record in the library."""
    return Score(
        median_step_error=agreement.median_step_error,
        worst_step_error=agreement.worst_step_error,
        order_right=agreement.order_right,
        order_pairs=agreement.order_pairs,
        passed=agreement.passed,
        points=step_points(agreement, record=name, kind=kind_of(name)),
    )


def _tests(record: Record, place: str) -> str:
    """Where it ran, and what there was beside plain ranks in the box of the calibration."""
    words = [place]
    words += [
        f"rank {rank} x {format_number(factor, 6)}"
        for rank, factor in record.slow
        if f"rank {rank}" not in place
    ]
    if None not in (record.box, record.calibrated_in) and record.box != record.calibrated_in:
        words.append(f"from hardware of {_text(record.hardware.provenance.get('place')) or 'another box'}")
    return "; ".join(words)


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""
