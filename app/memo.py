"""One memo: what was made, between two moves of a knob, by what it was made of.

A noun in a key stands for itself alone, so that it is looked up at once however large it is; nouns that
were read twice are made one by ``one``. A file stands for its name and when it was written. What can be
called is no part of a key. Results are handed out as they are, for all visitors of this process, so they
are frozen; they are bounded by weight: a timeline of 20,000 gradients takes 20 MB, of 20 it takes 0.03.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import sim

Asked = ParamSpec("Asked")
Value = TypeVar("Value")


class Memo(Generic[Asked, Value]):
    """A function that remembers; two visitors may make the same at once, and either is right."""

    def __init__(self, make: Callable[Asked, Value], most: int, weight: Callable[..., int]) -> None:
        self._make, self._most, self._weight = make, most, weight
        self._signature = signature(make)
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Asked.args, **kwargs: Asked.kwargs) -> Value:
        """What is kept; else what is made, which is kept unless that raises."""
        key = self._named(*args, **kwargs)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        value = self._make(*args, **kwargs)
        with self._lock:
            self._kept[key] = value, self._weight(value, *args)
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(weight for _, weight in self._kept.values()) > self._most:
                self._kept.popitem(last=False)
        return value

    def known(self, *args: Asked.args, **kwargs: Asked.kwargs) -> Value | None:
        """What is kept, or None."""
        key = self._named(*args, **kwargs)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key, (None, 0))[0]

    def _named(self, *args: Any, **kwargs: Any) -> Hashable:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _key(bound.args)


def memo(
    most: int, weight: Callable[..., int] = lambda *_: 1
) -> Callable[[Callable[Asked, Value]], Memo[Asked, Value]]:
    """Remember results of ``most`` weight together, at least the last; ``weight`` is told result and key."""
    return lambda make: Memo(make, most, weight)


class _Itself:
    """A noun in a key, which keeps it: nothing else takes its place in memory meanwhile."""

    def __init__(self, noun: object) -> None:
        self.noun = noun

    def __hash__(self) -> int:
        return id(self.noun)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.noun is other.noun


def _key(value: Any) -> Hashable:
    if isinstance(value, Path):
        return value, _stamp(value)
    if is_dataclass(value):
        if type(value).__module__.startswith("sim."):
            return _Itself(value)
        return type(value), *(_key(getattr(value, one.name)) for one in fields(value) if one.compare)
    if isinstance(value, Mapping):
        return tuple((name, _key(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return None if callable(value) else value


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file, or a file right in a directory, does; empty where there is none."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)


def _gradients(_: object, noun: Any, *__: object) -> int:
    return 1 + len(getattr(noun, "gradients", ()))


@memo(128_000, _gradients)
def digest(noun: Any) -> str:
    """``sim.digest``, computed once for each noun."""
    return sim.digest(noun)


def one(noun: Value) -> Value:
    """The noun that was there first among those that say the same."""
    first: Value = _first(digest(noun), lambda: noun)
    return first


@memo(128_000, lambda noun, *_: _gradients(None, noun))
def _first(same: str, noun: Callable[[], Any]) -> Any:
    return noun()
