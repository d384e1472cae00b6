"""Files of several formats as one import: each read by its own reader, then put together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.formats.documents import load
from sim.importer.imported import Imported, ImportOptions, Note, few
from sim.importer.readers import AUTO, FORMATS, KINETO, NCCL_TESTS, RECORDING, reader, recognise
from sim.nouns.hardware import CURVES, Curve, Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size

# Two curves are said to differ at a size if their times there differ by more than this share.
APART = 0.1
_RUNS = (KINETO, RECORDING)  # formats that tell when each gradient is ready


def read_auto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """One import of all that the files hold: say, the workload of a trace and the curve of a link benchmark.

    Shapes come from a workload file, if one is given (``options.model`` of the other readers); the all-reduce
    curve from a hardware file or nccl-tests, else from a trace; measurements and ranks from traces.
    In a directory each file is read by itself, and files that are not recognised are left out.

    Raises:
        InputError: a file that is not recognised, two workloads, two hardware of one number of ranks, or an
            error of one of the readers.
    """
    groups, notes = _groups(paths)
    workloads = [load(path, Workload) for path in groups.pop("workload", [])]
    given = [load(path, Hardware) for path in groups.pop("hardware", [])]
    if len(workloads) + (options.model is not None) > 1:
        raise InputError("PATH: several workload files (with --model) are not legal; give one")
    model = options.model or (workloads[0] if workloads else None)
    parts: dict[str, Imported] = {}
    for form in (one for one in (NCCL_TESTS, *_RUNS) if one in groups):
        # With several formats ``options.name`` names the run, and a link benchmark keeps its own name.
        name = None if form == NCCL_TESTS and len(groups) > 1 else options.name
        parts[form] = reader(form)(groups[form], replace(options, model=model, name=name))
    if len(parts) == 1 and not given and not workloads:
        (part,) = parts.values()
        return replace(part, notes=(*notes, *part.notes))
    return _combined(parts, given, model, options, notes)


def _groups(paths: Sequence[Path]) -> tuple[dict[str, list[Path]], list[Note]]:
    """Files by format."""
    groups: dict[str, list[Path]] = defaultdict(list)
    notes = []
    for path in paths:
        is_folder = path.is_dir() and not any(path.glob("rank-*.jsonl"))
        within = path.iterdir() if is_folder else ()
        entries = sorted(entry for entry in within if entry.is_file() and not entry.name.startswith("."))
        known = 0
        for entry in entries if is_folder else [path]:
            try:
                groups[recognise(entry)].append(entry)
                known += 1
            except InputError as error:
                if not is_folder:
                    raise
                notes.append(Note("dropped", str(error)))
        if not known:
            raise InputError(f"{path}: no file in it is recognised; give the files of a run")
    for form, members in groups.items():
        names = ", ".join(member.name or str(member) for member in members[:3])
        more = f" and {len(members) - 3} more" if len(members) > 3 else ""
        notes.append(Note("found", f"{form}: {names}{more}"))
    return groups, notes


def _combined(
    parts: dict[str, Imported],
    given: list[Hardware],
    model: Workload | None,
    options: ImportOptions,
    notes: list[Note],
) -> Imported:
    having = [form for form in _RUNS if form in parts and parts[form].workload is not None]
    if len(having) > 1:
        called = " and ".join(FORMATS[form][0] for form in having)
        raise InputError(f"PATH: {called} both give a workload; give one of them")
    workload = parts[having[0]].workload if having else model
    runs = {form: part for form, part in parts.items() if form in _RUNS}
    ranks = _world_size(runs, options)
    links = list(parts[NCCL_TESTS].hardware) if NCCL_TESTS in parts else []
    traced = [one for part in runs.values() for one in part.hardware]
    hardware, said = _hardware(given, links, traced, ranks)
    had = {"workload"} if workload is not None else set()
    if len(hardware) == 1 or any(one.world_size == ranks for one in hardware):
        had.add("curve")
    for form, part in parts.items():
        notes += [replace(note, text=f"{form}: {note.text}") for note in part.notes if note.about not in had]
    names = [part.name for part in (*runs.values(), *parts.values())]
    return Imported(
        format=AUTO,
        name=options.name or (names[0] if names else "imported"),
        workload=workload,
        hardware=hardware,
        measurements=tuple(one for part in parts.values() for one in part.measurements),
        ranks=next((part.ranks for part in runs.values() if part.ranks), ()),
        notes=(*notes, *(Note("assumed", text) for text in said)),
    )


def _world_size(runs: dict[str, Imported], options: ImportOptions) -> int | None:
    """The ranks of the run. Raises ``InputError`` where its files disagree."""
    said = {ranks: form for form, part in runs.items() if (ranks := part.world_size) is not None}
    if len(said) > 1:
        words = ", ".join(f"{form} {ranks}" for ranks, form in sorted(said.items()))
        raise InputError(f"PATH: runs on different numbers of ranks ({words}); give the files of one")
    told = next(iter(said), None)
    if told is not None and options.world_size not in (None, told):
        raise InputError(
            f"--world-size: {options.world_size} is not legal here; the files are of a run on {told} ranks"
        )
    return told or options.world_size


def _hardware(
    given: list[Hardware], links: list[Hardware], traced: list[Hardware], ranks: int | None
) -> tuple[tuple[Hardware, ...], list[str]]:
    """All hardware, that to use first, and what is assumed of it.

    A hardware file is used as it is. Without one the curves are those of nccl-tests, else of the trace, which
    are what all-reduces took in its steps; copies, launches and slow-downs are then those of the trace.

    Raises:
        InputError: several of ``given`` or of ``links`` with the run's number of ranks.
    """
    wire: Hardware | None = None
    for several, what in ((given, "hardware files"), (links, "link benchmarks")):
        fitting = [one for one in several if ranks is None or one.world_size == ranks]
        if ranks is not None and len(fitting) > 1:
            names = ", ".join(repr(one.name) for one in fitting)
            raise InputError(f"PATH: {len(fitting)} {what} of {ranks} ranks ({names}); give this run's")
        if wire is None and len(fitting) == 1:
            wire = fitting[0]
    others = [one for one in (*given, *links) if one is not wire]
    if wire is None or not traced:
        sizes = few([str(one.world_size) for one in others])
        said = f"the curve is that of the trace; those beside it, of {sizes} ranks, are written as they are"
        return (*traced, *others) if wire is None else (wire, *others), [said] if traced and others else []
    own, joined = traced[0], wire
    if wire in links:  # a hardware file says all there is to say
        curves = {name: getattr(wire, name) or getattr(own, name) for name in CURVES}
        spread = {key: value for key, value in own.spread.items() if getattr(wire, key, None) is None}
        joined = replace(
            own,
            name=wire.name,
            **curves,
            spread={**spread, **wire.spread},
            provenance={**wire.provenance, "beside_the_curves": own.provenance},
        )
    what = "the all-reduce" if wire in links else "the hardware"
    said = f"{what} of {wire.name!r}, measured beside the step, in place of the trace's own"
    return (joined, *others), [said, *differences(own.all_reduce, wire.all_reduce)]


def differences(inside: Curve, beside: Curve) -> list[str]:
    """How a curve in the step differs from one that was measured beside it, with the size where it does most:
    a sentence, a warning where sizes take less in the step, which cannot be of one link."""
    ratios = [
        (point.duration_ns / there, point, there)
        for point in inside
        if (there := service_ns(beside, point.num_bytes)) > 0
    ]
    apart = [one for one in ratios if abs(one[0] - 1) > APART]
    if not apart:
        return []
    least = min(apart, key=lambda one: one[0])
    less = sum(ratio < 1 for ratio, _, _ in apart)
    _, point, there = least if less else max(apart, key=lambda one: one[0])
    cannot = f"WARNING: cannot be of one link: {less} took less in the step; " if less else ""
    return [
        f"{cannot}{len(apart)} of {len(ratios)} sizes took another time in the step than beside it, by more "
        f"than {APART:.0%}: {format_size(point.num_bytes)} {format_ms(point.duration_ns)} against "
        f"{format_ms(there)}"
    ]
