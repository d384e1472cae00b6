"""Files as a browser sends them: bytes with names. What each is, its content tells; together they are inputs.

Names are never paths: files lie in a private directory, under names that nobody outside chose, while they are
read as an import reads them. What is not legal is told in one line that calls the file as the user does.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from sim.errors import InputError, SimError
from sim.formats.documents import Noun, parse_document, parse_json
from sim.formats.files import scratch_directory
from sim.formats.record_files import HARDWARE, WORKLOAD, load_record
from sim.importer.imported import Imported, ImportOptions, Uploaded, each_sentence
from sim.importer.opening import GZIP, MOST_VALUES, open_bytes
from sim.importer.readers import AUTO, FORMATS, KINETO, RECORDING, reader, recognise
from sim.importer.wording import plain
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import MAX_RANKS, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload

MAX_FILES = 256
# Of all files together, inflated: a tenth of what the command line reads of a single one.
MAX_INFLATED_BYTES = 512 << 20
# A page searches for the best buckets at each change of the machine. The time of a search grows faster than
# the number of gradients: about a minute for so many. Transformers of a hundred layers have 1,200.
MAX_GRADIENTS = 5_000
# An event of a trace takes 10 us and up to a kilobyte; the largest traces of a few steps have 200,000.
MAX_EVENTS = 1_000_000
_VALUES_OF_EVENT = 100  # at most; events are read one by one, those of torch's profiler have 26 to 45
# How many values of JSON a document or a trace without its events may hold, which become objects that are
# checked one by one; what its reader keeps as it is may hold ``MOST_VALUES``.
MAX_VALUES = 2_000_000
DOCUMENTS = ("workload", "hardware", "cluster", "assignment", "recommendation", "measurement")
SUMMARY = "import"
_ELSEWHERE = "bucketsim on the command line takes more (bucketsim import)"
_CHUNK_BYTES = 4 << 20
_LONGEST_NAME = 60  # characters, so that it fits a file system in any alphabet
_LONGEST_LINE = 500
# Options of the command line, as sentences of readers have them, and their names on the page.
_OPTIONS = {
    "--world-size N": "the world size",
    "--world-size": "the world size",
    "--model": "a workload of the model",
    "PATH: ": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file: what the user calls it, where it is, and how much JSON could be in it at most."""

    label: str
    path: Path
    values: int
    events: int


class _Labels(dict[str, str]):
    """What the user calls each path."""

    def applied(self, text: str) -> str:
        """``text`` with labels in place of paths, and of the file name that it may begin with."""
        for path in sorted(self, key=len, reverse=True):
            text = text.replace(path, self[path])
        for path, label in self.items():
            name = Path(path).name
            if text.startswith(f"{name}:"):
                return label + text.removeprefix(name)
        return text

    def told(self, text: str) -> str:
        """A sentence of a reader as one line for a page, with options named as on the page."""
        text = self.applied(text)
        for option, words in _OPTIONS.items():
            text = text.replace(option, words)
        return plain(text, _LONGEST_LINE)

    def cleaned(self, value: Any) -> Any:
        """A noun or a part of one, with labels in place of paths wherever it tells its origin, and without
        the day of import: the same files have the same digest on any day and in any directory.
        """
        if isinstance(value, str):
            return self.applied(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.cleaned, value))
        if isinstance(value, dict):
            is_dated = value.get("source") == "bucketsim import kineto"
            return {
                key: self.cleaned(item) for key, item in value.items() if not (is_dated and key == "date")
            }
        if not is_dataclass(value) or isinstance(value, type):
            return value
        told = ("workload", "hardware", "measurements", "asked", "environment", "provenance")
        return replace(
            value, **{key: self.cleaned(getattr(value, key)) for key in told if hasattr(value, key)}
        )


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
    if options.world_size is not None and not 1 <= options.world_size <= MAX_RANKS:
        raise InputError(f"world size: {options.world_size} is not legal; give 1 to {MAX_RANKS} ranks")
    labels = _Labels()
    try:
        with scratch_directory() as folder:
            unpacked, same = _unpack(files, folder, labels)
            uploaded = _read(unpacked, folder, options, labels)
    except SimError as error:
        raise type(error)(labels.told(str(error))) from None
    except OSError as error:
        raise InputError(f"upload: cannot be kept while it is read: {error.strerror or error}") from None
    told = replace(uploaded, name=plain(uploaded.name), dropped=(*uploaded.dropped, *same))
    return replace(told, **each_sentence(told, labels.told))


