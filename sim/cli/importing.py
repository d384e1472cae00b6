"""import: what other tools and real training runs left behind, as our files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.doctor import ALL_REDUCE_PERF
from sim.cli.judging import bucket_end_document
from sim.cli.machines import curve_columns
from sim.cli.options import AsJson, argument, directory_option, flag, option
from sim.cli.printing import (
    HARDWARE,
    WORKLOAD,
    emit,
    line,
    note,
    print_table,
    progress,
    say,
    suggest,
    table,
    to_calibrate,
    to_tune,
)
from sim.columns import Column, ms, plain
from sim.errors import InputError, SimError
from sim.formats import record_files
from sim.formats.documents import json_text
from sim.importer.imported import (
    KINDS,
    SUMMARY,
    Imported,
    ImportOptions,
    RankRow,
    hardware_names,
    summary_of,
    write_imported,
)
from sim.importer.readers import READABLE, reader, recognise
from sim.nouns.workload import Workload
from sim.telling import tell_rule, tell_tested
from sim.units import NS_PER_MS, format_percent, format_size, in_ms

if TYPE_CHECKING:
    from sim.truth.scoring import Agreement, CandidateAgreement

MOST_POINTS, MOST_BUCKETS = 12, 40
_FORMATS = f"{', '.join(READABLE)}. auto tells each file by its content, and puts several together."
_OF_AS_RUN = (
    *("name", "measured_step_ns", "predicted_step_ns", "step_error", "measured_sync_end_ns"),
    *("measured_exposed_ns", "predicted_exposed_ns", "exposed_error", "median_bucket_end_error"),
)


def import_(
    form: str = argument(_FORMATS, "FORMAT", default=...),
    paths: list[Path] = argument("What to read.", "PATH...", default=...),
    output: Path = directory_option("Directory to write to."),
    name: str | None = option("Name of what is imported."),
    model: str | None = option("The model that was trained, for names and shapes: W.json or MODULE:FACTORY."),
    world_size: int | None = option("Ranks, where the files do not say it.", min=1),
    machine: str | None = option("A word of its hosts, devices or headline: one of several in a file."),
    anonymize: bool = flag("Strip names, paths and hosts of what is written.", "--anonymize"),
    as_json: AsJson = False,
) -> None:
    """Turn traces, logs, benchmarks and recordings into a workload, hardware and a measured record."""
    read = reader(form)
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
    _print_imported(imported)
    if isinstance(as_run, str):
        say(as_run)
    elif as_run is not None:
        _print_as_run(as_run)
    *hints, ahead = _advice(imported, paths, output)
    for hint in hints:
        note(hint)
    suggest(ahead)


def _model(given: str) -> Workload:
    """The gradients of the model: a workload's, or those of a model that is made without its memory."""
    if ":" not in given or Path(given).is_file():
        return sim.load_workload(Path(given))
    from sim.recorder.estimate import estimate

    # Of it only the gradients and their order are used.
    return estimate(given, name=given.rpartition(":")[2], backward_ns=NS_PER_MS)


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


def _as_run(imported: Imported) -> "Agreement | str | None":
    """The step that was measured, predicted from its own parts; a sentence where that cannot be done."""
    record = imported.record
    try:
        return None if record is None else sim.agreement(record)
    except SimError as error:
        return f"the imported step cannot be predicted: {error}"


def _advice(imported: Imported, paths: list[Path], output: Path) -> list[str]:
    """What the curve cannot tell, and last the command to go on with or what is missing for it."""
    hardware, given = imported.main_hardware, HARDWARE
    workload = WORKLOAD if imported.workload is None else output / record_files.WORKLOAD
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
        calibrate = to_calibrate(workload, ranks)
        if imported.measurements and imported.measurements[0].backend == "gloo":  # nccl-tests knows no gloo
            return [*lines, calibrate]
        if imported.measurements:  # of a job over NCCL: calibrate would measure another link
            again = line("import", "auto", *paths, "link.txt", "-o", output)
            measure = f"measure the job's own link with nccl-tests, one rank a GPU: {ALL_REDUCE_PERF}"
            return [*lines, f"{measure}; then: {again}"]
        also = "import an nccl-tests log with these files; or, on the machine itself"
        return [*lines, f"{also}: {calibrate}"]
    ends = ""
    if imported.workload is None:
        ends = "; the workload: import a trace with these files, or bucketsim record or estimate"
    elif hardware is None:
        several = ", ".join(str(output / name) for name in hardware_names(imported))
        ends = f"; the hardware is one of {several}"
    return [*lines, to_tune(workload, given) + ends]


