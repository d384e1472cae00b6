"""Helpers for the sentences of importers: counts, names of files, and text of others made fit to show."""

from collections.abc import Sequence

LONGEST_WORD, LONGEST_LINE = 120, 380


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
