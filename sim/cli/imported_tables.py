"""What an import shows: sentences, ranks, buckets, curves and the as-run check."""

from typing import Any

from sim.cli.printing import say, table
from sim.cli.score_documents import bucket_end_document
from sim.cli.scores import interval, tested_words
from sim.importer.writing import hardware_names
from sim.nouns.comparison import Agreement, CandidateAgreement
from sim.nouns.hardware import Curve
from sim.nouns.imported import MEASURED, SENTENCES, Imported
from sim.units import format_ms, format_percent, format_size, format_time, in_ms

MOST_POINTS, MOST_BUCKETS = 12, 40


def print_imported(imported: Imported) -> None:
    """All that was imported, but for the as-run check."""
    for title in SENTENCES:
        for line in getattr(imported, title):
            say(f"{title}: {line}")
    _print_ranks(imported)
    _print_recorded(imported)
    for file, hardware in zip(hardware_names(imported), imported.hardware, strict=True):
        say(f"{file}: {hardware.name}")
        _print_curve(file, hardware.world_size, hardware.all_reduce)


def bucket_rows(imported: Imported) -> list[dict[str, Any]]:
    """The buckets that ran: medians of the first measurement, or of a recording."""
    measured = imported.details.get(MEASURED)
    if measured is not None:
        return list(measured["buckets"])
    if not imported.measurements:
        return []
    first = imported.measurements[0]
    sizes = first.asked.bucket_bytes if first.asked is not None else None
    return [
        {"index": place, "indices": list(indices), "num_bytes": None if sizes is None else sizes[place]}
        for place, indices in enumerate(first.observed or ())
    ]


def as_run_document(as_run: Agreement | str | None) -> dict[str, Any] | None:
    """The as-run check as JSON: measured and predicted steps, and ends of buckets."""
    if as_run is None:
        return None
    if isinstance(as_run, str):
        return {"error": as_run}
    return {
        "rows": [
            {
                "name": row.name,
                "steps": row.iterations,
                "measured_step_ns": row.measured_step_ns,
                "predicted_step_ns": row.predicted_step_ns,
                "step_error": row.step_error,
                "measured_sync_end_ns": row.measured_sync_end_ns,
                "predicted_sync_end_ns": row.predicted.sync_end_ns,
                "measured_exposed_ns": row.measured_exposed_ns,
                "predicted_exposed_ns": row.predicted_exposed_ns,
                "exposed_error": row.exposed_error,
                "median_bucket_end_error": row.median_bucket_end_error,
                "buckets": [bucket_end_document(end) for end in row.bucket_ends],
            }
            for row in as_run.rows
        ],
        "rule": as_run.rule,
    }


def print_as_run(as_run: Agreement | str) -> None:
    """Prediction over measurement: each bucket's end, exposed communication, and the step."""
    if isinstance(as_run, str):
        say(as_run)
        return
    for row in as_run.rows:
        table(
            f"as run: predicted over measured, {row.iterations} {'step' if row.iterations == 1 else 'steps'}",
            ["what", "size", "measured ms", "95 % interval", "predicted ms", "error"],
            [
                *_ends(row),
                _compared(
                    "exposed",
                    row.measured_exposed_ns,
                    row.predicted_exposed_ns,
                    shown=interval(
                        row.exposed_low_ns, row.exposed_high_ns, told=row.has_interval, spec=".2f"
                    ),
                ),
                _compared("gradients available", row.measured_sync_end_ns, row.predicted.sync_end_ns),
                _compared(
                    "step",
                    row.measured_step_ns,
                    row.predicted_step_ns,
                    shown=interval(row.step_low_ns, row.step_high_ns, told=row.has_interval, spec=".2f"),
                ),
            ],
        )
    say(tested_words(as_run))
    say(as_run.rule)


def _ends(row: CandidateAgreement) -> list[list[str]]:
    shown = [
        _compared(
            f"bucket {end.index} ends",
            end.measured_ns,
            end.predicted_ns,
            size=format_size(end.num_bytes),
            shown=interval(end.low_ns, end.high_ns, told=end.has_interval, spec=".2f"),
        )
        for end in row.bucket_ends[:MOST_BUCKETS]
    ]
    more = len(row.bucket_ends) - len(shown)
    return [*shown, *([[f"and {more} more", "", "", "", "", ""]] if more else [])]


def _compared(what: str, measured: int, predicted: int, *, size: str = "", shown: str = "") -> list[str]:
    error = format_percent(predicted / measured - 1, sign=True) if measured > 0 else "-"
    return [what, size, in_ms(measured), shown, in_ms(predicted), error]


def _print_ranks(imported: Imported) -> None:
    told = (
        value
        for row in imported.ranks
        for value in (
            row.clock_offset_ns,
            row.clock_scatter_ns,
            row.came_last,
            row.waited_ns,
            row.backward_ns,
        )
    )
    if all(value is None for value in told):
        return
    table(
        "ranks",
        ["rank", "host", "clock", "scatter", "came last", "waited", "backward"],
        [
            [
                str(row.rank),
                row.host or "-",
                _us(row.clock_offset_ns),
                _us(row.clock_scatter_ns),
                "-" if row.came_last is None else f"{row.came_last} of {row.collectives}",
                _us(row.waited_ns),
                "-" if row.backward_ns is None else format_ms(row.backward_ns),
            ]
            for row in imported.ranks
        ],
    )


def _us(ns: int | None) -> str:
    return "-" if ns is None else f"{ns / 1000:.1f} us"


def _print_recorded(imported: Imported) -> None:
    measured = imported.details.get(MEASURED)
    if not measured or not measured["buckets"]:
        return
    table(
        "buckets, slowest rank, medians, from the end of forward",
        ["bucket", "size", "ready", "launch", "end", "last to launch"],
        [
            [
                str(row["index"]),
                format_size(row["num_bytes"]),
                format_ms(row["ready_ns"]),
                format_ms(row["launch_ns"]),
                format_ms(row["end_ns"]),
                ", ".join(f"rank {rank}: {count}" for rank, count in row["last_arriver"].items()),
            ]
            for row in measured["buckets"]
        ],
    )


def _print_curve(file: str, ranks: int, curve: Curve) -> None:
    """A curve's points; of many, as many spread over them."""
    every = -(-len(curve) // MOST_POINTS)
    shown = [*curve[:-1:every], curve[-1]]
    table(
        f"{file}: all-reduce",
        ["size", "time", "bus bandwidth"],
        [
            [
                format_size(point.num_bytes),
                format_time(point.duration_ns),
                f"{point.num_bytes / point.duration_ns * 2 * (ranks - 1) / ranks:.2f} GB/s"
                if point.duration_ns
                else "-",
            ]
            for point in shown
        ],
    )
