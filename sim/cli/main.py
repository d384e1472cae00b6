"""``bucketsim``: the process around a command, its error handling and its exit codes.

0 ok; 1 our error, one red line; 2 usage; 3 a validation missed its threshold; 130 Ctrl-C.
"""

import atexit
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
    with _on_ctrl_c(_leave):
        # Half a second of imports with nothing to clean up: here, for Ctrl-C to be heard before.
        from sim.cli.streams import guarded_streams

        with guarded_streams():
            _main()


def _main() -> None:
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
            app()
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
