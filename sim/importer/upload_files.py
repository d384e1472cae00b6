"""Files of an upload on disk: private, inflated within limits, under names that nobody outside chose."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError
from sim.importer.opening import GZIP, open_bytes
from sim.importer.upload_words import Labels
from sim.importer.wording import plain

MAX_FILES = 256
# Of all files together, inflated: a tenth of what the command line reads of a single one.
MAX_INFLATED_BYTES = 512 << 20
ELSEWHERE = "bucketsim on the command line takes more (bucketsim import)"
_CHUNK_BYTES = 4 << 20
_LONGEST_NAME = 60  # characters, so that it fits a file system in any alphabet
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """One file: what the user calls it, where it is, and how much JSON could be in it at most."""

    label: str
    path: Path
    values: int
    events: int


def unpack(
    files: Sequence[tuple[str, bytes]], folder: Path, labels: Labels
) -> tuple[list[Unpacked], list[str]]:
    """Write the files below ``folder``, each in a directory of its own, inflated where they are gzip.

    Args:
        files: names, which are only labels, and contents.
        folder: an empty directory that nobody else can read.
        labels: is told what each path is called.

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
    named = sorted((_label(name), hashlib.sha256(content).hexdigest(), content) for name, content in files)
    named.sort(key=lambda one: (_natural(one[0]), one[0], one[1]))
    unpacked: list[Unpacked] = []
    same: list[str] = []
    first: dict[str, str] = {}
    left = MAX_INFLATED_BYTES
    taken: set[str] = set()
    for number, (name, digest, content) in enumerate(named):
        if digest in first:
            same.append(f"{name}: has the same content as {first[digest]}")
            continue
        label = _unused(name, taken)
        first[digest] = label
        home = folder / str(number)
        home.mkdir()
        one = _write(content, home / safe_name(name), label, left, labels)
        left -= one.path.stat().st_size
        unpacked.append(one)
    return unpacked, same


def safe_name(name: str) -> str:
    """A file name that is like ``name``: its last part, of letters, digits, dots, dashes and underscores.

    Cut at the front, as endings (``rank3.json``) tell more; without the ``.gz`` of what is inflated.
    """
    last = re.split(r"[/\\]", name)[-1].removesuffix(".gz")
    kept = "".join(one if one.isalnum() or one in "._-" else "-" for one in last)
    return kept[-_LONGEST_NAME:].lstrip(".-") or "file"


def _label(name: str) -> str:
    return " ".join(plain(name).split()) or "a file without a name"


def _natural(label: str) -> tuple[tuple[int, str], ...]:
    """``rank2`` before ``rank10``."""
    parts = _DIGITS.split(label)
    return tuple((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts))


def _unused(label: str, taken: set[str]) -> str:
    shown, number = label, 1
    while shown in taken:
        number += 1
        shown = f"{label} ({number})"
    taken.add(shown)
    return shown


def _write(content: bytes, path: Path, label: str, left: int, labels: Labels) -> Unpacked:
    """Write one file, inflated, and count in it the marks that begin a value or an event."""
    packed = path.with_name(f"{path.name}.packed")
    labels.add(packed, label)
    labels.add(path, label)
    packed.write_bytes(content)
    size = values = events = 0
    kept = b""
    with open_bytes(packed) as stream, path.open("wb") as out:
        while chunk := stream.read(_CHUNK_BYTES):
            if not size and chunk.startswith(GZIP):
                raise InputError(f"{packed}: compressed twice; unpack it once and give what is in it")
            size += len(chunk)
            if size > left:
                raise InputError(
                    f"{packed}: an upload may hold {MAX_INFLATED_BYTES >> 20} MiB, inflated and all files "
                    f"together, and this goes beyond; {ELSEWHERE}"
                )
            values += sum(chunk.count(mark) for mark in (b",", b"[", b"{", b":"))
            events += (kept + chunk).count(b'"ph"')
            kept = chunk[-3:]
            out.write(chunk)
    packed.unlink()
    return Unpacked(label=label, path=path, values=values, events=events)
