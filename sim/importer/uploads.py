"""Files as a browser sends them: bytes with names. What each is, its content tells; together they are inputs.

Names are never paths. What is not legal is told in one line that calls the file as the user does.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sim.errors import InputError, SimError
from sim.formats.documents import Noun, parse_document, parse_json
from sim.formats.files import scratch_directory
from sim.formats.record_files import HARDWARE, WORKLOAD, load_record
from sim.importer.bounded_json import MOST_VALUES
from sim.importer.readers import AUTO, FORMATS, reader
from sim.importer.recorded import RECORDING
from sim.importer.sniffing import recognise
from sim.importer.upload_files import ELSEWHERE, Unpacked, unpack
from sim.importer.upload_words import Labels, cleaned
from sim.importer.wording import plain
from sim.importer.writing import main_hardware, record_of
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import MAX_RANKS, Hardware
from sim.nouns.imported import Imported, ImportOptions, Uploaded, each_sentence
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.records import Record
from sim.nouns.workload import Workload

# A page searches for the best buckets at each change of the machine. The time of a search grows faster than
# the number of gradients: about a minute for so many. Transformers of a hundred layers have 1,200.
MAX_GRADIENTS = 5_000
# An event of a trace takes 10 us and up to a kilobyte; the largest traces of a few steps have 200,000.
MAX_EVENTS = 1_000_000
DOCUMENTS = ("workload", "hardware", "cluster", "assignment", "recommendation", "measurement")
SUMMARY = "import"
# How many values of JSON a document may hold, which become objects that are checked one by one; what its
# reader keeps as it is may hold ``MOST_VALUES``.
MAX_VALUES = 2_000_000
Value = TypeVar("Value")


def read_uploads(files: Sequence[tuple[str, bytes]], options: ImportOptions | None = None) -> Uploaded:
    """The inputs that uploaded files hold together; what each file is, its content tells.

    Args:
        files: the name of each, which is only a label, and its content: documents of ours, the files of a
            measured record, and all that ``bucketsim import`` reads, gzip inflated.
        options: what the user adds where the files do not say it.

    Raises:
        InputError, NotModelledError: one line that names the file by its label and what is legal.
    """
    options = options or ImportOptions()
    _check(options)
    labels = Labels()
    with scratch_directory() as folder:
        try:
            unpacked, same = unpack(files, folder, labels)
            uploaded = _read(unpacked, folder, options, labels)
        except SimError as error:
            raise type(error)(labels.told(str(error))) from None
        except OSError as error:
            raise InputError(f"upload: cannot be kept while it is read: {error.strerror or error}") from None
    told = replace(uploaded, name=plain(uploaded.name), dropped=(*uploaded.dropped, *same))
    return replace(told, **each_sentence(told, labels.told))


def _check(options: ImportOptions) -> None:
    if options.world_size is not None and not 1 <= options.world_size <= MAX_RANKS:
        raise InputError(f"world size: {options.world_size} is not legal; give 1 to {MAX_RANKS} ranks")


def _read(files: Sequence[Unpacked], folder: Path, options: ImportOptions, labels: Labels) -> Uploaded:
    groups: dict[str, list[Unpacked]] = defaultdict(list)
    for file in files:
        groups[_kind(file)].append(file)
    foreign = [file.path for form in FORMATS if form != RECORDING.name for file in groups[form]]
    if groups[RECORDING.name]:
        foreign.append(_recording(groups[RECORDING.name], folder / RECORDING.name, labels))
    said = [
        f"{kind}: {', '.join(file.label for file in groups[kind])}"
        for kind in DOCUMENTS
        if groups[kind] and not (foreign and kind in ("workload", "hardware"))  # which the import tells
    ]
    workload = _only(groups, "workload", _workload)
    given = [_document(file, Hardware) for file in groups["hardware"]]
    recommended = _only(groups, "recommendation", lambda file: _document(file, Recommendation))
    assignment = _only(groups, "assignment", lambda file: _document(file, Assignment))
    if recommended is not None and assignment is not None:
        raise InputError(
            "upload: an assignment and a recommendation are not legal together; give one of them"
        )
    if foreign:
        ours = [file.path for kind in ("workload", "hardware") for file in groups[kind]]
        imported = cleaned(reader(AUTO)([*foreign, *ours], options), labels)
        record = record_of(imported)
        if groups["measurement"]:
            raise InputError(
                f"{groups['measurement'][0].path}: a measurement is not legal beside traces and logs; give "
                f"it with the workload and hardware of its record"
            )
    else:
        imported = Imported(format="documents", name="", workload=workload, hardware=tuple(given))
        record = _record(groups, given, folder / "record", labels)
    if imported.workload is not None:
        _check_size(len(imported.workload.gradients), imported.name or "upload")
    first = main_hardware(imported) if record is None else record.hardware
    others = tuple(one for one in imported.hardware if one is not first and one != first)
    return Uploaded(
        name=imported.name or (workload.name if workload is not None else files[0].label if files else ""),
        formats=tuple(sorted(kind for kind, members in groups.items() if members)),
        workload=imported.workload,
        hardware=imported.hardware if first is None else (first, *others),
        cluster=_only(groups, "cluster", lambda file: _document(file, Cluster)),
        assignment=assignment if recommended is None else recommended.assignment,
        measurements=imported.measurements if record is None else record.measurements,
        record=record,
        ranks=imported.ranks,
        found=(*said, *imported.found),
        assumed=imported.assumed,
        missing=imported.missing,
        dropped=(
            *imported.dropped,
            *(f"{file.label}: the summary of an import, which has no inputs" for file in groups[SUMMARY]),
        ),
        doubtful=imported.doubtful,
    )


def _kind(file: Unpacked) -> str:
    """A format of ``read_auto``, one of ``DOCUMENTS``, or ``import`` for the summary of one."""
    kind = recognise(file.path, (*DOCUMENTS, SUMMARY))
    if kind in FORMATS:
        most = FORMATS[kind].most_values + FORMATS[kind].most_values_of_event * file.events
    else:
        most = MAX_VALUES if kind in DOCUMENTS else MOST_VALUES
    if file.values > most:
        raise InputError(
            f"{file.path}: too much for a page: a {kind} file may hold {most} values, and a workload "
            f"{MAX_GRADIENTS} gradients; this holds about {file.values} values; {ELSEWHERE}"
        )
    if file.events > MAX_EVENTS:
        raise InputError(
            f"{file.path}: too much for a page: {file.events} events; {MAX_EVENTS} at most; {ELSEWHERE}"
        )
    return kind


def _recording(files: Sequence[Unpacked], home: Path, labels: Labels) -> Path:
    """The directory of a recording; its files are named by the rank that they say they are of."""
    home.mkdir()
    labels.add(home, RECORDING.name)
    for file in files:
        with file.path.open("rb") as stream:
            header = parse_json(stream.readline(), f"{file.path}: line 1")
        rank = header.get("rank") if isinstance(header, dict) else None
        if type(rank) is not int or not 0 <= rank < MAX_RANKS:
            raise InputError(f"{file.path}: line 1: rank: {rank!r:.60} is not legal; give an integer >= 0")
        path = home / f"rank-{rank}.jsonl"
        if path.exists():
            raise InputError(f"{file.path}: a second file of rank {rank}; give the files of one recording")
        labels.add(path, file.label)
        file.path.rename(path)
    return home


def _only(
    groups: Mapping[str, Sequence[Unpacked]], kind: str, read: Callable[[Unpacked], Value]
) -> Value | None:
    """The one document of a kind; None where none was given."""
    files = groups.get(kind, ())
    if len(files) > 1:
        names = ", ".join(file.label for file in files[:4])
        raise InputError(f"upload: {len(files)} files of kind {kind} ({names}) are not legal; give one")
    return read(files[0]) if files else None


def _document(file: Unpacked, noun: type[Noun]) -> Noun:
    return parse_document(parse_json(file.path.read_bytes(), str(file.path)), noun, str(file.path))


def _workload(file: Unpacked) -> Workload:
    """A workload; one of too many gradients is refused before they are checked one by one."""
    document = parse_json(file.path.read_bytes(), str(file.path))
    gradients = document.get("gradients") if isinstance(document, dict) else None
    if isinstance(gradients, list):
        _check_size(len(gradients), str(file.path))
    return parse_document(document, Workload, str(file.path))


def _check_size(count: int, source: str) -> None:
    if count > MAX_GRADIENTS:
        raise InputError(
            f"{source}: gradients: {count} are too many for a page; {MAX_GRADIENTS} at most; {ELSEWHERE}"
        )


def _record(
    groups: Mapping[str, Sequence[Unpacked]], hardware: Sequence[Hardware], home: Path, labels: Labels
) -> Record | None:
    """The measured record that the documents make up; None if no measurement is among them."""
    measured = groups.get("measurement", ())
    if not measured:
        return None
    ranks = _document(measured[0], Measurement).world_size
    fitting = [
        file
        for file, one in zip(groups.get("hardware", ()), hardware, strict=True)
        if one.world_size == ranks
    ]
    for files, kind in ((groups.get("workload", ()), "workload"), (fitting, "hardware")):
        if len(files) != 1:
            raise InputError(
                f"{measured[0].path}: {len(files)} {kind} files of {ranks} ranks beside it; give the one "
                f"of its record, {kind}.json"
            )
    home.mkdir()
    labels.add(home, "the record")
    parts = [(groups["workload"][0], WORKLOAD), (fitting[0], HARDWARE)]
    parts += [(one, f"measurement-{place:06d}.json") for place, one in enumerate(measured)]
    for file, name in parts:
        labels.add(home / name, file.label)
        (home / name).write_bytes(file.path.read_bytes())
    record = load_record(home)
    return replace(record, name=record.workload.name)
