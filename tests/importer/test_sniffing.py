"""Formats told by content."""

import time
import tracemalloc
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.importer.readers import DOCUMENTS, READABLE, recognise
from tests.importer.corpus import corpus
from tests.public_data import DATA, needs_data


def test_the_corpus_holds_every_format() -> None:
    """From it begin the tests of damage, of anonymising and of wrong formats."""
    assert {case.form for case in corpus()} == set(READABLE)


def test_each_file_is_of_its_format(tmp_path: Path) -> None:
    for number, case in enumerate(case for case in corpus() if not case.is_public):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = {recognise(path) for path in case.write(folder)}
        assert found == ({case.form} if case.form != "auto" else set(DOCUMENTS)), case.files.keys()


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
            if path.is_file():
                assert recognise(path) == form, path
    for path in sorted((root / "traces/param").glob("*.pt.trace.json.gz")):
        assert recognise(path) == "kineto", path
    for path in sorted((root / "link_calibration").glob("*.[cj]s*")):
        assert recognise(path) == "nccl-tests", path
