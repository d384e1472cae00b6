"""JSON that others wrote, parsed as a whole; too many values for the memory are refused."""

from typing import Any

from sim.errors import InputError
from sim.formats.documents import parse_json

# A value takes up to a hundred bytes, however short its text is: together below a gigabyte.
MOST_VALUES = 8_000_000


def parse_bounded(text: str, source: str) -> Any:
    """JSON text as Python values.

    Raises:
        InputError: more than ``MOST_VALUES`` of them, or as ``parse_json``.
    """
    if sum(text.count(mark) for mark in ",[{:") > MOST_VALUES:
        raise InputError(f"{source}: holds more than {MOST_VALUES} values; give a smaller file")
    return parse_json(text, source)
