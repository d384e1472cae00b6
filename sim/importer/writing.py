"""Writes an import to a directory: workload, hardware, measurements, summary; a record if all are there."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats.documents import json_text, parse_json, to_text
from sim.formats.files import check_directory as check_place
from sim.formats.files import make_directory, read_bytes, write_files
from sim.formats.record_files import HARDWARE, WORKLOAD, measurement_name
from sim.importer.imported import KINDS, Imported

_OURS = re.compile(r"(workload|measured|hardware.*|measurement-.*)\.json")
SUMMARY = "summary.json"


def write_imported(imported: Imported, directory: str | os.PathLike[str]) -> list[Path]:
    """Write an import, the summary last; return the paths, without the summary's.

    The files are ``workload.json``, ``hardware.json`` and ``measurement-*.json``. Of several hardware the
    run's is ``hardware.json``, the others are
    ``hardware-<n>ranks.json``. With the first three the directory is a record. Files of an earlier import
    that this one does not have are removed.

    Raises:
        InputError: ``directory`` holds anything but an import, or cannot be written.
    """
    folder = Path(directory)
    stale = _stale(folder)
    names = hardware_names(imported)
    texts = {} if imported.workload is None else {WORKLOAD: to_text(imported.workload)}
    texts |= {name: to_text(one) for name, one in zip(names, imported.hardware, strict=True)}
    for number, one in enumerate(imported.measurements):
        texts[measurement_name(number, one)] = to_text(one)
    summary = {**summary_of(imported), "files": list(texts)}
    files = {folder / name: text for name, text in texts.items()}
    make_directory(folder)
    write_files({**files, folder / SUMMARY: json_text(summary)})
    for path in stale:
        if path.name not in (*texts, SUMMARY):
            with suppress(OSError):  # whatever else is there stays
                path.unlink()
    return list(files)


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


def check_directory(directory: str | os.PathLike[str]) -> None:
    """Raise ``InputError`` if an import may not be written to ``directory``; call it before a long import."""
    check_place(directory)
    _stale(Path(directory))


def _stale(folder: Path) -> list[Path]:
    """The files that an earlier import left in ``folder``.

    Raises ``InputError`` if there are only other files, or one that an import would write and none wrote.
    """
    if not folder.exists():
        return []
    try:
        entries = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if not entries:
        return []
    mine: Sequence[Any] = ()
    if SUMMARY in entries:
        summary = parse_json(read_bytes(folder / SUMMARY), str(folder / SUMMARY))
        if isinstance(summary, dict) and summary.get("kind") == "import":
            files = summary.get("files")
            mine = [SUMMARY, *files] if isinstance(files, list) else [SUMMARY]
    if SUMMARY not in mine or any(_OURS.fullmatch(name) for name in entries - set(map(str, mine))):
        raise InputError(f"{folder}: holds other files already; give a new or empty directory")
    return [folder / name for name in entries if name in mine]
