"""Ways in which a file comes damaged: of its bytes, of its words, of a member of its JSON."""

import gzip
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import SimError
from sim.formats.documents import parse_document, to_document
from sim.importer.imported import Imported, ImportOptions, hardware_names, summary_of, write_imported
from sim.importer.readers import read_files

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z_]+|[^\sA-Za-z_0-9]')
_DEEP = 100_000
WORDS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-400", "9" * 5000, "-1", "0", "0.0", "00", "-0"),
    *("1e308", str(2**31), str(2**63), str(2**64), "18446744073709551615.999", "1" * 400, "1_000", "0x10"),
    *("null", "true", *"\"'{}[],:\\"),
    *('""', '"\\ud800"', '"\\u0000"', '"a\\nb"'),
    *('"\x1b[31mred"', "\x1b[2J", "\x00", "\r", "\u2028", "\u202e", '"' + "x" * 5000 + '"', "# ", "٣", "½"),
    *('"' + "é" * 300 + '"', "{}", "[]", "[[]]", '{"a": 1}', '"float"', "float", "N/A", "1.5", "1,5"),
)
HUGE: tuple[Any, ...] = (
    *(float("nan"), float("inf"), 10**4000, -1, 2**53 + 1, 1e-300, "9" * 5000, "\x1b[31m", "\ud800", "a\nb"),
    *("x" * 5000, [[]] * 2000, list(range(3000)), {str(number): number for number in range(2000)}),
)
_Deed = Callable[[random.Random, bytes, bytes], bytes]


