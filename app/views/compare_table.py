"""The table of the Compare page: a row a candidate, and below each what differs from A."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

import sim
from app.cached_compare import Candidate, Result
from app.words import compare as words
from sim.units import MIB

_MS = ("step, ms", "faster than A, ms", "exposed, ms")
_COLUMN_HELP = {
    "step, ms": "step",
    "faster than A, ms": "gain",
    "faster than A, %": "gain",
    "speed-up": "speedup",
    "exposed, ms": "exposed",
    "overlap, %": "overlap",
    "largest bucket, MiB": "largest",
    "collectives": "collectives",
    "sent, MiB": "sent",
    "micro-batches": "micro_batches",
    "buckets hold, MiB": "memory",
    "note": "note",
}


def show(candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]) -> None:
    """Draw the table."""
    rows = table_rows(candidates, results, errors)
    two = {
        name: st.column_config.NumberColumn(format="%.2f", help=words.HELP[key])
        for name, key in _COLUMN_HELP.items()
        if name not in ("collectives", "micro-batches", "speed-up", "note")
    }
    config: dict[str, Any] = {
        **two,
        "candidate": st.column_config.TextColumn(pinned=True, width="medium"),
        **{
            name: st.column_config.NumberColumn(help=words.HELP[_COLUMN_HELP[name]])
            for name in ("collectives", "micro-batches")
        },
        "speed-up": st.column_config.NumberColumn(format="%.4f", help=words.HELP["speedup"]),
        "note": st.column_config.TextColumn(help=words.HELP["note"]),
    }
    told = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    # Why something failed must not be out of sight, right of all figures.
    order = sorted(told, key=lambda name: (name != "candidate", name != "note"))
    st.dataframe(rows, hide_index=True, column_config=config, column_order=order, placeholder="")


def table_rows(
    candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row a candidate in their order; behind each but A, where both were played, the row of differences."""
    played = {one.letter: one for one in results}
    base = played.get(candidates[0].letter)
    first = None if base is None else _row(base, base)
    rows = []
    for candidate in candidates:
        result = played.get(candidate.letter)
        if result is None:
            rows.append(_empty(candidate.name) | {"note": errors[candidate.letter]})
            continue
        row = _row(result, base)
        rows.append(row)
        if first is not None and result is not base:
            name = f"{candidate.letter} - {candidates[0].letter}"
            rows.append(
                {key: _less(row[key], first[key]) for key in row}
                | {"candidate": name, "speed-up": None, "note": ""}
            )
    return rows


def _less(value: Any, other: Any) -> Any:
    """The difference of two numbers; nothing where one of them is none."""
    are_numbers = all(isinstance(one, int | float) for one in (value, other))
    return value - other if are_numbers else None


def _empty(name: str) -> dict[str, Any]:
    columns = ("candidate", *_MS[:2], "faster than A, %", "speed-up", "exposed, ms", "overlap, %", "buckets")
    more = ("largest bucket, MiB", "collectives", "sent, MiB", "micro-batches", "buckets hold, MiB", "note")
    return dict.fromkeys((*columns, *more), None) | {"candidate": name, "note": ""}


def _row(result: Result, base: Result | None) -> dict[str, Any]:
    report = result.played.report
    figures = numbers(result)
    row = _empty(result.name) | {
        "step, ms": report.step_ns / 1e6,
        "exposed, ms": report.exposed_comm_ns / 1e6,
        "overlap, %": report.overlap_ratio * 100,
        "buckets": figures["buckets"],
        "largest bucket, MiB": figures["largest_bucket_bytes"] / MIB,
        "collectives": figures["collectives"],
        "sent, MiB": figures["sent_bytes"] / MIB,
        "micro-batches": figures["micro_batches"] if figures["micro_batches"] > 1 else None,
        "buckets hold, MiB": None if figures["memory_bytes"] is None else figures["memory_bytes"] / MIB,
    }
    if base is not None and base.micro_batches == result.micro_batches:  # else it is not the same work
        step = base.step_ns
        row["faster than A, ms"] = (step - report.step_ns) / 1e6
        row["faster than A, %"] = (step - report.step_ns) / step * 100 if step else 0.0
        row["speed-up"] = step / report.step_ns if report.step_ns else None
    return row


def numbers(result: Result) -> dict[str, Any]:
    """The figures of one candidate, ns and bytes; memory None where the report has none."""
    report, sent = result.played.report, sim.collectives(result.played.timeline)
    return {
        "step_ns": report.step_ns,
        "exposed_comm_ns": report.exposed_comm_ns,
        "overlap_ratio": report.overlap_ratio,
        "buckets": len(report.buckets),
        "largest_bucket_bytes": max(bucket.num_bytes for bucket in report.buckets),
        "collectives": len(sent),
        "sent_bytes": sum(one.num_bytes for one in sent),
        "micro_batches": result.micro_batches,
        "memory_bytes": None if report.memory is None else report.memory.peak_bytes,
    }


def csv_text(candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]) -> str:
    """A row a candidate in ns and bytes, with the machine that it was played on and what is changed in it."""
    played = {one.letter: one for one in results}
    base = played.get(candidates[0].letter)
    rows: list[dict[str, Any]] = []
    for candidate in candidates:
        result = played.get(candidate.letter)
        asked = candidate if result is None else result.candidate
        row: dict[str, Any] = {
            "candidate": candidate.letter,
            "assignment": asked.words,
            "choice": json.dumps(asked.told()),
        }
        if result is None:
            rows.append(row | {"error": errors[candidate.letter]})
            continue
        row |= numbers(result)
        if base is not None and base.micro_batches == result.micro_batches:
            row["gain_ns"] = base.step_ns - result.step_ns
        row |= {
            "policy": result.played.assignment.policy,
            "assignment_sha256": sim.digest(result.played.assignment),
            "played_on": result.inputs.hardware.name,
            "played_on_sha256": result.inputs.hardware_digest,
            "what_if": result.inputs.what_if,
        }
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
