"""import: what other tools and real training runs left behind, as our files."""

from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli import next_steps
from sim.cli.imported_tables import as_run_document, bucket_rows, print_as_run, print_imported
from sim.cli.loop_steps import ALL_REDUCE_PERF
from sim.cli.output_options import directory_option
from sim.cli.printing import emit, note, progress
from sim.cli.simulating import AsJson
from sim.errors import InputError, SimError
from sim.formats.documents import json_text
from sim.formats.record_files import WORKLOAD
from sim.importer.readers import READABLE, reader, recognise
from sim.importer.writing import (
    SUMMARY,
    check_directory,
    hardware_names,
    summary_of,
    write_imported,
)
from sim.nouns.comparison import Agreement
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_size

_FORMATS = f"{', '.join(READABLE)}. auto tells each file by its content, and puts several together."


def import_(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help=_FORMATS)],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="What to read.")],
    output: Annotated[Path, directory_option("Directory to write to.")],
    name: Annotated[str | None, typer.Option(help="Name of what is imported.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that was trained, for names and shapes: W.json or MODULE:FACTORY."),
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Ranks, where the files do not say it.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="A word of its hosts, devices or headline: one of several in a file.")
    ] = None,
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="Strip names, paths and hosts of what is written.")
    ] = False,
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


def _as_run(imported: Imported) -> Agreement | str | None:
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
