"""The reader of each format, imported when it is needed."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from sim.errors import InputError
from sim.nouns.imported import Imported, ImportOptions

Reader = Callable[[Sequence[Path], ImportOptions], Imported]

_READERS = {
    "auto": ("sim.importer.auto", "read_auto"),
    "kineto": ("sim.importer.kineto", "read_kineto"),
    "nccl-tests": ("sim.importer.nccl_tests", "read_nccl_tests"),
    "flight-recorder": ("sim.importer.flight_recorder", "read_flight_recorder"),
    "ddp-log": ("sim.importer.ddp_log", "read_ddp_log"),
    "chakra": ("sim.importer.chakra", "read_chakra"),
    "recording": ("sim.importer.recording", "read_recording"),
}
READABLE = tuple(_READERS)


def reader(form: str) -> Reader:
    """The function that reads a format. Raises ``InputError`` where there is no such format."""
    if form not in _READERS:
        raise InputError(f"FORMAT: {form!r} is not legal; give {', '.join(READABLE[:-1])} or {READABLE[-1]}")
    module, function = _READERS[form]
    read: Reader = getattr(import_module(module), function)
    return read
