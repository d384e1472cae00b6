"""Files of several formats as one import: each read by its own reader, then put together.

So are files as a browser sends them: bytes with names, which are read in a private directory.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.costs.service_time import service_ns
from sim.errors import InputError, SimError
from sim.formats.documents import Noun, load, parse_json
from sim.formats.files import scratch_directory
from sim.importer.imported import Imported, ImportOptions, Note, few, plain
from sim.importer.readers import (
    AUTO,
    DOCUMENTS,
    FORMATS,
    KINETO,
    NCCL_TESTS,
    RECORDING,
    SUMMARY,
    read_bytes,
    reader,
    recognise,
)
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, MAX_RANKS, Curve, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size

# Two curves are said to differ at a size if their times there differ by more than this share.
APART = 0.1
_RUNS = (KINETO, RECORDING)  # formats that tell when each gradient is ready
_Groups = dict[str, list[Path]]  # files by format, or by kind of ours


def read_auto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """One import of all that the files hold: say, the workload of a trace and the curve of a link benchmark.

    The workload comes from a trace, a recording or a file; the all-reduce curve from a hardware file or
    nccl-tests, else from a trace; measurements and ranks from traces, or from the files of a record.

    Raises:
        InputError: a file that is not recognised, two documents of one kind, two workloads, two hardware of
            one number of ranks, a measurement without its workload and hardware, or an error of one of the
            readers.
    """
    groups, notes = _groups(paths)
    given = [load(path, Hardware) for path in groups.get("hardware", ())]
    measured = [load(path, Measurement) for path in groups.get("measurement", ())]
    workload = _only(groups, Workload)
    parts: dict[str, Imported] = {}
    for form in (one for one in (NCCL_TESTS, *_RUNS) if one in groups):
        # With several formats ``options.name`` names the run, and a link benchmark keeps its own name.
        name = None if form == NCCL_TESTS and len(groups) > 1 else options.name
        parts[form] = reader(form)(groups[form], replace(options, name=name))
    if measured and parts:
        raise InputError(
            f"{groups['measurement'][0]}: a measurement is not legal beside traces and logs; give it with "
            f"the workload and hardware of its record"
        )
    best, assignment = _only(groups, Recommendation), _only(groups, Assignment)
    if best is not None and assignment is not None:
        raise InputError("PATH: an assignment and a recommendation are not legal together; give one of them")
    if len(parts) == 1 == len(groups):
        (found,) = parts.values()
        found = replace(found, notes=(*notes, *found.notes))
    else:
        found = _combined(parts, workload, given, measured, options, notes)
        if measured and found.record is None:
            needed = "workload file" if workload is None else f"hardware file of {found.world_size} ranks"
            raise InputError(f"{groups['measurement'][0]}: no {needed} beside it; give the one of its record")
    names = (found.name, *(one.name for one in (workload, *given) if one is not None), paths[0].name)
    return replace(
        found,
        name=next(filter(None, names), ""),
        hardware=tuple(sorted(found.hardware, key=lambda one: one is not found.main_hardware)),
        formats=tuple(sorted(groups)),
        cluster=_only(groups, Cluster),
        assignment=assignment if best is None else best.assignment,
    )


def _only(groups: _Groups, noun: type[Noun]) -> Noun | None:
    """The one document of a kind; None where none was given."""
    paths = groups.get(noun.KIND, [])
    if len(paths) > 1:
        names = few([path.name for path in paths], 4)
        raise InputError(f"PATH: {len(paths)} files of kind {noun.KIND} ({names}) are not legal; give one")
    return next((load(path, noun) for path in paths), None)


def _groups(paths: Sequence[Path]) -> tuple[_Groups, list[Note]]:
    groups: _Groups = defaultdict(list)
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
    workload: Workload | None,
    given: list[Hardware],
    measured: list[Measurement],
    options: ImportOptions,
    notes: list[Note],
) -> Imported:
    runs = {form: part for form, part in parts.items() if form in _RUNS}
    having = {FORMATS[form][0]: part.workload for form, part in runs.items() if part.workload is not None}
    having |= {} if workload is None else {"a workload file": workload}
    if len(having) > 1:
        raise InputError(f"PATH: {' and '.join(having)} both give a workload; give one of them")
    workload = next(iter(having.values()), None)
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
    Several ``given`` or ``links`` with the run's number of ranks are refused.
    """
    wire: Hardware | None = None
    for several, what in ((given, "hardware files"), (links, "link benchmarks")):
        fitting = [one for one in several if ranks is None or one.world_size == ranks]
        if ranks is not None and len(fitting) > 1:
            names = ", ".join(repr(one.name) for one in fitting)
            raise InputError(f"PATH: {len(fitting)} {what} of {ranks} ranks ({names}); give this run's")
        wire = fitting[0] if wire is None and len(fitting) == 1 else wire
    others = [one for one in (*given, *links) if one is not wire]
    if wire is None:
        sizes = few([str(one.world_size) for one in others])
        said = f"the curve is that of the trace; those beside it, of {sizes} ranks, are written as they are"
        return (*traced, *others), [said] if traced and others else []
    if not traced:
        return (wire, *others), []
    own, joined, what = traced[0], wire, "the hardware"
    if wire in links:  # a hardware file says all there is to say
        spread = {key: value for key, value in own.spread.items() if getattr(wire, key, None) is None}
        curves = {name: getattr(wire, name) or getattr(own, name) for name in CURVES}
        provenance = {**wire.provenance, "beside_the_curves": own.provenance}
        what, spread = "the all-reduce", {**spread, **wire.spread}
        joined = replace(own, name=wire.name, **curves, spread=spread, provenance=provenance)
    said = f"{what} of {wire.name!r}, measured beside the step, in place of the trace's own"
    return (joined, *others), [said, *differences(own.all_reduce, wire.all_reduce)]


