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
from contextlib import contextmanager
from types import FrameType
from typing import Any

_INTERRUPTED = 130


def main() -> None:
    """Entry point of ``bucketsim`` and ``python -m sim``."""
    atexit.register(signal.signal, signal.SIGINT, _leave)  # while the interpreter ends, too
    # 150,000 objects of numba, pydantic and typer stay to the end: to look for garbage among them while they
    # are imported, and three times when all is done, would take 0.4 s.
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    with _on_ctrl_c(_leave), _streams() as stdout:
        _main(stdout)


def _main(stdout: "_Stream") -> None:
    # Half a second of imports with nothing to clean up: here, for Ctrl-C to be heard before.
    from sim.cli.printing import fail, note, telling_of_compilation
    from sim.errors import MachineError, SimError

    # What follows -- is another command's.
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    debug = "--debug" in ours
    if debug:
        # Accept --debug after the command too: people add it to the end of the line that failed.
        kept = [word for word in ours[1:] if word != "--debug"]
        sys.argv = [sys.argv[0], "--debug", *kept, *sys.argv[len(ours) :]]
    try:
        with telling_of_compilation():
            try:
                from sim.cli.commands import app

                with _on_ctrl_c(signal.default_int_handler):
                    app(prog_name="bucketsim")
            finally:
                sys.stdout.flush()
                if isinstance(stdout.fault, BrokenPipeError):  # the reader has enough, as head has
                    raise SystemExit(128 + signal.SIGPIPE) from None
                if stdout.fault is not None:
                    raise MachineError(f"stdout: cannot be written: {stdout.fault.strerror}") from None
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


class _Stream(io.FileIO):
    """Stdout or stderr, which never raises: the first ``fault`` is kept, and what comes after it is lost."""

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.fault = self.fault or error
            return len(data)


@contextmanager
def _streams() -> Iterator[_Stream]:
    """UTF-8 on both, whose faults end no command; yields stdout's."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the first file that is opened would take its place, and what is printed
            os.open(os.devnull, os.O_RDONLY)
    before = sys.stdout, sys.stderr
    stdout, stderr = (_Stream(descriptor, "w", closefd=False) for descriptor in (1, 2))
    for name, raw in (("stdout", stdout), ("stderr", stderr)):
        if getattr(sys, name) is None or isinstance(getattr(sys, name), io.TextIOWrapper):
            # JSON is UTF-8 wherever it goes, and no name may break what only shows it.
            how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
            text = io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=raw.isatty(), **how)
            setattr(sys, name, text)
    try:
        yield stdout
    finally:
        sys.stdout, sys.stderr = before
