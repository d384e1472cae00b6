"""What is legal: ``Legal`` in a field's annotation says it, and is checked whenever a noun is made.

Every message names the field, the value and what is legal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, get_args, get_origin

from sim.errors import InputError

MAX_INT = 2**62  # ns: 146 years; bytes: 4 EiB. Beyond it a number is a mistake, not a measurement.


@dataclass(frozen=True, slots=True, kw_only=True)
class Legal:
    """What a value may be: one of ``words``, a flag, a text, or a number of ``kind`` within ``least``, itself
    legal unless ``is_open``, and ``most``."""

    words: tuple[Any, ...] = ()
    kind: type = int
    least: float = 0
    is_open: bool = False
    most: float = MAX_INT

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is legal."""
        if self.words or self.kind in (bool, str):
            return value in self.words if self.words else isinstance(value, self.kind)
        is_number = type(value) is int or (self.kind is float and isinstance(value, float))
        return is_number and self.least <= value <= self.most and not (self.is_open and value == self.least)

    def take(self, field: str, value: Any) -> Any:
        """``value``. Raises ``InputError`` unless it is legal."""
        if not self.holds(value):
            raise InputError(f"{field}: {shown(value)} is not legal; give {self}")
        return value

    def __str__(self) -> str:
        if self.words:
            return f"one of {', '.join(map(str, self.words))}"
        if self.kind in (bool, str):
            return "true or false" if self.kind is bool else "text"
        what, bound = "an integer" if self.kind is int else "a number", "above" if self.is_open else ">="
        most = "2**62" if self.most == MAX_INT else f"{self.most:.7g}"
        return f"{what} {bound} {self.least:.7g}, at most {most}"


Count = Annotated[int, Legal()]  # of anything, of ns, of bytes
Positive = Annotated[int, Legal(least=1)]
Factor = Annotated[float, Legal(kind=float, least=1)]
Rate = Annotated[float, Legal(kind=float, least=1)]  # bytes/s: slower than one is a mistake


class Checked:
    """A noun whose fields are legal; one with a ``__post_init__`` of its own calls ``check`` there."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def check(noun: Any) -> None:
    """Raise ``InputError`` unless each field of a dataclass is what its annotation says."""
    for name, legal in legal_fields(noun.__class__).items():
        value = getattr(noun, name)
        if not (type(value) is legal.kind is int and legal.least <= value <= legal.most):
            _check_value(name, value, legal)


def _check_value(field: str, value: Any, legal: Legal) -> None:
    """Raise ``InputError`` unless ``value``, or all that a tuple holds, is legal or None."""
    if not isinstance(value, tuple | list):
        if value is not None:
            legal.take(field, value)
        return
    flat = tuple(chain.from_iterable(value)) if value and isinstance(value[0], tuple | list) else value
    is_whole = legal.kind is int and set(map(type, flat)) == {int}  # of many numbers the ends will do
    for item in (min(flat), max(flat)) if is_whole else flat:
        _check_value(field, item, legal)


@cache
def legal_fields(noun: Any) -> dict[str, Legal]:
    """What is legal for the fields of a dataclass that have a range or a choice of words."""
    found = {one.name: legal_by(one.type) for one in fields(noun)}
    return {name: legal for name, legal in found.items() if legal is not None}


def legal_by(annotation: Any) -> Legal | None:
    """What an annotation says is legal: of the value, of what a tuple holds, or of what may be None; None
    where it has neither a range nor words."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return Legal(words=parts, kind=str)
    if get_origin(annotation) is Annotated:
        return next(mark for mark in parts if isinstance(mark, Legal))
    return next((legal for part in parts if (legal := legal_by(part)) is not None), None)


def no_duplicates(field: str, values: Sequence[Any]) -> None:
    """No value twice."""
    if len(set(values)) < len(values):
        twice = next(value for value, times in Counter(values).items() if times > 1)
        raise InputError(f"{field}: {shown(twice)} occurs twice; each may occur once")


def shown(value: object) -> str:
    """A value for a message; of a very long one the beginning."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:60]}… ({len(written)} characters)"