def differences(inside: Curve, beside: Curve) -> list[str]:
    """How a curve in the step differs from one that was measured beside it, with the size where it does most:
    a sentence, a warning where sizes take less in the step, which cannot be of one link."""
    measured = [(point, service_ns(beside, point.num_bytes)) for point in inside]
    ratios = sorted(
        (point.duration_ns / there, point.num_bytes, there) for point, there in measured if there > 0
    )
    apart = [one for one in ratios if abs(one[0] - 1) > APART]
    if not apart:
        return []
    less = sum(ratio < 1 for ratio, _, _ in apart)
    ratio, size, there = apart[0] if less else apart[-1]
    cannot = f"WARNING: cannot be of one link: {less} took less in the step; " if less else ""
    return [
        f"{cannot}{len(apart)} of {len(ratios)} sizes took another time in the step than beside it, by more "
        f"than {APART:.0%}: {format_size(size)} {format_ms(round(ratio * there))} against {format_ms(there)}"
    ]


# ---- uploads

MAX_FILES = 256
# Of all files together, inflated: a quarter of what the command line reads of a single one. A document of
# ours becomes objects that are checked one by one.
MAX_INFLATED_BYTES, MAX_DOCUMENT_BYTES = 512 << 20, 32 << 20
# A page searches for the best buckets at each change of the machine. The time of a search grows faster than
# the number of gradients: about a minute for so many. Transformers of a hundred layers have 1,200.
MAX_GRADIENTS = 5_000
_ELSEWHERE = "bucketsim on the command line takes more (bucketsim import)"
_LONGEST_NAME = 60  # characters, so that it fits a file system in any alphabet
_LONGEST_LINE = 500


