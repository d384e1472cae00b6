"""The formats that ``bucketsim import`` reads, and the reader of each."""

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path

from sim.errors import InputError, SimError
from sim.importer.kineto import KINETO
from sim.importer.links import NCCL_TESTS
from sim.importer.recorded import RECORDING
from sim.importer.trace_format import Reader, TraceFormat, imported_function
from sim.importer.wording import LONGEST_LINE, plain
from sim.nouns.imported import Imported, ImportOptions, each_sentence

# A file fits one format alone; the order decides only which of several formats is listed or read first.
_TABLE: tuple[TraceFormat, ...] = (KINETO, NCCL_TESTS, RECORDING)
FORMATS = {one.name: one for one in _TABLE}
AUTO = "auto"
READABLE = (AUTO, *FORMATS)
# Formats that torch writes too, and what tells more than they do.
_UNREAD = {
    "chakra": "an execution trace has no times; give a trace of torch.profiler, or record with sim.record",
    "ddp-log": "DDP's log has averages alone; record with sim.record",
    "flight-recorder": "its dumps have no backward; give a profiler's trace, or record with sim.record",
}


def reader(form: str) -> Reader:
    """The function that reads a format; each sentence that it returns or raises fits one line of a terminal.

    Raises:
        InputError: there is no such format.
    """
    if form == AUTO:
        return _in_lines(imported_function("sim.importer.auto", "read_auto"))
    if form in _UNREAD:
        raise InputError(f"FORMAT: {form} is not read: {_UNREAD[form]}")
    if form not in FORMATS:
        raise InputError(f"FORMAT: {form!r} is not legal; give {', '.join(READABLE[:-1])} or {READABLE[-1]}")
    return _in_lines(FORMATS[form].reader())


def _in_lines(read: Reader) -> Reader:
    """``read`` with sentences cut to a line of printable text: they quote files, which may hold anything."""

    @wraps(read)
    def read_in_lines(paths: Sequence[Path], options: ImportOptions) -> Imported:
        longest = LONGEST_LINE + max((len(str(path)) for path in paths), default=0)
        try:
            imported = read(paths, options)
        except SimError as error:
            raise type(error)(plain(str(error), longest)) from error.__cause__
        except OSError as error:  # of a path itself: no permission on its directory, or a name too long
            shown = plain(f"{error.filename}: cannot be read: {error.strerror or error}", longest)
            raise InputError(shown) from None
        return replace(imported, **each_sentence(imported, lambda line: plain(line, longest)))

    return read_in_lines
