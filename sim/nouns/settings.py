"""What can be set in a system: each setting is a field of the system's one dataclass, made by ``setting``.

From the field follow which values are refused, with which words, and what command line and page offer.
"""

import sys
from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Any, TypeVar, get_args

from sim.errors import InputError, NotModelledError

MAX_ACCUMULATION_STEPS = 10_000
T = TypeVar("T")


def setting(
    default: Any,
    help: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
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


def _kinds(one: Field[Any]) -> tuple[Any, ...]:
    return get_args(one.type) or (one.type,)


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
    words, taken = _taken(one, value)
    if taken is None:
        raise InputError(f"{system}: {one.name}={value!r} is not legal; give {words}")
    return taken


def _taken(one: Field[Any], value: Any) -> tuple[str, Any]:
    """What is legal, in words, and ``value`` as it is taken; None if it is not legal."""
    told, kinds = one.metadata, _kinds(one)
    if told["choices"]:
        is_legal = isinstance(value, str) and value in told["choices"]
        return f"one of {', '.join(told['choices'])}", value if is_legal else None
    if bool in kinds:
        return "true or false", value if isinstance(value, bool) else None
    if str in kinds:
        return "text", value if isinstance(value, str) else None
    least, above, most = told["least"], told["above"], told["most"]
    is_legal = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value > above if above is not None else value >= (least or 0))
        and value <= (most or sys.float_info.max)
    )
    if int not in kinds:
        bound = f"> {above}" if above is not None else f">= {least or 0}"
        return f"a finite number {bound}", float(value) if is_legal else None
    words = f"a whole number >= {least or 0}" if most is None else f"an integer {least or 0} to {most}"
    is_whole = is_legal and (isinstance(value, int) or value.is_integer())  # 5e8 is whole in JSON, too
    return words, int(value) if is_whole else None
