"""Readers of settings by other systems' own names: each takes a value as that system does, or refuses it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.ddp_switches import MAX_ACCUMULATION_STEPS
from sim.nouns.workload import Gradient

Reader = Callable[[str, str, Any], Any]  # of the system's name, the setting's name and its value


def refuse(system: str, name: str, value: object, legal: str) -> InputError:
    """The error for a value that is not ``legal``."""
    return InputError(f"{system}: {name}={value!r} is not legal; give {legal}")


def read_settings(
    system: str, settings: Mapping[str, Any], modelled: Mapping[str, str], readers: Mapping[str, Reader]
) -> dict[str, Any]:
    """The value of each of ``settings``, as its reader takes it.

    Raises:
        InputError: a value that is not legal. NotModelledError: a name that is not among ``modelled``.
    """
    for name, value in settings.items():
        if name not in modelled:
            raise NotModelledError(
                f"{system}: {name}={value!r} is not modelled; modelled settings: {', '.join(modelled)}"
            )
    return {name: readers[name](system, name, value) for name, value in settings.items()}


def read_flag(system: str, name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refuse(system, name, value, "true or false")
    return value


def read_count(least: int, *, most: float = math.inf) -> Reader:
    """A reader of integers from ``least`` to ``most``; like these systems it takes 5e8, too."""
    legal = f"a whole number >= {least}" if most == math.inf else f"an integer {least} to {most}"

    def read(system: str, name: str, value: Any) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or not least <= value <= most:
            raise refuse(system, name, value, legal)
        return int(value)

    return read


read_micro_batches = read_count(1, most=MAX_ACCUMULATION_STEPS)


def check_wire_bytes(gradient: Gradient, label: str, system: str, decides: str) -> None:
    """Raise ``NotModelledError`` if ``gradient`` has its own ``wire_bytes``: the setting ``decides`` them."""
    if gradient.on_wire != gradient.num_bytes:
        raise NotModelledError(
            f"{label} has wire_bytes {gradient.on_wire}; what {system} sends follows from num_bytes "
            f"and {decides}"
        )
