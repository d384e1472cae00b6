"""Which format a file has, told by what is in it."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from sim.errors import InputError
from sim.importer.opening import open_bytes
from sim.importer.readers import FORMATS
from sim.importer.recorded import RECORDING
from sim.importer.scanning import json_keys, utf8_chunks
from sim.importer.trace_format import Keys

DOCUMENTS = ("workload", "hardware")
# Most that is read to recognise a file: bytes (logs may begin with other text), bytes and keys of JSON.
MOST_BYTES, MOST_JSON_BYTES, MOST_KEYS = 32 << 20, 8 << 20, 4096

_RANK_FILE = re.compile(r"rank-[0-9]+\.jsonl")


def recognise(path: str | os.PathLike[str], documents: Sequence[str] = DOCUMENTS) -> str:
    """The format of a file or of a recording's directory: one of ``FORMATS``, or one of ``documents``, the
    kinds of bucketsim's own files that are legal here.

    The head of the file tells it: a Kineto trace of any size within its first events.

    Raises:
        InputError: none of these, or a file that ``open_bytes`` refuses (a pickle, an archive).
    """
    source = Path(path)
    if source.is_dir():
        if any(_RANK_FILE.fullmatch(entry.name) for entry in source.iterdir()):
            return RECORDING.name
        raise InputError(f"{source}: a directory without rank-<r>.jsonl; give files or a recording")
    with open_bytes(source) as stream:
        chunks = utf8_chunks(stream, MOST_BYTES)
        head = next(chunks, b"")
        if not head.strip():
            raise InputError(f"{source}: the file is empty; {_LEGAL}")
        is_json = head.lstrip()[:1] in (b"{", b"[")
        every = chain([head], chunks)
        found = _of_json(_first(every, MOST_JSON_BYTES), source, documents) if is_json else _of_text(every)
    if found is None and is_json:
        # Logs begin with brackets too: [1,0]<stdout>:
        with open_bytes(source) as stream:
            found = _of_text(utf8_chunks(stream, MOST_BYTES))
    if found is not None:
        return found
    if b"\0" in head:
        raise InputError(f"{source}: a binary file; {_LEGAL}")
    raise InputError(f"{source}: not recognised; {_LEGAL}")


_LEGAL = f"give {', '.join(one.called for one in FORMATS.values())}, or a workload or hardware file"


def _first(chunks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """The first ``most`` bytes of ``chunks``, in chunks."""
    for chunk in chunks:
        yield chunk[:most]
        most -= len(chunk)
        if most <= 0:
            return


def _of_json(chunks: Iterator[bytes], source: Path, documents: Sequence[str]) -> str | None:
    """The format of a JSON document, as soon as its keys tell it."""
    seen: set[tuple[int, str]] = set()
    top: dict[str, str | None] = {}
    keys = Keys(top, seen)
    for depth, key, value in json_keys(chunks):
        if (depth, key) in seen and depth > 1:
            continue
        seen.add((depth, key))
        if len(seen) > MOST_KEYS:
            return None
        if depth == 1:
            top[key] = value
        if (found := _told_by(keys)) is None:
            continue
        if found not in (*FORMATS, *documents):
            legal = f"{', '.join(documents[:-1])} or {documents[-1]}"
            raise InputError(f"{source}: kind: {found!r} is not legal here; give a {legal}")
        return found
    return next((name for name, one in FORMATS.items() if one.by_keys(keys)), None)


def _told_by(keys: Keys) -> str | None:
    kind = keys.top.get("kind")
    if "kind" in keys.top and "schema_version" in keys.top:
        return kind or "none"
    if kind == "import" and "format" in keys.top:
        return kind  # the summary that an import leaves
    return next((name for name, one in FORMATS.items() if one.by_head(keys)), None)


def _of_text(chunks: Iterator[bytes]) -> str | None:
    """The format of a text, whose first lines may be of no format."""
    kept = ""
    for chunk in islice(chunks, 64):
        text = kept + chunk.decode("utf-8", "replace")
        if (found := next((name for name, one in FORMATS.items() if one.by_text(text)), None)) is not None:
            return found
        kept = text[text.rfind("\n") + 1 :][-4096:]
    return None
