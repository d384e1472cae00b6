"""Dumps of torch's flight recorder, as JSON."""

from sim.importer.flight_recorder.dumps import read_flight_recorder

__all__ = ["read_flight_recorder"]
