"""From a battery's raw output to records."""

import tarfile
from pathlib import Path

from sim.errors import InputError, ReplayError
from sim.formats.outputs import make_directory, write_files
from sim.formats.record_files import HARDWARE, WORKLOAD
from sim.formats.scratch import scratch_directory
from sim.validator.battery import SUMMARY
from sim.validator.gathering import gather_record

_WORKLOADS = "workloads"


def is_battery(directory: Path) -> bool:
    """Whether ``directory`` is what ``sim.validator.battery`` left."""
    return (directory / SUMMARY).is_file()


def unpack_battery(directory: Path, output: Path) -> tuple[list[Path], list[str]]:
    """Write a battery's records and workloads below ``output``.

    Returns:
        The records' directories, and a line for each that is missing or incomplete and why.

    Raises:
        InputError: no battery's output there, an archive that is not one, or a record that is there already.
    """
    archives = sorted(directory.glob("*.tar.gz"))
    if not archives:
        raise InputError(f"{directory}: no *.tar.gz in it; give the directory of a battery's output")
    records: list[Path] = []
    missing: list[str] = []
    with scratch_directory() as scratch:
        for archive in archives:
            raw = scratch / archive.name
            try:
                with tarfile.open(archive) as opened:
                    opened.extractall(raw, filter="data")
            except (tarfile.TarError, EOFError, OSError) as error:
                raise InputError(f"{archive}: not an archive that can be read: {error}") from None
            for folder in sorted(path.parent for path in raw.rglob(WORKLOAD)):
                if archive.name.startswith(_WORKLOADS):
                    _keep(folder, output / _WORKLOADS / f"{folder.name}.json")
                    continue
                try:
                    gather_record(folder)
                except ReplayError as error:
                    missing.append(f"{folder.name}: {error}".replace(f"{folder}: ", ""))
                if any(folder.glob("measurement-*.json")):
                    records.append(_keep_record(folder, output / folder.name))
    return records, missing


def _keep(folder: Path, target: Path) -> None:
    make_directory(target.parent)
    write_files({target: (folder / WORKLOAD).read_text(encoding="utf-8")})


def _keep_record(folder: Path, target: Path) -> Path:
    if target.exists():
        raise InputError(f"{target}: is there already; give another --output")
    paths = (folder / WORKLOAD, folder / HARDWARE, *sorted(folder.glob("measurement-*.json")))
    make_directory(target)
    write_files({target / path.name: path.read_text(encoding="utf-8") for path in paths})
    return target
