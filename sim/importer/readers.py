"""The front door: tells what files are by what is in them, has each reader, and puts what they give together.

So are files read as a browser sends them: bytes with names, in a private directory.
"""

import gzip
import io
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import IO

from sim.errors import InputError, SimError
from sim.formats.documents import Noun, load
from sim.formats.files import scratch_directory
from sim.formats.recordings import rank_of
from sim.importer.imported import Imported, ImportOptions, Note, few, plain
from sim.importer.links.tables import has_table
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload

AUTO, KINETO, NCCL_TESTS, RECORDING = "auto", "kineto", "nccl-tests", "recording"
# By format: what a file of it is called, and its reader, which is imported on first use.
FORMATS = {
    KINETO: ("a Kineto trace", "sim.importer.kineto.trace_import:read_kineto"),
    NCCL_TESTS: (
        "nccl-tests' output or another table of sizes and times",
        "sim.importer.links.link_hardware:read_nccl_tests",
    ),
    RECORDING: ("a recording", "sim.importer.recorded:read_recording"),
}
READABLE = (AUTO, *FORMATS)
LONGEST_LINE = 380
# Kinds of bucketsim's own files that are legal beside them.
DOCUMENTS = ("workload", "hardware", "measurement", "cluster", "assignment", "recommendation")
SUMMARY = "import"
_LEGAL = f"give {', '.join(called for called, _ in FORMATS.values())}, or a workload or hardware file"
# Keys that only one format has.
_MARKS = {
    KINETO: re.compile(r'(?<!\\)"(traceEvents|deviceProperties)"\s*:|(?<!\\)"ph"\s*:\s*"\w"'),
    NCCL_TESTS: re.compile(r'(?<!\\)"(average_bus_bandwidth|nccl_version|out_of_place)"\s*:'),
}
_KIND = re.compile(r'(?<!\\)"kind"\s*:\s*"(\w+)"')


def read_files(form: str, paths: Sequence[Path], options: ImportOptions) -> Imported:
    """What files of a format hold, in sentences that fit a line of a terminal: they quote files, which may
    hold anything. Raises ``InputError`` where there is no such format, and as its reader."""
    if form in ("chakra", "ddp-log", "flight-recorder"):  # torch writes them, too
        raise InputError(f"FORMAT: {form} is not read: it times no gradient; record with sim.record")
    if form not in READABLE:
        raise InputError(f"FORMAT: {form!r} is not legal; give {', '.join(READABLE[:-1])} or {READABLE[-1]}")
    longest = LONGEST_LINE + max((len(str(path)) for path in paths), default=0)
    try:
        imported: Imported = (read_auto if form == AUTO else resolve_name(FORMATS[form][1]))(paths, options)
    except SimError as error:
        raise type(error)(plain(str(error), longest)) from error.__cause__
    except OSError as error:  # of a path itself: no permission on its directory, or a name too long
        shown = plain(f"{error.filename}: cannot be read: {error.strerror or error}", longest)
        raise InputError(shown) from None
    return imported.reworded(lambda line: plain(line, longest))


def recognise(path: str | os.PathLike[str]) -> str:
    """What a file or a recording's directory is: one of ``FORMATS`` or ``DOCUMENTS``, or ``SUMMARY``.

    Raises:
        InputError: none of these, or a file that ``open_bytes`` refuses (a pickle, an archive).
    """
    source = Path(path)
    if source.is_dir():
        if any(rank_of(entry) is not None for entry in source.iterdir()):
            return RECORDING
        raise InputError(f"{source}: a directory without rank-<r>.jsonl; give files or a recording")
    with open_bytes(source) as stream:
        text = decoded(head := stream.read(1 << 20), "replace")
    if not text.strip():
        raise InputError(f"{source}: the file is empty; {_LEGAL}")
    if text.lstrip()[:1] in ("{", "["):
        for form, pattern in _MARKS.items():
            if pattern.search(text):
                return form
        kind = _KIND.search(text)
        if kind is not None and kind[1] in (*DOCUMENTS, RECORDING, SUMMARY):
            return kind[1]
        if kind is not None and '"schema_version"' in text:
            legal = f"{', '.join(DOCUMENTS[:-1])} or {DOCUMENTS[-1]}"
            raise InputError(f"{source}: kind: {kind[1]!r} is not legal here; give a {legal}")
    if has_table(text):  # logs begin with brackets too: [1,0]<stdout>:
        return NCCL_TESTS
    what = "a binary file" if b"\0" in head else "not recognised"
    raise InputError(f"{source}: {what}; {_LEGAL}")