def read_uploads(files: Sequence[tuple[str, bytes]], options: ImportOptions | None = None) -> Imported:
    """The inputs that uploaded files hold together; what each file is, its content tells.

    Args:
        files: the name of each, which is only a label, and its content: all that ``bucketsim import`` reads,
            gzip inflated.
        options: what the user adds where the files do not say it.

    Raises:
        InputError, NotModelledError: one line that names the file by its label and what is legal.
    """
    options = options or ImportOptions()
    if options.world_size is not None and not 1 <= options.world_size <= MAX_RANKS:
        raise InputError(f"world size: {options.world_size} is not legal; give 1 to {MAX_RANKS} ranks")
    try:
        with scratch_directory() as folder:
            try:
                found = reader(AUTO)(_unpack(files, folder), options)
                _ = found.record  # its environment may not be legal
                if found.workload is not None and len(found.workload.gradients) > MAX_GRADIENTS:
                    raise _too_much(found.name)
            except SimError as error:
                raise type(error)(_told(str(error), folder)) from None
    except OSError as error:
        raise InputError(f"upload: cannot be kept while it is read: {error.strerror or error}") from None
    return replace(found.reworded(lambda line: _told(line, folder)), name=_told(found.name, folder))


def _told(text: str, folder: Path) -> str:
    """A sentence of a reader as one line for a page, with files and the option named as there."""
    text = re.sub(rf"{re.escape(str(folder))}/({RECORDING}/(?=.))?", "", text).removeprefix("PATH: ")
    return plain(re.sub(r"--world-size( N)?", "the world size", text), _LONGEST_LINE)


def _unpack(files: Sequence[tuple[str, bytes]], folder: Path) -> list[Path]:
    """Write the files to ``folder``, inflated where they are gzip, those of a recording to one of their own:
    what ``read_auto`` is to read. Refused are too many files or bytes, and what is too large for a page."""
    if not 1 <= len(files) <= MAX_FILES:
        raise InputError(f"files: {len(files) or 'none'} are not legal; give 1 to {MAX_FILES}")
    paths, left = dict[Path, None](), MAX_INFLATED_BYTES
    beyond = f"{MAX_INFLATED_BYTES >> 20} MiB, which all files of an upload together may; {_ELSEWHERE}"
    for name, content in sorted((safe_name(given), text) for given, text in files):
        names = (name, *(f"{name} ({number})" for number in range(2, MAX_FILES + 2)))
        path = next(folder / one for one in names if one != RECORDING and not (folder / one).exists())
        path.write_bytes(content)
        inflated = read_bytes(path, left, beyond)
        path.write_bytes(inflated)
        left -= len(inflated)
        kind = recognise(path)
        if kind in DOCUMENTS and len(inflated) > MAX_DOCUMENT_BYTES:
            raise _too_much(str(path))
        paths[_as_rank(path, folder / RECORDING) if kind == RECORDING else path] = None
    return list(paths)


def _too_much(source: str) -> InputError:
    return InputError(
        f"{source}: too much for a page: a file of ours may hold {MAX_DOCUMENT_BYTES >> 20} MiB, and a "
        f"workload {MAX_GRADIENTS} gradients; {_ELSEWHERE}"
    )


def safe_name(name: str) -> str:
    """A file name that is like ``name``: its last part, as far as it can be shown.

    Cut at the front, as endings (``rank3.json``) tell more; without the ``.gz`` of what is inflated.
    """
    last = re.split(r"[/\\]", name)[-1].removesuffix(".gz")
    shown = " ".join(plain(last, len(last)).split())[-_LONGEST_NAME:].lstrip(".- ")
    return shown or "a file without a name"


def _as_rank(path: Path, home: Path) -> Path:
    """The directory of a recording, with one more file, named by the rank that it says it is of."""
    with path.open("rb") as stream:
        header = parse_json(stream.readline(), f"{path}: line 1")
    rank = header.get("rank") if isinstance(header, dict) else None
    if type(rank) is not int or not 0 <= rank < MAX_RANKS:
        raise InputError(f"{path}: line 1: rank: {rank!r:.60} is not legal; give an integer >= 0")
    home.mkdir(exist_ok=True)
    if (home / f"rank-{rank}.jsonl").exists():
        raise InputError(f"{path}: a second file of rank {rank}; give the files of one recording")
    path.rename(home / f"rank-{rank}.jsonl")
    return home
