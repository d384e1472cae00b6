"""One measurement at a time into a record, as nobody but a test writes them."""

from pathlib import Path

from sim.formats import documents
from sim.formats.record_files import measurement_name
from sim.nouns.measurement import Measurement


def save_measurement(directory: Path, number: int, measurement: Measurement) -> Path:
    """Write it; returns its path."""
    path = directory / measurement_name(number, measurement)
    documents.save(path, measurement)
    return path