# ---- files

MAX_TEXT_BYTES = 256 << 20
# What a file may hold, or inflate to, against bombs; the largest traces seen are half of it.
MAX_BYTES = 2 << 30
_CHUNK_BYTES = 4 << 20

GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it (zstd -d) and give what is in it",
    b"\xfd7zXZ": "compressed with xz; unpack it (xz -d) and give what is in it",
    b"BZh": "compressed with bzip2; unpack it (bzip2 -d) and give what is in it",
    b"SQLite format 3": "an SQLite database (of Nsight Systems?); give a trace that torch.profiler exported",
    b"version https://git-lfs": "a Git LFS pointer in place of the file; fetch it (git lfs pull)",
    b"PK\x03\x04": "a zip archive (or a torch.save file); unpack it and give what is in it",
    b"<!doctype html": "a web page in place of the file; download the raw file",
    b"<html": "a web page in place of the file; download the raw file",
    b"\x80": "a pickle, which could run code when it is read; give JSON",
}


@contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a file, inflated where it is gzip, to be read from the start.

    Raises:
        InputError: it cannot be opened or read, is damaged, a pickle, a zip or another binary archive.
    """
    source = Path(path)
    if not source.is_file():
        device = "a pipe or a device, which can be read only once" if source.exists() else "no such file"
        raise InputError(f"{source}: {'a directory' if source.is_dir() else device}; give a file")
    try:
        with source.open("rb") as raw:
            _refuse(raw.peek(), source)
            if not raw.peek(2).startswith(GZIP):
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as inflated:
                content = io.BufferedReader(inflated)
                if content.peek(2).startswith(GZIP):
                    raise InputError(f"{source}: compressed twice; unpack it once and give what is in it")
                _refuse(content.peek(), source)
                yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source}: damaged gzip ({error}); give the whole file") from None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None


def _refuse(head: bytes, source: Path) -> None:
    for mark, what in _FOREIGN.items():
        if head.startswith(mark) or head.lstrip().lower().startswith(mark):
            raise InputError(f"{source}: {what}")


def decoded(content: bytes | bytearray, errors: str = "strict") -> str:
    """Bytes as text: UTF-8, with or without a byte order mark, or UTF-16 with one."""
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors)


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES, beyond: str = "") -> bytearray:
    """All of a file, inflated where it is gzip.

    Raises:
        InputError: as ``open_bytes``, or more than ``most`` bytes, with ``beyond`` for words on that.
    """
    content = bytearray()
    with open_bytes(path) as stream:
        while len(content) <= most and (chunk := stream.read(_CHUNK_BYTES)):
            content += chunk
    if len(content) > most:
        raise InputError(f"{path}: holds more than {beyond or f'{most >> 20} MiB; give a smaller file'}")
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """All of a file as text.

    Raises:
        InputError: as ``read_bytes``, more than ``MAX_TEXT_BYTES`` of content, or no text.
    """
    content = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decoded(content)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not {error.encoding} text (byte {error.start}); give text") from None


# ---- several files as one import

_RUNS = (KINETO, RECORDING)  # formats that tell when each gradient is ready


def read_auto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """One import of all that the files hold: say, the workload of a trace and the curve of a link benchmark.

    The workload comes from a trace, a recording or a file; the all-reduce curve from a hardware file or
    nccl-tests, else from a trace; measurements and ranks from traces, or from the files of a record.

    Raises:
        InputError: a file that is not recognised, or files that do not belong together.
    """
    groups, notes = defaultdict[str, list[Path]](list), list[Note]()
    for path in paths:
        groups[recognise(path)].append(path)
    notes += [Note("dropped", f"{path}: the summary of an import") for path in groups.pop(SUMMARY, ())]
    for form, members in groups.items():
        told = few([member.name or str(member) for member in members], 3)
        notes.append(Note("found", f"{form}: {told}"))
    given = [load(path, Hardware) for path in groups.get("hardware", ())]
    measured = [load(path, Measurement) for path in groups.get("measurement", ())]
    workload = _only(groups, Workload)
    parts: dict[str, Imported] = {}
    for form in (one for one in (NCCL_TESTS, *_RUNS) if one in groups):
        # With several formats ``options.name`` names the run, and a link benchmark keeps its own name.
        name = None if form == NCCL_TESTS and len(groups) > 1 else options.name
        parts[form] = read_files(form, groups[form], replace(options, name=name))
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


def _only(groups: dict[str, list[Path]], noun: type[Noun]) -> Noun | None:
    """The one document of a kind; None where none was given."""
    paths = groups.get(noun.KIND, [])
    if len(paths) > 1:
        names = few([path.name for path in paths], 4)
        raise InputError(f"PATH: {len(paths)} files of kind {noun.KIND} ({names}) are not legal; give one")
    return next((load(path, noun) for path in paths), None)


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
    said = {one: form for form, part in runs.items() if (one := part.world_size) is not None}
    said |= {one.world_size: one.KIND for one in measured}
    if len(said) > 1:
        words = ", ".join(f"{form} {one}" for one, form in sorted(said.items()))
        raise InputError(f"PATH: runs on different numbers of ranks ({words}); give the files of one")
    ranks = next(iter(said), options.world_size)
    if options.world_size not in (None, ranks):
        raise InputError(
            f"--world-size: {options.world_size} is not legal here; the files are of a run on {ranks} ranks"
        )
    links = list(parts[NCCL_TESTS].hardware) if NCCL_TESTS in parts else []
    traced = [one for part in runs.values() for one in part.hardware]
    hardware, assumed = _hardware(given, links, traced, ranks)
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
        notes=(*notes, *([Note("assumed", assumed)] if assumed else [])),
    )


def _hardware(
    given: list[Hardware], links: list[Hardware], traced: list[Hardware], ranks: int | None
) -> tuple[tuple[Hardware, ...], str]:
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
        return (*traced, *others), said if traced and others else ""
    if not traced:
        return (wire, *others), ""
    own, joined, what = traced[0], wire, "the hardware"
    if wire in links:  # a hardware file says all there is to say
        spread = {key: value for key, value in own.spread.items() if getattr(wire, key, None) is None}
        curves = {name: getattr(wire, name) or getattr(own, name) for name in CURVES}
        provenance = {**wire.provenance, "beside_the_curves": own.provenance}
        what, joined = "the all-reduce", replace(own, name=wire.name, **curves, provenance=provenance)
        ranges = {  # each goes with the field that it is of
            name: ends
            for one in (own, wire)
            for name, ends in one.spread.get("ranges", {}).items()
            if getattr(joined, name) == getattr(one, name)
        }
        joined = replace(joined, spread={**spread, **wire.spread, "ranges": ranges})
    said = f"{what} of {wire.name!r}, measured beside the step, in place of the trace's own"
    return (joined, *others), said


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
    try:
        with scratch_directory() as folder:
            try:
                found = read_files(AUTO, _unpack(files, folder), options or ImportOptions())
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
    """A file name that is like ``name``: its last part, as far as it can be shown, cut at the front."""
    last = re.split(r"[/\\]", name)[-1].removesuffix(".gz")
    shown = " ".join(plain(last, len(last)).split())[-_LONGEST_NAME:].lstrip(".- ")
    return shown or "a file without a name"


def _as_rank(path: Path, home: Path) -> Path:
    """The directory of a recording, with one more file, named by the rank that it seems to be of."""
    with path.open("rb") as stream:
        told = re.search(rb'"rank"\s*:\s*(\d{1,7})', stream.readline())
    rank = int(told[1]) if told else 0
    home.mkdir(exist_ok=True)
    if (home / f"rank-{rank}.jsonl").exists():
        raise InputError(f"{path}: a second file of rank {rank}; give the files of one recording")
    path.rename(home / f"rank-{rank}.jsonl")
    return home
