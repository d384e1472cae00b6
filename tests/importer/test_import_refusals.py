"""What people give by mistake: each is answered by a line that says what to do."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sim.formats.documents import save
from tests.commands import Said, bucketsim
from tests.effort import PATIENCE_S
from tests.importer.built_traces import Dialect, build
from tests.importer.corpus import JOB, LINES, MODEL, WIRE
from tests.importer.link_texts import head, today
from tests.importer.mutations import JUNK

FAILURE = "node0: Test NCCL failure common.cu:1006 'unhandled cuda error'\n .. node0 pid 1: Test failure\n"
TABLE = "\n".join(today(LINES, 8)[:-6]) + "\n"
# What a file holds, and what import auto says of it.
GIVEN: dict[bytes, str] = {
    b"": "the file is empty",
    b"<!DOCTYPE html>\n<html lang='en'>": "a web page in place of the file; download the raw file",
    b"\n\n<HTML><body>404": "a web page",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:a": "a Git LFS pointer",
    b"\x28\xb5\x2f\xfd1234": "compressed with zstd; unpack it",
    b"\xfd7zXZ\x001234": "compressed with xz; unpack it",
    b"BZh91AY": "compressed with bzip2; unpack it",
    b"SQLite format 3\x00": "an SQLite database",
    pickle.dumps({"entries": []}): "a pickle, which could run code when it is read; give JSON",
    b"\x13\x00\x00NVTX": "a binary file",
    b"hello": "not recognised; give a Kineto trace",
    ("\n".join(head(8)) + "\n").encode(): "first lines without its table: the run ended before its first",
    ("\n".join(head(8)) + "\n" + FAILURE).encode(): "first size (Test NCCL failure common.cu:1006 'unhandled",
    b"size_B time_us nranks\n": "a header, but no whole row below it (truncated?)",
    b'{"schema_version": 1, "kind": "report", "provenance": {}}': "give a workload or hardware",
    b'{"traceEvents": []}': "traceEvents: no events; give a trace that torch.profiler exported",
}


def refused(said: Said) -> str:
    """The one line of a refusal."""
    assert said.code == 1, said.err
    (line,) = said.err.strip().splitlines()
    assert len(line) < 500
    return line


@pytest.mark.parametrize("content", GIVEN, ids=lambda content: GIVEN[content][:30])
def test_what_is_not_what_it_should_be(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "given.json").write_bytes(content)
    line = refused(bucketsim("import", "auto", tmp_path / "given.json", "-o", tmp_path / "made"))
    assert GIVEN[content] in line
    assert "given.json" in line
    assert not (tmp_path / "made").exists()


def test_a_run_that_failed_gives_what_it_measured_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "crash.txt").write_text(TABLE + FAILURE)
    said = bucketsim("import", "auto", tmp_path / "crash.txt", "-o", tmp_path / "made")
    assert said.code == 0
    assert "dropped: crash.txt: what follows a failure (Test NCCL failure common.cu:1006" in said.out


def test_a_rank_of_another_job_and_a_rank_twice(tmp_path: Path) -> None:
    paths = []
    texts = build(replace(JOB, offsets_ns=(0,) * 8, forward_ns=((50_000,) * 8,) * 3), Dialect())[0]
    shapes = ((9, 9), (9,), (6, 8), (8,), (5, 3))
    other = build(
        replace(JOB, offsets_ns=(0,) * 8, forward_ns=((50_000,) * 8,) * 3, shapes=shapes), Dialect()
    )[0]
    for rank, text in enumerate([*texts[:7], other[7]]):
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(text)
    line = refused(bucketsim("import", "auto", *paths, "-o", tmp_path / "made"))
    assert "rank7.json: step 0: all-reduce 0 has 90 elements" in line
    assert "give the traces of one job" in line
    line = refused(bucketsim("import", "kineto", paths[0], paths[1], paths[0], "-o", tmp_path / "made"))
    assert "give one file of each rank" in line
    assert bucketsim("import", "kineto", *paths[:7], "-o", tmp_path / "made").code == 0


def test_another_model_and_another_number_of_ranks(tmp_path: Path) -> None:
    save(tmp_path / "model.json", MODEL)
    save(tmp_path / "wire.json", WIRE)
    trace = tmp_path / "trace.json"
    trace.write_text(build(JOB, Dialect())[0][0])
    for option, word in (
        (("--model", tmp_path / "model.json"), "give the model that was trained"),
        (("--model", tmp_path / "wire.json"), "kind: 'hardware' is not legal; it must be 'workload'"),
        (("--model", tmp_path / "none.json"), "none.json: cannot be read: No such file"),
        (("--world-size", 3), "over 2 ranks, but --world-size says 3"),
        (("--world-size", 0), "give an integer >= 1"),
    ):
        assert word in refused(bucketsim("import", "kineto", trace, "-o", tmp_path / "made", *option))


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "link.txt").write_text(TABLE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    for target, word in (
        ("mine", "holds other files already; give a new or empty directory"),
        ("link.txt", "link.txt: cannot be made: it is a file; give a directory"),
        ("link.txt/below", "cannot be made"),
    ):
        line = refused(bucketsim("import", "auto", tmp_path / "link.txt", "-o", tmp_path / target))
        assert word in line
    assert (tmp_path / "link.txt").read_text() == TABLE
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    for junk in (*JUNK, {"kind": "import", "files": ["../link.txt", 5, None, "/etc/hosts"]}):
        (tmp_path / "mine" / "summary.json").write_text(json.dumps(junk))
        (tmp_path / "mine" / "hardware.json").write_text("mine too")
        refused(bucketsim("import", "auto", tmp_path / "link.txt", "-o", tmp_path / "mine"))
    assert (tmp_path / "link.txt").read_text() == TABLE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
def test_without_permission(tmp_path: Path) -> None:
    (tmp_path / "link.txt").write_text(TABLE)
    (tmp_path / "closed").mkdir(mode=0o000)
    refused(bucketsim("import", "auto", tmp_path / "closed" / "link.txt", "-o", tmp_path / "made"))
    refused(bucketsim("import", "auto", tmp_path / "link.txt", "-o", tmp_path / "closed" / "made"))


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["heard", "ignored"])
def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, inherited: signal.Handlers) -> None:
    """A long trace, and Ctrl-C while it is read; also where a shell started the command in the background."""
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "tid": 7},\n'
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [' + event * 1_500_000 + "{}]}")
    running = subprocess.Popen(
        [sys.executable, "-m", "sim", "import", "auto", str(trace), "-o", str(tmp_path / "made")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    opened = Path(f"/proc/{running.pid}/fd")
    while running.poll() is None and trace not in [end(link) for link in opened.iterdir()]:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, said) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def end(link: Path) -> Path | None:
    """Where an open file is; None where it has been closed since."""
    try:
        return link.readlink()
    except FileNotFoundError:
        return None
