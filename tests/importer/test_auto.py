"""Files of any formats under any names, told by content and put together; as a browser sends them, too."""

import gzip
import io
import json
import os
import pickle
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats.documents import parse_text, save, to_text
from sim.formats.record_files import load_record
from sim.importer import readers
from sim.importer.imported import SUMMARY, Imported, ImportOptions, Note, RankRow, write_imported
from sim.importer.readers import GZIP, READABLE, read_auto, read_files, recognise, safe_name
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from tests.effort import DATA, needs_data, tries
from tests.handmade import handmade, measurement, wired
from tests.importer.corpus import MODEL, WIRE, Case, corpus, without
from tests.importer.link_texts import Line, head, today
from tests.strategies import NOUNS, TINY, hardwares, workloads

RECORD = Path(__file__).parents[2] / "traces" / "measured" / "gpt-loopback-2"
OURS = [Case(form="record", files={path.name: path.read_bytes() for path in sorted(RECORD.iterdir())})]
SMALL = [case for case in corpus() if not case.is_public] + OURS
(RECORDED,) = (case for case in SMALL if case.form == "recording")
(TRACE, *_) = (case for case in SMALL if case.form == "kineto")
LINES = [Line(num_bytes=1 << power, in_us=10.0 * 2 ** (power - 20), out_us=900.0) for power in range(20, 28)]
# Writing files takes as long as the disk likes.
QUIET = settings(max_examples=tries(12), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All that the tests of this file leave in the directory for temporary files: nothing."""
    home = tmp_path_factory.mktemp("temporary")
    before, tempfile.tempdir = tempfile.tempdir, str(home)
    yield
    tempfile.tempdir = before
    assert not list(home.iterdir())


# The workload of a trace and the curve of a link benchmark


def link(tmp_path: Path, ranks: int, name: str = "link") -> Path:
    path = tmp_path / f"{name}-{ranks}.txt"
    path.write_text("\n".join(today(LINES, ranks)) + "\n")
    return path


def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    return path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Traces read as a record of two ranks: what is imported, and what its reader was called with."""
    record = load_record(RECORD)
    slow = tuple(CurvePoint(num_bytes=1 << power, duration_ns=10**6) for power in (20, 24))
    kept: list[Any] = [
        Imported(
            format="kineto",
            name="run",
            workload=record.workload,
            hardware=(replace(record.hardware, all_reduce=slow, compute_slowdown=1.25),),
            measurements=(record.candidates[0],),
            ranks=(RankRow(rank=0), RankRow(rank=1)),
            notes=(
                *(Note("found", "a step"), Note("missing", "only sent", "curve")),
                *(Note("missing", "no model", "workload"), Note("missing", "copies")),
            ),
        )
    ]

    def read(form: str, paths: Sequence[Path], options: ImportOptions) -> Any:
        if form != "kineto":
            return read_files(form, paths, options)
        kept.append(options)
        return kept[0]

    monkeypatch.setattr(readers, "read_files", read)
    return kept


def test_the_curve_beside_the_step_is_taken_before_that_of_the_trace(tmp_path: Path, seen: Any) -> None:
    found = read_auto([link(tmp_path, 4), trace(tmp_path), link(tmp_path, 2)], ImportOptions())
    used, other = found.hardware
    assert (used.world_size, other.world_size) == (2, 4)
    assert used.all_reduce[0].duration_ns == 10_000
    assert used.compute_slowdown == 1.25  # what only the step shows stays
    assert used.spread["all_reduce"]["1048576"]["count"] == 2
    said = " ".join(found.said("assumed"))
    assert "in place of the trace's own" in said
    assert "kineto: a step" in found.said("found")
    assert found.said("missing") == ("kineto: copies",)  # curve and workload are there
    assert len(found.measurements) == 1


@pytest.mark.parametrize("rate", [None, 41.9e9])
def test_a_range_goes_with_the_field_that_it_is_of(rate: float | None, tmp_path: Path, seen: Any) -> None:
    """What the trace measured has none of the link's; what neither measured has the link's."""
    stated = {"launch_cost_ns": {"low": 1_000, "high": 3_000}}
    measured = replace(
        *seen[0].hardware,
        **{"launch_cost_ns": 2_000, "hook_cost_ns": 0, "comm_slowdown": 1.0, "spread": {"ranges": stated}},
        **dict.fromkeys(("copy_in_bytes_per_s", "copy_out_bytes_per_s"), rate),
    )
    seen[0] = replace(seen[0], hardware=(measured,))
    (used,) = read_auto([link(tmp_path, 2), trace(tmp_path)], ImportOptions()).hardware
    assert used.spread["ranges"] == {**stated, "comm_slowdown": {"low": 1.0, "high": 1.5}}
    assert parse_text(to_text(used), Hardware, "again") == used


def test_a_link_of_other_ranks_is_kept_beside(tmp_path: Path, seen: Any) -> None:
    paths = [trace(tmp_path), link(tmp_path, 8), link(tmp_path, 4)]
    found = read_auto(paths, ImportOptions())
    assert [one.world_size for one in found.hardware] == [2, 8, 4]
    assert "those beside it, of 8, 4 ranks" in " ".join(found.said("assumed"))
    seen[0] = replace(seen[0], hardware=())
    found = read_auto(paths, ImportOptions())
    assert [one.world_size for one in found.hardware] == [8, 4]
    assert "kineto: only sent" in found.said("missing")


def test_a_workload_file_is_taken_where_the_trace_gives_none(tmp_path: Path, seen: Any) -> None:
    save(tmp_path / "model.json", MODEL)
    paths = [trace(tmp_path), tmp_path / "model.json"]
    with pytest.raises(InputError, match="a Kineto trace and a workload file both give a workload"):
        read_auto(paths, ImportOptions())
    seen[0] = replace(seen[0], workload=None, measurements=())
    found = read_auto(paths, ImportOptions(name="mine"))
    assert (found.workload, found.name, seen[-1].name) == (MODEL, "mine", "mine")


def test_conflicts_are_refused(tmp_path: Path, seen: Any) -> None:
    two = [link(tmp_path, 2, name) for name in ("ib", "ethernet")]
    with pytest.raises(InputError, match=r"2 link benchmarks of 2 ranks \('ib-2.txt, 2 ranks'"):
        read_auto([trace(tmp_path), *two], ImportOptions())
    with pytest.raises(InputError, match="--world-size: 3 is not legal here"):
        read_auto([trace(tmp_path), link(tmp_path, 3)], ImportOptions(world_size=3))


# Formats told by content


def test_each_file_of_the_corpus_which_holds_every_format_is_of_its_format(tmp_path: Path) -> None:
    """From the corpus begin the tests of damage and of wrong formats."""
    assert {case.form for case in corpus()} == set(READABLE)
    for number, case in enumerate(case for case in corpus() if not case.is_public):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = {recognise(path) for path in case.write(folder)}
        assert found == ({case.form} if case.form != "auto" else {"workload", "hardware"}), case.files


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


@needs_data
def test_every_public_file() -> None:
    for folder, form in (("nccl_tests", "nccl-tests"), ("traces/hta", "kineto"), ("traces/kineto", "kineto")):
        for path in sorted(DATA.glob(f"{folder}/**/*.*")):
            if path.is_file() and "thanos" not in path.name:  # its header is a sentence
                assert recognise(path) == form, path
    for path in sorted((DATA / "traces/param").glob("*.pt.trace.json.gz")):
        assert recognise(path) == "kineto", path


# An import on disk: all of it, or nothing

HARDWARE = Hardware(name="link", world_size=2, all_reduce=(CurvePoint(num_bytes=1, duration_ns=1),))
IMPORTED = Imported(format="kineto", name="x", workload=MODEL, hardware=(HARDWARE,))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_an_import_that_is_cut_short_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    real, out = os.replace, tmp_path / "out"

    def cut(source: Path, target: Path) -> None:
        if target.name == "hardware.json":
            raise fault
        real(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else InputError):
        write_imported(IMPORTED, out)
    assert list(out.iterdir()) == []
    monkeypatch.undo()
    written = write_imported(IMPORTED, out)
    assert [path.name for path in written] == ["workload.json", "hardware.json"]
    write_imported(replace(IMPORTED, hardware=()), out)  # what an earlier import left is replaced
    assert {path.name for path in out.iterdir()} == {"workload.json", SUMMARY}


# Uploads: whatever they are called, in whatever order

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


def content(noun: Any) -> bytes:
    return to_text(noun).encode()


def upload(case: Case) -> Imported:
    return sim.read_uploads(list(case.files.items()))


def nouns(uploaded: Imported) -> Any:
    """What was read, but for what it is called and where it comes from."""
    parts = replace(uploaded, notes=(), name="", format="")
    return without(json.loads(json.dumps(asdict(parts), default=str)), ("name", "provenance", "made_for"))


@QUIET
@given(name=file_names, workload=workloads(TINY))
def test_a_name_is_only_a_label(name: str, workload: Workload) -> None:
    found = sim.read_uploads([(name, content(workload))])
    assert sim.digest(found.workload) == sim.digest(workload)
    assert found.formats == ("workload",)
    safe = safe_name(name)
    assert 0 < len(safe.encode()) <= 255
    assert Path(safe).name == safe
    assert not safe.startswith((".", "-"))
    assert safe.isprintable()


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
    assert len(said) <= 500
    assert said.startswith(f"{safe_name(name)}: ")


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
    found = upload(case)
    assert tempfile.gettempdir() not in repr(found)  # no path of this machine
    files = case.files.items()
    packed = {name: text if text.startswith(GZIP) else gzip.compress(text) for name, text in files}
    assert nouns(upload(replace(case, files=packed))) == nouns(found)
    if case.form != "record":
        imported = read_files("auto", case.write(tmp_path), ImportOptions())
        assert nouns(found) == nouns(imported)
        assert len(found.said("missing")) == len(imported.said("missing"))


# What belongs together


def test_a_measured_record_is_as_its_directory_is() -> None:
    found, expected = upload(OURS[0]), sim.load_record(RECORD)
    assert found.record is not None
    assert replace(found.record, name=expected.name) == expected
    assert (found.workload, found.hardware) == (expected.workload, (expected.hardware,))


def test_an_import_can_be_uploaded_as_it_was_written(tmp_path: Path) -> None:
    """All its files: the record, the summary, and the hardware of another run beside it."""
    imported = read_files("auto", TRACE.write(tmp_path), ImportOptions())
    imported = replace(imported, hardware=(*imported.hardware, replace(WIRE, world_size=8)))
    write_imported(imported, tmp_path / "out")
    found = sim.read_uploads([(path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir()])
    assert [one.world_size for one in found.hardware] == [2, 8]
    assert found.record.hardware == found.hardware[0]
    assert found.record.measurements == imported.measurements
    assert any("summary of an import" in line for line in found.said("dropped"))


def test_a_recommendation_brings_its_assignment() -> None:
    best = sim.tune(MODEL, WIRE)
    found = sim.read_uploads([("best.json", content(best)), ("model.json", content(MODEL))])
    assert (found.assignment, found.workload) == (best.assignment, MODEL)


def test_a_recording_is_told_by_its_ranks_not_by_its_names() -> None:
    renamed = {f"download ({place})": text for place, text in enumerate(RECORDED.files.values())}
    assert nouns(upload(replace(RECORDED, files=renamed))) == nouns(upload(RECORDED))


def rank(said: str) -> tuple[str, bytes]:
    return "r", f'{{"kind":"recording","schema_version":1,"rank":{said}}}\n'.encode()


MEASURED = sorted(RECORD.glob("measurement-*.json"))[0]
RUN, W, H = (MEASURED.name, MEASURED.read_bytes()), ("w", content(MODEL)), ("h", content(WIRE))
OTHER, OTHER_H = content(replace(MODEL, name="another")), content(replace(WIRE, name="other"))
REPORT, RANK_0 = b'{"schema_version": 1, "kind": "report", "provenance": {}}', RECORDED.files["rank-0.jsonl"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "files: none are not legal"),
        ([W] * 257, "257 are not legal; give 1 to 256"),
        ([("a", W[1]), ("b", OTHER)], r"2 files of kind workload \(a, b\)"),
        ([("a.json", W[1]), ("a.json", OTHER)], r"\(a.json, a.json \(2\)\)"),
        ([RUN], "no workload file beside it"),
        ([RUN, W], "no hardware file of 2 ranks"),
        ([RUN, W, H, ("h2", OTHER_H)], "2 hardware files of 2 ranks"),
        ([("r", RANK_0.replace(b'"rank":0', b'"rank":-1', 1))], "rank: -1 is not legal"),
        ([rank("0")], "^rank-0.jsonl: line 1: "),
        ([("a", RANK_0), ("b", RANK_0 + b"\n")], "second file of rank 0"),
        ([*TRACE.files.items(), RUN], "not legal beside traces"),
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


def instead(old: bytes, new: bytes) -> bytes:
    """A workload with something else in one place."""
    return content(MODEL).replace(old, new)


FAILED = "\n".join([*head(8), "node0: Test NCCL failure common.cu:1006 'unhandled cuda error'", ""])
NS = b'"backward_ns": 1000'
HOSTILE = {
    "empty": (b"", "the file is empty"),
    "spaces": (b" \n" * 100, "the file is empty"),
    "zeros": (b"\0" * 4096, "a binary file"),
    "zeros within": (b"abc\0def", "a binary file"),
    "a pickle": (pickle.dumps(Evil()), "a pickle"),
    "a zip": (zipped(), "a zip archive"),
    "a page": (b"<!DOCTYPE html><script>alert(1)</script>", "a web page"),
    "zstd": (b"\x28\xb5\x2f\xfd1234", "compressed with zstd; unpack it"),
    "xz": (b"\xfd7zXZ\x001234", "compressed with xz; unpack it"),
    "bzip2": (b"BZh91AY", "compressed with bzip2; unpack it"),
    "SQLite": (b"SQLite format 3\x00", "an SQLite database"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:a", "a Git LFS pointer"),
    "text": (b"hello", "not recognised; give a Kineto trace"),
    "a run that failed": (FAILED.encode(), "a run that ended before its first size"),
    "a header alone": (b"size_B time_us nranks\n", r"no whole row in it \(truncated\?\)"),
    "no events": (b'{"traceEvents": []}', "traceEvents: no events"),
    "a report": (REPORT, "kind: 'report' is not legal"),
    "cut gzip": (gzip.compress(content(MODEL))[:40], "damaged gzip"),
    "gzip twice": (gzip.compress(gzip.compress(content(MODEL))), "compressed twice"),
    "a zip in gzip": (gzip.compress(zipped()), "a zip archive"),
    "deep": (
        instead(b'"provenance": {}', b'"provenance": {"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
        "recursion limit exceeded",
    ),
    "deeper": (b'{"traceEvents": [' + b"[" * 500_000, "nested too deeply|not JSON"),
    "infinite": (instead(NS, b'"backward_ns": 1e999'), "not legal"),
    "huge": (instead(NS, b'"backward_ns": ' + b"9" * 5000), "out of range"),
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
    many = handmade([1] * (readers.MAX_GRADIENTS + 1), 16)
    words = r"^{}: too much for a page.*5000 gradients.*bucketsim import"
    with pytest.raises(InputError, match=words.format(many.name)):
        sim.read_uploads([("w", content(many))])
    monkeypatch.setattr(Gradient, "__post_init__", None)  # not one is made of what is larger by far
    row = b'{"index":0,"name":"","shape":[],"dtype":"int8","num_bytes":1,"ready_ns":0},'
    more = b'{"schema_version":1,"kind":"workload","gradients":[' + 1_000_000 * row + row[:-1] + b"]}"
    with pytest.raises(InputError, match=words.format("w")):
        sim.read_uploads([("w", gzip.compress(more, 1))])


def test_a_bomb_is_not_inflated_and_all_files_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_INFLATED_BYTES", 16 << 20)
    bomb = gzip.compress(bytes(1 << 20), 9) * 10_240  # ten gigabytes, in ten megabytes of members
    with pytest.raises(InputError, match=r"^b: holds more than 16 MiB.*bucketsim import"):
        sim.read_uploads([("b", bomb)])
    monkeypatch.setattr(readers, "MAX_INFLATED_BYTES", len(content(MODEL)) + 10)
    assert sim.read_uploads([W]).workload == MODEL
    with pytest.raises(InputError, match="all files of an upload together"):
        sim.read_uploads([W, H])


def test_the_private_directory_is_removed_after_a_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def broken(path: Path, *_: Any) -> Any:
        seen.append(path)
        assert (path.parent.stat().st_mode & 0o077) == 0  # nobody else may look in
        raise RuntimeError("a bug")

    monkeypatch.setattr(readers, "recognise", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sim.read_uploads([("../../w.json", content(MODEL))])
    assert seen[0].name == "w.json"
    assert not seen[0].parent.exists()


@pytest.mark.parametrize(
    ("of", "recorded_of", "main"),
    [((4,), 8, 4), ((4, 8), 8, 8), ((4, 8), 2, None), ((4, 8), None, None), ((), 8, None)],
)
def test_the_only_hardware_is_the_runs_and_of_several_the_one_of_its_ranks(
    of: tuple[int, ...], recorded_of: int | None, main: int | None
) -> None:
    told: dict[str, Any] = {"role": "plain", "complete": False, "world_size": recorded_of}
    steps = () if recorded_of is None else (measurement("plain", None, (), **told),)
    hardware = tuple(wired({1: 1}, world_size=ranks) for ranks in of)
    found = Imported(format="any", name="any", hardware=hardware, measurements=steps).main_hardware
    assert (None if found is None else found.world_size) == main
