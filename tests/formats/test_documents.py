"""Our JSON: every noun there and back, strictly in, atomically out."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.formats import documents, files
from sim.formats.documents import KINDS
from tests.effort import tries
from tests.strategies import NOUNS

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
    assert str(caught.value).startswith("f.json: not JSON at line ")
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=tries(300))
@given(data=st.data())
def test_whatever_is_put_in_a_file_is_read_or_refused_by_name(data: st.DataObject) -> None:
    """Fuzz: any JSON value in the place of any field is taken, or refused with one InputError."""
    kind = data.draw(st.sampled_from(["workload", "hardware", "assignment"]))
    document = json.loads(documents.to_text(data.draw(NOUNS[kind])))
    where: Any = document
    while True:
        places = list(where) if isinstance(where, dict) else list(range(len(where)))
        place = data.draw(st.sampled_from(places))
        inner = where[place]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        where = inner
    where[place] = data.draw(json_values)
    text = json.dumps(document)
    refusal = ""
    try:
        noun = documents.parse_text(text, KINDS[kind], "f.json")
    except InputError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("f.json: ")
        assert "\n" not in refusal
    else:
        assert documents.parse_text(documents.to_text(noun), KINDS[kind], "f.json") == noun


@settings(max_examples=tries(200))
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_bytes_are_refused_not_crashed_on(content: bytes | str) -> None:
    for noun in KINDS.values():
        with pytest.raises(InputError):
            documents.parse_text(content, noun, "f.json")


def test_files_are_made_for_reading(tmp_path: Path) -> None:
    """The worked examples come back with one key a line, rows of numbers on one line each."""
    workload = documents.load(EXAMPLES / "workload.json", KINDS["workload"])
    documents.save(tmp_path / "w.json", workload)
    text = (tmp_path / "w.json").read_text()
    assert text.endswith("}\n")
    assert max(map(len, text.splitlines())) < 300
    assert '\n "name": "four equal layers",\n' in text


# Writing


class Unlucky(Exception):
    pass


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), Unlucky()], ids=["OSError", "other"]
)
def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    fails: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or not at all, whatever breaks and wherever."""
    target = tmp_path / "w.json"
    target.write_text("old")

    def break_down(*_: object) -> None:
        raise error

    if fails == "write":

        def half(path: Path, mode: str, **options: Any) -> _Broken:
            return _Broken(path.open(mode, **options), error)

        monkeypatch.setattr(files, "open", half, raising=False)
    else:
        monkeypatch.setattr(os, fails, break_down)
    expected = InputError if isinstance(error, OSError) else Unlucky
    with pytest.raises(expected):
        files.write_atomically(target, "new " * 1000)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


class _Broken:
    """A stream that writes half and then fails."""

    def __init__(self, stream: Any, error: Exception) -> None:
        self.stream, self.error = stream, error

    def __enter__(self) -> "_Broken":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, text: str) -> None:
        self.stream.write(text[: len(text) // 2])
        raise self.error


def test_a_write_replaces_the_file_with_usual_rights(tmp_path: Path) -> None:
    target = tmp_path / "w.json"
    target.write_text("old")
    files.write_atomically(target, "new, é\n")
    assert target.read_bytes() == "new, é\n".encode()
    plain = tmp_path / "plain"
    plain.write_text("")
    assert target.stat().st_mode == plain.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "w.json"]


@pytest.mark.parametrize(
    "place", ["missing/w.json", "file/w.json", ""], ids=["no folder", "a file", "itself"]
)
def test_where_nothing_can_be_written_it_says_so(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / place
    with pytest.raises(InputError, match="cannot be written") as caught:
        files.write_atomically(target, "new")
    assert str(target) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))


@pytest.mark.parametrize("depth", [1, 63])
def test_nesting_up_to_64_levels_is_read(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert documents.parse_json(f'{{"a": {text}}}', "f.json")


@pytest.mark.parametrize("depth", [64, 150, 300, 990, 2000, 200_000])
def test_deeper_nesting_is_refused(depth: int) -> None:
    text = "[" * depth + "]" * depth
    with pytest.raises(InputError, match=r"^f\.json: nested too deeply; at most 64 levels$"):
        documents.parse_json(f'{{"a": {text}}}', "f.json")


def test_a_key_with_a_line_break_is_refused_in_one_line() -> None:
    document = json.loads((EXAMPLES / "workload.json").read_text())
    document["gradients"][0]["a\nb\x1b[31m"] = 1
    with pytest.raises(InputError) as refused:
        documents.parse_text(json.dumps(document), KINDS["workload"], "f.json")
    assert r"a\nb\x1b[31m: unknown key" in str(refused.value)
