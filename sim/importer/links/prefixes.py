"""What launchers and loggers write before each line: found before a header, taken off every line."""

import re
from collections.abc import Callable

LONGEST_HEADER, LONGEST_PREFIX = 2000, 200

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")
_PART = re.compile(r"(?P<word>[\w./+-]+)|(?P<space>\s+)|(?P<mark>.)")


def headers_in(
    text: str, may_be: re.Pattern[str], known_columns: Callable[[str], int]
) -> list[tuple[str, str]]:
    """Each header of a text, after what stands before it on its line.

    ``known_columns`` counts the columns of a line that a table of collectives has; 0 for no header.
    """
    found = []
    for line in text.splitlines():
        if len(line) > LONGEST_HEADER or " NCCL " in line or not may_be.search(line):
            continue
        line = _ANSI.sub("", line)
        starts = [match.start() for match in _START.finditer(line[:LONGEST_PREFIX])]
        best = max(starts, key=lambda start: (known_columns(line[start:]), -start), default=0)
        if known_columns(line[best:]) and (
            re.search(r"\w", line[:best]) is None or _is_prefix(line[:best], text)
        ):
            found.append((line[:best], line[best:]))
    return found


def without_prefixes(text: str, prefixes: set[str]) -> str:
    """The text without colours, and without what has the shape of one of the prefixes before a line."""
    text = _ANSI.sub("", text)
    shapes = sorted(
        {_shape(prefix) for prefix in prefixes if re.search(r"\w", prefix)}, key=len, reverse=True
    )
    return (
        re.sub(rf"^(?:{'|'.join(sorted(shapes, key=len, reverse=True))})", "", text, flags=re.MULTILINE)
        if shapes
        else text
    )


def _is_prefix(before: str, text: str) -> bool:
    """Whether words before a header are a prefix: they end as one, or a row has them too."""
    is_stamped = before.rstrip()[-1:] in (":", "|", ">", "]", ")") or re.search(r"\d:\d\d", before)
    row = rf"^{re.escape(before.rstrip())}[ \t]+\d"
    return bool(is_stamped) or re.search(row, text, re.MULTILINE) is not None


def _shape(prefix: str) -> str:
    """A prefix as a pattern: another host, rank or time has the same marks; bare words are themselves."""
    prefix = prefix.strip()
    if all(part["mark"] is None for part in _PART.finditer(prefix)):
        return rf"[ \t]*{re.escape(prefix)}(?=[ \t#])"
    parts = []
    for part in _PART.finditer(prefix):
        if part["word"]:
            parts.append(r"[\w./+-]+")
        else:
            parts.append(r"[ \t]+" if part["space"] else re.escape(part["mark"]))
    ends = r"(?=[ \t#]|$)" if re.search(r"\w$", prefix) else ""
    return rf"[ \t]*{''.join(parts)}{ends}"
