"""From ``MODULE:FACTORY`` and its arguments to the object that is recorded."""

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import nn

from sim.errors import InputError, SimError

Pair = tuple[nn.Module, object]  # a model and its batch

# Short for those of sim.recorder.models: nobody's own models.py has factories of these names.
_OURS = ("models:huggingface", "models:torchvision")


def load_factory(spec: str, *, arguments: Mapping[str, Any] | None = None) -> Pair:
    """Import ``MODULE:FACTORY``, call it with ``arguments`` and return the ``(model, batch)`` that it made.

    The working directory is put on ``sys.path`` (first, as ``python -m`` does) and stays there,
    since the step may import more when it runs.

    Args:
        spec: such as ``sim.recorder.models:gpt``; the part after the colon may have dots. Two may be
            shortened: ``models:huggingface`` and ``models:torchvision``.
        arguments: keyword arguments of the factory.

    Raises:
        InputError: a malformed spec, a module or name that is not there, arguments that the factory
            does not take, an exception inside it, or another return value.
    """
    found: Any = import_module_of(spec)
    for part in spec.partition(":")[2].split("."):
        if not hasattr(found, part):
            raise InputError(f"factory: {spec}: {found.__name__} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"factory: {spec} is a {type(found).__name__}; give the name of a callable")
    given = dict(arguments or {})
    try:
        signature = inspect.signature(found)
        signature.bind(**given)
    except ValueError:
        raise InputError(f"factory: {spec} is built in; give a function of your own") from None
    except TypeError as error:
        raise InputError(f"factory: {spec}: {error}; it takes {signature}") from None
    try:
        made: Any = found(**given)
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"factory: {spec} raised {describe(error)}") from error
    if isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], nn.Module):
        return (made[0], made[1])
    kind = type(made).__name__
    raise InputError(
        f"factory: {spec} returned a {kind}; return (model, batch); sim.record records a loop of your own"
    )


def import_module_of(spec: str) -> ModuleType:
    """Import a factory's module, from the working directory too. Raises ``InputError`` where it cannot be."""
    name, _, attribute = spec.partition(":")
    if not name or not attribute:
        raise InputError(
            f"factory: {spec!r} is not legal; give MODULE:FACTORY, such as sim.recorder.models:gpt"
        )
    if spec in _OURS:
        name = f"sim.recorder.{name}"
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"factory: module {name!r} is not legal; give a dotted name, such as package.module")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        missing = (isinstance(error, ModuleNotFoundError) and error.name) or ""
        if missing and f"{name}.".startswith(f"{missing}."):
            where = f"{here} and sys.path were searched"
            raise InputError(f"factory: module {missing!r} was not found; {where}") from error
        raise InputError(f"factory: importing {name} raised {describe(error)}") from error


def describe(error: BaseException) -> str:
    """``ValueError: its first line``, for messages of one line."""
    text = str(error).strip()
    name = type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name
