"""From ``MODULE:FACTORY`` and its arguments to the object that is recorded."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from torch import nn

from sim.errors import InputError, SimError

Step = Callable[[], object]
Pair = tuple[nn.Module, object]

# Short for those of sim.recorder.models: nobody's own models.py has factories of these names.
_OURS = ("models:huggingface", "models:torchvision")

_LEGAL_RETURN = "return (model, batch), or a callable that runs one training step"


def load_factory(spec: str, *, arguments: Mapping[str, Any] | None = None) -> Step | Pair:
    """Import ``MODULE:FACTORY``, call it with ``arguments`` and return what it made.

    The working directory is put on ``sys.path`` (first, as ``python -m`` does) and stays there,
    since the step may import more when it runs.

    Args:
        spec: such as ``sim.recorder.models:gpt``; the part after the colon may have dots. Two may be
            shortened: ``models:huggingface`` and ``models:torchvision``.
        arguments: keyword arguments of the factory.

    Returns:
        ``(model, batch)``, or a callable that runs one training step.

    Raises:
        InputError: a malformed spec, a module or name that is not there, arguments that the factory
            does not take, an exception inside it, or a return value that is neither of the two.
    """
    module = import_module_of(spec)
    found: Any = module
    for part in spec.partition(":")[2].split("."):
        if not hasattr(found, part):
            own = [
                name
                for name, one in vars(found).items()
                if callable(one) and getattr(one, "__module__", "") == module.__name__ and name[:1] != "_"
            ]
            raise InputError(f"factory: {module.__name__} has no {part!r}{near(part, sorted(own))}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"factory: {spec} is a {type(found).__name__}; give the name of a callable")
    given = dict(arguments or {})
    _check_arguments(found, given, spec)
    try:
        made: Any = found(**given)
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"factory: {spec} raised {describe(error)}") from error
    if isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], nn.Module):
        return (made[0], made[1])
    if isinstance(made, nn.Module):
        raise InputError(f"factory: {spec} returned a module alone; {_LEGAL_RETURN}")
    if not callable(made):
        raise InputError(f"factory: {spec} returned {what_is(made)}; {_LEGAL_RETURN}")
    step: Step = made
    return step


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


def _check_arguments(factory: Callable[..., object], given: Mapping[str, Any], spec: str) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # a builtin without one: the call itself will tell
        return
    takes = signature.parameters
    unknown = [name for name in given if name not in takes]
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        raise InputError(f"factory: {spec} takes no {unknown[0]!r}; it takes {signature}")
    try:
        signature.bind(**given)
    except TypeError as error:
        raise InputError(f"factory: {spec}: {error}; it takes {signature}") from None


def describe(error: BaseException) -> str:
    """``ValueError: its first line``, for messages of one line."""
    text = str(error).strip()
    name = type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name


def near(name: str, names: Sequence[str]) -> str:
    """``; near it: a, b`` or, with nothing near, ``; it has: a, b, c``; empty without names."""
    if close := difflib.get_close_matches(name, names, n=3, cutoff=0.5):
        return f"; near it: {', '.join(close)}"
    return f"; it has: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""


def what_is(value: object) -> str:
    """A value by its type, for messages: ``a dict``, ``a tuple of Linear, int``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    said = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
    if isinstance(value, (tuple, list)):
        said += f" of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return said