def damaged(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """A file's content with one to three things wrong; ``other`` is a valid file to take pieces of."""
    zipped = content.startswith(b"\x1f\x8b")
    content = gzip.decompress(content) if zipped else content
    other = gzip.decompress(other) if other.startswith(b"\x1f\x8b") else other
    for _ in range(draw.choice((1, 1, 1, 1, 2, 3))):
        content = draw.choice(_DEEDS)(draw, content, other)
    if zipped or draw.random() < 0.05:
        content = gzip.compress(content, 1)
        if draw.random() < 0.2:
            content = draw.choice((_cut, _flip))(draw, content, other)
    return content


def _at(draw: random.Random, content: bytes) -> int:
    return draw.randint(0, len(content))


def _cut(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """From a place on, or up to it, all is gone, or another file's."""
    place = _at(draw, content)
    return draw.choice((content[:place], content[place:], content[:place] + other[_at(draw, other) :]))


def _flip(draw: random.Random, content: bytes, other: bytes) -> bytes:
    made = bytearray(content)
    for _ in range(draw.randint(1, 8) if made else 0):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def _again(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """A part is gone, comes twice, or has something strange before it."""
    first, last = sorted((_at(draw, content), _at(draw, content)))
    noise = (b"\0" * 50, b"\xff\xfe\xc3\x28", b" " * 10_000, b"\n" * 3000, b"," * 5000, b"x" * 200_000)
    between = draw.choice((b"", content[first : first + draw.randint(1, 3000)], draw.choice(noise)))
    return content[:first] + between + content[first if between else last :]


def _lines(draw: random.Random, content: bytes, other: bytes) -> bytes:
    lines, deed = content.split(b"\n"), draw.randrange(3)
    place = draw.randrange(len(lines))
    if deed == 0:
        draw.shuffle(lines)
    elif deed == 1:
        lines[place : place + 1] = [lines[place]] * draw.choice((0, 2, 50))
    else:
        lines[place] += b" " + lines[place] * draw.choice((1, 300))
    return b"\n".join(lines)


def _encode(draw: random.Random, content: bytes, other: bytes) -> bytes:
    text = content.decode("utf-8", "replace")
    encoding = draw.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "cp500"))
    return text.replace("a", draw.choice("aäß")).encode(encoding, "replace")


def _nest(draw: random.Random, content: bytes, other: bytes) -> bytes:
    place = _at(draw, content)
    if draw.random() < 0.5 and (found := content.rfind(b":", 0, place)) >= 0:
        place = found + 1
    return content[:place] + draw.choice((b"[", b'{"a":', b"(")) * _DEEP + content[place:]


def _words(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """Tokens replaced, by those of another document too."""
    text, strange = content.decode("utf-8", "replace"), other.decode("utf-8", "replace")
    spans = [found.span() for found in _TOKEN.finditer(text)]
    words = [found[0] for found in _TOKEN.finditer(strange)] or ["x"]
    chosen = draw.sample(spans, min(len(spans), draw.choice((1, 1, 2, 5))))
    for first, last in sorted(chosen, reverse=True):
        word = draw.choice(WORDS) if draw.random() < 0.7 else draw.choice(words)
        text = text[:first] + word + text[last:]
    return text.encode("utf-8", "replace")


def _members(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """A member of a JSON document, or of one of its lines, replaced, deleted, doubled or given twice."""
    lines, place, document = content.split(b"\n"), 0, _json(content)
    if document is None:
        place = draw.randrange(len(lines))
        document = _json(lines[place])
    else:
        lines = [content]
    if document is None:
        return _words(draw, content, other)
    ways = places(document)
    for _ in range(draw.choice((1, 1, 2, 4)) if ways else 0):
        *path, last = draw.choice(ways)
        with suppress(KeyError, IndexError, TypeError):  # an earlier change took it away
            _change(draw, reduce(getitem, path, document), last)
    lines[place] = json.dumps(document).encode("utf-8", "replace")
    if ways and draw.random() < 0.1:  # a key of the top twice
        lines[place] = b'{"' + str(ways[0][0]).encode() + b'": 1, ' + lines[place][1:]
    return b"\n".join(lines)


def _json(content: bytes) -> Any:
    """None where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _change(draw: random.Random, holder: Any, key: Any) -> None:
    deed = draw.randrange(8)
    value = holder[key]
    if deed == 0:
        del holder[key]
    elif deed == 1 and isinstance(holder, list):
        holder.insert(key, deepcopy(value))
    elif deed == 2 and isinstance(value, int | float) and abs(value) < 1e300:
        holder[key] = draw.choice((-value, str(value), value * 1e6, value + 0.5, [value], bool(value)))
    elif deed == 3 and isinstance(value, str):
        holder[key] = draw.choice(
            (value.upper(), value + "\x1b[0m", value[:1], [value], {value: value}, len(value))
        )
    elif deed == 4 and isinstance(value, list):
        holder[key] = draw.choice((value[::-1], value * 3, value[:1], {"values": value}, str(value)))
    else:
        holder[key] = deepcopy(draw.choice(JUNK if draw.random() < 0.6 else HUGE))


_DEEDS: tuple[_Deed, ...] = (
    *(_cut,) * 3,
    *(_again,) * 3,
    *(_flip, _lines, _encode, _nest),
    *(_words,) * 6,
    *(_members,) * 18,
)

# Files as they may really come: a document with one thing wrong in it.

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**62, 2**63, 10**400, -(10**30), 1.5, -0.0, 1e308),
    *("", "0", "x", "-1", "float", "completed", "nccl:all_reduce", "[[1]]", "9 8, 7", "N/A", "[", "\x00"),
    *([], [[]], [[[]]], [0], ["x"], [None], {}, {"a": 1}, {"values": []}),
)


def places(document: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every member of every object and list."""
    pairs: Any = document.items() if isinstance(document, dict) else ()
    pairs = enumerate(document) if isinstance(document, list) else pairs
    return [way for key, item in pairs for way in ((*where, key), *places(item, (*where, key)))]


# What must hold whatever import is given: an answer that stands, or one of our errors in a short line.

LONGEST_MESSAGE, MOST_SECONDS = 400, 10.0
_BESIDE_FILES = ("PATH: ", "--", "model ", "paths: ")


def judge(form: str, paths: Sequence[Path], options: ImportOptions) -> str | None:
    """Read, and hold what comes against the rules; the format that was read, None if it was refused.

    Raises ``AssertionError``, or what escaped.
    """
    begin, found = time.process_time(), None
    try:
        imported = read_files(form, paths, options)
    except SimError as error:
        check_message(str(error), paths)
    else:
        check_result(imported)
        found = imported.format
    took = time.process_time() - begin
    assert took < MOST_SECONDS, f"{took:.1f} s"
    return found


def check_message(message: str, paths: Sequence[Path]) -> None:
    """One short line without control characters that names a file, or the option that is wrong."""
    names = {str(path) for path in paths} | {path.name for path in paths}
    names |= {str(path.parent) for path in paths}
    names |= {entry.name for path in paths if os.path.isdir(path) for entry in path.iterdir()}
    assert message.isprintable(), message[:500]
    bare = message
    for name in sorted(names, key=len, reverse=True):
        bare = bare.replace(name, "F")
    assert len(bare) < LONGEST_MESSAGE, message[:800]
    assert bare != message or message.startswith(_BESIDE_FILES), message


def check_result(imported: Imported) -> None:
    """It can be written, read again and shown; its sentences are lines."""
    for sentence in (note.text for note in imported.notes):
        assert sentence.isprintable(), sentence
        assert len(sentence) < 2 * LONGEST_MESSAGE, sentence
    json.dumps(summary_of(imported), allow_nan=False)
    for noun in filter(None, (imported.workload, *imported.hardware, *imported.measurements)):
        document: Any = json.loads(json.dumps(to_document(noun), allow_nan=False))
        assert parse_document(document, type(noun), "again") == noun
    with tempfile.TemporaryDirectory() as folder:
        for path in (*write_imported(imported, folder), Path(folder) / "summary.json"):
            json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    assert len(set(hardware_names(imported))) == len(imported.hardware)


def no_constant(word: str) -> NoReturn:
    """For ``json.loads``: what is written has no NaN."""
    raise AssertionError(f"{word} was written")
