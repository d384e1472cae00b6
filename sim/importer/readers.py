"""The reader of each format, imported when it is needed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path

from sim.errors import InputError, SimError
from sim.importer.wording import LONGEST_LINE, plain
from sim.nouns.imported import Imported, ImportOptions, each_sentence

Reader = Callable[[Sequence[Path], ImportOptions], Imported]

_READERS = {
    "auto": ("sim.importer.auto", "read_auto"),
    "kineto": ("sim.importer.kineto", "read_kineto"),
    "nccl-tests": ("sim.importer.links", "read_nccl_tests"),
    "flight-recorder": ("sim.importer.flight_recorder", "read_flight_recorder"),
    "ddp-log": ("sim.importer.ddp_log", "read_ddp_log"),
    "chakra": ("sim.importer.chakra", "read_chakra"),
    "recording": ("sim.importer.recording_import", "read_recording"),
}
READABLE = tuple(_READERS)


def reader(form: str) -> Reader:
    """The function that reads a format; what it says, in errors too, is a line that a terminal may show.

    Raises:
        InputError: there is no such format.
    """
    if form not in _READERS:
        raise InputError(f"FORMAT: {form!r} is not legal; give {', '.join(READABLE[:-1])} or {READABLE[-1]}")
    module, function = _READERS[form]
    return _in_lines(getattr(import_module(module), function))


def _in_lines(read: Reader) -> Reader:
    """Values of files are quoted in sentences: no control characters of theirs, and not all of a long one."""

    @wraps(read)
    def read_in_lines(paths: Sequence[Path], options: ImportOptions) -> Imported:
        longest = LONGEST_LINE + max((len(str(path)) for path in paths), default=0)
        try:
            imported = read(paths, options)
        except SimError as error:
            raise type(error)(plain(str(error), longest)) from error.__cause__
        except OSError as error:  # of a path itself: no permission on its directory, a name too long
            shown = plain(f"{error.filename}: cannot be read: {error.strerror or error}", longest)
            raise InputError(shown) from None
        return replace(imported, **each_sentence(imported, lambda line: plain(line, longest)))

    return read_in_lines
