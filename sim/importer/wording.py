"""Small words of the sentences that importers write."""


def count_of(number: int, noun: str) -> str:
    """``1 bucket``, ``2 buckets``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
