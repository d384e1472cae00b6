"""Files of several formats as one import: each read by its own reader, then put together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats.documents import load
from sim.importer.joined_hardware import join_hardware, world_size_of
from sim.importer.notes import Notes
from sim.importer.readers import AUTO, FORMATS, reader
from sim.importer.recorded import RECORDING
from sim.importer.recorded.recording_import import MEASURED
from sim.importer.sniffing import recognise
from sim.importer.trace_format import Tells
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload

# Formats in the order in which they are read; those that tell as much keep the order of their table.
_IN_ORDER = sorted(FORMATS.values(), key=lambda one: one.tells)
_LINKS = {one.name for one in _IN_ORDER if one.tells is Tells.LINK}
# Formats that hold times of a run: the workload of the first that gives one counts.
_RUNS = tuple(one.name for one in _IN_ORDER if one.tells is Tells.GRADIENTS)


def read_auto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """One import of all that the files hold: say, the workload of a trace and the curve of a link benchmark.

    Shapes come from a workload file, if one is given (``options.model`` of the other readers); the all-reduce
    curve from a hardware file or nccl-tests, else from a trace; measurements and ranks from traces.
    In a directory each file is read by itself, and files that are not recognised are left out.

    Raises:
        InputError: a file that is not recognised, two workloads, two hardware of one number of ranks, or an
            error of one of the readers.
    """
    notes = Notes()
    groups = _groups(paths, notes)
    workloads = [load(path, Workload) for path in groups.pop("workload", [])]
    given = [load(path, Hardware) for path in groups.pop("hardware", [])]
    if len(workloads) + (options.model is not None) > 1:
        raise InputError("PATH: several workload files (with --model) are not legal; give one")
    model = options.model or (workloads[0] if workloads else None)
    parts: dict[str, Imported] = {}
    for form in (one.name for one in _IN_ORDER if one.name in groups):
        # With several formats ``options.name`` names the run, and a link benchmark keeps its own name.
        name = None if form in _LINKS and len(groups) > 1 else options.name
        part = reader(form)(groups[form], replace(options, model=model, name=name))
        parts[form] = part
    if len(parts) == 1 and not given and not workloads:
        (part,) = parts.values()
        return replace(part, found=(*notes.found, *part.found), dropped=(*notes.dropped, *part.dropped))
    return _combined(parts, given, model, options, notes)


def _groups(paths: Sequence[Path], notes: Notes) -> dict[str, list[Path]]:
    """Files by format."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        entries = _files_in(path)
        for entry in entries if entries is not None else [path]:
            try:
                form = recognise(entry)
            except InputError as error:
                if entries is None:
                    raise
                notes.dropped.append(str(error))
                continue
            groups[form].append(entry)
        if entries is not None and not any(entry in group for group in groups.values() for entry in entries):
            raise InputError(f"{path}: no file in it is recognised; give the files of a run")
    for form, members in groups.items():
        names = ", ".join(member.name or str(member) for member in members[:3])
        more = f" and {len(members) - 3} more" if len(members) > 3 else ""
        notes.found.append(f"{form}: {names}{more}")
    return groups


def _files_in(path: Path) -> list[Path] | None:
    """The files of a directory that is no recording; None for anything else."""
    if not path.is_dir() or any(path.glob("rank-*.jsonl")):
        return None
    return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))


def _combined(
    parts: dict[str, Imported],
    given: list[Hardware],
    model: Workload | None,
    options: ImportOptions,
    notes: Notes,
) -> Imported:
    workload = _workload(parts, model, notes)
    measurements = tuple(one for part in parts.values() for one in part.measurements)
    missing: list[tuple[str, str]] = []
    for form, part in parts.items():
        notes.found += [f"{form}: {line}" for line in part.found]
        notes.assumed += [f"{form}: {line}" for line in part.assumed]
        missing += [(form, line) for line in part.missing]
        notes.dropped += [f"{form}: {line}" for line in part.dropped]
        notes.doubtful += [f"{form}: {line}" for line in part.doubtful]
    ranks = _world_size(parts, measurements, workload, options)
    links = [one for form, part in parts.items() if form in _LINKS for one in part.hardware]
    traced = [one for form, part in parts.items() if form not in _LINKS for one in part.hardware]
    details: dict[str, Any] = {form: dict(part.details) for form, part in parts.items() if part.details}
    if MEASURED in details.get(RECORDING.name, {}):
        details[MEASURED] = details[RECORDING.name].pop(MEASURED)
    hardware, said, curves = join_hardware(given, links, traced, ranks)
    notes.assumed += said
    is_linked = len(hardware) == 1 or any(one.world_size == ranks for one in hardware)
    notes.missing += [
        f"{form}: {line}"
        for form, line in missing
        if not (is_linked and "all-reduce curve" in line)
        and not (workload is not None and line.startswith("a workload"))
    ]
    if curves:
        details["curves_in_the_step"] = curves
    rows = next((parts[form].ranks for form in FORMATS if form in parts and parts[form].ranks), ())
    names = [part.name for form, part in parts.items() if form in _RUNS] or [
        part.name for part in parts.values()
    ]
    return Imported(
        format=AUTO,
        name=options.name or (names[0] if names else "imported"),
        workload=workload,
        hardware=hardware,
        measurements=measurements,
        ranks=rows,
        **notes.each(),
        details=details,
    )


def _workload(parts: dict[str, Imported], model: Workload | None, notes: Notes) -> Workload | None:
    """The workload of the import. Raises ``InputError`` if two formats tell when each gradient is ready."""
    having = [form for form in _RUNS if form in parts and parts[form].workload is not None]
    if len(having) > 1:
        called = " and ".join(FORMATS[form].called for form in having)
        raise InputError(f"PATH: {called} both give a workload; give one of them")
    return parts[having[0]].workload if having else model


def _world_size(
    parts: dict[str, Imported],
    measurements: Sequence[Any],
    workload: Workload | None,
    options: ImportOptions,
) -> int | None:
    """The ranks of the run. Raises ``InputError`` where its files disagree."""
    said: dict[int, str] = {}
    for form, part in parts.items():
        if form in _LINKS:
            continue
        seen = world_size_of(part)
        if seen is not None:
            said.setdefault(seen, form)
    if len(said) > 1:
        words = ", ".join(f"{form} {ranks}" for ranks, form in sorted(said.items()))
        raise InputError(f"PATH: runs on different numbers of ranks ({words}); give the files of one")
    told = next(iter(said), None)
    if told is not None and options.world_size not in (None, told):
        raise InputError(
            f"--world-size: {options.world_size} is not legal here; the files are of a run on {told} ranks"
        )
    return told or options.world_size
