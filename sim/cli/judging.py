"""agree, and the verdict that ends validate: how measured and predicted compare."""

import os
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import sim
from sim.cli import options
from sim.cli.options import argument, flag
from sim.cli.printing import Answer, emit, line, note, say, table, wants_json
from sim.columns import CANDIDATES, RECORDS, by_place, markdown, ms, of_part
from sim.nouns.measurement import Record
from sim.telling import agreement_document, tell_best, tell_rule, tell_tested, tell_verdict
from sim.units import format_ms, format_number, format_percent

if TYPE_CHECKING:
    from sim.truth.scoring import Agreement

_MISSED = 3
_PARTS = ("compute", "copy", "launch", "communication", "wait")  # of an error, by mechanism


@options.answers
def agree(
    directories: list[Path] = argument("Directories of measured records, or that hold some.", "RECORD..."),
    max_error: options.MaxError = None,
    as_markdown: bool = flag("A Markdown table on stdout, a row a record.", "--markdown"),
) -> Answer:
    """Compare measured records with what this version of bucketsim predicts."""
    if as_markdown and wants_json.get():
        raise typer.BadParameter("--markdown and --json both given; give one")
    # at or below each directory, once each; a directory without any is kept, to be refused
    records = list(dict.fromkeys(path for one in directories for path in sim.find_records(one) or [one]))
    return judge(records, max_error, as_markdown)


def judge(directories: Sequence[Path], max_error: float | None, as_markdown: bool = False) -> Answer:
    """Records, scored; exit 3 where a worst error is beyond ``max_error`` percent."""
    records = [sim.load_record(path) for path in directories]
    found = [sim.agreement(record) for record in records]
    scores = [*zip(records, found, strict=True)]
    documents = [agreement_document(*scored) for scored in scores if wants_json.get()]

    def show() -> None:
        if as_markdown:
            emit(markdown(RECORDS, found))
        elif len(found) > 1:
            _print_several(found)
        else:
            print_one(*scores[0])
        for record in () if as_markdown else records:
            if incomplete := [one.name for one in record.measurements if not one.complete]:
                say(f"{record.name}: incomplete: {', '.join(incomplete)}")

    ahead = "" if as_markdown else line("dash", "--watch", os.path.commonpath(directories))
    return Answer(documents[0] if len(documents) == 1 else documents, show, ahead, _gate(found, max_error))


def _gate(agreements: "Sequence[Agreement]", max_error: float | None) -> int:
    """The exit code: 3 where an error of a record is beyond ``max_error`` percent; each such is named.

    It is the worst step error, and of a trace, whose step is predicted from itself, the median error of the
    ends of buckets: where none can be told, nothing has been shown to be within.
    """
    code = 0
    for one in agreements:
        is_trace = one.passed is None
        error = one.median_bucket_end_error if is_trace else one.worst_step_error
        if max_error is None or (error is not None and error <= max_error / 100):
            continue
        code = _MISSED
        told = "cannot be told"
        if error is not None:
            told = f"{format_percent(error, 2)} > {format_number(max_error, 6)} %"
        what = "median error of bucket ends" if is_trace else "worst step error"
        note(f"missed: {f'{one.name}: ' if len(agreements) > 1 else ''}{what} {told}")
    return code


def _print_several(agreements: "Sequence[Agreement]") -> None:
    table(f"{len(agreements)} records: measured against predicted", RECORDS[:6], agreements)
    table("", (RECORDS[0], *RECORDS[6:]), agreements)
    say("errors are medians but for the worst, of the step; ends: of buckets; ~: within noise")
    for rule in dict.fromkeys(one.rule for one in agreements):
        say(f"rule of {', '.join(one.name for one in agreements if one.rule == rule)}: {rule}")


def print_one(record: Record, agreement: "Agreement") -> None:
    """One record, all its candidates."""
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    table(f"{agreement.name}: measured against predicted", CANDIDATES[:6], rows)
    table("exposed communication, and ends of buckets", (CANDIDATES[0], *CANDIDATES[6:-1]), rows)
    found = sim.attribution(record)
    if parts := [(row.name, found[row.name]) for row in rows if row.name in found]:
        told = [ms("error", "total_ns", "+.2f"), *(ms(part, f"{part}_ns", "+.2f") for part in _PARTS)]
        columns = (*by_place("candidate"), *of_part(itemgetter(1), told))
        table("error of sync_end by mechanism (negative: predicted too short)", columns, parts)
    steps = {row.name: (row.measured_step_ns, row.predicted_step_ns) for row in agreement.rows}
    if agreement.passed is not None and {"DDP default", "recommended"} <= steps.keys():
        (before_ns, told_before_ns), (after_ns, told_after_ns) = steps["DDP default"], steps["recommended"]
        measured = f"{format_ms(before_ns - after_ns)} a step ({format_percent(1 - after_ns / before_ns)})"
        say(
            f"gain of the recommended buckets over DDP's default: measured {measured}, predicted "
            f"{format_ms(told_before_ns - told_after_ns)}"
        )
    where = ", ".join(word for word in (agreement.place, agreement.mode) if word)
    say(f"{where}: {tell_verdict(agreement)}")
    if agreement.passed is not None:
        say(f"{tell_tested(agreement)} {tell_best(agreement)}")
    say(tell_rule(agreement))
