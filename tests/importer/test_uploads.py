"""Uploads: any files under any names, told by content, put together, and nothing left behind."""

import gzip
import io
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats.documents import to_text
from sim.importer import auto
from sim.importer.auto import safe_name
from sim.importer.imported import Imported, ImportOptions, write_imported
from sim.importer.readers import GZIP, reader
from sim.nouns.workload import Gradient, Workload
from tests.effort import tries
from tests.handmade import handmade
from tests.importer.corpus import MODEL, WIRE, Case, corpus
from tests.importer.link_texts import head
from tests.strategies import NOUNS, TINY, hardwares, workloads

RECORD = Path(__file__).parents[2] / "traces" / "measured" / "gpt-loopback-2"
QUIET = settings(
    max_examples=tries(12), deadline=None, suppress_health_check=list(HealthCheck)
)  # writing files takes as long as the disk likes
NASTY = (
    *("../../etc/passwd", "/etc/passwd", "..", ".", "", " ", "\0", "a\0b.json", "C:\\x\\y.json", "x" * 300),
    *(
        "é" * 300,
        "a\nb.json",
        "\x1b[31mred",
        "<script>alert(1)</script>.json",
        "**b** [a](http://x)",
        "\ud800",
    ),
    *("-rf", "con", "~", "rank-0.jsonl", "$(id)", "`id`", "measurement-00.json", "%s%n", "\u202egnp.exe"),
)
file_names = st.sampled_from(NASTY) | st.text(max_size=40)
OURS = [Case(form="record", files={path.name: path.read_bytes() for path in sorted(RECORD.iterdir())})]
SMALL = [case for case in corpus() if not case.is_public] + OURS


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All that the tests of this file leave in the directory for temporary files: nothing."""
    home = tmp_path_factory.mktemp("temporary")
    before, tempfile.tempdir = tempfile.tempdir, str(home)
    yield
    tempfile.tempdir = before
    assert not list(home.iterdir())


def content(noun: Any) -> bytes:
    return to_text(noun).encode()


def nouns(uploaded: Imported) -> Any:
    """What was read, but for what it is called and where it comes from."""
    parts = replace(uploaded, notes=(), name="", format="")
    return _bare(json.loads(json.dumps(asdict(parts), default=str)))


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        left = ("name", "provenance", "made_for")
        return {key: _bare(item) for key, item in value.items() if key not in left}
    return [_bare(item) for item in value] if isinstance(value, list) else value


# Whatever they are called, in whatever order


@QUIET
@given(name=file_names, workload=workloads(TINY))
def test_a_name_is_only_a_label(name: str, workload: Workload) -> None:
    found = sim.read_uploads([(name, content(workload))])
    assert sim.digest(found.workload) == sim.digest(workload)
    assert found.formats == ("workload",)


@QUIET
@given(
    name=file_names, text=st.sampled_from([b"not one of these", b'{"a": 1}', b"\x80\x04x", b"", b"[" * 9_999])
)
def test_an_error_is_one_line_that_begins_with_the_name(name: str, text: bytes) -> None:
    with pytest.raises(InputError) as caught:
        sim.read_uploads([(name, text)])
    said = str(caught.value)
    assert said.isprintable()
    assert tempfile.gettempdir() not in said
    assert "bucketsim-upload" not in said
    assert len(said) <= 500
    assert said.startswith(f"{safe_name(name)}: ")


@given(name=file_names)
def test_a_safe_name_is_one_part_of_a_path(name: str) -> None:
    safe = safe_name(name)
    assert 0 < len(safe.encode()) <= 255
    assert Path(safe).name == safe
    assert not safe.startswith((".", "-"))
    assert safe.isprintable()


@pytest.mark.parametrize("case", [case for case in SMALL if len(case.files) > 1], ids=lambda case: case.form)
@settings(QUIET, max_examples=6)
@given(data=st.data())
def test_the_order_of_files_makes_no_difference(case: Case, data: st.DataObject) -> None:
    files = sorted(case.files.items())
    assert sim.read_uploads(data.draw(st.permutations(files))) == sim.read_uploads(files)


@QUIET
@given(
    nouns=st.tuples(workloads(TINY), hardwares(), NOUNS["cluster"], NOUNS["assignment"]), zipped=st.booleans()
)
def test_documents_are_what_they_are_in_any_company(nouns: tuple[Any, ...], zipped: bool) -> None:
    pack = gzip.compress if zipped else bytes
    found = sim.read_uploads([("same name", pack(content(noun))) for noun in nouns])
    assert (found.workload, *found.hardware, found.cluster, found.assignment) == nouns
    assert found.formats == tuple(sorted(noun.KIND for noun in nouns))
    assert found.record is None


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.form}-{next(iter(case.files))}")
def test_an_upload_is_what_an_import_of_the_same_files_is(case: Case, tmp_path: Path) -> None:
    found = sim.read_uploads(list(case.files.items()))
    packed = [
        (name, text if text.startswith(GZIP) else gzip.compress(text)) for name, text in case.files.items()
    ]
    assert nouns(sim.read_uploads(packed)) == nouns(found)
    if case.form == "record":
        return
    imported = reader("auto")(case.write(tmp_path), ImportOptions())
    assert nouns(found) == nouns(imported)
    assert len(found.said("missing")) == len(imported.said("missing"))


def test_no_path_of_this_machine_is_in_what_was_read() -> None:
    for case in SMALL:
        found = sim.read_uploads(list(case.files.items()))
        assert tempfile.gettempdir() not in repr(found), case.form


# What belongs together


def test_a_measured_record_is_as_its_directory_is() -> None:
    found = sim.read_uploads(list(OURS[0].files.items()))
    expected = sim.load_record(RECORD)
    assert found.record is not None
    assert replace(found.record, name=expected.name) == expected
    assert sim.agreement(found.record).rows == sim.agreement(expected).rows
    assert (found.workload, found.hardware) == (expected.workload, (expected.hardware,))


def test_an_import_can_be_uploaded_as_it_was_written(tmp_path: Path) -> None:
    """All its files: the record, the summary, and the hardware of another run beside it."""
    (case, *_) = (case for case in SMALL if case.form == "kineto")
    imported = reader("auto")(case.write(tmp_path), ImportOptions())
    imported = replace(imported, hardware=(*imported.hardware, replace(WIRE, world_size=8)))
    out = tmp_path / "out"
    write_imported(imported, out)
    found = sim.read_uploads([(path.name, path.read_bytes()) for path in out.iterdir()])
    assert [one.world_size for one in found.hardware] == [2, 8]
    assert found.record is not None
    assert found.record.hardware == found.hardware[0]
    assert found.record.measurements == imported.measurements
    assert any("summary of an import" in line for line in found.said("dropped"))


def test_a_recommendation_brings_its_assignment() -> None:
    best = sim.tune(MODEL, WIRE)
    found = sim.read_uploads([("best.json", content(best)), ("model.json", content(MODEL))])
    assert found.assignment == best.assignment
    assert found.workload == MODEL


def test_a_recording_is_told_by_its_ranks_not_by_its_names() -> None:
    (case,) = (case for case in SMALL if case.form == "recording")
    renamed = [(f"download ({place})", text) for place, text in enumerate(case.files.values())]
    assert nouns(sim.read_uploads(renamed)) == nouns(sim.read_uploads(list(case.files.items())))


def other_model() -> bytes:
    return content(replace(MODEL, name="another"))


def measured(number: int = 0) -> tuple[str, bytes]:
    path = sorted(RECORD.glob("measurement-*.json"))[number]
    return path.name, path.read_bytes()


(RECORDED,) = (case for case in SMALL if case.form == "recording")
(TRACE, *_) = (case for case in SMALL if case.form == "kineto")
RANK_0 = RECORDED.files["rank-0.jsonl"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "files: none are not legal"),
        ([("a", content(MODEL)), ("b", other_model())], r"2 files of kind workload \(a, b\)"),
        ([("a.json", content(MODEL)), ("a.json", other_model())], r"\(a.json, a.json \(2\)\)"),
        ([measured()], "no workload file beside it"),
        ([measured(), ("w", content(MODEL))], "no hardware file of 2 ranks"),
        (
            [
                measured(),
                ("w", content(MODEL)),
                ("h1", content(WIRE)),
                ("h2", content(replace(WIRE, name="other"))),
            ],
            "2 hardware files of 2 ranks",
        ),
        (
            [("r", json.dumps({"schema_version": 1, "kind": "report"}).encode())],
            "kind: 'report' is not legal",
        ),
        ([("r", b'{"kind":"recording","schema_version":1,"rank":-1}\n')], "rank: -1 is not legal"),
        ([("r", b'{"kind":"recording","schema_version":1,"rank":0}\n')], "^rank-0.jsonl: line 1: "),
        ([("a", RANK_0), ("b", RANK_0 + b"\n")], "second file of rank 0"),
        ([*TRACE.files.items(), measured()], "not legal beside traces"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together_is_refused(files: list[tuple[str, bytes]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.read_uploads(files)


# What somebody wants to harm with


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../evil.json", "{}")
    return out.getvalue()


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("false",))


FAILED = "\n".join([*head(8), "node0: Test NCCL failure common.cu:1006 'unhandled cuda error'", ""])
HOSTILE = {
    "empty": (b"", "the file is empty"),
    "spaces": (b" \n" * 100, "the file is empty"),
    "zeros": (b"\0" * 4096, "a binary file"),
    "zeros within": (b"abc\0def", "a binary file"),
    "a pickle": (pickle.dumps(Evil()), "a pickle"),
    "a zip": (zipped(), "a zip archive"),
    "a page": (b"<!DOCTYPE html><script>alert(1)</script>", "a web page"),
    "an image": (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "a binary file"),
    "zstd": (b"\x28\xb5\x2f\xfd1234", "compressed with zstd; unpack it"),
    "xz": (b"\xfd7zXZ\x001234", "compressed with xz; unpack it"),
    "bzip2": (b"BZh91AY", "compressed with bzip2; unpack it"),
    "SQLite": (b"SQLite format 3\x00", "an SQLite database"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:a", "a Git LFS pointer"),
    "text": (b"hello", "not recognised; give a Kineto trace"),
    "a run that failed": (FAILED.encode(), "a run that ended before its first size"),
    "a header alone": (b"size_B time_us nranks\n", r"no whole row in it \(truncated\?\)"),
    "no events": (
        b'{"traceEvents": []}',
        "traceEvents: no events",
    ),
    "a report": (b'{"schema_version": 1, "kind": "report", "provenance": {}}', "kind: 'report' is not legal"),
    "cut gzip": (gzip.compress(content(MODEL))[:40], "damaged gzip"),
    "gzip twice": (gzip.compress(gzip.compress(content(MODEL))), "compressed twice"),
    "a zip in gzip": (gzip.compress(zipped()), "a zip archive"),
    "deep": (
        content(MODEL).replace(
            b'"provenance": {}', b'"provenance": {"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
        ),
        "recursion limit exceeded",
    ),
    "deeper": (b'{"traceEvents": [' + b"[" * 500_000, "nested too deeply|not JSON"),
    "nan": (content(MODEL).replace(b'"backward_ns": 1000', b'"backward_ns": NaN'), "not JSON"),
    "infinite": (content(MODEL).replace(b'"backward_ns": 1000', b'"backward_ns": 1e999'), "not legal"),
    "huge": (
        content(MODEL).replace(b'"backward_ns": 1000', b'"backward_ns": ' + b"9" * 5000),
        "out of range",
    ),
    "negative": (content(MODEL).replace(b'"backward_ns": 1000', b'"backward_ns": -1'), "backward_ns: -1"),
    "a key twice": (content(MODEL).replace(b'"loss_ns"', b'"backward_ns"'), "occurs twice"),
    "an unknown key": (content(MODEL).replace(b'"loss_ns"', b'"__class__"'), "unknown key"),
    "a surrogate": (content(MODEL).replace(b'"model"', b'"\\ud800"'), "not JSON"),
    "utf-16": (to_text(MODEL).encode("utf-16"), "not JSON"),
    "cut": (content(MODEL)[:-20], "EOF"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(name: str) -> None:
    text, words = HOSTILE[name]
    with pytest.raises(InputError, match=words) as caught:
        sim.read_uploads([("<b>x.json", text)])
    assert str(caught.value).startswith("<b>x.json: ")
    assert "\n" not in str(caught.value)


def test_too_many_gradients_are_too_much_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    many = handmade([1] * (auto.MAX_GRADIENTS + 1), 16)
    words = r"^{}: too much for a page.*5000 gradients.*bucketsim import"
    with pytest.raises(InputError, match=words.format(many.name)):
        sim.read_uploads([("w", content(many))])
    monkeypatch.setattr(Gradient, "__post_init__", None)  # not one is made of what is larger by far
    row = b'{"index":0,"name":"","shape":[],"dtype":"int8","num_bytes":1,"ready_ns":0},'
    more = b'{"schema_version":1,"kind":"workload","gradients":[' + 1_000_000 * row + row[:-1] + b"]}"
    with pytest.raises(InputError, match=words.format("w")):
        sim.read_uploads([("w", gzip.compress(more, 1))])


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "MAX_INFLATED_BYTES", 16 << 20)
    bomb = gzip.compress(bytes(1 << 20), 9) * 10_240  # ten gigabytes, in ten megabytes of members
    with pytest.raises(InputError, match=r"^b: holds more than 16 MiB.*bucketsim import"):
        sim.read_uploads([("b", bomb)])
    twice = gzip.compress(gzip.compress(b'{"traceEvents": [' + b" " * (1 << 20)))
    with pytest.raises(InputError, match=r"^b: compressed twice"):
        sim.read_uploads([("b", twice)])


def test_all_files_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "MAX_INFLATED_BYTES", len(content(MODEL)) + 10)
    assert sim.read_uploads([("w", content(MODEL))]).workload == MODEL
    with pytest.raises(InputError, match="all files of an upload together"):
        sim.read_uploads([("w", content(MODEL)), ("h", content(WIRE))])


def test_the_number_of_files_is_limited() -> None:
    with pytest.raises(InputError, match="257 are not legal; give 1 to 256"):
        sim.read_uploads([(str(number), b"x") for number in range(257)])


def test_the_private_directory_is_removed_after_a_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def broken(path: Path, *_: Any) -> Any:
        seen.append(path)
        assert seen[0].stat().st_size
        assert (seen[0].parent.stat().st_mode & 0o077) == 0  # nobody else may look in
        raise RuntimeError("a bug")

    monkeypatch.setattr(auto, "recognise", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sim.read_uploads([("../../w.json", content(MODEL))])
    assert seen[0].name == "w.json"
    assert not seen[0].parent.exists()
