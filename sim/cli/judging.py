"""agree, and the verdict that ends validate: how measured and predicted compare."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli.printing import emit, note, table
from sim.cli.simulating import AsJson
from sim.errors import InputError
from sim.formats.documents import json_text
from sim.nouns.comparison import Agreement

MISSED = 3


def agree(
    directory: Annotated[Path, typer.Argument(metavar="RECORD", help="Directory of a measured record.")],
    max_error: Annotated[
        float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a measured record again with the model of today."""
    check_threshold(max_error)
    judge(directory, max_error, as_json)


def check_threshold(max_error: float | None) -> None:
    """Raise ``InputError`` unless ``--max-error`` is a percentage."""
    if max_error is not None and not 0 <= max_error < math.inf:
        raise InputError(f"--max-error: {max_error} is not legal; give a percentage >= 0")


def judge(directory: Path, max_error: float | None, as_json: bool) -> None:
    """Score a record and say so; exit 3 where the worst error is beyond ``max_error`` percent."""
    record = sim.load_record(directory)
    agreement = sim.agreement(record)
    without = sim.agreement(record, copies=False)
    if as_json:
        emit(json_text(_agreement_document(agreement, without)))
    else:
        _print_agreement(agreement, without)
    incomplete = [m.name for m in record.measurements if not m.complete]
    if incomplete:
        note(f"incomplete: {', '.join(incomplete)}")
    if max_error is not None and agreement.worst_step_error > max_error / 100:
        note(f"missed: worst step error {agreement.worst_step_error:.2%} > {max_error:g} %")
        raise typer.Exit(MISSED)


def _agreement_document(agreement: Agreement, without: Agreement) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(agreement)
    document["without_copies"] = {
        "median_step_error": without.median_step_error,
        "worst_step_error": without.worst_step_error,
    }
    return document


def _percent(value: float | None, sign: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def _print_agreement(agreement: Agreement, without: Agreement) -> None:
    bare = {row.name: row for row in without.rows}
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    table(
        f"{agreement.name}: measured against predicted",
        ["candidate", "buckets", "step ms", "95 % interval", "predicted", "error", "no copies"],
        [
            [
                row.name,
                str(len(row.bucket_indices)),
                f"{row.measured_step_ns / 1e6:.2f}",
                f"{row.step_low_ns / 1e6:.1f}-{row.step_high_ns / 1e6:.1f}",
                f"{row.predicted_step_ns / 1e6:.2f}",
                _percent(row.step_error),
                _percent(bare[row.name].step_error),
            ]
            for row in rows
        ],
    )
    table(
        "",
        ["candidate", "exposed ms", "predicted", "error", "bucket ends", "probe"],
        [
            [
                row.name,
                f"{row.measured_exposed_ns / 1e6:.2f}",
                f"{row.predicted_exposed_ns / 1e6:.2f}",
                _percent(row.exposed_error),
                _percent(row.median_bucket_end_error, sign=False),
                _percent(row.probe_effect),
            ]
            for row in rows
        ],
    )
    note(
        f"step error: median {agreement.median_step_error:.2%}, worst {agreement.worst_step_error:.2%} "
        f"(without copies in the model: {without.median_step_error:.2%}, {without.worst_step_error:.2%})"
    )
    note(
        f"exposed communication error: median {_percent(agreement.median_exposed_error, sign=False)}; bucket "
        f"ends: median {_percent(agreement.median_bucket_end_error, sign=False)}"
    )
    note(
        f"order: {agreement.order_right} of {agreement.order_pairs} pairs right, "
        f"{agreement.order_within_noise} within noise; best measured: {agreement.best_measured}, best "
        f"predicted: {agreement.best_predicted}"
        f"{' (within noise of it)' if agreement.best_within_noise else ''}"
    )
    note(f"{'within' if agreement.passed else 'outside'} the rule: {agreement.rule}")
