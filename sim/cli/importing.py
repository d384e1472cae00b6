"""import: what other tools and real training runs left behind, as our files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli import next_steps
from sim.cli.diagnosing import ALL_REDUCE_PERF
from sim.cli.judging import bucket_end_document, interval, tested_words
from sim.cli.options import AsJson, argument, directory_option, flag, option
from sim.cli.printing import emit, note, progress, say, table
from sim.errors import InputError, SimError
from sim.formats.documents import json_text
from sim.formats.record_files import WORKLOAD
from sim.importer.imported import KINDS, Imported, ImportOptions
from sim.importer.readers import READABLE, reader, recognise
from sim.importer.writing import (
    SUMMARY,
    check_directory,
    hardware_names,
    summary_of,
    write_imported,
)
from sim.nouns.hardware import Curve
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_ms, format_percent, format_size, format_time, in_ms

if TYPE_CHECKING:
    from sim.truth.scoring import Agreement, CandidateAgreement


_FORMATS = f"{', '.join(READABLE)}. auto tells each file by its content, and puts several together."


def import_(
    form: str = argument(_FORMATS, "FORMAT", default=...),
    paths: list[Path] = argument("What to read.", "PATH...", default=...),
    output: Path = directory_option("Directory to write to."),
    name: str | None = option("Name of what is imported."),
    model: str | None = option("The model that was trained, for names and shapes: W.json or MODULE:FACTORY."),
    world_size: int | None = option("Ranks, where the files do not say it."),
    machine: str | None = option("A word of its hosts, devices or headline: one of several in a file."),
    anonymize: bool = flag("Strip names, paths and hosts of what is written.", "--anonymize"),
    as_json: AsJson = False,
) -> None:
    """Turn traces, logs, benchmarks and recordings into a workload, hardware and a measured record."""
    read = reader(form)
    if world_size is not None and world_size < 1:
        raise InputError(f"--world-size: {world_size} is not legal; give an integer >= 1")
    check_directory(output)
    with progress("importing") as report:
        options = ImportOptions(
            name=name,
            model=None if model is None else _model(model),
            world_size=world_size,
            machine=machine,
            progress=report,
        )
        try:
            imported = read(paths, options)
        except InputError:
            _check_format(form, paths)
            raise
    if anonymize:
        from sim.importer.anonymizing import anonymize as strip_names

        imported = strip_names(imported)
    files = write_imported(imported, output)
    as_run = _as_run(imported)
    if as_json:
        emit(json_text(_document(imported, files, output, as_run)))
        return
    for path in (*files, output / SUMMARY):
        note(f"wrote {path}")
    print_imported(imported)
    if as_run is not None:
        print_as_run(as_run)
    *hints, ahead = _advice(imported, paths, output)
    for line in hints:
        note(line)
    next_steps.suggest(ahead)


def _advice(imported: Imported, paths: list[Path], output: Path) -> list[str]:
    """What the curve cannot tell, and last the command to go on with or what is missing for it."""
    hardware, given = imported.main_hardware, next_steps.HARDWARE
    workload = next_steps.WORKLOAD if imported.workload is None else output / WORKLOAD
    if hardware is not None:
        (place,) = [place for place, one in enumerate(imported.hardware) if one is hardware]
        given = output / hardware_names(imported)[place]
    lines = []
    if hardware is not None and imported.workload is not None:
        least, gradients = hardware.all_reduce[0].num_bytes, imported.workload.gradients
        smaller = sum(gradient.num_bytes < least for gradient in gradients)
        if smaller:
            lines.append(
                f"hint: {format_size(least)} is the smallest size of {given}, and an all-reduce of less is "
                f"taken to last as long; {smaller} of {len(gradients)} gradients are smaller: to judge "
                f"buckets of few of them, import an nccl-tests log that begins lower as well "
                f"(bucketsim import auto)"
            )
    if imported.workload is None and not imported.hardware:
        return [*lines, f"give what is missing above, and import again with -o {output}"]
    if not imported.hardware:
        ranks = max(2, imported.measurements[0].world_size) if imported.measurements else 2
        calibrate = next_steps.to_calibrate(workload, ranks)
        if imported.measurements and imported.measurements[0].backend == "gloo":  # nccl-tests knows no gloo
            return [*lines, calibrate]
        if imported.measurements:  # of a job over NCCL: calibrate would measure another link
            measure = f"measure the job's own link with nccl-tests, one rank a GPU: {ALL_REDUCE_PERF}"
            return [*lines, f"{measure}; then: {next_steps.to_import([*paths, Path('link.txt')], output)}"]
        return [
            *lines,
            f"import an nccl-tests log with these files; or, on the machine itself: {calibrate}",
        ]
    ends = ""
    if imported.workload is None:
        ends = "; the workload: import a trace with these files, or bucketsim record or estimate"
    elif hardware is None:
        several = ", ".join(str(output / name) for name in hardware_names(imported))
        ends = f"; the hardware is one of {several}"
    return [*lines, next_steps.to_tune(workload, given) + ends]


def _check_format(form: str, paths: list[Path]) -> None:
    """Raise ``InputError`` where a file that could not be read is of another format than was said."""
    for path in paths if form != "auto" else ():
        try:
            found = recognise(path)
        except (InputError, OSError):
            continue
        if found != form:
            legal = f"{found} or auto" if found in READABLE else "auto"
            raise InputError(f"{path}: {found} by its content, not {form}; give {legal} as FORMAT") from None


def _document(
    imported: Imported, files: list[Path], output: Path, as_run: "Agreement | str | None"
) -> dict[str, Any]:
    return {
        **summary_of(imported),
        "files": [str(path) for path in files],
        "summary": str(output / SUMMARY),
        "world_size": main.world_size if (main := imported.main_hardware) is not None else None,
        "hardware": [
            {"file": file, "name": one.name, "world_size": one.world_size, "sizes": len(one.all_reduce)}
            for file, one in zip(hardware_names(imported), imported.hardware, strict=True)
        ],
        "buckets": bucket_rows(imported),
        "as_run": as_run_document(as_run),
    }


def _as_run(imported: Imported) -> "Agreement | str | None":
    """The step that was measured, predicted from its own parts; a sentence where that cannot be done."""
    record = imported.record
    try:
        return None if record is None else sim.agreement(record)
    except SimError as error:
        return f"the imported step cannot be predicted: {error}"


def _model(given: str) -> Workload:
    """The gradients of the model: a workload's, or those of a model that is made without its memory."""
    if ":" not in given or Path(given).is_file():
        return sim.load_workload(Path(given))
    from sim.recorder.estimate import estimate

    # Of it only the gradients and their order are used.
    return estimate(given, name=given.rpartition(":")[2], backward_ns=NS_PER_MS)


MOST_POINTS, MOST_BUCKETS = 12, 40


def print_imported(imported: Imported) -> None:
    """All that was imported, but for the as-run check."""
    for kind in KINDS:
        for line in imported.said(kind):
            say(f"{kind}: {line}")
    _print_ranks(imported)
    for file, hardware in zip(hardware_names(imported), imported.hardware, strict=True):
        say(f"{file}: {hardware.name}")
        _print_curve(file, hardware.world_size, hardware.all_reduce)


def bucket_rows(imported: Imported) -> list[dict[str, Any]]:
    """The buckets that ran, by the first measurement."""
    if not imported.measurements:
        return []
    first = imported.measurements[0]
    sizes = first.asked.bucket_bytes if first.asked is not None else None
    return [
        {"index": place, "indices": list(indices), "num_bytes": None if sizes is None else sizes[place]}
        for place, indices in enumerate(first.observed or ())
    ]


def as_run_document(as_run: "Agreement | str | None") -> dict[str, Any] | None:
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


def print_as_run(as_run: "Agreement | str") -> None:
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


def _ends(row: "CandidateAgreement") -> list[list[str]]:
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
