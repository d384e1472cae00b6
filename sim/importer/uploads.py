"""Files as a browser sends them: bytes with names. In a private directory ``auto`` reads them as any files.

What is not legal is told in one line that calls the file as the user does.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.errors import InputError, SimError
from sim.formats.documents import Noun, parse_json, parse_text, to_text
from sim.formats.files import scratch_directory
from sim.importer.imported import Imported, ImportOptions, plain
from sim.importer.readers import AUTO, DOCUMENTS, RECORDING, read_bytes, reader, recognise
from sim.nouns.hardware import MAX_RANKS

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
                if found.workload is not None:
                    _check_size(len(found.workload.gradients), found.name)
            except SimError as error:
                raise type(error)(_told(str(error), folder)) from None
    except OSError as error:
        raise InputError(f"upload: cannot be kept while it is read: {error.strerror or error}") from None
    first = found.main_hardware
    hardware = (*(one for one in (first,) if one), *(one for one in found.hardware if one is not first))
    return replace(
        found.reworded(lambda line: _told(line, folder)),
        name=_told(found.name, folder),
        workload=found.workload and _named(found.workload, folder),
        hardware=tuple(_named(one, folder) for one in hardware),
        measurements=tuple(_named(one, folder) for one in found.measurements),
    )


def _told(text: str, folder: Path) -> str:
    """A sentence of a reader as one line for a page, with files and the option named as there."""
    text = re.sub(rf"{re.escape(str(folder))}/({RECORDING}/(?=.))?", "", text).removeprefix("PATH: ")
    return plain(re.sub(r"--world-size( N)?", "the world size", text), _LONGEST_LINE)


def _named(noun: Noun, folder: Path) -> Noun:
    """A noun whose provenance has files by their names alone: the same digest in any directory."""
    text = to_text(noun)
    return parse_text(text.replace(f"{folder}/", ""), type(noun), "upload") if f"{folder}/" in text else noun


def _unpack(files: Sequence[tuple[str, bytes]], folder: Path) -> list[Path]:
    """Write the files to ``folder``, inflated where they are gzip, those of a recording to one of their own.

    Returns:
        What ``auto`` is to read.

    Raises:
        InputError: none or too many files, more than ``MAX_INFLATED_BYTES`` in all, or one that ``recognise``
            refuses, or that is too large for a page.
    """
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
        if kind in DOCUMENTS:
            _check_document(path)
        paths[_as_rank(path, folder / RECORDING) if kind == RECORDING else path] = None
    return list(paths)


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


def _check_document(path: Path) -> None:
    """Refuse a document, or a workload of gradients, too large for a page, before its parts are checked."""
    is_long = path.stat().st_size > MAX_DOCUMENT_BYTES
    document = None if is_long else parse_json(path.read_bytes(), str(path))
    gradients = document.get("gradients") if isinstance(document, dict) else None
    _check_size(
        MAX_GRADIENTS + 1 if is_long else len(gradients) if isinstance(gradients, list) else 0, str(path)
    )


def _check_size(count: int, source: str) -> None:
    if count > MAX_GRADIENTS:
        raise InputError(
            f"{source}: too much for a page: a file of ours may hold {MAX_DOCUMENT_BYTES >> 20} MiB, and a "
            f"workload {MAX_GRADIENTS} gradients; {_ELSEWHERE}"
        )
