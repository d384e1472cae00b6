"""Opens files that others wrote: plain or gzip, up to a size, and as text only what is text."""

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sim.errors import InputError

MAX_TEXT_BYTES = 256 << 20
# What a file may hold, or inflate to, against bombs; the largest traces seen are half of it.
MAX_BYTES = 2 << 30
_CHUNK_BYTES = 4 << 20

GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it (zstd -d) and give what is in it",
    b"\xfd7zXZ": "compressed with xz; unpack it (xz -d) and give what is in it",
    b"BZh": "compressed with bzip2; unpack it (bzip2 -d) and give what is in it",
    b"SQLite format 3": "an SQLite database (of Nsight Systems?); give a trace that torch.profiler exported",
    b"version https://git-lfs": "a Git LFS pointer in place of the file; fetch it (git lfs pull)",
    b"PK\x03\x04": "a zip archive (or a torch.save file); unpack it and give what is in it",
    **{
        b"\x80" + bytes([protocol]): "a pickle, which could run code when it is read; give JSON"
        for protocol in range(6)
    },
}
_PAGE = (b"<!doctype html", b"<html")
_HEAD_BYTES = 64


@contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a file, inflated where it is gzip, to be read from the start.

    Raises:
        InputError: it cannot be opened or read, is damaged, a pickle, a zip or another binary archive.
    """
    source = Path(path)
    try:
        if not source.is_file():
            device = "a pipe or a device, which can be read only once" if source.exists() else "no such file"
            raise InputError(f"{source}: {'a directory' if source.is_dir() else device}; give a file")
        with source.open("rb") as raw:
            head = raw.read(_HEAD_BYTES)
            raw.seek(0)
            _refuse(head, source)
            if head.startswith(GZIP):
                with gzip.GzipFile(fileobj=raw) as inflated:
                    content = io.BufferedReader(inflated)
                    _refuse(content.peek(_HEAD_BYTES), source)
                    yield content
            else:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source}: damaged gzip ({error}); give the whole file") from None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None


def _refuse(head: bytes, source: Path) -> None:
    for mark, what in _FOREIGN.items():
        if head.startswith(mark):
            raise InputError(f"{source}: {what}")
    if head.lstrip().lower().startswith(_PAGE):
        raise InputError(f"{source}: a web page in place of the file; download the raw file")


def decoded(content: bytes | bytearray, errors: str = "strict") -> str:
    """Bytes as text: UTF-8, with or without a byte order mark, or UTF-16 with one."""
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors)


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytearray:
    """All of a file, inflated where it is gzip; ``InputError`` as ``open_bytes``, or beyond ``most``."""
    content = bytearray()
    with open_bytes(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > most:
                raise InputError(f"{path}: holds more than {most >> 20} MiB; give a smaller file")
    return content


def read_text(path: str | os.PathLike[str]) -> str:
    """All of a file as text.

    Raises:
        InputError: as ``read_bytes``, more than ``MAX_TEXT_BYTES`` of content, or no text.
    """
    content = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decoded(content)
    except UnicodeDecodeError as error:
        encoding = error.encoding.removesuffix("-sig").removesuffix("-le").upper()
        raise InputError(f"{path}: not {encoding} text (byte {error.start}); give text") from None
