"""Readers of settings by other systems' own names: each takes a value as that system does, or refuses it."""

from collections.abc import Callable
from typing import Any

from sim.errors import InputError

Reader = Callable[[str, str, Any], Any]  # of the system's name, the setting's name and its value


def refuse(system: str, name: str, value: object, legal: str) -> InputError:
    """The error for a value that is not ``legal``."""
    return InputError(f"{system}: {name}={value!r} is not legal; give {legal}")


def read_flag(system: str, name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refuse(system, name, value, "true or false")
    return value


def read_count(least: int, step: int = 1) -> Reader:
    """A reader of whole numbers, 5e8 among them, as these systems take them."""

    def read(system: str, name: str, value: Any) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or value < least or int(value) % step:
            even = " and even" if step == 2 else ""
            raise refuse(system, name, value, f"a whole number >= {least}{even}")
        return int(value)

    return read
