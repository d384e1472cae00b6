"""Ranks that die, hang or disagree, full disks and Ctrl-C: one error that names the culprit, in time.

Whose fault it is, is judged by exit codes, by what ranks told and by who answers a roll call.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from sim.errors import ReplayError
from sim.formats.record_files import load_record
from sim.nouns.workload import Workload
from sim.validator import launch, worker
from sim.validator.jobs import CalibrationJob
from sim.validator.launch import EVENTS, FAILED, _watch
from sim.validator.ranks.rank import Fault, Rank, Seat, Watch, store_of, write_event
from tests.dist.conftest import needs_box
from tests.dist.starting import (
    Validation,
    forked_to_their_ends,
    holding,
    networks,
    prepared,
    ranks_of,
    seat,
    shrunk,
    wait_for,
)
from tests.effort import PATIENCE_S
from tests.ranks import free_port
from tests.targets import small_disk

pytestmark = pytest.mark.dist


def check_kept(record: Path) -> None:
    """What was measured is there and says that it is not all."""
    kept = load_record(record)
    assert {measurement.name for measurement in kept.measurements} >= {"plain", "noop", "DDP default"}
    assert not any(measurement.complete for measurement in kept.measurements)
    assert all(0 < len(measurement.iterations) < 5000 for measurement in kept.measurements)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "sent", "words"),
    [
        (1, signal.SIGKILL, "rank 1 was killed by SIGKILL, after step"),
        # when torch's own timeout has passed
        *((victim, signal.SIGSTOP, f"rank {victim}: no sign of life; ") for victim in (0, 1)),
    ],
)
def test_a_rank_that_is_killed_or_hangs_is_named(
    victim: int, sent: signal.Signals, words: str, small_workload: Workload, tmp_path: Path
) -> None:
    with Validation(small_workload, tmp_path) as run:
        os.kill(run.rank(victim), sent)
        code, said = run.ends()
        (error,) = (line for line in said.splitlines() if line.startswith("error: "))
        assert (code, words in error, "Traceback" in said) == (1, True, False), said
        assert run.leftovers() == []
        check_kept(run.record)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [pytest.param(*one, marks=pytest.mark.slow) for one in ((signal.SIGINT, 130), (signal.SIGTERM, 143))],
    ids=["SIGINT", "SIGTERM"],
)
def test_ctrl_c_keeps_what_was_measured(
    small_workload: Workload, tmp_path: Path, sent: signal.Signals, expected: int
) -> None:
    with Validation(shrunk(small_workload, pace=10), tmp_path) as run:
        run.process.send_signal(sent)
        code, said = run.ends()
        assert (code, "Traceback" in said) == (expected, False)
        assert ("interrupted" in said.splitlines()) == (sent == signal.SIGINT), said
        assert run.leftovers() == []
        check_kept(run.record)
        assert f"what was measured is kept in {run.record}, marked incomplete" in said.splitlines()
        assert f"next: bucketsim agree {run.record}; " in said


@pytest.mark.slow
@needs_box
def test_a_killed_parent_leaves_no_process_and_no_namespace(small_workload: Workload, tmp_path: Path) -> None:
    with Validation(small_workload, tmp_path, "--box", "2", "--rate", "1gbit") as run:
        os.kill(run.rank(1), signal.SIGSTOP)
        there = networks(run.process.pid)
        assert len(there) == 2
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not run.leftovers(), "the end of every rank")
        wait_for(lambda: not there & networks(), "the end of their namespaces")


# Ranks without a parent: rank 0 writes what is told, and each leaves the reason of its end.


@contextmanager
def measuring(record: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks, started by hand, that have measured a round."""
    port, words = free_port(), [sys.executable, "-m", "sim.validator.worker", str(record / "job.json")]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(words, env=os.environ | seat(rank, port), **quiet) for rank in range(2)]
    events = record / EVENTS
    try:
        wait_for(lambda: events.exists() and '"round": 1,' in events.read_text(), "a measured round")
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def failures(folder: Path) -> list[dict[str, Any]]:
    """What ranks left of their end."""
    return [json.loads(path.read_text()) for path in folder.glob(FAILED.format("*"))]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_without_a_parent_name_the_one_they_miss(
    small_workload: Workload, tmp_path: Path, victim: int, sent: signal.Signals
) -> None:
    record = prepared(small_workload, tmp_path / "record", rounds=5000)
    with measuring(record) as ranks:
        ranks[victim].send_signal(sent)
        _, said = ranks[1 - victim].communicate(timeout=PATIENCE_S)
        assert ranks[1 - victim].returncode == 1
        assert [one["ranks"] for one in failures(record)] == [[victim]], said
    assert (holding(str(record)), ranks_of(str(record))) == ([], {})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "256k") as folder:
        yield folder


def fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


@pytest.mark.slow
def test_a_full_disk_ends_no_measurement(small_workload: Workload, tmp_path: Path, disk: Path) -> None:
    """Where ranks are started here, they tell all in memory."""
    with Validation(shrunk(small_workload, pace=10), tmp_path, jobs=disk) as run:
        fill(disk)
        told = len(run.told())
        wait_for(lambda: len(run.told()) > told, "a further event")
        run.process.send_signal(signal.SIGINT)
        assert run.ends()[0] == 130
        check_kept(run.record)


@pytest.mark.slow
def test_a_full_disk_is_named(small_workload: Workload, disk: Path) -> None:
    """Of ranks that others start; rank 0 prints why where it cannot leave it."""
    with measuring(prepared(small_workload, disk / "record", rounds=5000)) as ranks:
        fill(disk)
        _, said = ranks[0].communicate(timeout=PATIENCE_S)
        assert re.search(rf"rank 0: OSError: .*No space left on device: '{disk}", said)
        assert [rank.wait(timeout=PATIENCE_S) for rank in ranks] == [1, 1]


def edited(folder: Path, workload: Workload, **facts: str) -> Path:
    """A job with other facts of its fourth gradient."""
    path = prepared(workload, folder) / "job.json"
    job = json.loads(path.read_text())
    job["workload"]["gradients"][3] |= facts
    path.write_text(json.dumps(job))
    return folder


def test_a_rank_with_another_model_is_named_on_every_rank(small_workload: Workload, tmp_path: Path) -> None:
    folders = [
        edited(tmp_path / "ours", small_workload),
        edited(tmp_path / "x", small_workload, name="another"),
    ]
    words = "another job than rank 0's on rank 1"
    for folder, (code, said) in zip(folders, forked_to_their_ends(folders), strict=True):
        assert (code, words in said) == (1, True)
        assert [(one["ranks"], one["reason"]) for one in failures(folder)] == [([1], words)]


def test_a_rank_that_fails_leaves_its_reason(small_workload: Workload, tmp_path: Path) -> None:
    """Gradients of integers, which torch refuses; a rank may lose touch with one that has ended by then."""
    job = edited(tmp_path / "job", small_workload, dtype="int32")
    assert [code for code, _ in forked_to_their_ends([job, job])] == [1, 1]
    assert any(re.search(r"RuntimeError: .*[Gg]radients", said) for said in map(str, failures(job)))


# Who is to blame.

OWN = {"ranks": [1], "reason": "ValueError: its own"}
ALONE = {"ranks": [], "reason": "rank 0 lost touch with the others: closed"}
FAILS = "import sys; print('ImportError: no such thing'); sys.exit(3)"
STAYS = "import time; time.sleep(1000)"
KILLED = "import os; os.kill(os.getpid(), {})"


