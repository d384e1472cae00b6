"""Formats told by content."""

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.words import uploads
from sim.errors import InputError, SimError
from sim.importer.readers import FORMATS, READABLE
from sim.importer.sniffing import DOCUMENTS, recognise
from tests.effort import tries
from tests.importer.corpus import corpus
from tests.importer.link_texts import Line, old, report, today
from tests.public_data import DATA, needs_data

ROOT = Path(__file__).parents[2]
EVENT = {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
LINES = [Line(num_bytes=1 << 20, in_us=100.0, out_us=101.0)]
PADDING = "x" * 300_000

DOCUMENTS_OF: list[tuple[str, Any]] = [
    ("kineto", {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [EVENT]}),
    ("kineto", {"traceName": PADDING, "displayTimeUnit": "ms", "traceEvents": [EVENT]}),
    ("kineto", [EVENT, EVENT]),
    ("kineto", {"traceEvents": []}),
    ("nccl-tests", json.loads(report(LINES, 2))),
    ("nccl-tests", {"all reduce": [[1.0], [0.1]], "reduce scatter": [[1.0], [0.1]]}),
    ("workload", {"schema_version": 1, "kind": "workload", "name": "w"}),
    ("hardware", {"all_reduce": [], "name": PADDING, "kind": "hardware", "schema_version": 1}),
    ("recording", {"kind": "recording", "schema_version": 1, "rank": 0}),
]
TEXTS = [
    ("nccl-tests", "\n".join(today(LINES, 2))),
    ("nccl-tests", "\n".join(f"[1,0]<stdout>:{line}" for line in today(LINES, 2))),
    ("nccl-tests", "[0] NCCL INFO Bootstrap\n" * 9000 + "\n".join(old(LINES, 2))),
    ("nccl-tests", "# OSU MPI-CUDA Allreduce Latency Test v7.0\n# Size       Avg Latency(us)\n4    9.51\n"),
    ("nccl-tests", "op,world_size,bytes,time_ms\nall_reduce,2,8,0.1\n"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("form", "document"), DOCUMENTS_OF)
def test_json_is_told_by_its_keys(form: str, document: Any, packed: bool, tmp_path: Path) -> None:
    content = json.dumps(document).encode()
    path = tmp_path / "some.thing"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert recognise(path) == form
    path.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(document, indent=1).encode())
    assert recognise(path) == form
    path.write_bytes(json.dumps(document, ensure_ascii=False).encode("utf-16"))
    assert recognise(path) == form


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_text_is_told_by_its_lines(form: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"  # the name says nothing
    path.write_text(text)
    assert recognise(path) == form


def test_the_corpus_holds_every_format() -> None:
    """From it begin the tests of damage, of anonymising and of wrong formats."""
    assert {case.form for case in corpus()} == set(READABLE)


def test_a_file_fits_one_format_whatever_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.importer.sniffing.FORMATS", dict(reversed(FORMATS.items())))
    for number, case in enumerate(case for case in corpus() if not case.is_public):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = {recognise(path) for path in case.write(folder)}
        assert found == ({case.form} if case.form != "auto" else set(DOCUMENTS)), case.files.keys()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(lambda: uploads.HELP["up"], id="page"),
        pytest.param((ROOT / "app/manual/cluster-files.md").read_text, id="manual"),
    ],
)
def test_every_format_is_told_of(told: Callable[[], str]) -> None:
    text = told().lower()
    assert [name for name in FORMATS if not all(word in text for word in name.split("-"))] == []


def test_the_contract_lists_the_formats() -> None:
    assert f"FORMAT one of `{' '.join(READABLE)}`" in (ROOT / "sim/CONTRACT.md").read_text()


def test_a_directory_of_ranks_is_a_recording(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a directory without"):
        recognise(tmp_path)
    (tmp_path / "rank-3.jsonl").write_text("")
    assert recognise(tmp_path) == "recording"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"hello", "not recognised; give a Kineto trace"),
        (b'{"a": {"b": 1}}', "not recognised"),
        (b"[1, 2]", "not recognised"),
        (b'{"a', "not recognised"),
        (b"\x80\x04\x95", "a pickle"),
        (b"PK\x03\x04", "a zip"),
        (b"\x7fELF\0\0", "a binary file"),
        (b'{"schema_version": 1, "kind": "report"}', "'report' is not legal here"),
        (b'{"kind": null, "schema_version": 1}', "is not legal here"),
    ],
)
def test_anything_else_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        recognise(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_of_300_mb_is_told_by_its_head(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_text('{"schemaVersion": 1, "traceEvents": [')
    with path.open("ab") as stream:
        stream.truncate(300 << 20)  # sparse
    tracemalloc.start()
    before = time.process_time()
    assert recognise(path) == "kineto"
    assert time.process_time() - before < 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@settings(max_examples=tries(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_and_cut_files_make_no_traceback(data: st.DataObject, tmp_path: Path) -> None:
    small = [json.dumps(document) for _, document in DOCUMENTS_OF if len(json.dumps(document)) < 5000]
    texts = [text for _, text in TEXTS if len(text) < 5000]
    content = bytearray(data.draw(st.sampled_from(small + texts)).encode())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "file"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        found = recognise(path)
    except SimError as error:
        found = str(error)
    assert found in (*FORMATS, *DOCUMENTS) or str(path) in found


@needs_data
def test_every_public_file() -> None:
    root = DATA
    for folder, form in (("nccl_tests", "nccl-tests"), ("traces/hta", "kineto"), ("traces/kineto", "kineto")):
        for path in sorted(root.glob(f"{folder}/**/*.*")):
            if path.is_file():
                assert recognise(path) == form, path
    for path in sorted((root / "traces/param").glob("*.pt.trace.json.gz")):
        assert recognise(path) == "kineto", path
    for path in sorted((root / "link_calibration").glob("*.[cj]s*")):
        assert recognise(path) == "nccl-tests", path
