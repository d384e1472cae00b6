"""Records: written one measurement at a time, as nobody but a test does; those of the tree scored once in a
process, however many tests and commands ask."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import sim
from sim.formats import documents
from sim.formats.record_files import load_record, measurement_name
from sim.nouns.measurement import Measurement, Record
from sim.truth.scoring import Agreement


def save_measurement(directory: Path, number: int, measurement: Measurement) -> Path:
    """Write it; returns its path."""
    path = directory / measurement_name(number, measurement)
    documents.save(path, measurement)
    return path


def measure_anew(record: Path, change: Callable[[Measurement], Measurement]) -> None:
    """Leave of the record in ``record`` its candidates alone, each as ``change`` makes it."""
    read = load_record(record)
    for path in record.glob("measurement-*.json"):
        path.unlink()
    for number, one in enumerate(read.candidates):
        save_measurement(record, number, change(one))


_SCORE = sim.agreement


@cache
def scored(directory: Path) -> Agreement:
    """What ``sim.agreement`` says of the record there."""
    return _SCORE(_read(directory))


@cache
def _read(directory: Path) -> Record:
    return sim.load_record(directory)


def scored_once(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on ``sim.agreement`` gives what was scored, for records that are as those in ``folder``."""
    places = {path.name: path for path in sim.find_records(folder)}

    def agreement(record: Record) -> Agreement:
        if record.name in places and record == _read(places[record.name]):
            return scored(places[record.name])
        return _SCORE(record)

    patch.setattr(sim, "agreement", agreement)
