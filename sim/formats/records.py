"""Records on disk: a directory with workload.json, hardware.json and measurement-*.json."""

import os
from pathlib import Path

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.records import Record
from sim.nouns.workload import Workload

WORKLOAD, HARDWARE = "workload.json", "hardware.json"


def save_measurement(directory: Path, number: int, measurement: Measurement) -> Path:
    """Write one measurement into a record, atomically; returns its path."""
    slug = "".join(c if c.isalnum() else "-" for c in measurement.name).strip("-")
    path = directory / f"measurement-{number:02d}-{slug}.json"
    documents.save(path, measurement)
    return path


def start_record(directory: str | os.PathLike[str], workload: Workload, hardware: Hardware) -> Path:
    """Make a record's directory with its inputs. Raises ``InputError`` if it holds a record already."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if any(folder.glob("measurement-*.json")):
        raise InputError(f"{folder}: holds a record already; give a new or empty directory")
    documents.save(folder / WORKLOAD, workload)
    documents.save(folder / HARDWARE, hardware)
    return folder


def load_record(directory: str | os.PathLike[str]) -> Record:
    """A record from its directory. Raises ``InputError`` naming what is missing or not legal."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: not a directory; give the directory of a measured record")
    measurements = [documents.load(path, Measurement) for path in sorted(folder.glob("measurement-*.json"))]
    if not measurements:
        raise InputError(f"{folder}: no measurement-*.json in it; give the directory of a record")
    return Record(
        name=folder.name,
        workload=documents.load(folder / WORKLOAD, Workload),
        hardware=documents.load(folder / HARDWARE, Hardware),
        measurements=tuple(measurements),
    )


def find_records(directory: str | os.PathLike[str]) -> list[Path]:
    """Directories of records at or below ``directory``, sorted."""
    return sorted({path.parent for path in Path(directory).rglob("measurement-*.json")})
