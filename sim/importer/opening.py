"""Opens files that others wrote: plain or gzip, up to a size, and as text only what is text."""

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sim.errors import InputError
from sim.nouns.imported import Progress

MAX_TEXT_BYTES = 256 << 20
# What a gzip file may inflate to, against bombs; the largest traces seen are a tenth of it.
MAX_INFLATED_BYTES = 8 << 30

_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it (zstd -d) and give what is in it",
    b"\xfd7zXZ": "compressed with xz; unpack it (xz -d) and give what is in it",
    b"BZh": "compressed with bzip2; unpack it (bzip2 -d) and give what is in it",
    b"SQLite format 3": "an SQLite database (of Nsight Systems?); give a trace that torch.profiler exported",
    b"version https://git-lfs": "a Git LFS pointer in place of the file; fetch it (git lfs pull)",
}
_PAGE = (b"<!doctype html", b"<html")
_HEAD_BYTES = 64
GZIP = b"\x1f\x8b"
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


@contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a file, inflated where it is gzip, to be read from the start.

    Raises:
        InputError: it cannot be opened or read, is damaged, a pickle, a zip or another binary archive.
    """
    source = Path(path)
    try:
        if not source.is_file():
            raise InputError(f"{source}: {_what(source)}; give a file")
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


def _what(source: Path) -> str:
    if source.is_dir():
        return "a directory"
    return "a pipe or a device, which can be read only once" if source.exists() else "no such file"


def _refuse(head: bytes, source: Path) -> None:
    if head.startswith(_ZIP):
        raise InputError(f"{source}: a zip archive (or a torch.save file); unpack it and give what is in it")
    for mark, what in _FOREIGN.items():
        if head.startswith(mark):
            raise InputError(f"{source}: {what}")
    if head.lstrip().lower().startswith(_PAGE):
        raise InputError(f"{source}: a web page in place of the file; download the raw file")
    if head.startswith(_PICKLE) and len(head) > 1 and head[1] in range(6):
        raise InputError(f"{source}: a pickle, which could run code when it is read; give JSON")


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_TEXT_BYTES) -> str:
    """All of a file as text: UTF-8, with or without a byte order mark, or UTF-16 with one.

    Raises:
        InputError: as ``open_bytes``, more than ``max_bytes`` of content, or bytes that are no such text.
    """
    with open_bytes(path) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InputError(f"{path}: holds more than {max_bytes >> 20} MiB; give a smaller file")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not {encoding.removesuffix('-sig').upper()} text (byte {error.start}); give text"
        ) from None


def read_texts(paths: Sequence[Path], progress: Progress) -> Iterator[tuple[Path, str]]:
    """Each file with its text, one after the other; ``progress`` is told how many are read.

    Raises:
        InputError: no files, or as ``read_text``.
    """
    if not paths:
        raise InputError("paths: no files; give at least one")
    for number, path in enumerate(paths):
        progress(number, len(paths), str(path))
        yield path, read_text(path)
    progress(len(paths), len(paths), "")
