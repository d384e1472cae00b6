"""What an importer makes of other tools' files, and what it says of them."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sim.errors import InputError
from sim.formats.documents import json_text, parse_json, to_text
from sim.formats.files import make_directory, read_bytes, write_files
from sim.formats.record_files import HARDWARE, WORKLOAD, measurement_name, record_of
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.devices import ranks_of_job
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.workload import Workload

# ``found``: what the files say. ``assumed``: what they do not say and was filled in. ``missing``: what could
# not be had. ``dropped``: what was read and left out. ``doubtful``: what cannot be true of it, and what was
# done about that.
Kind = Literal["found", "assumed", "missing", "dropped", "doubtful"]
KINDS: tuple[Kind, ...] = get_args(Kind)
About = Literal["", "workload", "curve"]  # the part of an import that is missing


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence on an import."""

    kind: Kind
    text: str
    about: About = ""


class Notes(list[Note]):
    """Sentences in the order in which they were found."""

    def add(self, kind: Kind, text: str) -> None:
        """Add one."""
        self.append(Note(kind, text))


def few(words: Sequence[str], most: int = 8) -> str:
    """The first of them with commas between, and ``...`` where there are more."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def plain(text: str, longest: int = 120) -> str:
    """Text of others made fit to show: without control characters, a long one cut in its middle."""
    text = text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What the user can add to the files; None: the files have to say it.

    ``machine`` is a word that tells one machine of a link benchmark from others.
    """

    name: str | None = None
    world_size: int | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank among several: its clock against the first rank's, and how late it came to collectives.

    ``clock_offset_ns`` is what its clock shows more than the first rank's, told by the ends of collectives;
    ``clock_scatter_ns`` the largest distance of an aligned end from the median of its collective.
    ``came_last`` of ``collectives``; ``waited_ns`` is the median time that it waited for the last to
    arrive. None where a single rank cannot tell.
    """

    rank: int
    host: str | None = None
    clock_offset_ns: int | None = None
    clock_scatter_ns: int | None = None
    collectives: int = 0
    came_last: int | None = None
    waited_ns: int | None = None
    backward_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What files hold, and what was made of them; whatever they do not hold is None or empty.

    ``formats`` are those of the files where several were put together, documents of ours by their ``kind``.
    """

    format: str
    name: str
    workload: Workload | None = None
    hardware: tuple[Hardware, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    notes: tuple[Note, ...] = ()
    formats: tuple[str, ...] = ()
    cluster: Cluster | None = None
    assignment: Assignment | None = None

    def said(self, kind: Kind) -> tuple[str, ...]:
        """The sentences of a kind, each once."""
        return tuple(dict.fromkeys(note.text for note in self.notes if note.kind == kind))

    def reworded(self, change: Callable[[str], str]) -> "Imported":
        """The same with every sentence as ``change`` makes it."""
        return replace(self, notes=tuple(replace(note, text=change(note.text)) for note in self.notes))

    @property
    def world_size(self) -> int | None:
        """How many ranks it is of: told by its measurements, its only hardware, or its workload."""
        sizes = {one.world_size for one in self.measurements or self.hardware}
        if len(sizes) == 1:
            return sizes.pop()
        return None if self.workload is None else ranks_of_job(self.workload)

    @property
    def main_hardware(self) -> Hardware | None:
        """The hardware of the run: the only one, or the first with its number of ranks; None: none is."""
        if len(self.hardware) == 1:
            return self.hardware[0]
        return next((one for one in self.hardware if one.world_size == self.world_size), None)

    @property
    def record(self) -> Record | None:
        """The measured steps with their own workload and hardware; None where one of the three is missing.

        Raises:
            InputError: an environment that is not legal.
        """
        hardware = self.main_hardware
        if self.workload is None or hardware is None or not self.measurements:
            return None
        return record_of(self.name, self.workload, hardware, self.measurements)


# ---- written to a directory: workload, hardware, measurements, summary; a record if all are there

_OURS = re.compile(r"(workload|measured|hardware.*|measurement-.*)\.json")
SUMMARY = "summary.json"


def write_imported(imported: Imported, directory: str | os.PathLike[str]) -> list[Path]:
    """Write an import, the summary last; return the paths, without the summary's.

    Of several hardware the run's is ``hardware.json``, the others ``hardware-<n>ranks.json``. With a workload
    and measurements the directory is a record. Files of an earlier import that this one has not are removed.

    Raises:
        InputError: ``directory`` holds anything but an import, or cannot be written.
    """
    folder = make_directory(directory)
    stale = _stale(folder)
    nouns: dict[str, Any] = {} if imported.workload is None else {WORKLOAD: imported.workload}
    nouns |= dict(zip(hardware_names(imported), imported.hardware, strict=True))
    nouns |= {measurement_name(number, one): one for number, one in enumerate(imported.measurements)}
    texts = {folder / name: to_text(noun) for name, noun in nouns.items()}
    summary = {**summary_of(imported), "files": list(nouns)}
    write_files({**texts, folder / SUMMARY: json_text(summary)})
    for name in stale - {*nouns, SUMMARY}:
        (folder / name).unlink()
    return list(texts)


def summary_of(imported: Imported) -> dict[str, Any]:
    """What was found, assumed, missing and dropped, and the ranks; JSON values."""
    return {
        "kind": "import",
        "format": imported.format,
        "name": imported.name,
        **{kind: list(imported.said(kind)) for kind in KINDS},
        "ranks": [asdict(rank) for rank in imported.ranks],
    }


def hardware_names(imported: Imported) -> list[str]:
    """File names of the hardware, in order: ``hardware.json`` for the one of the run, or the only one."""
    of_run, seen = imported.main_hardware, Counter[str]()
    names = []
    for one in imported.hardware:
        name = HARDWARE if one is of_run else f"hardware-{one.world_size}ranks.json"
        seen[name] += 1
        names.append(name if seen[name] == 1 else name.replace(".json", f"-{seen[name]}.json"))
    return names


def _stale(folder: Path) -> set[str]:
    """The names of files that an earlier import left in ``folder``.

    Raises ``InputError`` if there are only other files, or one that an import would write and none wrote.
    """
    entries = {entry.name for entry in folder.iterdir()}
    summary = parse_json(read_bytes(folder / SUMMARY), str(folder / SUMMARY)) if SUMMARY in entries else None
    known = summary if isinstance(summary, dict) and summary.get("kind") == "import" else {}
    files = known.get("files")
    mine = {SUMMARY, *map(str, files)} if isinstance(files, list) else set[str]()
    if entries and (SUMMARY not in mine or any(map(_OURS.fullmatch, entries - mine))):
        raise InputError(f"{folder}: holds other files already; give a new or empty directory")
    return entries & mine
