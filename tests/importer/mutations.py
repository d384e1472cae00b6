"""Files as they may really come: a document with one thing wrong in it."""

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**62, 2**63, 10**400, -(10**30), 1.5, -0.0, 1e308),
    *("", "0", "x", "-1", "float", "completed", "nccl:all_reduce", "[[1]]", "9 8, 7", "N/A", "[", "\x00"),
    *([], [[]], [[[]]], [0], ["x"], [None], {}, {"a": 1}, {"values": []}),
)


def places(document: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every member of every object and list."""
    found: list[tuple[Any, ...]] = []
    pairs: Any = ()
    if isinstance(document, dict):
        pairs = document.items()
    elif isinstance(document, list):
        pairs = enumerate(document)
    for key, item in pairs:
        found.append((*where, key))
        found.extend(places(item, (*where, key)))
    return found


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> str:
    """The document as text: members replaced, deleted or doubled, or the text itself cut."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        ways = places(document)
        if not ways:
            break
        *path, last = draw(st.sampled_from(ways))
        holder = document
        for step in path:
            holder = holder[step]
        deed = draw(st.sampled_from(["replace", "replace", "delete", "double"]))
        if deed == "replace":
            holder[last] = deepcopy(draw(st.sampled_from(JUNK)))
        elif deed == "delete":
            del holder[last]
        elif isinstance(holder, list):
            holder.insert(last, holder[last])
    text = json.dumps(document)
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return text
