"""Ranks that die, hang or disagree, full disks and Ctrl-C: one error that names the culprit, in time."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sim.formats.record_files import load_record
from sim.nouns.workload import Workload
from sim.validator.launch import EVENTS, FAILED
from tests.dist.conftest import needs_box
from tests.dist.starting import (
    Validation,
    forked_to_their_ends,
    holding,
    networks,
    prepared,
    quickened,
    ranks_of,
    wait_for,
    worker,
)
from tests.effort import PATIENCE_S
from tests.ranks import free_port

pytestmark = pytest.mark.dist


def check_kept(record: Path) -> None:
    """What was measured is there and says that it is not all."""
    kept = load_record(record)
    assert {measurement.name for measurement in kept.measurements} >= {"plain", "noop", "DDP default"}
    assert not any(measurement.complete for measurement in kept.measurements)
    assert all(0 < len(measurement.iterations) < 5000 for measurement in kept.measurements)


def one_line(said: str) -> str:
    """The only line that is an error; notes may stand beside it."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert "Traceback" not in said
    return errors[0]


@pytest.mark.slow
def test_a_killed_rank_is_named(small_workload: Workload, tmp_path: Path) -> None:
    with Validation(small_workload, tmp_path) as run:
        wait_for(run.has_measured, "a measured round")
        os.kill(run.rank(1), signal.SIGKILL)
        code, said = run.ends()
        assert code == 1
        assert "rank 1 was killed by SIGKILL, after step" in one_line(said)
        assert run.leftovers() == []
        check_kept(run.record)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_hung_rank_is_named(small_workload: Workload, tmp_path: Path, victim: int) -> None:
    with Validation(small_workload, tmp_path) as run:
        wait_for(run.has_measured, "a measured round")
        os.kill(run.rank(victim), signal.SIGSTOP)
        code, said = run.ends()
        assert code == 1
        assert f"rank {victim}: no sign of life; " in one_line(said)  # when torch's own timeout has passed
        assert run.leftovers() == []
        check_kept(run.record)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
    ids=["SIGINT", "SIGTERM"],
)
def test_ctrl_c_keeps_what_was_measured(
    small_workload: Workload, tmp_path: Path, sent: signal.Signals, expected: int
) -> None:
    with Validation(quickened(small_workload), tmp_path) as run:
        wait_for(run.has_measured, "a measured round")
        run.process.send_signal(sent)
        code, said = run.ends()
        assert code == expected
        assert ("interrupted" in said.splitlines()) == (sent == signal.SIGINT), said
        assert "Traceback" not in said
        assert run.leftovers() == []
        check_kept(run.record)
        assert f"what was measured is kept in {run.record}, marked incomplete" in said.splitlines()
        assert f"next: bucketsim agree {run.record}; " in said


@pytest.mark.slow
@needs_box
def test_a_killed_parent_leaves_no_process_and_no_namespace(small_workload: Workload, tmp_path: Path) -> None:
    with Validation(small_workload, tmp_path, "--box", "2", "--rate", "1gbit") as run:
        wait_for(run.has_measured, "a measured round")
        os.kill(run.rank(1), signal.SIGSTOP)
        there = networks(run.process.pid)
        assert len(there) == 2
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not run.leftovers(), "the end of every rank")
        wait_for(lambda: not there & networks(), "the end of their namespaces")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs root that may mount a small tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def failures(folder: Path) -> list[dict[str, Any]]:
    """What ranks without a parent left of their end."""
    return [json.loads(path.read_text()) for path in folder.glob(FAILED.format("*"))]


def fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


@pytest.mark.slow
def test_a_full_disk_ends_no_measurement(small_workload: Workload, tmp_path: Path, small_disk: Path) -> None:
    """Where ranks are started here, they tell all in memory."""
    with Validation(quickened(small_workload), tmp_path, jobs=small_disk) as run:
        wait_for(run.has_measured, "a measured round")
        fill(small_disk)
        told = len(run.told())
        wait_for(lambda: len(run.told()) > told, "a further event")
        run.process.send_signal(signal.SIGINT)
        assert run.ends()[0] == 130
        check_kept(run.record)


@pytest.mark.slow
def test_a_full_disk_is_named(small_workload: Workload, small_disk: Path) -> None:
    """Of ranks that others start rank 0 writes what is told; it prints why where it cannot leave it."""
    record = prepared(small_workload, small_disk / "record", rounds=5000)
    port = free_port()
    ranks = [worker(record, rank, port) for rank in range(2)]
    try:
        wait_for(lambda: has_measured(record), "a measured round")
        fill(small_disk)
        _, said = ranks[0].communicate(timeout=PATIENCE_S)
        assert re.search(rf"rank 0: OSError: .*No space left on device: '{small_disk}", said)
        ranks[1].wait(timeout=PATIENCE_S)
        assert [rank.returncode for rank in ranks] == [1, 1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def has_measured(record: Path) -> bool:
    events = record / EVENTS
    return events.exists() and '"round": 1,' in events.read_text()


def test_a_rank_with_another_model_is_named_on_every_rank(small_workload: Workload, tmp_path: Path) -> None:
    ours, theirs = prepared(small_workload, tmp_path / "ours"), prepared(small_workload, tmp_path / "theirs")
    job = json.loads((theirs / "job.json").read_text())
    job["workload"]["gradients"][3]["name"] = "another"
    (theirs / "job.json").write_text(json.dumps(job))
    words = "another job than rank 0's on rank 1"
    for folder, (code, said) in zip((ours, theirs), forked_to_their_ends([ours, theirs]), strict=True):
        assert code == 1
        assert words in said
        assert [(one["ranks"], one["reason"]) for one in failures(folder)] == [([1], words)]


def test_a_rank_that_fails_leaves_its_reason(small_workload: Workload, tmp_path: Path) -> None:
    """Gradients of integers, which torch refuses; a rank may lose touch with one that has ended by then."""
    job = prepared(small_workload, tmp_path / "job")
    asked = json.loads((job / "job.json").read_text())
    for gradient in asked["workload"]["gradients"]:
        gradient["dtype"] = "int32"
    (job / "job.json").write_text(json.dumps(asked))
    assert [code for code, _ in forked_to_their_ends([job, job])] == [1, 1]
    assert any(re.search(r"RuntimeError: .*[Gg]radients", said) for said in map(str, failures(job)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "sent"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP)]
)
def test_ranks_without_a_parent_name_the_one_they_miss(
    small_workload: Workload, tmp_path: Path, victim: int, sent: signal.Signals
) -> None:
    record = prepared(small_workload, tmp_path / "record", rounds=5000)
    port = free_port()
    ranks = [worker(record, rank, port) for rank in range(2)]
    try:
        wait_for(lambda: has_measured(record), "a measured round")
        ranks[victim].send_signal(sent)
        survivor = ranks[1 - victim]
        _, said = survivor.communicate(timeout=PATIENCE_S)
        assert survivor.returncode == 1
        assert [one["ranks"] for one in failures(record)] == [[victim]], said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert holding(str(record)) == []
    assert ranks_of(str(record)) == {}
