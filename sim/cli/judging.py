"""agree, and the verdict that ends validate: how measured and predicted compare."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.next_steps import suggest, to_look
from sim.cli.printing import emit, note
from sim.cli.score_documents import score_document
from sim.cli.scores import Scored, markdown, print_one, print_summary
from sim.cli.simulating import AsJson
from sim.errors import InputError
from sim.formats.documents import json_text
from sim.units import format_number, format_percent

MISSED = 3
MaxError = Annotated[float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")]


def agree(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD...", help="Directories of measured records, or that hold some."),
    ],
    max_error: Annotated[
        float | None,
        typer.Option(
            help="Largest step error in percent, of a trace median error of bucket ends; beyond it exit 3."
        ),
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="A Markdown table on stdout, a row a record.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare measured records with what this version of bucketsim predicts."""
    check_threshold(max_error)
    if as_markdown and as_json:
        raise InputError("--markdown and --json both given; give one")
    if as_markdown:
        scores = [_score(directory, attributed=False) for directory in _records(directories)]
        emit(markdown(scores))
        _gate(scores, max_error)
    else:
        judge(_records(directories), max_error, as_json)


def check_threshold(max_error: float | None) -> None:
    """Raise ``InputError`` unless ``--max-error`` is a percentage."""
    if max_error is not None and not 0 <= max_error < math.inf:
        raise InputError(f"--max-error: {max_error} is not legal; give a percentage >= 0")


def judge(directories: Sequence[Path], max_error: float | None, as_json: bool) -> None:
    """Score records and say so; exit 3 where a worst error is beyond ``max_error`` percent."""
    scores = [_score(directory) for directory in directories]
    if as_json:
        found = [score_document(scored) for scored in scores]
        emit(json_text(found if len(found) > 1 else found[0]))
    elif len(scores) > 1:
        print_summary(scores)
    else:
        print_one(scores[0])
    _gate(scores, max_error)
    if not as_json:
        suggest(to_look(Path(os.path.commonpath(directories))))


def _records(directories: Sequence[Path]) -> list[Path]:
    """The records at or below each directory, once each; a directory without any is kept, to be refused."""
    return list(dict.fromkeys(path for one in directories for path in sim.find_records(one) or [one]))


def _score(directory: Path, attributed: bool = True) -> Scored:
    record = sim.load_record(directory)
    return Scored(
        agreement=sim.agreement(record, attributed=attributed),
        without=sim.agreement(record, copies=False, attributed=False),
        incomplete=tuple(m.name for m in record.measurements if not m.complete),
    )


def _gate(scores: Sequence[Scored], max_error: float | None) -> None:
    """Exit 3 where an error of a record is beyond ``max_error`` percent; each such is named.

    It is the worst step error, and of a trace, whose step is predicted from itself, the median error of the
    ends of buckets: where none can be told, nothing has been shown to be within.
    """
    if max_error is None:
        return
    missed = False
    for agreement in (scored.agreement for scored in scores):
        is_trace = agreement.passed is None
        what = "median error of bucket ends" if is_trace else "worst step error"
        error = agreement.median_bucket_end_error if is_trace else agreement.worst_step_error
        if error is not None and error <= max_error / 100:
            continue
        missed = True
        where = f"{agreement.name}: " if len(scores) > 1 else ""
        note(
            f"missed: {where}{what} "
            + (
                "cannot be told"
                if error is None
                else f"{format_percent(error, 2)} > {format_number(max_error, 6)} %"
            )
        )
    if missed:
        raise typer.Exit(MISSED)