def _unpack(
    files: Sequence[tuple[str, bytes]], folder: Path, labels: _Labels
) -> tuple[list[_File], list[str]]:
    """Write the files below ``folder``, each in a directory of its own, inflated where they are gzip.

    Returns:
        The files sorted by name, with numbers in names by their value; and a sentence for each file that is
        left out, as another has the same content.

    Raises:
        InputError: none or too many files, more than ``MAX_INFLATED_BYTES`` in all, or one that
            ``open_bytes`` refuses.
    """
    if not files:
        raise InputError("files: none; give at least one file")
    if len(files) > MAX_FILES:
        raise InputError(f"files: {len(files)} are too many; give {MAX_FILES} at most")
    named = [
        (
            " ".join(plain(name).split()) or "a file without a name",
            hashlib.sha256(content).hexdigest(),
            content,
        )
        for name, content in files
    ]
    named.sort(key=lambda one: (_natural(one[0]), one[:2]))
    unpacked: list[_File] = []
    same: list[str] = []
    first: dict[str, str] = {}
    left = MAX_INFLATED_BYTES
    for number, (name, digest, content) in enumerate(named):
        if digest in first:
            same.append(f"{name}: has the same content as {first[digest]}")
            continue
        label = next(
            shown
            for shown in (name, *(f"{name} ({again})" for again in range(2, MAX_FILES + 2)))
            if shown not in first.values()
        )
        first[digest] = label
        home = folder / str(number)
        home.mkdir()
        path, packed = home / safe_name(name), home / "packed"
        labels.update({str(path): label, str(packed): label})
        packed.write_bytes(content)
        size, values, events = _inflate(packed, path, left)
        left -= size
        packed.unlink()
        unpacked.append(_File(label=label, path=path, values=values, events=events))
    return unpacked, same


def _inflate(packed: Path, path: Path, most: int) -> tuple[int, int, int]:
    """Write what is in a file to ``path``; returns its bytes, of ``most`` that may be, and how many marks in
    it begin a value or an event.
    """
    size = values = events = 0
    kept = b""
    with open_bytes(packed) as stream, path.open("wb") as out:
        while chunk := stream.read(_CHUNK_BYTES):
            if not size and chunk.startswith(GZIP):
                raise InputError(f"{packed}: compressed twice; unpack it once and give what is in it")
            size += len(chunk)
            if size > most:
                raise InputError(
                    f"{packed}: an upload may hold {MAX_INFLATED_BYTES >> 20} MiB, inflated and all files "
                    f"together, and this goes beyond; {_ELSEWHERE}"
                )
            values += sum(chunk.count(mark) for mark in (b",", b"[", b"{", b":"))
            events += (kept + chunk).count(b'"ph"')
            kept = chunk[-3:]
            out.write(chunk)
    return size, values, events


def safe_name(name: str) -> str:
    """A file name that is like ``name``: its last part, of letters, digits, dots, dashes and underscores.

    Cut at the front, as endings (``rank3.json``) tell more; without the ``.gz`` of what is inflated.
    """
    last = re.split(r"[/\\]", name)[-1].removesuffix(".gz")
    kept = "".join(one if one.isalnum() or one in "._-" else "-" for one in last)
    return kept[-_LONGEST_NAME:].lstrip(".-") or "file"


def _natural(label: str) -> tuple[tuple[int, str], ...]:
    """``rank2`` before ``rank10``."""
    parts = re.split(r"([0-9]+)", label)
    return tuple((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts))


