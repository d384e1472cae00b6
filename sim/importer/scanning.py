"""The keys of a JSON document without reading it whole: where they stand, and short values beside them."""

import codecs
import re
from collections.abc import Iterator
from typing import IO

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)
_FIRST_CHUNK, DEEPEST, LONGEST_VALUE = 1 << 16, 4, 200


def utf8_chunks(stream: IO[bytes], most_bytes: int) -> Iterator[bytes]:
    """A stream as UTF-8, without a byte order mark, in chunks that double; at most ``most_bytes`` of it."""
    size, read = _FIRST_CHUNK, 0
    head = stream.read(size)
    decoder = None
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    else:
        head = head.removeprefix(codecs.BOM_UTF8)
    while head and read < most_bytes:
        read += len(head)
        yield head if decoder is None else decoder.decode(head).encode("utf-8", "replace")
        head = stream.read(min(size, most_bytes - read)) if read < most_bytes else b""
        size *= 2


def json_keys(chunks: Iterator[bytes]) -> Iterator[tuple[int, str, str | None]]:
    """``(depth, key, value)`` of keys down to ``DEEPEST``, as they come; the document's own have depth 1.

    ``value`` is the key's text, "" if it is long, and None if it is no text. If the document stops being
    JSON, the keys end without an error.
    """
    kept, stack, depth = b"", list[bytes](), 0
    word: bytes | None = None  # the last text
    key: str | None = None  # waits for its value
    for chunk in chunks:
        kept += chunk
        used = 0
        for token in _TOKEN.finditer(kept):
            used = token.end()
            mark = token[0]
            if mark[:1] == b'"':
                word = mark
                continue
            if mark == b":":
                if word is not None and stack and stack[-1] == b"{" and depth <= DEEPEST:
                    key = _text(word)
                word = None
                continue
            if key is not None:
                yield depth, key, None if word is None else _text(word)
                key = None
            word = None
            if mark in (b"{", b"["):
                stack.append(mark)
                depth += 1
            elif mark in (b"}", b"]"):
                if not stack:
                    return
                stack.pop()
                depth -= 1
        # A text may have begun in this chunk and end in the next.
        opened = kept.find(b'"', used)
        kept = kept[opened:] if opened >= 0 else b""
    if key is not None:
        yield depth, key, None


def _text(word: bytes) -> str:
    return word[1:-1].decode("utf-8", "replace") if len(word) <= LONGEST_VALUE else ""
