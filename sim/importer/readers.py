"""The front door: opens files of others, tells their format by what is in them, and has each reader."""

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import IO

from sim.errors import InputError, SimError
from sim.importer.imported import Imported, ImportOptions, plain
from sim.importer.links.tables import has_table

Reader = Callable[[Sequence[Path], ImportOptions], Imported]
AUTO, KINETO, NCCL_TESTS, RECORDING = "auto", "kineto", "nccl-tests", "recording"
# By format: what a file of it is called, and its reader, which is imported on first use.
FORMATS = {
    KINETO: ("a Kineto trace", "sim.importer.kineto.trace_import:read_kineto"),
    NCCL_TESTS: (
        "nccl-tests' output or another table of sizes and times",
        "sim.importer.links.link_hardware:read_nccl_tests",
    ),
    RECORDING: ("a recording", "sim.importer.recorded:read_recording"),
}
READABLE = (AUTO, *FORMATS)
LONGEST_LINE = 380
# Formats that torch writes too, and what tells more than they do.
_UNREAD = {
    "chakra": "an execution trace has no times; give a trace of torch.profiler, or record with sim.record",
    "ddp-log": "DDP's log has averages alone; record with sim.record",
    "flight-recorder": "its dumps have no backward; give a profiler's trace, or record with sim.record",
}
# Kinds of bucketsim's own files that are legal beside them.
DOCUMENTS = ("workload", "hardware", "measurement", "cluster", "assignment", "recommendation")
SUMMARY = "import"
HEAD_BYTES = 1 << 20  # of a file, to tell its format
_LEGAL = f"give {', '.join(called for called, _ in FORMATS.values())}, or a workload or hardware file"
_RANK_FILE = re.compile(r"rank-[0-9]+\.jsonl")
# Keys that only one format has.
_MARKS = {
    KINETO: re.compile(r'(?<!\\)"(traceEvents|deviceProperties)"\s*:|(?<!\\)"ph"\s*:\s*"\w"'),
    NCCL_TESTS: re.compile(r'(?<!\\)"(average_bus_bandwidth|nccl_version|out_of_place)"\s*:'),
}
_KIND = re.compile(r'(?<!\\)"kind"\s*:\s*"(\w+)"')


def reader(form: str) -> Reader:
    """The function that reads a format; each sentence that it returns or raises fits one line of a terminal.

    Raises:
        InputError: there is no such format.
    """
    if form in _UNREAD:
        raise InputError(f"FORMAT: {form} is not read: {_UNREAD[form]}")
    if form not in READABLE:
        raise InputError(f"FORMAT: {form!r} is not legal; give {', '.join(READABLE[:-1])} or {READABLE[-1]}")
    module, _, name = (FORMATS[form][1] if form != AUTO else "sim.importer.auto:read_auto").partition(":")
    read: Reader = getattr(import_module(module), name)

    @wraps(read)
    def read_in_lines(paths: Sequence[Path], options: ImportOptions) -> Imported:
        # Sentences quote files, which may hold anything.
        longest = LONGEST_LINE + max((len(str(path)) for path in paths), default=0)
        try:
            imported = read(paths, options)
        except SimError as error:
            raise type(error)(plain(str(error), longest)) from error.__cause__
        except OSError as error:  # of a path itself: no permission on its directory, or a name too long
            shown = plain(f"{error.filename}: cannot be read: {error.strerror or error}", longest)
            raise InputError(shown) from None
        return imported.reworded(lambda line: plain(line, longest))

    return read_in_lines


def recognise(path: str | os.PathLike[str]) -> str:
    """What a file or a recording's directory is: one of ``FORMATS`` or ``DOCUMENTS``, or ``SUMMARY``.

    Raises:
        InputError: none of these, or a file that ``open_bytes`` refuses (a pickle, an archive).
    """
    source = Path(path)
    if source.is_dir():
        if any(_RANK_FILE.fullmatch(entry.name) for entry in source.iterdir()):
            return RECORDING
        raise InputError(f"{source}: a directory without rank-<r>.jsonl; give files or a recording")
    with open_bytes(source) as stream:
        text = decoded(head := stream.read(HEAD_BYTES), "replace")
    if not text.strip():
        raise InputError(f"{source}: the file is empty; {_LEGAL}")
    if text.lstrip()[:1] in ("{", "["):
        for form, pattern in _MARKS.items():
            if pattern.search(text):
                return form
        kind = _KIND.search(text)
        if kind is not None and kind[1] in (*DOCUMENTS, RECORDING, SUMMARY):
            return kind[1]
        if kind is not None and '"schema_version"' in text:
            legal = f"{', '.join(DOCUMENTS[:-1])} or {DOCUMENTS[-1]}"
            raise InputError(f"{source}: kind: {kind[1]!r} is not legal here; give a {legal}")
    if has_table(text):  # logs begin with brackets too: [1,0]<stdout>:
        return NCCL_TESTS
    what = "a binary file" if b"\0" in head else "not recognised"
    raise InputError(f"{source}: {what}; {_LEGAL}")


# ---- files

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
    b"<!doctype html": "a web page in place of the file; download the raw file",
    b"<html": "a web page in place of the file; download the raw file",
    **{
        b"\x80" + bytes([protocol]): "a pickle, which could run code when it is read; give JSON"
        for protocol in range(6)
    },
}
_HEAD_BYTES = 64


@contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a file, inflated where it is gzip, to be read from the start.

    Raises:
        InputError: it cannot be opened or read, is damaged, a pickle, a zip or another binary archive.
    """
    source = Path(path)
    if not source.is_file():
        device = "a pipe or a device, which can be read only once" if source.exists() else "no such file"
        raise InputError(f"{source}: {'a directory' if source.is_dir() else device}; give a file")
    try:
        with source.open("rb") as raw:
            _refuse(raw.peek(_HEAD_BYTES), source)
            if not raw.peek(2).startswith(GZIP):
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as inflated:
                content = io.BufferedReader(inflated)
                if content.peek(2).startswith(GZIP):
                    raise InputError(f"{source}: compressed twice; unpack it once and give what is in it")
                _refuse(content.peek(_HEAD_BYTES), source)
                yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{source}: damaged gzip ({error}); give the whole file") from None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None


def _refuse(head: bytes, source: Path) -> None:
    for mark, what in _FOREIGN.items():
        if head.startswith(mark) or head[:_HEAD_BYTES].lstrip().lower().startswith(mark):
            raise InputError(f"{source}: {what}")


def decoded(content: bytes | bytearray, errors: str = "strict") -> str:
    """Bytes as text: UTF-8, with or without a byte order mark, or UTF-16 with one."""
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors)


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES, beyond: str = "") -> bytearray:
    """All of a file, inflated where it is gzip.

    Raises:
        InputError: as ``open_bytes``, or more than ``most`` bytes, with ``beyond`` for words on that.
    """
    content = bytearray()
    with open_bytes(path) as stream:
        while len(content) <= most and (chunk := stream.read(_CHUNK_BYTES)):
            content += chunk
    if len(content) > most:
        raise InputError(f"{path}: holds more than {beyond or f'{most >> 20} MiB; give a smaller file'}")
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
