"""Small words of the sentences that importers write, and what others wrote as it may stand in them."""

from pathlib import Path

LONGEST_WORD, LONGEST_LINE = 120, 380


def count_of(number: int, noun: str) -> str:
    """``1 bucket``, ``2 buckets``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def stem_of(path: Path) -> str:
    """The name of a file without ``.json`` or ``.json.gz``."""
    return path.name.removesuffix(".gz").removesuffix(".json")


def plain(text: str, longest: int = LONGEST_WORD) -> str:
    """Others' text as it may be shown: no control characters or surrogates, and of a long one both ends."""
    text = text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
    if len(text) <= longest:
        return text
    half = (longest - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
