"""Files of several formats, put together."""

import os
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim.importer.auto as auto
from sim.errors import InputError
from sim.formats.documents import save
from sim.formats.record_files import load_record
from sim.importer.auto import read_auto
from sim.importer.imported import SUMMARY, Imported, ImportOptions, Note, RankRow, write_imported
from sim.importer.readers import READABLE, reader, recognise
from sim.nouns.hardware import CurvePoint, Hardware
from tests.handmade import handmade
from tests.importer.corpus import corpus
from tests.importer.link_texts import Line, today
from tests.public_data import DATA, needs_data

RECORD = Path(__file__).parents[2] / "traces" / "measured" / "gpt-loopback-2"
LINES = [Line(num_bytes=1 << power, in_us=10.0 * 2 ** (power - 20), out_us=900.0) for power in range(20, 28)]

MODEL = handmade([5], 16, name="model", forward_ns=5, backward_ns=10, optimizer_ns=1)


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

    def read(paths: Sequence[Path], options: ImportOptions) -> Any:
        kept.append(options)
        return kept[0]

    monkeypatch.setattr(auto, "reader", lambda form: read if form == "kineto" else reader(form))
    return kept


def test_the_curve_beside_the_step_is_taken_before_that_of_the_trace(tmp_path: Path, seen: Any) -> None:
    paths = [link(tmp_path, 4), trace(tmp_path), link(tmp_path, 2)]
    found = read_auto(paths, ImportOptions())
    used, other = found.hardware
    assert (used.world_size, other.world_size) == (2, 4)
    assert used.all_reduce[0].duration_ns == 10_000
    assert used.compute_slowdown == 1.25  # what only the step shows stays
    assert used.spread["all_reduce"]["1048576"]["count"] == 2
    said = " ".join(found.said("assumed"))
    assert "in place of the trace's own" in said
    assert "2 of 2 sizes took another time" in said
    assert "1 MiB 1.00 ms against 0.01 ms" in said
    assert "kineto: a step" in found.said("found")
    assert found.said("missing") == ("kineto: copies",)  # curve and workload are there
    assert len(found.measurements) == 1


def test_a_link_of_other_ranks_is_kept_beside(tmp_path: Path, seen: Any) -> None:
    found = read_auto([trace(tmp_path), link(tmp_path, 8)], ImportOptions())
    assert [one.world_size for one in found.hardware] == [2, 8]
    assert "those beside it, of 8 ranks" in " ".join(found.said("assumed"))


def test_a_link_of_other_ranks_leaves_the_curve_missing(tmp_path: Path, seen: Any) -> None:
    seen[0] = replace(seen[0], hardware=())
    found = read_auto([trace(tmp_path), link(tmp_path, 8), link(tmp_path, 4)], ImportOptions())
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
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="not recognised"):
        read_auto([trace(tmp_path), tmp_path / "x.json"], ImportOptions())


# Formats told by content.


def test_the_corpus_holds_every_format() -> None:
    """From it begin the tests of damage, of anonymising and of wrong formats."""
    assert {case.form for case in corpus()} == set(READABLE)


def test_each_file_is_of_its_format(tmp_path: Path) -> None:
    for number, case in enumerate(case for case in corpus() if not case.is_public):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = {recognise(path) for path in case.write(folder)}
        assert found == ({case.form} if case.form != "auto" else {"workload", "hardware"}), case.files


def test_a_directory_of_ranks_is_a_recording(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a directory without"):
        recognise(tmp_path)
    (tmp_path / "rank-3.jsonl").write_text("")
    assert recognise(tmp_path) == "recording"


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
    root = DATA
    for folder, form in (("nccl_tests", "nccl-tests"), ("traces/hta", "kineto"), ("traces/kineto", "kineto")):
        for path in sorted(root.glob(f"{folder}/**/*.*")):
            if path.is_file() and "thanos" not in path.name:  # its header is a sentence
                assert recognise(path) == form, path
    for path in sorted((root / "traces/param").glob("*.pt.trace.json.gz")):
        assert recognise(path) == "kineto", path


# An import on disk: all of it, or nothing.


HARDWARE = Hardware(name="link", world_size=2, all_reduce=(CurvePoint(num_bytes=1, duration_ns=1),))
IMPORTED = Imported(format="kineto", name="x", workload=MODEL, hardware=(HARDWARE,))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_an_import_that_is_cut_short_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    real = os.replace

    def cut(source: Path, target: Path) -> None:
        if target.name == "hardware.json":
            raise fault
        real(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else InputError):
        write_imported(IMPORTED, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    written = write_imported(IMPORTED, tmp_path / "out")
    assert [path.name for path in written] == ["workload.json", "hardware.json"]
    assert (tmp_path / "out" / SUMMARY).exists()


def test_what_an_earlier_import_left_is_replaced(tmp_path: Path) -> None:
    write_imported(IMPORTED, tmp_path)
    write_imported(Imported(format="kineto", name="x", workload=MODEL), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"workload.json", SUMMARY}
