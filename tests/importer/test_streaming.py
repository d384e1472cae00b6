"""JSON member by member, against ``json.loads`` of the whole, however the file is cut into pieces."""

import json
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.importer import streaming
from sim.importer.streaming import stream_members
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job, build

Members = list[tuple[str, Any]]
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1.5, -0.25, 1e-7, 1e22, 2.5e300]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=12))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.one_of(
    st.lists(VALUES, max_size=6),
    st.dictionaries(
        st.one_of(st.just("events"), st.text(max_size=6)),
        VALUES,
        max_size=5,
    ).map(lambda found: found | {"events": found.get("events") if _is_list(found) else []}),
)
INDENTS = st.sampled_from([None, 0, 3])


def _is_list(found: dict[str, Any]) -> bool:
    return isinstance(found.get("events"), list)


def whole(text: str) -> Members:
    """What is expected: by the standard library, numbers that are not whole as they are written."""
    document = json.loads(text, parse_float=str, parse_constant=lambda word: None)
    if isinstance(document, list):
        return [("events", element) for element in document]
    members: Members = []
    for key, value in document.items():
        members += [(key, element) for element in value] if key == "events" else [(key, value)]
    return members


def stream(content: bytes, chunk: int = 4 << 20) -> Members:
    before = streaming._CHUNK_BYTES
    streaming._CHUNK_BYTES = chunk
    try:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(content)
            file.flush()
            return list(stream_members(file.name, "events"))
    finally:
        streaming._CHUNK_BYTES = before


@settings(max_examples=tries(300), deadline=None)
@given(DOCUMENTS, st.integers(1, 9), INDENTS, st.booleans(), st.booleans())
def test_pieces_of_any_size_give_what_the_whole_gives(
    document: Any, chunk: int, indent: int | None, ascii_only: bool, mark: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    content = text.encode("utf-8-sig" if mark else "utf-8", "surrogatepass")
    try:
        content.decode()
    except UnicodeDecodeError:
        with pytest.raises(InputError, match="not UTF-8"):
            stream(content, chunk)
        return
    assert stream(content, chunk) == whole(text)


def test_every_cut_of_a_trace_is_an_error() -> None:
    job = Job(
        shapes=((4,),), buckets=(1,), gradient_ns=(9_000,), transfer_ns=(3_000,), forward_ns=((7_000,),)
    )
    content = build(job, Dialect())[0][0].encode()
    for end in range(len(content)):
        with pytest.raises(InputError, match=r"not JSON|truncated|empty"):
            stream(content[:end])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"7", "an object or a list was expected"),
        (b'"text"', "an object or a list was expected"),
        (b'{"events": {}}', "events must be a list"),
        (b'{"events": 1}', "events must be a list"),
        (b'{"events": [1,]}', "follows a comma"),
        (b'{"a": 1,}', "follows a comma"),
        (b'{"events": [1 2]}', "',' was expected"),
        (b'{"a" 1}', "':' was expected"),
        (b"{1: 2}", "a key was expected"),
        (b"[1] []", "something follows the end"),
        (b"[1]]", "something follows the end"),
        (b"[tru]", "Expecting value"),
        (b"[" * 200_000, "nested too deeply|ends early"),
        (b'[{"a":' * 200_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "digits"),
        (b'["\xff"]', "not UTF-8"),
        ("[1]".encode("utf-16"), "not UTF-8"),
        (b'["\xe2\x82', "not UTF-8"),
    ],
)
@pytest.mark.parametrize("chunk", [5, 4 << 20])
def test_what_is_no_json_is_an_error_of_one_line(content: bytes, why: str, chunk: int) -> None:
    with pytest.raises(InputError, match=why) as error:
        stream(content, chunk)
    assert len(str(error.value).splitlines()) == 1
