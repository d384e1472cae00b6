"""What launchers and loggers write before each line: found before a header, taken off every line."""

import re
from collections.abc import Callable

LONGEST_HEADER, LONGEST_PREFIX = 2000, 200

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")
_PART = re.compile(r"(?P<digits>\d+)|(?P<day>\b[A-Z][a-z]{2}\b)|(?P<space>\s+)|(?P<mark>.)")


def headers_in(text: str, may_be: re.Pattern[str], known_columns: Callable[[str], int]) -> dict[int, str]:
    """What stands before each header of a text on its line, by the line's number.

    ``known_columns`` counts the columns of a line that a table of collectives has; 0 for no header.
    """
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_HEADER or " NCCL " in line or not may_be.search(line):
            continue
        line = _ANSI.sub("", line)
        starts = [match.start() for match in _START.finditer(line[:LONGEST_PREFIX])]
        best = max(starts, key=lambda start: (known_columns(line[start:]), -start), default=0)
        if known_columns(line[best:]) and (
            not re.search(r"\w", line[:best]) or _is_prefix(line[:best], text)
        ):
            found[number] = line[:best]
    return found


def without_prefixes(text: str, prefixes: set[str]) -> str:
    """The text without colours, and without what has the shape of one of the prefixes before a line."""
    text = _ANSI.sub("", text)
    shapes = sorted({_shape(prefix) for prefix in prefixes if prefix.strip(" \t#|")}, key=len, reverse=True)
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
    """A prefix as a pattern: times, ranks and numbers of hosts may differ, other words are another's."""
    prefix = prefix.strip()
    parts = []
    for part in _PART.finditer(prefix):
        if part["digits"]:
            parts.append(r"\d+")
        elif part["day"]:
            parts.append("[A-Z][a-z]{2}")
        else:
            parts.append(r"[ \t]+" if part["space"] else re.escape(part["mark"]))
    ends = r"(?=[ \t#]|$)" if re.search(r"\w$", prefix) else ""
    return rf"[ \t]*{''.join(parts)}{ends}"


def origin(prefix: str) -> str:
    """What a prefix says of who wrote a line: its words without numbers, days and months."""
    return " ".join(re.sub(r"\b[A-Z][a-z]{2}\b|\d+", "", prefix).strip(" \t#|:>").split())
