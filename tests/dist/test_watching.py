"""Who is at fault, judged by beats and by what ranks were told; no rank is started."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ReplayError
from sim.validator import worker
from sim.validator.hosts.watch import Launched, watch
from sim.validator.ranks.process.beats import SILENCE_S, Beat, Fault, Observer, Progress
from sim.validator.ranks.process.unanimity import Disagreement, check_unanimous
from tests.effort import PATIENCE_S


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def beat(number: int, told: int = 0, longest: float = 0.0) -> Beat:
    return Beat(number=number, told=told, steps=told, longest_step_s=longest, where="work (there.py:1)")


@given(st.integers(2, 8), st.data())
def test_the_silent_ranks_are_named_and_no_others(count: int, data: st.DataObject) -> None:
    silent = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    clock = Time()
    observer = Observer(range(count), 120, clock)
    for tick in range(20):
        clock.now = 2.0 * tick
        for rank in range(count):
            # A rank that is stopped leaves its last beat behind, which is seen again and again.
            observer.see(rank, beat(min(tick, 5) if rank in silent else tick))
        fault = observer.silent()
        assert (fault is None) == (clock.now - 2 * 5 <= SILENCE_S)
        assert fault is None or set(fault.ranks) == silent


@pytest.mark.parametrize(("longest", "allowed"), [(0.0, 120), (0.5, 25), (3.0, 60)])
def test_standing_still_depends_on_the_longest_step(longest: float, allowed: int) -> None:
    clock = Time()
    observer = Observer([0, 1], 120, clock)
    observer.see(0, beat(0, told=7, longest=longest))
    observer.see(1, beat(0, told=6, longest=longest))
    for number, clock.now in enumerate((allowed, allowed + 1), start=1):
        for rank, told in ((0, 7), (1, 6)):
            observer.see(rank, beat(number, told=told, longest=longest))
        fault = observer.standing_still()
        assert (fault is None) == (clock.now <= allowed)
    assert fault is not None
    assert fault.ranks == (1,)
    assert "rank 0 after step 7" in fault.reason


def test_a_lane_that_compiles_after_quick_ones_does_not_stand_still() -> None:
    """In a model's first round each lane compiles anew: two quick ones promise nothing of the third."""
    clock, progress = Time(), Progress()
    observer = Observer([0], 600, clock)
    for _ in range(3):
        progress.count("step", compiles=True)
    observer.see(0, progress.beat(0))
    clock.now = 599
    assert observer.standing_still() is None
    assert progress.beat(1).steps == 3
    progress.count("step")
    progress.count("step")
    observer.see(0, replace(progress.beat(1), longest_step_s=0.1))
    clock.now += 26
    assert observer.standing_still() is not None


class Shelf:
    """A store in this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=PATIENCE_S)
            return self._values[key]


def disagreements(contents: list[Any]) -> list[Disagreement | None]:
    shelf = Shelf()
    found: list[Disagreement | None] = [None] * len(contents)

    def check(rank: int) -> None:
        try:
            check_unanimous(shelf, rank, len(contents), "model", contents[rank])
        except Disagreement as error:
            found[rank] = error

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_every_rank_names_the_ranks_outside_the_majority(models: list[int]) -> None:
    found = disagreements([{"layers": model} for model in models])
    if len(set(models)) == 1:
        assert found == [None] * len(models)
        return
    first = found[0]
    assert first is not None
    assert all(str(error) == str(first) for error in found)
    right = models[next(k for k in range(len(models)) if k not in first.ranks)]
    assert models.count(right) == max(map(models.count, models))
    assert first.ranks == tuple(k for k, model in enumerate(models) if model != right)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_launcher_that_is_killed_is_named_as_that(sent: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM ends torchrun with words of its own."""
    says = f"SignalException: Process 7 got signal: {sent.value}"
    ends = "import os; os.kill(os.getpid(), 9)" if sent == signal.SIGKILL else f"raise SystemExit({says!r})"
    with os.fdopen(os.memfd_create("log"), "w+b") as log:
        log.write(b"[W1122 socket.cpp:767] the last line that it said\n")
        log.flush()
        launcher = subprocess.Popen([sys.executable, "-c", ends], stderr=log)
        launched = Launched(process=launcher, ranks=(0, 1), log=log)
        with pytest.raises(ReplayError, match=rf"the launcher of ranks 0, 1 was killed by {sent.name}$"):
            watch([launched], tmp_path, print, PATIENCE_S)
        launcher.wait()


def named(tmp_path: Path, *logs: str) -> str:
    """What is said of launchers of a rank each that have failed, and printed ``logs``."""
    launched = []
    for rank, text in enumerate(logs):
        log = os.fdopen(os.memfd_create("log"), "w+b")
        log.write(text.encode())
        log.flush()
        failed = subprocess.Popen(("false",))
        failed.wait()
        launched.append(Launched(process=failed, ranks=(rank,), log=log))
    with pytest.raises(ReplayError) as raised:
        watch(launched, tmp_path, print, PATIENCE_S)
    for one in launched:
        one.log.close()
    return str(raised.value)


def test_a_rank_that_cannot_keep_why_it_is_left_alone_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    for rank, fault in (
        ("0", Fault(ranks=(), reason="DistError: closed")),
        ("1", Fault(ranks=(1,), reason="ValueError: its own")),
    ):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            worker._Life({}, tmp_path / "no room").end(fault)
        said = capsys.readouterr().err
        assert f"not kept in {tmp_path}" in said
        (tmp_path / rank).write_text(said)
    logs = [(tmp_path / rank).read_text() for rank in "01"]
    assert named(tmp_path, *logs) == "replay: rank 1: ValueError: its own"


TORCHRUN = """\
[W1123 01:02:03.000 socket.cpp:767] a warning
E1123 01:02:04.000000 7 torch/distributed/elastic/api.py:1] failed (exitcode: 3) local_rank: 0 (pid: 9) of x
Traceback (most recent call last):
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 9)
====
"""


def test_who_failed_without_a_reason_is_named_by_the_launcher(tmp_path: Path) -> None:
    said = "ImportError: no such thing\n"
    assert named(tmp_path, said + TORCHRUN) == f"replay: rank 0 ended with exit code 3: {said.strip()}"
    full = "Traceback:\nOSError: [Errno 28] No space left on device: '/tmp/x'\n"
    assert named(tmp_path, full) == f"replay: the launcher of rank 0 failed: {full.splitlines()[1]}"
