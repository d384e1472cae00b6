"""Files as a browser sends them: bytes with names. What each is, its content tells; together they are inputs.

They lie in a private directory while ``auto`` reads them as it reads any files; documents of ours that it
does not know, and measurements, are put beside. What is not legal is told in one line that calls the file as
the user does.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from sim.errors import InputError, SimError
from sim.formats.documents import Noun, load, parse_json
from sim.formats.files import scratch_directory
from sim.formats.record_files import HARDWARE, WORKLOAD, load_record
from sim.importer.imported import Imported, ImportOptions, Note, Uploaded, plain, reworded
from sim.importer.readers import AUTO, FORMATS, RECORDING, read_bytes, reader, recognise
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import MAX_RANKS, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.recommendation import Recommendation

MAX_FILES = 256
# Of all files together, inflated: a quarter of what the command line reads of a single one. A document of
# ours becomes objects that are checked one by one.
MAX_INFLATED_BYTES, MAX_DOCUMENT_BYTES = 512 << 20, 32 << 20
# A page searches for the best buckets at each change of the machine. The time of a search grows faster than
# the number of gradients: about a minute for so many. Transformers of a hundred layers have 1,200.
MAX_GRADIENTS = 5_000
DOCUMENTS = ("workload", "hardware", "cluster", "assignment", "recommendation", "measurement")
SUMMARY = "import"
_ELSEWHERE = "bucketsim on the command line takes more (bucketsim import)"
_LONGEST_NAME = 60  # characters, so that it fits a file system in any alphabet
_LONGEST_LINE = 500
# Options of the command line, as sentences of readers have them, and their names on the page.
_OPTIONS = {"--world-size N": "the world size", "--world-size": "the world size", "PATH: ": ""}


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
    try:
        with scratch_directory() as folder:
            try:
                paths, same = _unpack(files, folder)
                uploaded = _read(paths, folder, options)
            except SimError as error:
                raise type(error)(_told(str(error), folder)) from None
    except OSError as error:
        raise InputError(f"upload: cannot be kept while it is read: {error.strerror or error}") from None
    named: Uploaded = _as_named(replace(uploaded, notes=(*uploaded.notes, *same)), folder)
    return reworded(named, lambda line: _told(line, folder))


def _told(text: str, folder: Path) -> str:
    """A sentence of a reader as one line for a page, with options named as on the page."""
    text = _as_named(text, folder)
    for option, words in _OPTIONS.items():
        text = text.replace(option, words)
    return plain(text, _LONGEST_LINE)


def _as_named(value: Any, folder: Path) -> Any:
    """A text or a noun with files called by their names alone: the same files have the same digest in any
    directory. Each lies in a directory of its own."""
    if isinstance(value, str):
        return re.sub(rf"{re.escape(str(folder))}/(\w+/)?", "", value)
    if isinstance(value, (list, tuple)):
        return type(value)(_as_named(item, folder) for item in value)
    if isinstance(value, dict):
        return {key: _as_named(item, folder) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    told = ("name", "workload", "hardware", "measurements", "asked", "environment", "provenance", "record")
    return replace(
        value, **{key: _as_named(getattr(value, key), folder) for key in told if hasattr(value, key)}
    )


def _unpack(files: Sequence[tuple[str, bytes]], folder: Path) -> tuple[list[Path], list[Note]]:
    """Write the files below ``folder``, each in a directory of its own, inflated where they are gzip.

    Returns:
        The files sorted by name; and a note for each file that is left out, as another has the same content.

    Raises:
        InputError: none or too many files, more than ``MAX_INFLATED_BYTES`` in all, or one that
            ``open_bytes`` refuses.
    """
    if not 1 <= len(files) <= MAX_FILES:
        raise InputError(f"files: {len(files) or 'none'} are not legal; give 1 to {MAX_FILES}")
    first: dict[bytes, Path] = {}
    same, left = [], MAX_INFLATED_BYTES
    beyond = f"{MAX_INFLATED_BYTES >> 20} MiB, which all files of an upload together may; {_ELSEWHERE}"
    for number, (name, content) in enumerate(sorted((safe_name(given), text) for given, text in files)):
        if content in first:
            same.append(Note("dropped", f"{name}: has the same content as {first[content].name}"))
            continue
        taken = {path.name for path in first.values()}
        again = (f"{name} ({number})" for number in range(2, MAX_FILES + 2))
        path = folder / str(number) / next(one for one in (name, *again) if one not in taken)
        path.parent.mkdir()
        path.write_bytes(content)
        inflated = read_bytes(path, left, beyond)
        path.write_bytes(inflated)
        left -= len(inflated)
        first[content] = path
    return list(first.values()), same


def safe_name(name: str) -> str:
    """A file name that is like ``name``: its last part, as far as it can be shown.

    Cut at the front, as endings (``rank3.json``) tell more; without the ``.gz`` of what is inflated.
    """
    last = re.split(r"[/\\]", name)[-1].removesuffix(".gz")
    shown = " ".join(plain(last, len(last)).split())[-_LONGEST_NAME:].lstrip(".- ")
    return shown or "a file without a name"


def _read(paths: Sequence[Path], folder: Path, options: ImportOptions) -> Uploaded:
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        groups[recognise(path, (*DOCUMENTS, SUMMARY))].append(path)
    formats = tuple(sorted(groups))
    foreign = [path for form in FORMATS if form != RECORDING for path in groups[form]]
    if groups[RECORDING]:
        foreign.append(_recording(groups[RECORDING], folder / RECORDING))
    if foreign and groups["measurement"]:
        raise InputError(
            f"{groups['measurement'][0]}: a measurement is not legal beside traces and logs; give it with "
            f"the workload and hardware of its record"
        )
    for kind in DOCUMENTS:
        if len(groups[kind]) > 1 and kind not in ("hardware", "measurement"):
            names = ", ".join(path.name for path in groups[kind][:4])
            raise InputError(
                f"upload: {len(groups[kind])} files of kind {kind} ({names}) are not legal; give one"
            )
        for path in groups[kind]:
            _check_document(path)
    ours = [*groups["workload"], *groups["hardware"]]
    imported = Imported(format="documents", name="")
    if foreign or ours:
        imported = reader(AUTO)([*foreign, *ours], options)
    workload = imported.workload
    if workload is not None:
        _check_size(len(workload.gradients), imported.name or "upload")
    recommended, assignment = _only(groups, Recommendation), _only(groups, Assignment)
    if recommended is not None and assignment is not None:
        raise InputError(
            "upload: an assignment and a recommendation are not legal together; give one of them"
        )
    record = imported.record if foreign else _record(groups, folder / "record")
    first = imported.main_hardware if record is None else record.hardware
    others = tuple(one for one in imported.hardware if one is not first and one != first)
    beside = [kind for kind in DOCUMENTS if groups[kind] and kind not in ("workload", "hardware")]
    found = [Note("found", f"{kind}: {', '.join(path.name for path in groups[kind])}") for kind in beside]
    dropped = [Note("dropped", f"{path}: the summary of an import") for path in groups[SUMMARY]]
    called = imported.name if foreign else paths[0].name if workload is None else workload.name
    return Uploaded(
        name=plain(called),
        formats=formats,
        workload=workload,
        hardware=imported.hardware if first is None else (first, *others),
        cluster=_only(groups, Cluster),
        assignment=assignment if recommended is None else recommended.assignment,
        measurements=imported.measurements if record is None else record.measurements,
        record=record,
        ranks=imported.ranks,
        notes=(*found, *dropped, *imported.notes),
    )


def _recording(paths: Sequence[Path], home: Path) -> Path:
    """The directory of a recording; its files are named by the rank that they say they are of."""
    home.mkdir()
    for path in paths:
        with path.open("rb") as stream:
            header = parse_json(stream.readline(), f"{path}: line 1")
        rank = header.get("rank") if isinstance(header, dict) else None
        if type(rank) is not int or not 0 <= rank < MAX_RANKS:
            raise InputError(f"{path}: line 1: rank: {rank!r:.60} is not legal; give an integer >= 0")
        if (home / f"rank-{rank}.jsonl").exists():
            raise InputError(f"{path}: a second file of rank {rank}; give the files of one recording")
        path.rename(home / f"rank-{rank}.jsonl")
    return home


def _only(groups: Mapping[str, Sequence[Path]], noun: type[Noun]) -> Noun | None:
    """The one document of a kind; None where none was given."""
    return next((load(path, noun) for path in groups[noun.KIND]), None)


def _check_document(path: Path) -> None:
    """Refuse a document, or a workload of gradients, too large for a page, before its parts are checked."""
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"{path}: too much for a page: a file of ours may hold {MAX_DOCUMENT_BYTES >> 20} MiB, and a "
            f"workload {MAX_GRADIENTS} gradients; {_ELSEWHERE}"
        )
    document = parse_json(path.read_bytes(), str(path))
    gradients = document.get("gradients") if isinstance(document, dict) else None
    if isinstance(gradients, list):
        _check_size(len(gradients), str(path))


def _check_size(count: int, source: str) -> None:
    if count > MAX_GRADIENTS:
        raise InputError(
            f"{source}: gradients: {count} are too many for a page; {MAX_GRADIENTS} at most; {_ELSEWHERE}"
        )


def _record(groups: Mapping[str, Sequence[Path]], home: Path) -> Record | None:
    """The measured record that the documents make up; None if no measurement is among them."""
    measured = groups["measurement"]
    if not measured:
        return None
    ranks = load(measured[0], Measurement).world_size
    fitting = [path for path in groups["hardware"] if load(path, Hardware).world_size == ranks]
    for paths, kind in ((groups["workload"], "workload"), (fitting, "hardware")):
        if len(paths) != 1:
            raise InputError(
                f"{measured[0]}: {len(paths)} {kind} files of {ranks} ranks beside it; give the one of its "
                f"record, {kind}.json"
            )
    home.mkdir()
    parts = [(groups["workload"][0], WORKLOAD), (fitting[0], HARDWARE)]
    parts += [(one, f"measurement-{place:06d}.json") for place, one in enumerate(measured)]
    for path, name in parts:
        (home / name).write_bytes(path.read_bytes())
    record = load_record(home)
    return replace(record, name=record.workload.name)
