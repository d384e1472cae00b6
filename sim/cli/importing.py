"""import: what other tools and real training runs left behind, as our files."""

from pathlib import Path

import sim
from sim.cli import options, printing
from sim.cli.judging import print_one
from sim.cli.machines import curve_columns
from sim.cli.options import argument, directory_option, option
from sim.cli.printing import HARDWARE, WORKLOAD, Answer, line, note, progress, say, table
from sim.columns import Column, ms, plain
from sim.errors import SimError
from sim.formats import record_files
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
from sim.importer.readers import READABLE, read_files

_MOST_POINTS = 12
_FORMATS = f"{', '.join(READABLE)}. auto tells each file by its content, and puts several together."
# Of the link that trains, one rank a GPU, by mpirun, srun or a build of its own: calibrate may take another.
_BENCHMARKS = {
    "mpi": "OSU's benchmarks: osu_allreduce -m 4:134217728 > link.txt",
    "nccl": "nccl-tests, one rank a GPU: all_reduce_perf -b 8 -e 1G -f 2 > link.txt",
}


@options.answers
def import_(
    form: str = argument(_FORMATS, "FORMAT"),
    paths: list[Path] = argument("What to read.", "PATH..."),
    output: Path = directory_option("Directory to write to."),
    name: str | None = option("Name of what is imported."),
    world_size: int | None = option("Ranks, where the files do not say it.", min=1),
    machine: str | None = option("A word of its hosts, devices or headline: one of several in a file."),
) -> Answer:
    """Turn traces, logs, benchmarks and recordings into a workload, hardware and a measured record."""
    with progress("importing"):
        imported = read_files(form, paths, ImportOptions(name=name, world_size=world_size, machine=machine))
    files = write_imported(imported, output)
    main = imported.main_hardware
    written = {"files": list(map(str, files)), "summary": str(output / SUMMARY)}
    document = {**summary_of(imported), **written, "world_size": main and main.world_size}

    def show() -> None:
        for path in (*files, output / SUMMARY):
            note(f"wrote {path}")
        _print_imported(imported)

    return Answer(document, show, _ahead(imported, paths, output))


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
    """All that was imported, and the step that was measured against its prediction from its own parts."""
    for kind in KINDS:
        for told in imported.said(kind):
            say(f"{kind}: {told}")
    if any(column.get(row) is not None for row in imported.ranks for column in _RANKS[2:]):
        table("ranks", _RANKS, imported.ranks)
    for file, hardware in zip(hardware_names(imported), imported.hardware, strict=True):
        say(f"{file}: {hardware.name}, {hardware.world_size} ranks")
        every = -(-len(hardware.all_reduce) // _MOST_POINTS)  # of many points as many spread over them
        shown = [*hardware.all_reduce[:-1:every], hardware.all_reduce[-1]]
        table(f"{file}: all-reduce", curve_columns(hardware, {}), shown)
    if imported.record is not None:
        try:
            print_one(imported.record, sim.agreement(imported.record))
        except SimError as error:
            say(f"the imported step cannot be predicted: {error}")


def _ahead(imported: Imported, paths: list[Path], output: Path) -> str:
    """The command to go on with, or what is missing for it."""
    workload, hardware, names = imported.workload, imported.main_hardware, hardware_names(imported)
    if workload is None and not names:
        return f"give what is missing above, and import again with -o {output}"
    at = WORKLOAD if workload is None else output / record_files.WORKLOAD
    if not names:
        run = imported.measurements[0] if imported.measurements else None
        calibrate = printing.to_calibrate(at, 2 if run is None else max(2, run.world_size))
        if run is None:
            also = "import an nccl-tests log with these files; or, on the machine itself"
            return f"{also}: {calibrate}"
        if run.backend == "gloo":  # nccl-tests knows no gloo
            return calibrate
        again = line("import", "auto", *paths, "link.txt", "-o", output)
        measure = _BENCHMARKS.get(run.backend, _BENCHMARKS["nccl"])
        return f"measure the job's own link with {measure}; then: {again}"
    if hardware is None:
        several = ", ".join(str(output / name) for name in names)
        return f"{printing.to_tune(at, HARDWARE)}; the hardware is one of {several}"
    given = output / names[next(place for place, one in enumerate(imported.hardware) if one is hardware)]
    tune = printing.to_tune(at, given)
    if workload is None:
        return f"{tune}; the workload: import a trace with these files, or bucketsim record or estimate"
    return tune
