"""Stdout and stderr that may be closed, full, or have lost their reader: an answer is not lost unheard."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from sim.errors import MachineError


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
            raise MachineError(f"{self._name}: cannot be written: {error.strerror or error}") from None
