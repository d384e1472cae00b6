"""Whose fault it is, judged by exit codes, by what ranks told and by who answers a roll call."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from sim.errors import ReplayError
from sim.validator import launch, worker
from sim.validator.jobs import CalibrationJob
from sim.validator.launch import _watch
from sim.validator.ranks.rank import Fault, Rank, Seat, Watch, store_of, write_event
from tests.ranks import free_port

OWN = {"ranks": [1], "reason": "ValueError: its own"}
ALONE = {"ranks": [], "reason": "rank 0 lost touch with the others: closed"}
FAILS = "import sys; print('ImportError: no such thing'); sys.exit(3)"
STAYS = "import time; time.sleep(1000)"


def killed(number: int) -> str:
    return f"import os; os.kill(os.getpid(), {number})"


@pytest.mark.parametrize(
    ("programs", "told", "said"),
    [
        (("", ""), [{"event": "finished"}], None),
        (("", ""), [{"event": "step"}], "the ranks ended without a result: it said nothing"),
        ((STAYS, FAILS), [ALONE, OWN], "rank 1: ValueError: its own"),
        ((FAILS, FAILS), [ALONE], ALONE["reason"]),
        (("", FAILS), [], "rank 1 ended with exit code 3: ImportError: no such thing"),
        ((STAYS, killed(9)), [{"event": "step"}], "rank 1 was killed by SIGKILL, after step 1"),
        ((STAYS, killed(15)), [ALONE], "rank 1 was killed by SIGTERM, after step 0"),
    ],
)
def test_who_failed_is_named(
    programs: tuple[str, str],
    told: list[dict[str, Any]],
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "events"
    path.touch()
    for one in told:
        write_event(path, one.get("event", "failed"), {name: one[name] for name in one if name != "event"})
    with ExitStack() as stack:
        logs = [stack.enter_context(os.fdopen(os.memfd_create("log"), "w+b")) for _ in programs]
        ranks = [
            subprocess.Popen([sys.executable, "-c", one], stdout=log, stderr=log, start_new_session=True)
            for one, log in zip(programs, logs, strict=True)
        ]
        stack.callback(launch._kill, ranks)
        events = stack.enter_context(open(path, "rb"))
        if said is None:
            _watch(ranks, logs, events, lambda event: None)
            return
        with pytest.raises(ReplayError) as raised:
            _watch(ranks, logs, events, lambda event: None)
    assert str(raised.value) == f"replay: {said}"


def disagreements(contents: list[Any]) -> list[Fault | None]:
    store = HashStore()
    found: list[Fault | None] = [None] * len(contents)

    def check(rank: int) -> None:
        try:
            Rank(quiet(60.0), rank, len(contents), store=store).must_agree("model", contents[rank])
        except Fault as fault:
            found[rank] = fault

    together([lambda rank=rank: check(rank) for rank in range(len(contents))])
    return found


def together(work: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_every_rank_names_the_ranks_that_differ() -> None:
    assert disagreements([{"layers": 1}] * 3) == [None] * 3
    found = disagreements([{"layers": 1}, {"layers": 2}, {"layers": 1}, {"layers": 3}])
    assert {str(one) for one in found} == {"another model than rank 0's on ranks 1, 3"}
    assert all(one is not None and one.ranks == [1, 3] for one in found)


def quiet(quiet_s: float) -> CalibrationJob:
    return CalibrationJob(sizes=(4096,), budget_s=0.0, quiet_s=quiet_s)


def seats(count: int) -> list[Seat]:
    port = free_port()
    return [Seat(k, count, k, count, "127.0.0.1", port, "environment") for k in range(count)]


@pytest.mark.parametrize("absent", [(), (1,), (1, 2)])
def test_who_does_not_answer_the_roll_is_named(
    absent: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 stands still for too long; the others answer while they wait, 2 has nothing to say of itself."""
    monkeypatch.setattr(sys.modules[Watch.__module__], "_LOOK_S", 0.05)
    monkeypatch.setattr(sys.modules[Watch.__module__], "_CALM_S", 0.1)
    monkeypatch.setattr(sys.modules[Watch.__module__], "_ANSWER_S", 1.0)
    places = seats(4)
    served = store_of(places[0], keeps=True)
    found: list[Fault] = []
    ended = threading.Event()

    def end(fault: Fault) -> None:
        found.append(fault)
        ended.set()
        threading.Event().wait(2)

    watches = [
        Watch(Rank(quiet(0.3 if seat.rank == 3 else 60.0), seat.rank, 4), seat, end, is_watched=False)
        for seat in places
        if seat.rank not in absent
    ]
    for watch in watches:
        watch.start()
    assert ended.wait(60)
    for watch in watches:
        watch.is_over = True
    assert found[0].ranks == list(absent)
    assert ("no sign of life" in str(found[0])) == bool(absent)
    assert "rank 3 in " in str(found[0])
    del served


def test_a_reason_that_cannot_be_kept_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        worker._Life(tmp_path / "no room").end(Fault([1], "ValueError: its own"))
    said = capsys.readouterr().err
    assert said.startswith("rank 1: ValueError: its own\n")
    assert f"not kept: [Errno 2] No such file or directory: '{tmp_path}" in said


def test_a_fault_is_left_for_who_started_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("BUCKETSIM_EVENTS", str(tmp_path / "events"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        worker._Life(tmp_path).fail(RuntimeError("[/gloo/transport/tcp/pair.cc:1] Connection closed by peer"))
    told = json.loads((tmp_path / "events").read_text())
    assert (told["event"], told["ranks"]) == ("failed", [])
    assert told["reason"].startswith("rank 0 lost touch with the others: ")
    assert signal.getsignal(signal.SIGTERM) == before