def _document(
    imported: Imported, files: list[Path], output: Path, as_run: "Agreement | str | None"
) -> dict[str, Any]:
    told: dict[str, Any] | None = None
    if isinstance(as_run, str):
        told = {"error": as_run}
    elif as_run is not None:
        rows = [
            {
                **{name: getattr(row, name) for name in _OF_AS_RUN},
                "steps": row.iterations,
                "predicted_sync_end_ns": row.predicted.sync_end_ns,
                "buckets": [bucket_end_document(end) for end in row.bucket_ends],
            }
            for row in as_run.rows
        ]
        told = {"rows": rows, "rule": as_run.rule}
    main = imported.main_hardware
    return {
        **summary_of(imported),
        "files": [str(path) for path in files],
        "summary": str(output / SUMMARY),
        "world_size": None if main is None else main.world_size,
        "hardware": [
            {"file": file, "name": one.name, "world_size": one.world_size, "sizes": len(one.all_reduce)}
            for file, one in zip(hardware_names(imported), imported.hardware, strict=True)
        ],
        "buckets": _bucket_rows(imported),
        "as_run": told,
    }


def _bucket_rows(imported: Imported) -> list[dict[str, Any]]:
    """The buckets that ran, by the first measurement."""
    if not imported.measurements:
        return []
    first = imported.measurements[0]
    sizes = first.asked.bucket_bytes if first.asked is not None else None
    return [
        {"index": place, "indices": list(indices), "num_bytes": None if sizes is None else sizes[place]}
        for place, indices in enumerate(first.observed or ())
    ]


_RANKS: tuple[Column[RankRow], ...] = (
    plain("rank", "rank"),
    plain("host", "host"),
    ms("clock", "clock_offset_ns", ".3f"),
    ms("scatter", "clock_scatter_ns", ".3f"),
    ms("waited", "waited_ns", ".3f"),
    Column(
        "came last", lambda row: None if row.came_last is None else f"{row.came_last} of {row.collectives}"
    ),
    ms("backward", "backward_ns"),
)


def _print_imported(imported: Imported) -> None:
    """All that was imported, but for the as-run check."""
    for kind in KINDS:
        for told in imported.said(kind):
            say(f"{kind}: {told}")
    if any(column.get(row) is not None for row in imported.ranks for column in _RANKS[2:]):
        table("ranks", _RANKS, imported.ranks)
    for file, hardware in zip(hardware_names(imported), imported.hardware, strict=True):
        say(f"{file}: {hardware.name}")
        every = -(-len(hardware.all_reduce) // MOST_POINTS)  # of many points as many spread over them
        shown = [*hardware.all_reduce[:-1:every], hardware.all_reduce[-1]]
        table(f"{file}: all-reduce", curve_columns("all_reduce", hardware.world_size), shown)


def _print_as_run(as_run: "Agreement") -> None:
    """Prediction over measurement: each bucket's end, exposed communication, and the step."""
    for row in as_run.rows:
        print_table(
            f"as run: predicted over measured, {row.iterations} {'step' if row.iterations == 1 else 'steps'}",
            ["what", "size", "measured ms", "95 % interval", "predicted ms", "error"],
            _as_run_rows(row),
        )
    say(tell_tested(as_run))
    say(tell_rule(as_run))


def _as_run_rows(row: "CandidateAgreement") -> list[list[str]]:
    def cells(
        what: str, measured: int, predicted: int, *ends: int, size: str = "", told: bool = True
    ) -> list[str]:
        shown = f"{in_ms(ends[0])}-{in_ms(ends[1])}" if ends and told else "-" if ends else ""
        error = format_percent(predicted / measured - 1, sign=True) if measured > 0 else "-"
        return [what, size, in_ms(measured), shown, in_ms(predicted), error]

    shown = row.bucket_ends[:MOST_BUCKETS]
    more = len(row.bucket_ends) - len(shown)
    exposed, step = (row.exposed_low_ns, row.exposed_high_ns), (row.step_low_ns, row.step_high_ns)
    return [
        *(
            cells(
                f"bucket {end.index} ends",
                *(end.measured_ns, end.predicted_ns, end.low_ns, end.high_ns),
                size=format_size(end.num_bytes),
                told=end.has_interval,
            )
            for end in shown
        ),
        *([[f"and {more} more", "", "", "", "", ""]] if more else []),
        cells("exposed", row.measured_exposed_ns, row.predicted_exposed_ns, *exposed, told=row.has_interval),
        cells("gradients available", row.measured_sync_end_ns, row.predicted.sync_end_ns),
        cells("step", row.measured_step_ns, row.predicted_step_ns, *step, told=row.has_interval),
    ]
