"""What can be set in a system: each setting is a field of the system's one dataclass, made by ``setting``.

From the field follow which values are refused, with which words, and what command line and page offer.
"""

from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Annotated, Any, TypeVar, get_args

from sim.errors import InputError, NotModelledError
from sim.nouns.checks import Legal, legal_by

MicroBatches = Annotated[int, Legal(least=1, most=10_000)]  # a step
MICRO_BATCHES = "Micro-batches a step. The gain is against DDP's default with as many."
T = TypeVar("T")


def setting(
    default: Any, help: str = "", *, not_modelled: Mapping[str, str] | None = None, **more: Any
) -> Any:
    """A field that can be set. Its annotation says what is legal: a flag, a number, a text.

    Args:
        default: the system's own; where it is None, None may be given, too.
        help: the page's words for it; without any the page does not offer it.
        not_modelled: further values that the system takes, and why they are refused.
        more: what only some systems say of a setting.
    """
    return field(default=default, metadata={"help": help, "not_modelled": not_modelled or {}, **more})


def settings_of(cls: Any) -> Mapping[str, Field[Any]]:
    """The settings of a dataclass by name, in order; its other fields are none."""
    return {one.name: one for one in fields(cls) if one.metadata}


def legal_setting(one: Field[Any]) -> Legal:
    """What a setting may be beside None: what its annotation says, or anything of its type."""
    kinds = get_args(one.type) or (one.type,)
    return legal_by(one.type) or Legal(kind=next(kind for kind in (bool, int, float, str) if kind in kinds))


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
    legal, refused = legal_setting(one), one.metadata["not_modelled"]
    if isinstance(value, str) and value in refused:
        raise NotModelledError(
            f"{system}: {one.name}={value!r} is not modelled: {refused[value]}; give {legal}"
        )
    is_whole = legal.kind is int and isinstance(value, float) and value.is_integer()  # as 5e8 is in JSON
    if not legal.holds(int(value) if is_whole else value):
        raise InputError(f"{system}: {one.name}={value!r} is not legal; give {legal}")
    return legal.kind(value)
