"""agree, and the verdict that ends validate: how measured and predicted compare."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sim
from sim.cli.next_steps import suggest, to_look
from sim.cli.options import AsJson, argument, flag, option
from sim.cli.printing import emit, note, say, table
from sim.errors import InputError
from sim.formats.documents import json_text
from sim.units import NS_PER_MS, format_ms, format_number, format_percent, in_ms

if TYPE_CHECKING:
    from sim.truth.scoring import Agreement, BucketEnd, CandidateAgreement, Regret


MISSED = 3
MaxError = Annotated[float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One record scored by the model of today, with and without copies, and what was cut short in it."""

    agreement: "Agreement"
    without: "Agreement"
    incomplete: tuple[str, ...]


def agree(
    directories: list[Path] = argument(
        "Directories of measured records, or that hold some.", "RECORD...", default=...
    ),
    max_error: float | None = option(
        "Largest step error in percent, of a trace median error of bucket ends; beyond it exit 3."
    ),
    as_markdown: bool = flag("A Markdown table on stdout, a row a record.", "--markdown"),
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


_INTERVALS = ("step_low_ns", "step_high_ns", "exposed_low_ns", "exposed_high_ns")


def score_document(scored: Scored) -> dict[str, Any]:
    """What ``agree --json`` prints for one record."""
    return {
        **asdict(scored.agreement),
        "rows": [_row_document(row) for row in scored.agreement.rows],
        "without_copies": {
            "median_step_error": scored.without.median_step_error,
            "worst_step_error": scored.without.worst_step_error,
        },
    }


def bucket_end_document(end: "BucketEnd") -> dict[str, Any]:
    """The end of a bucket as JSON; of too few iterations without an interval."""
    return asdict(end) | ({} if end.has_interval else {"low_ns": None, "high_ns": None})


def _row_document(row: "CandidateAgreement") -> dict[str, Any]:
    facts = {**asdict(row), "bucket_ends": [bucket_end_document(end) for end in row.bucket_ends]}
    return facts if row.has_interval else facts | dict.fromkeys(_INTERVALS)


_MARKDOWN_COLUMNS = (
    "where",
    "candidates, fastest to slowest, ms a step",
    "step error, median",
    "worst",
    "pairs in order",
    "exposed, median",
    "bucket ends, median",
    "regret",
    "without copies in the model",
    "rule",
)


def print_summary(scores: Sequence[Scored]) -> None:
    """Several records, a row each."""
    agreements = [scored.agreement for scored in scores]
    table(
        f"{len(agreements)} records: measured against predicted",
        ["record", "place", "mode", "tried", "ms a step"],
        [[one.name, one.place or "-", one.mode, str(len(one.rows)), _span(one, "-")] for one in agreements],
    )
    table(
        "",
        ["record", "median", "worst", "exposed", "ends", "order", "regret", "rule"],
        [
            [
                one.name,
                *(_percent(error, 2) for error in _step_errors(one)),
                _percent(one.median_exposed_error),
                _percent(one.median_bucket_end_error),
                "-" if one.passed is None else f"{one.order_right}/{one.order_pairs}",
                _regret_cell(one.regret),
                _verdict_cell(one),
            ]
            for one in agreements
        ],
    )
    say("median, worst: of the step error; exposed, ends (of buckets): medians; ~: within noise")
    rules = dict.fromkeys(one.rule for one in agreements if one.passed is not None)
    for rule in rules:
        names = [one.name for one in agreements if one.rule == rule]
        of = f" of {', '.join(names)}" if len(rules) > 1 else ""
        say(f"rule{of}: {rule}")
    for one in agreements:
        if one.passed is None:
            say(f"{one.name}: {one.rule}")
    _note_incomplete(scores)


def print_one(scored: Scored) -> None:
    """One record, all its candidates."""
    agreement, bare = scored.agreement, {row.name: row for row in scored.without.rows}
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    table(
        f"{agreement.name}: measured against predicted",
        ["candidate", "buckets", "step ms", "95 % interval", "predicted", "error", "no copies"],
        [
            [
                row.name,
                str(len(row.bucket_indices)),
                in_ms(row.measured_step_ns),
                interval(row.step_low_ns, row.step_high_ns, told=row.has_interval),
                in_ms(row.predicted_step_ns),
                _signed(row.step_error),
                _signed(bare[row.name].step_error),
            ]
            for row in rows
        ],
    )
    table(
        "",
        ["candidate", "exposed ms", "95 % interval", "predicted", "error", "probe"],
        [
            [
                row.name,
                in_ms(row.measured_exposed_ns),
                interval(row.exposed_low_ns, row.exposed_high_ns, told=row.has_interval),
                in_ms(row.predicted_exposed_ns),
                _signed(row.exposed_error),
                _signed(row.probe_effect),
            ]
            for row in rows
        ],
    )
    traced = [row for row in rows if row.bucket_ends]
    if traced:
        table(
            "bucket ends: median error, and the bucket that is furthest off",
            ["candidate", "error", "ms", "worst", "measured", "95 % interval", "predicted"],
            [_bucket_cells(row) for row in traced],
        )
    parts = [(row.name, row.attribution) for row in rows if row.attribution is not None]
    if parts:
        table(
            "error of sync_end by mechanism, ms (negative: predicted too short)",
            ["candidate", "error", "compute", "copy", "launch", "communication", "wait"],
            [
                [
                    name,
                    *(
                        in_ms(ns, "+.2f")
                        for ns in (
                            one.total_ns,
                            one.compute_ns,
                            one.copy_ns,
                            one.launch_ns,
                            one.communication_ns,
                            one.wait_ns,
                        )
                    ),
                ]
                for name, one in parts
            ],
        )
    _print_notes(scored)


def markdown(scores: Sequence[Scored]) -> str:
    """The manual's table of records: one row each, in the order given."""
    lines = ["| " + " | ".join(_MARKDOWN_COLUMNS) + " |", "|---" * len(_MARKDOWN_COLUMNS) + "|"]
    for scored in scores:
        one, without = scored.agreement, scored.without
        cells = [
            f"`{one.name}`",
            _span(one, " to "),
            *(_spaced(error, 2) for error in _step_errors(one)),
            "-" if one.passed is None else f"{one.order_right} of {one.order_pairs}",
            _spaced(one.median_exposed_error, 1),
            _ends_words(one),
            _regret_words(one.regret),
            "-"
            if one.passed is None
            else f"{_spaced(without.median_step_error, 2)}, worst {_spaced(without.worst_step_error, 2)}",
            _verdict_cell(one),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _print_gain(agreement: "Agreement") -> None:
    """What the recommendation saved, measured and predicted; nothing where one of the two did not run."""
    steps = {row.name: (row.measured_step_ns, row.predicted_step_ns) for row in agreement.rows}
    if not {"DDP default", "recommended"} <= steps.keys():
        return
    before, after = steps["DDP default"], steps["recommended"]
    measured_ns, predicted_ns = before[0] - after[0], before[1] - after[1]
    say(
        f"gain of the recommended buckets over DDP's default: measured {format_ms(measured_ns)} a step "
        f"({format_percent(measured_ns / before[0])}), predicted {format_ms(predicted_ns)}"
    )


def _print_notes(scored: Scored) -> None:
    agreement, without = scored.agreement, scored.without
    where = ", ".join(word for word in (agreement.place, agreement.mode) if word)
    if agreement.passed is None:
        say(f"{where}: {tested_words(agreement)}")
        say(agreement.rule)
        _note_incomplete([scored])
        return
    _print_gain(agreement)
    say(
        f"{where}: step error: median {format_percent(agreement.median_step_error, 2)}, worst "
        f"{format_percent(agreement.worst_step_error, 2)} "
        f"(without copies in the model: {format_percent(without.median_step_error, 2)}, "
        f"{format_percent(without.worst_step_error, 2)})"
    )
    say(tested_words(agreement))
    say(
        f"order: {agreement.order_right} of {agreement.order_pairs} pairs right, "
        f"{agreement.order_within_noise} within noise; best measured: {agreement.best_measured}, best "
        f"predicted: {agreement.best_predicted}"
        f"{' (within noise of it)' if agreement.best_within_noise else ''}"
    )
    if agreement.regret is not None:
        say(f"regret of the recommendation: {_told_regret(agreement.regret)}")
    say(f"{'within' if agreement.passed else 'outside'} the rule: {agreement.rule}")
    _note_incomplete([scored])


def tested_words(agreement: "Agreement") -> str:
    """How far exposed communication and the ends of buckets are off."""
    ends = ""
    if agreement.median_bucket_end_error_ns is not None and agreement.worst_bucket_end_error_ns is not None:
        ends = (
            f", {format_ms(agreement.median_bucket_end_error_ns)}; worst "
            f"{format_ms(agreement.worst_bucket_end_error_ns)}"
        )
    return (
        f"exposed communication error: median {_percent(agreement.median_exposed_error)}; bucket "
        f"ends: median {_percent(agreement.median_bucket_end_error)}{ends}"
    )


def _told_regret(regret: "Regret") -> str:
    if not regret.regret_ns:
        return "none, it was the fastest"
    return (
        f"{format_ms(regret.regret_ns)} ({format_percent(regret.relative, 2)}) behind "
        f"{regret.best}, {_regret_interval(regret)}{', within noise' if regret.within_noise else ''}"
    )


def _regret_interval(regret: "Regret") -> str:
    over = f"over {regret.paired_rounds} paired rounds"
    if not regret.has_interval:
        return f"{over}, too few for an interval"
    return f"95 % interval {in_ms(regret.low_ns, '.1f')} to {in_ms(regret.high_ns, '.1f')} ms {over}"


def _note_incomplete(scores: Sequence[Scored]) -> None:
    for scored in scores:
        if scored.incomplete:
            where = f"{scored.agreement.name}: " if len(scores) > 1 else ""
            say(f"{where}incomplete: {', '.join(scored.incomplete)}")


def _bucket_cells(row: "CandidateAgreement") -> list[str]:
    worst = max(row.bucket_ends, key=lambda end: abs(end.error_ns))
    return [
        row.name,
        _percent(row.median_bucket_end_error),
        "-" if row.median_bucket_end_error_ns is None else in_ms(row.median_bucket_end_error_ns),
        str(worst.index),
        in_ms(worst.measured_ns),
        interval(worst.low_ns, worst.high_ns, told=worst.has_interval),
        in_ms(worst.predicted_ns),
    ]


def interval(low_ns: int, high_ns: int, *, told: bool, spec: str = ".1f") -> str:
    """From low to high in ms; a dash where there are too few iterations to tell."""
    return f"{in_ms(low_ns, spec)}-{in_ms(high_ns, spec)}" if told else "-"


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _signed(value: float | None) -> str:
    return "-" if value is None else format_percent(value, sign=True)


def _spaced(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _span(agreement: "Agreement", between: str) -> str:
    steps = [row.measured_step_ns / NS_PER_MS for row in agreement.rows]
    return f"{min(steps):.1f}{between}{max(steps):.1f}"


def _step_errors(agreement: "Agreement") -> tuple[float | None, float | None]:
    """Median and worst; none of a step that is predicted from itself."""
    if agreement.passed is None:
        return None, None
    return agreement.median_step_error, agreement.worst_step_error


def _verdict_cell(agreement: "Agreement") -> str:
    if agreement.passed is None:
        return "not judged"
    return "passed" if agreement.passed else "missed"


def _ends_words(agreement: "Agreement") -> str:
    if agreement.median_bucket_end_error_ns is None:
        return "-"
    share = _spaced(agreement.median_bucket_end_error, 1)
    return f"{share}, {format_ms(agreement.median_bucket_end_error_ns)}"


def _regret_cell(regret: "Regret | None") -> str:
    if regret is None:
        return "-"
    return f"{'~' if regret.within_noise and regret.regret_ns else ''}{format_percent(regret.relative, 2)}"


def _regret_words(regret: "Regret | None") -> str:
    if regret is None:
        return "-"
    if regret.regret_ns == 0:
        return "none"
    return f"{_spaced(regret.relative, 2)}{', within noise' if regret.within_noise else ''}"