@pytest.mark.parametrize(
    ("programs", "told", "said"),
    [
        (("", ""), [{"event": "finished"}], None),
        (("", ""), [{"event": "step"}], "the ranks ended without a result: it said nothing"),
        ((STAYS, FAILS), [ALONE, OWN], "rank 1: ValueError: its own"),
        ((FAILS, FAILS), [ALONE], ALONE["reason"]),
        (("", FAILS), [], "rank 1 ended with exit code 3: ImportError: no such thing"),
        ((STAYS, KILLED.format(9)), [{"event": "step"}], "rank 1 was killed by SIGKILL, after step 1"),
        ((STAYS, KILLED.format(15)), [ALONE], "rank 1 was killed by SIGTERM, after step 0"),
    ],
)
def test_who_failed_is_named(
    programs: tuple[str, str], told: list[dict[str, Any]], said: str | None, tmp_path: Path
) -> None:
    (path := tmp_path / "events").touch()
    for one in told:
        write_event(path, one.get("event", "failed"), {name: one[name] for name in one if name != "event"})
    with ExitStack() as stack:
        logs = [stack.enter_context(os.fdopen(os.memfd_create("log"), "w+b")) for _ in programs]
        ranks = [
            subprocess.Popen([sys.executable, "-c", one], stdout=log, stderr=log, start_new_session=True)
            for one, log in zip(programs, logs, strict=True)
        ]
        stack.callback(launch._kill, ranks)
        if said is not None:
            stack.enter_context(pytest.raises(ReplayError, match=f"^replay: {said}$"))
        _watch(ranks, logs, stack.enter_context(open(path, "rb")), lambda event: None)


@pytest.mark.parametrize("absent", [(), (1,), (1, 2)])
def test_who_does_not_answer_the_roll_is_named(
    absent: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 stands still for too long; the others answer while they wait, 2 has nothing to say of itself."""
    for name, seconds in {"_LOOK_S": 0.05, "_CALM_S": 0.1, "_ANSWER_S": 1.0, "_LEAVE_S": 600}.items():
        monkeypatch.setattr(sys.modules[Watch.__module__], name, seconds)
    port = free_port()
    places = [Seat(k, 4, k, 4, "127.0.0.1", port, "environment") for k in range(4)]
    _served = store_of(places[0], keeps=True)
    found: Queue[Fault] = Queue()

    def end(fault: Fault) -> None:
        found.put(fault)
        threading.Event().wait(2)

    watches = [
        Watch(Rank(CalibrationJob(quiet_s=quiet_s), one.rank, 4), one, end, is_watched=False)
        for one, quiet_s in zip(places, (60.0, 60.0, 60.0, 0.3), strict=True)
        if one.rank not in absent
    ]
    for watch in watches:
        watch.start()
    fault = found.get(timeout=PATIENCE_S)
    for watch in watches:
        watch.is_over = True
    assert fault.ranks == list(absent)
    assert ("no sign of life" in str(fault), "rank 3 in " in str(fault)) == (bool(absent), True)
    keeper = threading.Thread(target=watches[0].leave, daemon=True)
    keeper.start()
    for watch in watches[1:]:
        assert keeper.is_alive()
        watch.leave()
    keeper.join(0.2 if absent else PATIENCE_S)
    assert keeper.is_alive() == bool(absent)


def test_a_reason_is_left_for_who_started_the_rank_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        worker._Life(tmp_path / "no room").end(Fault([1], "ValueError: its own"))
    said = capsys.readouterr().err
    assert said.startswith("rank 1: ValueError: its own\n")
    assert f"not kept: [Errno 2] No such file or directory: '{tmp_path}" in said
    monkeypatch.setenv("BUCKETSIM_EVENTS", str(tmp_path / "events"))
    monkeypatch.setenv("RANK", "0")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        worker._Life(tmp_path).fail(RuntimeError("[/gloo/transport/tcp/pair.cc:1] Connection closed by peer"))
    told = json.loads((tmp_path / "events").read_text())
    assert (told["event"], told["ranks"]) == ("failed", [])
    assert told["reason"].startswith("rank 0 lost touch with the others: ")
    assert signal.getsignal(signal.SIGTERM) == before
