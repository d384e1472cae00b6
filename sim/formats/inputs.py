"""The one place that reads our own documents: files, and pipes that somebody writes to; nothing else."""

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

from sim.errors import InputError
from sim.formats.outputs import kind_of

MAX_FILE_BYTES = 512 << 20
_BLOCK = 1 << 20
_WRITER_MS = 5000  # for somebody to open the other end of a pipe; then it may take its time


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All that is in a file, or comes through a pipe.

    Raises:
        InputError: it is neither (a directory, a device, a socket), nobody writes to the pipe, it cannot be
            read, or holds more than 512 MiB.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path: {path!r:.60} is not legal; give the path of a file")
    file = Path(path)
    if "\0" in str(file):
        raise InputError(f"{str(file)!r}: cannot be read: no file has such a name")
    try:
        found = os.stat(file)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise InputError(f"{file}: cannot be read: it is {kind_of(found)}; give a file or a pipe")
        if found.st_size > MAX_FILE_BYTES:
            raise InputError(f"{file}: {found.st_size} bytes; at most {MAX_FILE_BYTES} are read")
        content = bytearray()
        for block in _blocks(file):
            content += block
            if len(content) > MAX_FILE_BYTES:
                raise InputError(f"{file}: holds more than {MAX_FILE_BYTES} bytes, the most that are read")
        return bytes(content)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None


def _blocks(file: Path) -> Iterator[bytes]:
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        ready = select.poll()
        ready.register(handle, select.POLLIN)
        while True:
            is_ready = ready.poll(_WRITER_MS)
            try:
                block = os.read(handle, _BLOCK)
            except BlockingIOError:
                continue  # a writer that takes its time
            if not block and not is_ready:
                raise InputError(f"{file}: cannot be read: a pipe that nobody writes to")
            if not block:
                return
            yield block
    finally:
        os.close(handle)
