"""Files of several formats as one import: each read by its own reader, then put together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.formats.documents import Noun, load
from sim.importer.imported import Imported, ImportOptions, Note, few
from sim.importer.readers import AUTO, FORMATS, KINETO, NCCL_TESTS, RECORDING, SUMMARY, reader, recognise
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, Curve, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size

# Two curves are said to differ at a size if their times there differ by more than this share.
APART = 0.1
_RUNS = (KINETO, RECORDING)  # formats that tell when each gradient is ready


def read_auto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """One import of all that the files hold: say, the workload of a trace and the curve of a link benchmark.

    Shapes come from a workload file, if one is given (``options.model`` of the other readers); the all-reduce
    curve from a hardware file or nccl-tests, else from a trace; measurements and ranks from traces, or from
    the files of a record.

    Raises:
        InputError: a file that is not recognised, two documents of one kind, two hardware of one number of
            ranks, a measurement without its workload and hardware, or an error of one of the readers.
    """
    groups, notes = _groups(paths)
    given = [load(path, Hardware) for path in groups.get("hardware", ())]
    measured = [load(path, Measurement) for path in groups.get("measurement", ())]
    workload = _only(groups, Workload)
    if workload is not None and options.model is not None:
        raise InputError("PATH: a workload file beside --model is not legal; give one of them")
    model = options.model or workload
    parts: dict[str, Imported] = {}
    for form in (one for one in (NCCL_TESTS, *_RUNS) if one in groups):
        # With several formats ``options.name`` names the run, and a link benchmark keeps its own name.
        name = None if form == NCCL_TESTS and len(groups) > 1 else options.name
        parts[form] = reader(form)(groups[form], replace(options, model=model, name=name))
    if measured and parts:
        raise InputError(
            f"{groups['measurement'][0]}: a measurement is not legal beside traces and logs; give it with "
            f"the workload and hardware of its record"
        )
    best, assignment = _only(groups, Recommendation), _only(groups, Assignment)
    if best is not None and assignment is not None:
        raise InputError("PATH: an assignment and a recommendation are not legal together; give one of them")
    if len(parts) == 1 and len(groups) == 1:
        (found,) = parts.values()
        found = replace(found, notes=(*notes, *found.notes))
    else:
        found = _combined(parts, given, model, measured, options, notes)
        if measured and found.record is None:
            where, ranks = groups["measurement"][0], found.world_size
            needed = "workload file" if workload is None else f"hardware file of {ranks} ranks"
            raise InputError(f"{where}: no {needed} beside it; give the one of its record")
    own = [one.name for one in (workload, *given) if one is not None]
    name = found.name or (own[0] if own else paths[0].name)
    return replace(
        found,
        name=name,
        formats=tuple(sorted(groups)),
        cluster=_only(groups, Cluster),
        assignment=assignment if best is None else best.assignment,
    )


def _only(groups: dict[str, list[Path]], noun: type[Noun]) -> Noun | None:
    """The one document of a kind; None where none was given."""
    paths = groups.get(noun.KIND, [])
    if len(paths) > 1:
        names = few([path.name for path in paths], 4)
        raise InputError(f"PATH: {len(paths)} files of kind {noun.KIND} ({names}) are not legal; give one")
    return next((load(path, noun) for path in paths), None)


def _groups(paths: Sequence[Path]) -> tuple[dict[str, list[Path]], list[Note]]:
    """Files by format, or by kind of ours."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        groups[recognise(path)].append(path)
    notes = [Note("dropped", f"{path}: the summary of an import") for path in groups.pop(SUMMARY, ())]
    for form, members in groups.items():
        names = ", ".join(member.name or str(member) for member in members[:3])
        more = f" and {len(members) - 3} more" if len(members) > 3 else ""
        notes.append(Note("found", f"{form}: {names}{more}"))
    return groups, notes


def _combined(
    parts: dict[str, Imported],
    given: list[Hardware],
    model: Workload | None,
    measured: list[Measurement],
    options: ImportOptions,
    notes: list[Note],
) -> Imported:
    runs = {form: part for form, part in parts.items() if form in _RUNS}
    having = [form for form, part in runs.items() if part.workload is not None]
    if len(having) > 1:
        called = " and ".join(FORMATS[form][0] for form in having)
        raise InputError(f"PATH: {called} both give a workload; give one of them")
    workload = runs[having[0]].workload if having else model
    ranks = _world_size(runs, measured, options)
    links = list(parts[NCCL_TESTS].hardware) if NCCL_TESTS in parts else []
    traced = [one for part in runs.values() for one in part.hardware]
    hardware, said = _hardware(given, links, traced, ranks)
    had = {"workload"} if workload is not None else set()
    if len(hardware) == 1 or any(one.world_size == ranks for one in hardware):
        had.add("curve")
    for form, part in parts.items():
        notes += [replace(note, text=f"{form}: {note.text}") for note in part.notes if note.about not in had]
    return Imported(
        format=AUTO,
        name=options.name or next((part.name for part in (*runs.values(), *parts.values())), ""),
        workload=workload,
        hardware=hardware,
        measurements=(*(one for part in runs.values() for one in part.measurements), *measured),
        ranks=next((part.ranks for part in runs.values() if part.ranks), ()),
        notes=(*notes, *(Note("assumed", text) for text in said)),
    )


def _world_size(runs: dict[str, Imported], measured: list[Measurement], options: ImportOptions) -> int | None:
    """The ranks of the run. Raises ``InputError`` where its files disagree."""
    said = {ranks: form for form, part in runs.items() if (ranks := part.world_size) is not None}
    said |= {one.world_size: one.KIND for one in measured}
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
    measured = [(point, service_ns(beside, point.num_bytes)) for point in inside]
    ratios = sorted((point.duration_ns / there, point.num_bytes) for point, there in measured if there > 0)
    apart = [one for one in ratios if abs(one[0] - 1) > APART]
    if not apart:
        return []
    less = sum(ratio < 1 for ratio, _ in apart)
    ratio, size = apart[0] if less else apart[-1]
    cannot = f"WARNING: cannot be of one link: {less} took less in the step; " if less else ""
    there = service_ns(beside, size)
    return [
        f"{cannot}{len(apart)} of {len(ratios)} sizes took another time in the step than beside it, by more "
        f"than {APART:.0%}: {format_size(size)} {format_ms(round(ratio * there))} against {format_ms(there)}"
    ]
