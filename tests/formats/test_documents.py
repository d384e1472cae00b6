"""Our JSON: every noun there and back, strictly in."""

import copy
import json
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.hardware import CurvePoint, Hardware
from tests.effort import tries
from tests.strategies import KINDS, NOUNS

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"


def test_every_kind_has_a_strategy() -> None:
    assert set(NOUNS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=tries(60))
def test_every_noun_comes_back_as_it_went(kind: str, data: st.DataObject) -> None:
    """CONTRACT, Files: JSON with schema_version 1 and kind; text -> noun -> text changes nothing."""
    noun = data.draw(NOUNS[kind])
    text = documents.to_text(noun)
    back = documents.parse_text(text, KINDS[kind], "f.json")
    assert back == noun
    assert documents.to_text(back) == text
    document = json.loads(text)
    assert (document["schema_version"], document["kind"]) == (1, kind)
    assert isinstance(document["provenance"], dict)
    assert documents.parse_text(text.encode(), KINDS[kind], "f.json") == noun
    assert documents.parse_text(json.dumps(document), KINDS[kind], "f.json") == noun  # any layout


@given(data=st.data())
@settings(max_examples=tries(60))
def test_a_truncated_file_never_passes_for_a_whole_one(data: st.DataObject) -> None:
    """Any prefix that lacks more than the last newline is refused, in one line."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    text = documents.to_text(data.draw(NOUNS[kind]))
    cut = data.draw(st.integers(0, len(text) - 2))
    with pytest.raises(InputError) as caught:
        documents.parse_text(text[:cut], KINDS[kind], "f.json")
    assert str(caught.value).startswith("f.json: not JSON: " if text[:cut].strip() else "f.json: ")
    assert "\n" not in str(caught.value)


def test_a_curve_of_reduces_is_read_over() -> None:
    """Hardware files have had one, which no system sends."""
    bare = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1),))
    document = json.loads(documents.to_text(bare))
    known: dict[str, Any] = {"reduce": {"low": 0.5, "high": 2.0}}
    document |= {"reduce": [{"num_bytes": 1, "duration_ns": 1}], "spread": {**known, "ranges": known}}
    read = documents.parse_text(json.dumps(document), Hardware, "f.json")
    assert read == replace(bare, spread={"ranges": {}})


@pytest.mark.parametrize("value", [None, 0.5e9, 2.5e9])
def test_a_file_states_no_range_in_which_its_value_does_not_lie(value: float | None) -> None:
    """But of what a step of the job has fitted, which may lie beyond what was expected."""
    curve = (CurvePoint(num_bytes=0, duration_ns=1),)
    known: dict[str, Any] = {"ranges": {"copy_in_bytes_per_s": {"low": 1e9, "high": 2e9}}}
    stated = Hardware(name="h", world_size=2, all_reduce=curve, copy_in_bytes_per_s=1.5e9, spread=known)
    assert documents.parse_text(documents.to_text(stated), Hardware, "f.json") == stated
    moved = replace(stated, copy_in_bytes_per_s=value)
    with pytest.raises(InputError, match=r"^f.json: copy_in_bytes_per_s: .* of 1e\+09 to 2e\+09; "):
        documents.parse_text(documents.to_text(moved), Hardware, "f.json")
    fitted = replace(moved, spread={**known, "own_step": {"factors": ["copy_in_bytes_per_s"]}})
    assert documents.parse_text(documents.to_text(fitted), Hardware, "f.json") == fitted


def test_files_are_made_for_reading(tmp_path: Path) -> None:
    """The worked examples come back with one key a line, rows of numbers on one line each."""
    workload = documents.load(EXAMPLES / "workload.json", KINDS["workload"])
    documents.save(tmp_path / "w.json", workload)
    text = (tmp_path / "w.json").read_text()
    assert text.endswith("}\n")
    assert max(map(len, text.splitlines())) < 300
    assert '\n "name": "four equal layers",\n' in text


# Bad files: each refused with exactly one line that names the file, the field and the value.

GOOD: dict[str, dict[str, Any]] = {
    "workload": json.loads((EXAMPLES / "workload.json").read_text()),
    "hardware": json.loads((EXAMPLES / "hardware.json").read_text()),
    "assignment": {
        "schema_version": 1,
        "kind": "assignment",
        "bucket_indices": [[3], [2, 1, 0]],
        "provenance": {},
    },
}
GONE = object()
Bad = tuple[
    str, bytes, tuple[str, ...]
]  # kind, content, and the words its one line must hold beside the file


def edit(kind: str, path: str, value: Any, *says: str) -> Bad:
    """A good document with one value replaced (or taken away)."""
    document = copy.deepcopy(GOOD[kind])
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = reduce(getitem, parents, document)  # type: ignore[arg-type]
    if value is GONE:
        del holder[last]
    else:
        holder[last] = value
    return kind, json.dumps(document).encode(), says


def scattered(known: Any, *says: str) -> Bad:
    """A hardware whose spread says ``known`` of one point."""
    return edit("hardware", "spread", {"all_reduce": {"4194304": known}}, "spread.all_reduce.4194304", *says)


def raw(content: bytes | str, *says: str) -> Bad:
    return "workload", content if isinstance(content, bytes) else content.encode(), says


WORKLOAD = json.dumps(GOOD["workload"])
BAD: dict[str, Bad] = {
    # not JSON at all
    "empty file": raw("", "the file is empty"),
    "truncated": raw(WORKLOAD[:300], "not JSON: EOF", "column 300"),
    "not UTF-8": raw(b'{"name": "\xe9"}', "not JSON: invalid unicode", "column 11"),
    "a list": raw("[]", "[]", "object of kind 'workload'"),
    "nested beyond the parser": raw("[" * 100_000, "recursion limit exceeded"),
    # the frame
    "no schema_version": edit("workload", "schema_version", GONE, "schema_version: missing", "1"),
    "wrong kind": edit("workload", "kind", "hardware", "kind: 'hardware'", "must be 'workload'"),
    "no provenance": edit("workload", "provenance", GONE, "provenance: missing"),
    "unknown key inside": edit("workload", "gradients.2.size", 8, "gradients.2.size: unknown key"),
    "a line break in a key": edit(
        "workload", "gradients.0.a\nb\x1b[31m", 1, r"gradients.0.a\nb\x1b[31m: unknown key"
    ),
    "key twice inside": raw(
        WORKLOAD.replace('"sparse": false', '"sparse": false, "sparse": true', 1), "'sparse'", "twice"
    ),
    "NaN": raw(WORKLOAD.replace('"forward_ns": 20000000', '"forward_ns": NaN'), "not JSON: expected value"),
    "lone surrogate": edit(
        "workload", "gradients.1.name", "\ud800", "not JSON: unexpected end of hex escape"
    ),
    # the workload
    "gradients empty": edit("workload", "gradients", [], "gradients: an empty list"),
    "unknown dtype": edit(
        "workload", "gradients.0.dtype", "float33", "gradients.0.dtype: 'float33'", "float32"
    ),
    "ready after backward": edit(
        "workload", "gradients.0.ready_ns", 40_000_001, "gradients.0.ready_ns: 40000001", "40000000"
    ),
    "text for int": edit("workload", "forward_ns", "1", "forward_ns: '1'", "integer"),
    "unknown effect": edit("workload", "ready_includes", ["wire"], "ready_includes.0: 'wire'", "copy_in"),
    "shape against bytes": edit(
        "workload", "gradients.3.shape", [7], "gradients.3.num_bytes: ", "[7] of float32 are 28 bytes"
    ),
    # the hardware
    "curve empty": edit("hardware", "all_reduce", [], "all_reduce: an empty list"),
    "scatter of a number": edit("hardware", "spread", {"all_reduce": 7}, "spread.all_reduce: 7", "an object"),
    "min above median": scattered({"min_ns": 9, "median_ns": 8}, "min_ns: 9", "median_ns, 8"),
    "misspelt": edit("hardware", "comm_chanels", 2, "comm_chanels: unknown key"),
    "and so missing": raw(json.dumps(GOOD["workload"]).replace("forward_", "foward_"), "foward_ns: unknown"),
    # the assignment
    "unknown policy": edit("assignment", "policy", "best", "policy: 'best'", "ddp"),
    "sizes short": edit("assignment", "bucket_bytes", [1], "bucket_bytes: 1 sizes for 2 buckets"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, content, says = BAD[name]
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        documents.load(file, KINDS[kind])
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    assert ": :" not in message
    assert len(message) < 400 + len(str(file))
    for word in says:
        assert word in message
