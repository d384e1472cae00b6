"""Records on disk: a directory with workload.json, hardware.json and measurement-*.json."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats import documents
from sim.formats.files import make_directory, write_files, write_measured
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Box, Measurement, Record
from sim.nouns.workload import Workload

WORKLOAD, HARDWARE = "workload.json", "hardware.json"
OWN_STEP = "own-step.json"  # of a record of replays: what the job did when it was recorded
AS_RUN = "measurement-00-as-run.json"  # of an import: the same


def measurement_name(number: int, measurement: Measurement) -> str:
    """The file name of a record's measurement."""
    slug = "".join(c if c.isalnum() else "-" for c in measurement.name).strip("-")
    return f"measurement-{number:02d}-{slug}.json"


def save_measurements(directory: Path, measurements: Sequence[Measurement]) -> None:
    """Write what was measured into a record: all, or where one fails none.

    Raises:
        InputError: it cannot be written; the message says where it is kept instead.
    """
    write_measured(
        {
            directory / measurement_name(number, measurement): documents.to_text(measurement)
            for number, measurement in enumerate(measurements)
        }
    )


def recorded_step(workload_file: str | os.PathLike[str]) -> Measurement | None:
    """The job's own steps, where an import of its recording or traces put them beside its workload."""
    path = Path(workload_file).parent / AS_RUN
    if not path.is_file():
        return None
    measured = documents.load(path, Measurement)
    return measured if measured.mode == "trace" else None


def start_record(
    directory: str | os.PathLike[str],
    workload: Workload,
    hardware: Hardware,
    own_step: Measurement | None = None,
) -> Path:
    """Make a record's directory with its inputs. Raises ``InputError`` if it holds a record already."""
    folder = make_directory(directory)
    if any(folder.glob("measurement-*.json")):
        raise InputError(f"{folder}: holds a record already; give a new or empty directory")
    inputs: dict[str, Any] = {WORKLOAD: workload, HARDWARE: hardware, OWN_STEP: own_step}
    write_files({folder / name: documents.to_text(one) for name, one in inputs.items() if one is not None})
    return folder


def load_record(directory: str | os.PathLike[str]) -> Record:
    """A record from its directory. Raises ``InputError`` naming what is missing or not legal."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: not a directory; give the directory of a measured record")
    measurements = [documents.load(path, Measurement) for path in sorted(folder.glob("measurement-*.json"))]
    if not measurements:
        raise InputError(f"{folder}: no measurement-*.json in it; give the directory of a record")
    if not (folder / HARDWARE).exists():
        several = ", ".join(sorted(path.name for path in folder.glob("hardware-*.json")))
        raise InputError(
            f"{folder}: no {HARDWARE} in it: "
            + (
                f"which of {several} it ran on is not told; copy that one to {folder / HARDWARE}"
                if several
                else "of the link nothing is known; import its files again with a table of the link's times "
                "(bucketsim import auto)"
            )
        )
    record = record_of(
        folder.name,
        documents.load(folder / WORKLOAD, Workload),
        documents.load(folder / HARDWARE, Hardware),
        measurements,
        f"{folder}: ",
    )
    own = folder / OWN_STEP
    return replace(record, own_step=documents.load(own, Measurement)) if own.exists() else record


def record_of(
    name: str, workload: Workload, hardware: Hardware, measurements: Sequence[Measurement], source: str = ""
) -> Record:
    """The record of ``measurements``, at least one, in the box that their environment tells.

    Raises:
        InputError: an environment that is not legal; its line begins with ``source``.
    """
    environment = measurements[0].environment
    if "beside" in environment:
        raise InputError(
            f"{source}measured beside {environment['beside']}, which is not modelled; give a record of a "
            f"job that was alone"
        )
    return Record(
        name=name,
        workload=workload,
        hardware=hardware,
        measurements=tuple(measurements),
        box=box_in(environment, f"{source}environment"),
        calibrated_in=box_in(hardware.provenance, f"{source}{HARDWARE}: provenance"),
        slow=_slow(environment.get("slow"), measurements[0].world_size, source),
    )


def box_in(said: dict[str, Any], source: str) -> Box | None:
    """The ``box`` that provenance or a measurement's environment tells; None where it tells none."""
    found = said.get("box")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InputError(f"{source}: box: {str(found)[:60]!r} is not legal; give an object")
    return documents.parse_body(found, Box, f"{source}: box")


def _slow(said: Any, world_size: int, source: str) -> tuple[tuple[int, float], ...]:
    if said is None:
        return ()
    try:
        found = tuple((int(rank), float(factor)) for rank, factor in said.items())
    except (AttributeError, TypeError, ValueError):
        found = ((-1, 0.0),)
    if not all(0 <= rank < world_size and 1 <= factor < math.inf for rank, factor in found):
        raise InputError(
            f"{source}environment: slow: {str(said)[:60]!r} is not legal; give factors of 1 or more, by "
            f"rank from 0 to {world_size - 1}"
        )
    return found


def find_records(directory: str | os.PathLike[str]) -> list[Path]:
    """Directories of records at or below ``directory``, sorted."""
    return sorted({path.parent for path in Path(directory).rglob("measurement-*.json")})