def _read(files: Sequence[_File], folder: Path, options: ImportOptions, labels: _Labels) -> Uploaded:
    groups: dict[str, list[_File]] = defaultdict(list)
    for file in files:
        groups[_kind(file)].append(file)
    foreign = [file.path for form in FORMATS if form != RECORDING for file in groups[form]]
    if groups[RECORDING]:
        foreign.append(_recording(groups[RECORDING], folder / RECORDING, labels))
    said = [
        f"{kind}: {', '.join(file.label for file in groups[kind])}"
        for kind in DOCUMENTS
        if groups[kind] and not (foreign and kind in ("workload", "hardware"))  # which the import tells
    ]
    workload = _only(groups, "workload", Workload)
    given = [_document(file, Hardware) for file in groups["hardware"]]
    recommended = _only(groups, "recommendation", Recommendation)
    assignment = _only(groups, "assignment", Assignment)
    if recommended is not None and assignment is not None:
        raise InputError(
            "upload: an assignment and a recommendation are not legal together; give one of them"
        )
    if foreign:
        ours = [file.path for kind in ("workload", "hardware") for file in groups[kind]]
        imported: Imported = labels.cleaned(reader(AUTO)([*foreign, *ours], options))
        record = imported.record
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
    first = imported.main_hardware if record is None else record.hardware
    others = tuple(one for one in imported.hardware if one is not first and one != first)
    return Uploaded(
        name=imported.name or (workload.name if workload is not None else files[0].label if files else ""),
        formats=tuple(sorted(kind for kind, members in groups.items() if members)),
        workload=imported.workload,
        hardware=imported.hardware if first is None else (first, *others),
        cluster=_only(groups, "cluster", Cluster),
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


def _kind(file: _File) -> str:
    """A format of ``read_auto``, one of ``DOCUMENTS``, or ``import`` for the summary of one."""
    kind = recognise(file.path, (*DOCUMENTS, SUMMARY))
    most = MAX_VALUES if kind in (*DOCUMENTS, KINETO) else MOST_VALUES
    most += _VALUES_OF_EVENT * file.events if kind == KINETO else 0
    if file.values > most:
        raise InputError(
            f"{file.path}: too much for a page: a {kind} file may hold {most} values, and a workload "
            f"{MAX_GRADIENTS} gradients; this holds about {file.values} values; {_ELSEWHERE}"
        )
    if file.events > MAX_EVENTS:
        raise InputError(
            f"{file.path}: too much for a page: {file.events} events; {MAX_EVENTS} at most; {_ELSEWHERE}"
        )
    return kind


def _recording(files: Sequence[_File], home: Path, labels: _Labels) -> Path:
    """The directory of a recording; its files are named by the rank that they say they are of."""
    home.mkdir()
    labels[str(home)] = RECORDING
    for file in files:
        with file.path.open("rb") as stream:
            header = parse_json(stream.readline(), f"{file.path}: line 1")
        rank = header.get("rank") if isinstance(header, dict) else None
        if type(rank) is not int or not 0 <= rank < MAX_RANKS:
            raise InputError(f"{file.path}: line 1: rank: {rank!r:.60} is not legal; give an integer >= 0")
        path = home / f"rank-{rank}.jsonl"
        if path.exists():
            raise InputError(f"{file.path}: a second file of rank {rank}; give the files of one recording")
        labels[str(path)] = file.label
        file.path.rename(path)
    return home


def _only(groups: Mapping[str, Sequence[_File]], kind: str, noun: type[Noun]) -> Noun | None:
    """The one document of a kind; None where none was given."""
    files = groups.get(kind, ())
    if len(files) > 1:
        names = ", ".join(file.label for file in files[:4])
        raise InputError(f"upload: {len(files)} files of kind {kind} ({names}) are not legal; give one")
    return _document(files[0], noun) if files else None


def _document(file: _File, noun: type[Noun]) -> Noun:
    """A document; a workload of too many gradients is refused before they are checked one by one."""
    document = parse_json(file.path.read_bytes(), str(file.path))
    gradients = document.get("gradients") if isinstance(document, dict) else None
    if isinstance(gradients, list):
        _check_size(len(gradients), str(file.path))
    return parse_document(document, noun, str(file.path))


def _check_size(count: int, source: str) -> None:
    if count > MAX_GRADIENTS:
        raise InputError(
            f"{source}: gradients: {count} are too many for a page; {MAX_GRADIENTS} at most; {_ELSEWHERE}"
        )


def _record(
    groups: Mapping[str, Sequence[_File]], hardware: Sequence[Hardware], home: Path, labels: _Labels
) -> Record | None:
    """The measured record that the documents make up; None if no measurement is among them."""
    measured = groups.get("measurement", ())
    if not measured:
        return None
    ranks = _document(measured[0], Measurement).world_size
    every = zip(groups.get("hardware", ()), hardware, strict=True)
    fitting = [file for file, one in every if one.world_size == ranks]
    for files, kind in ((groups.get("workload", ()), "workload"), (fitting, "hardware")):
        if len(files) != 1:
            raise InputError(
                f"{measured[0].path}: {len(files)} {kind} files of {ranks} ranks beside it; give the one "
                f"of its record, {kind}.json"
            )
    home.mkdir()
    labels[str(home)] = "the record"
    parts = [(groups["workload"][0], WORKLOAD), (fitting[0], HARDWARE)]
    parts += [(one, f"measurement-{place:06d}.json") for place, one in enumerate(measured)]
    for file, name in parts:
        labels[str(home / name)] = file.label
        (home / name).write_bytes(file.path.read_bytes())
    record = load_record(home)
    return replace(record, name=record.workload.name)
