"""``bucketsim``: the process around a command, its error handling and its exit codes.

0 ok; 1 our error, one red line; 2 usage; 3 a validation missed its threshold; 130 Ctrl-C.
"""

import atexit
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO, cast

_INTERRUPTED = 130


def main() -> None:
    """Entry point of ``bucketsim`` and ``python -m sim``."""
    atexit.register(signal.signal, signal.SIGINT, _leave)  # while the interpreter ends, too
    # 150,000 objects of numba, pydantic and typer stay to the end: to look for garbage among them while they
    # are imported, and three times when all is done, would take 0.4 s.
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    with _on_ctrl_c(_leave), guarded_streams():
        _main()


def _main() -> None:
    # Half a second of imports with nothing to clean up: here, for Ctrl-C to be heard before.
    from sim.cli.printing import fail, note, telling_of_compilation
    from sim.errors import SimError

    # What follows -- is another command's.
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    debug = "--debug" in ours
    if debug:
        # Accept --debug after the command too: people add it to the end of the line that failed.
        kept = [word for word in ours[1:] if word != "--debug"]
        sys.argv = [sys.argv[0], "--debug", *kept, *sys.argv[len(ours) :]]
    try:
        with telling_of_compilation():
            _answer()
    except (SimError, OSError) as error:
        if debug:
            raise
        fail(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(_INTERRUPTED)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of it
            note("interrupted")
        raise


def _answer() -> None:
    from sim.cli.commands import app

    try:
        with _on_ctrl_c(signal.default_int_handler):
            app(prog_name="bucketsim")
    finally:
        sys.stdout.flush()  # that it did not arrive can be told now, and not at the interpreter's end


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process as it stands."""
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


@contextmanager
def _on_ctrl_c(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Hear Ctrl-C meanwhile, also where a shell that started this in the background had it ignored."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """UTF-8 on both; what stdout does not take is a ``MachineError``, and what stderr does not is dropped.

    A reader of stdout that is gone ends the command quietly, with the exit code of ``SIGPIPE``.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: it would become the first file that is opened, and take what is printed
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            # JSON is UTF-8 wherever it goes, and no name may break what only shows it.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout = cast(TextIO, _Guarded(before[0], "stdout"))
    sys.stderr = cast(TextIO, _Guarded(before[1], None))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Guarded:
    """A stream whose faults are told by ``name``; those of stderr, which has none, nobody could be told."""

    def __init__(self, stream: TextIO | None, name: str | None) -> None:
        self._stream = io.StringIO() if stream is None else stream
        self._is_closed = stream is None
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def write(self, text: str) -> int:
        if self._is_closed and self._name is not None:
            from sim.errors import MachineError

            raise MachineError(f"{self._name}: is closed; give it a terminal, a file or a pipe")
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Let go of what is held back, which would fail again at the interpreter's end, and say so."""
        with suppress(OSError):  # of a stream in memory
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self._name is not None:
            if isinstance(error, BrokenPipeError):  # the reader has enough, as head has
                raise SystemExit(128 + signal.SIGPIPE) from None
            from sim.errors import MachineError

            raise MachineError(f"{self._name}: cannot be written: {error.strerror or error}") from None
