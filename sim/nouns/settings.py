"""What can be set in a system: each setting is a field of the system's one dataclass, made by ``setting``.

From the field follow which values are refused, with which words, and what command line and page offer.
"""

from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Any, TypeVar, get_args

from sim.errors import InputError, NotModelledError
from sim.nouns.checks import MAX_INT, Legal

MAX_ACCUMULATION_STEPS = 10_000
T = TypeVar("T")


def setting(
    default: Any,
    help: str = "",
    *,
    least: float = 0,
    above: float | None = None,
    most: float = MAX_INT,
    choices: tuple[str, ...] = (),
    not_modelled: Mapping[str, str] | None = None,
    **more: Any,
) -> Any:
    """A field that can be set. Its type says what is legal: a flag, a number or a text.

    Args:
        default: the system's own; where it is None, None may be given, too.
        help: the page's words for it; without any the page does not offer it.
        least: of a number; ``above`` instead, where the bound itself is not legal. ``most``: the other bound.
        choices: the only texts that are legal.
        not_modelled: further values that the system takes, and why they are refused.
        more: what only some systems say of a setting.
    """
    told = {"least": least, "above": above, "most": most, "choices": choices}
    return field(default=default, metadata={"help": help, "not_modelled": not_modelled or {}, **told, **more})


def micro_batches(**more: Any) -> Any:
    """The setting of how many micro-batches a step has, whatever its name."""
    words = "Micro-batches a step. The gain is against DDP's default with as many."
    return setting(1, words, least=1, most=MAX_ACCUMULATION_STEPS, **more)


def settings_of(cls: Any) -> Mapping[str, Field[Any]]:
    """The settings of a dataclass by name, in order; its other fields are none."""
    return {one.name: one for one in fields(cls) if one.metadata}


def read(cls: type[T], system: str, given: Mapping[str, Any], **known: Any) -> T:
    """``cls`` with the settings that are ``given``, and with ``known``, its fields that are none.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a name that is no setting, or a value that is not modelled.
    """
    settings = settings_of(cls)
    for name, value in given.items():
        if name not in settings:
            raise NotModelledError(
                f"{system}: {name}={value!r} is not modelled; modelled settings: {', '.join(settings)}"
            )
    return cls(**known, **{name: _read(system, settings[name], value) for name, value in given.items()})


def _read(system: str, one: Field[Any], value: Any) -> Any:
    """The value as the system takes it."""
    if value is None and one.default is None:
        return None
    told = one.metadata
    if isinstance(value, str) and value in told["not_modelled"]:
        raise NotModelledError(
            f"{system}: {one.name}={value!r} is not modelled: {told['not_modelled'][value]}; "
            f"give one of {', '.join(told['choices'])}"
        )
    kinds = get_args(one.type) or (one.type,)
    kind = next((kind for kind in (bool, int, float) if kind in kinds), str)
    least, is_open = (told["least"], False) if told["above"] is None else (told["above"], True)
    legal = Legal(words=told["choices"], kind=kind, least=least, is_open=is_open, most=told["most"])
    is_whole = kind is int and isinstance(value, float) and value.is_integer()  # as 5e8 is in JSON
    if not legal.holds(int(value) if is_whole else value):
        raise InputError(f"{system}: {one.name}={value!r} is not legal; give {legal}")
    return kind(value)
