"""What ranks tell each other through the store before anything is sent: that all were given the same."""

import hashlib
import json
from collections import Counter
from typing import Any, Protocol

from sim.errors import ReplayError


class Disagreement(ReplayError):
    """Ranks differ; ``ranks`` are those that are not with the majority (a tie: not with rank 0)."""

    def __init__(self, ranks: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


class StoreLike(Protocol):
    """What is used of torch's store."""

    def set(self, key: str, value: str) -> None:
        """Put a value; others may read it."""

    def get(self, key: str) -> bytes:
        """The value, once it is there."""


def check_unanimous(store: StoreLike, rank: int, world_size: int, what: str, content: Any) -> None:
    """Raise unless every rank calls this with the same JSON ``content``; each rank gets the same message.

    Args:
        store: shared by all ranks.
        rank: this one.
        world_size: how many call.
        what: names the content, in messages and in the store; each name may be used once.
        content: what JSON can hold; numbers and texts are compared exactly.

    Raises:
        Disagreement: naming the ranks that differ and the first difference.
    """
    text = json.dumps(content, sort_keys=True)
    store.set(f"{what}/{rank}/digest", hashlib.sha256(text.encode()).hexdigest())
    store.set(f"{what}/{rank}/content", text)
    digests = [store.get(f"{what}/{k}/digest") for k in range(world_size)]
    votes = Counter(digests)
    if len(votes) == 1:
        return
    most = max(votes.values())
    right = next(k for k in range(world_size) if votes[digests[k]] == most)
    others = tuple(k for k in range(world_size) if digests[k] != digests[right])
    wrong = json.loads(store.get(f"{what}/{others[0]}/content"))
    where, theirs, ours = first_difference(wrong, json.loads(store.get(f"{what}/{right}/content")))
    names = ", ".join(map(str, others))
    raise Disagreement(
        others,
        f"another {what} than rank {right}'s on rank{'s' if len(others) > 1 else ''} {names}: "
        f"{where or what} is {theirs} on rank {others[0]} and {ours} on rank {right}",
    )


def tell_all(store: StoreLike, rank: int, world_size: int, what: str, said: str) -> list[str]:
    """What every rank says when all call this, by rank; each ``what`` may be used once."""
    store.set(f"{what}/{rank}", said)
    return [store.get(f"{what}/{k}").decode() for k in range(world_size)]


_MISSING = object()


def first_difference(one: Any, other: Any, where: str = "") -> tuple[str, str, str]:
    """Where two unequal JSON values first differ, and what each has there, shortened."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            pairs.append((f"{where}.{key}".lstrip("."), one.get(key, _MISSING), other.get(key, _MISSING)))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{where}[{k}]", a, b) for k, (a, b) in enumerate(zip(one, other, strict=True))]
    for place, a, b in pairs:
        if a is _MISSING or b is _MISSING or json.dumps(a) != json.dumps(b):
            return first_difference(a, b, place)
    return where, _short(one), _short(other)


def _short(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
