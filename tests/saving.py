"""One measurement at a time into a record, as nobody but a test writes them."""

from collections.abc import Callable
from pathlib import Path

from sim.formats import documents
from sim.formats.record_files import load_record, measurement_name
from sim.nouns.measurement import Measurement


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
