"""The sentences of importers: what a reader gathers, counts, and text of others made fit to show."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.importer.imported import SENTENCES

LONGEST_WORD, LONGEST_LINE = 120, 380


@dataclass(slots=True, kw_only=True)
class Notes:
    """Sentences for the summary, as ``Imported`` has them."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    def each(self) -> dict[str, Any]:
        """The sentences by the names of ``Imported``'s fields; of equal ones the first."""
        return {kind: tuple(dict.fromkeys(getattr(self, kind))) for kind in SENTENCES}


def count_of(number: int, noun: str) -> str:
    """``1 bucket``, ``2 buckets``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(words: Sequence[str], most: int = 8) -> str:
    """The first of them with commas between, and ``...`` where there are more."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def plain(text: str, longest: int = LONGEST_WORD) -> str:
    """Text of others made fit to show: without control characters and surrogates, a long one cut in its
    middle.
    """
    text = text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
    if len(text) <= longest:
        return text
    half = (longest - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
