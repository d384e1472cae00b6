"""Reads a communication hook by the table of hooks, and says which all-reduces a bucket has under it."""

import math
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.systems.hook_table import HOOKS, CommHook, Message, Number, SentBucket, send_all

# Hooks of torch's that stop in torch itself, and what to give in their place.
_STOPPING = {"batched_powerSGD": "powerSGD"}


def read_comm_hook(value: Any) -> CommHook:
    """A hook from its name, or from an object with ``name`` and its numbers. Raises ``InputError``."""
    given: dict[str, Any] = {"name": value} if isinstance(value, str) else {}
    if isinstance(value, dict):
        given = dict(value)
    name = given.pop("name", None)
    if isinstance(name, str) and name in _STOPPING:
        raise NotModelledError(f"ddp: comm_hook={name!r} stops in torch itself; give {_STOPPING[name]}")
    if not isinstance(name, str) or name not in HOOKS:
        raise InputError(f"ddp: comm_hook={value!r} is not legal; give {_offered()}")
    kind = HOOKS[name]
    for key, number in given.items():
        if key not in kind.numbers:
            raise InputError(
                f"ddp: comm_hook.{key}={number!r} is not legal for {name}; give "
                f"{', '.join(kind.numbers) or 'its name alone'}"
            )
        if problem := _problem(number, kind.numbers[key]):
            raise InputError(f"ddp: comm_hook.{key}={number!r} is not legal; give {problem}")
    numbers = {key: number.default for key, number in kind.numbers.items()} | given
    if problem := kind.problem(numbers):
        raise InputError(f"ddp: {problem}")
    return CommHook(kind=kind, numbers=numbers)


def _offered() -> str:
    """All hooks in words, those with numbers last."""
    plain = [one.name for one in HOOKS.values() if not one.numbers]
    numbered = [one for one in HOOKS.values() if one.numbers]
    objects = [
        f"an object with name {one.name} and "
        f"{', '.join(key for key, number in one.numbers.items() if not isinstance(number.default, bool))}"
        for one in numbered
    ]
    return f"{', '.join(plain)} or {' or '.join(one.name for one in numbered)}, or {' or '.join(objects)}"


def _problem(given: Any, number: Number) -> str:
    """What would be legal in place of ``given``; empty if it is."""
    if isinstance(number.default, bool):
        return "" if isinstance(given, bool) else "true or false"
    if isinstance(given, bool) or not isinstance(given, int | float):
        return "a number"
    if isinstance(number.default, int):
        legal = isinstance(given, int) and given >= number.least
        return "" if legal else f"an integer >= {number.least}"
    return "" if 0 <= given < math.inf else "a finite number >= 0"


def messages(hook: CommHook | None, bucket: SentBucket, compresses: bool) -> list[Message]:
    """The all-reduces of one bucket, each launched when the one before is done.

    Args:
        hook: None is DDP's own all-reduce, which divides while it copies in.
        bucket: what is reduced.
        compresses: whether the hook's warm-up is over.
    """
    if hook is None:
        return [Message(num_bytes=bucket.num_bytes, elements=bucket.elements, dtype=bucket.dtype)]
    if hook.kind.warm_up and not compresses:
        return send_all(hook, bucket)
    return hook.kind.sends(hook, bucket)
