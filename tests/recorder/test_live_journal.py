"""A journal takes whole lines or none, and what goes wrong with it stays with it."""

import errno
import json
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.errors import InputError, NotModelledError
from sim.importer.imported import ImportOptions
from sim.importer.recorded.recorded_run import read_recording
from sim.recorder import live_recording as live
from sim.recorder import watch
from sim.recorder.clocks import Clock, EventClock, clock_for
from sim.recorder.live_recording import Journal, record
from sim.recorder.tap import attach
from tests.handmade import wired

LINE = {"kind": "step", "ready_ns": list(range(200))}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page, where this machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(place)]
    try:
        made = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if made.returncode:
        pytest.skip("needs root to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_every_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "rank-0.jsonl"
    journal = Journal(path)
    for count in range(1, 4):
        journal.write(LINE)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [LINE] * count
    journal.close()
    journal.close()
    journal.write(LINE)
    assert not journal.is_open
    assert len(path.read_text().splitlines()) == 3


def test_a_real_full_disk_keeps_what_is_there(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(small_disk / "rank-0.jsonl")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            journal.write(LINE)
    assert not journal.is_open
    assert len(caplog.messages) == 1
    assert f"{small_disk}/rank-0.jsonl: recording stops here" in caplog.text
    *whole, torn = (small_disk / "rank-0.jsonl").read_text().split("\n")
    assert len(whole) >= 1
    assert all(json.loads(line) == LINE for line in whole)
    assert json.dumps(LINE, separators=(",", ":")).startswith(torn)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_write_warns_once_and_never_raises(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "rank-0.jsonl")
    journal.write(LINE)

    def write(handle: int, text: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            journal.write(LINE)
    assert [os.strerror(number) in message for message in caplog.messages] == [True]
    assert json.loads((tmp_path / "rank-0.jsonl").read_text()) == LINE


def test_a_disk_that_is_full_from_the_start_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", refuse)
    journal = Journal(tmp_path / "rank-0.jsonl")
    assert not journal.is_open
    journal.write(LINE)
    journal.discard()
    assert "rank-0.jsonl: recording stops here (No space left on device)" in caplog.text


# Loops that ``sim.record`` meets: without optimizers, with sparse gradients, compiled, with closures.


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_a_loop_without_torchs_optimizers_needs_step(
    ddp: DistributedDataParallel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(ddp, tmp_path / "unseen"):
        for _ in range(3):
            ddp(torch.ones(1, 3)).sum().backward()
    assert lines(tmp_path / "unseen", "step") == []
    assert "no step was recorded; call recording.step()" in caplog.text
    with record(ddp, tmp_path / "seen") as recording:
        for number in range(3):
            ddp(torch.ones(1, 3)).sum().backward()
            recording.step()
            recording.step()  # nothing has happened since
            assert recording.steps_recorded == number + 1
    rows = lines(tmp_path / "seen", "step")
    assert [(row["step"], row["optimizer_ns"]) for row in rows] == [(1, None), (2, None), (3, None)]
    assert all(row["step_ns"] >= row["backwards"][0]["sync_end_ns"] for row in rows)
    assert lines(tmp_path / "seen", "end") == [{"kind": "end", "failed": False}]


def test_a_step_that_never_ends_is_given_up(
    ddp: DistributedDataParallel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(watch, "MOST_BACKWARDS", 4)
    with record(ddp, tmp_path / "run"), caplog.at_level(logging.WARNING):
        for _ in range(8):
            ddp(torch.ones(1, 3)).sum().backward()
        assert [len(p._post_accumulate_grad_hooks or ()) for p in ddp.parameters()] == [0] * 4
    assert "4 backwards without an optimizer step" in caplog.text


def test_a_closure_runs_its_backwards_inside_the_step(ddp: DistributedDataParallel, tmp_path: Path) -> None:
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=1e-3, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = ddp(torch.ones(1, 3)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with record(ddp, tmp_path / "run"):
        for _ in range(3):
            optimizer.step(closure)  # type: ignore[arg-type]
    rows = lines(tmp_path / "run", "step")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(len(row["backwards"]) >= 1 and row["optimizer_ns"] >= 0 for row in rows)


def test_a_backward_that_raises_is_left_out_and_the_loop_goes_on(
    ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def fail(_: Tensor) -> None:
        raise ZeroDivisionError

    with record(ddp, tmp_path / "run", level="light"):
        for number in range(4):
            optimizer.zero_grad()
            with ddp.no_sync():
                loss = ddp(torch.ones(1, 3)).sum()
                handle = ddp.module[0].weight.register_hook(fail) if number == 1 else None
                if handle is None:
                    loss.backward()
                else:
                    with pytest.raises(ZeroDivisionError):
                        loss.backward()
                    handle.remove()
            optimizer.step()
    assert [row["step"] for row in lines(tmp_path / "run", "step")] == [1, 3, 4]


def test_sparse_gradients_are_those_of_plain_ddp(one_rank: None, tmp_path: Path) -> None:
    """A3.18: a bucket of its own, divided, and counted by what travels."""

    def run(folder: Path | None) -> list[Tensor]:
        torch.manual_seed(0)
        model = DistributedDataParallel(
            nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)), bucket_cap_mb=1e-5
        )
        seen = []

        def train() -> None:
            for _ in range(4):
                model.zero_grad()
                model(torch.tensor([[1, 7]])).square().sum().backward()
                seen.extend(p.grad.to_dense().clone() for p in model.parameters() if p.grad is not None)

        if folder is None:
            train()
            return seen
        with record(model, folder) as recording:
            train()
            recording.step()
        return seen

    plain, recorded = run(None), run(tmp_path / "run")
    assert len(plain) == 12
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    header = lines(tmp_path / "run", "recording")[0]
    assert [parameter["sparse"] for parameter in header["parameters"]] == [True, False, False]
    (row,) = lines(tmp_path / "run", "step")
    sizes = {bucket["num_bytes"] for bucket in row["backwards"][-1]["buckets"]}
    assert 2 * 8 + 2 * 4 * 4 in sizes


def test_a_compiled_module_is_recorded(one_rank: None, tmp_path: Path) -> None:
    """torch.compile inside DDP: hooks on the module, the parameters and their names stay."""
    module = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), backend="eager")
    ddp = DistributedDataParallel(module)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with record(ddp, tmp_path / "run"):
        for _ in range(4):
            optimizer.zero_grad()
            ddp(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    header = lines(tmp_path / "run", "recording")[0]
    assert header["module"] == "Sequential"
    assert [parameter["name"] for parameter in header["parameters"]] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]
    assert len(lines(tmp_path / "run", "step")) == 4
    assert not any(
        "compiled" in step for step in lines(tmp_path / "run", "step")
    )  # nothing made its backward


@pytest.mark.parametrize("outside", [False, True])
def test_a_recording_says_that_backward_was_compiled(outside: bool, one_rank: None, tmp_path: Path) -> None:
    """Around DDP or inside it; its workload is not compiled again, and an answer says whose cuts it has."""
    module: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    ddp = DistributedDataParallel(module if outside else torch.compile(module, backend="aot_eager"))
    run: Any = torch.compile(ddp, backend="aot_eager") if outside else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with record(ddp, tmp_path / "run"):
        for _ in range(6):
            optimizer.zero_grad()
            run(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    assert all(step["compiled"] for step in lines(tmp_path / "run", "step"))
    imported = read_recording([tmp_path / "run"], ImportOptions())
    assert "under torch.compile" in imported.said("assumed")[2]
    workload = imported.workload
    assert workload is not None
    with pytest.raises(NotModelledError, match=r"recorded under torch\.compile"):
        sim.assign(workload, optimize_ddp="ddp_optimizer")
    timeline = sim.simulate(workload, wired({0: 1000}), sim.assign(workload))
    assert any("bucket_cap_mb would move these cuts too" in note for note in timeline.notes)


def test_what_a_hook_cannot_round_is_refused(
    ddp: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3.4: with bucket views, gradients that are views already are divided, others multiplied by 1/n."""

    class Three:
        def size(self) -> int:
            return 3

    monkeypatch.setattr(ddp, "process_group", Three())
    monkeypatch.setattr(ddp, "gradient_as_bucket_view", True)
    with pytest.raises(InputError, match=r"on 3 ranks \(no power of two\).*level='light'"):
        attach(ddp, places={}, wrap=None, wrap_state=None)


def test_a_recording_is_entered_once(ddp: DistributedDataParallel, tmp_path: Path) -> None:
    once = record(ddp, tmp_path / "run")
    with once as recording:
        with pytest.raises(InputError, match="this one was entered before"), once:
            pass
        ddp(torch.ones(2, 3)).sum().backward()
        recording.step()
    with pytest.raises(InputError, match="this one was entered before"), once:
        pass
    assert recording.steps_recorded == 1


# Recording on a GPU made of paper: events are read later, nothing is waited for, and none is lost.

TICK_NS = 250_000
CUDA = torch.device("cuda", 0)


class PaperGpu:
    """Each recorded event takes a tick of device time; the GPU is ``lag`` events behind the host."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.recorded = 0
        self.waits = 0

    @property
    def reached(self) -> int:
        return self.recorded - self.lag


class PaperEvent:
    gpu: PaperGpu

    def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
        assert (device, enable_timing) == (CUDA, True)

    def record(self) -> None:
        self.gpu.recorded += 1
        self.at = self.gpu.recorded

    def query(self) -> bool:
        return self.at <= self.gpu.reached

    def synchronize(self) -> None:
        self.gpu.waits += 1
        self.gpu.lag = 0

    def elapsed_time(self, end: "PaperEvent") -> float:
        if max(self.at, end.at) > self.gpu.reached:
            raise RuntimeError("CUDA error: device not ready")
        return (end.at - self.at) * TICK_NS / 1e6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PaperGpu:
    paper = PaperGpu(lag=0)
    monkeypatch.setattr(PaperEvent, "gpu", paper, raising=False)
    monkeypatch.setattr(torch, "Event", PaperEvent)
    for question in ("is_captured", "stream"):  # of a torch that may have no CUDA
        monkeypatch.setattr(EventClock, question, lambda _: None)
    monkeypatch.setattr(live, "clock_for", lambda _: EventClock(CUDA))
    return paper


def train(ddp: DistributedDataParallel, count: int) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        ddp(torch.ones(1, 3)).sum().backward()
        optimizer.step()


def steps(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "step"]


def test_a_whole_step_is_read_from_events(
    gpu: PaperGpu, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    """Stamps: started, module, end of forward, 4 gradients, then (bucket ready, launched, done and the
    two ends of backward, of which the done may come at any place), optimizer."""
    with record(ddp, tmp_path / "full"):
        train(ddp, 3)
    assert gpu.waits == 0
    assert json.loads((tmp_path / "full/rank-0.jsonl").read_text().splitlines()[0])["clock"] == "cuda events"
    rows = steps(tmp_path / "full")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        (backward,) = row["backwards"]
        assert (backward["started_ns"], backward["forward_start_ns"]) == (0, TICK_NS)
        assert backward["forward_end_ns"] == 2 * TICK_NS
        assert backward["ready_ns"] == [4 * TICK_NS, 3 * TICK_NS, 2 * TICK_NS, TICK_NS]
        (bucket,) = backward["buckets"]
        assert bucket["ready_ns"] == 5 * TICK_NS
        assert bucket["ready_ns"] < bucket["launch_ns"] < backward["sync_end_ns"] == 9 * TICK_NS
        assert bucket["ready_ns"] < bucket["end_ns"] < backward["sync_end_ns"]
        assert bucket["launch_ns"] < backward["backward_ns"] < backward["sync_end_ns"]
        assert row["optimizer_ns"] == TICK_NS
        assert row["step_ns"] == 12 * TICK_NS


def test_a_gpu_that_is_far_behind_is_not_waited_for(
    gpu: PaperGpu, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    gpu.lag = 35  # three and a half steps
    with record(ddp, tmp_path / "light", level="light"):
        train(ddp, 10)
        assert gpu.waits == 0
        assert 5 <= len(steps(tmp_path / "light")) <= 7
    assert gpu.waits > 0
    assert [row["step"] for row in steps(tmp_path / "light")] == list(range(1, 11))


def test_after_an_error_only_what_has_been_reached_is_written(
    gpu: PaperGpu, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    gpu.lag = 10**6

    def fail() -> None:
        with record(ddp, tmp_path / "light", level="light"):
            train(ddp, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gpu.waits == 0
    assert steps(tmp_path / "light") == []


def test_clocks_by_device() -> None:
    assert type(clock_for(torch.device("cpu"))) is Clock
    assert isinstance(clock_for(CUDA), EventClock)
    clock = Clock()
    first = clock.stamp()
    assert clock.between_ns(first, clock.stamp()) >= 0
    assert clock.reached(first)


def test_a_place_that_is_taken_or_impossible_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    Journal(path).close()
    with pytest.raises(InputError, match=r"rank-0\.jsonl: exists already; give a new or empty directory"):
        Journal(path)
    with pytest.raises(InputError, match=r"rank-0\.jsonl: cannot be made: it is no directory"):
        Journal(path / "rank-0.jsonl")


def test_a_link_to_nothing_is_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").symlink_to("elsewhere")
    with pytest.raises(InputError, match=r"rank-0\.jsonl: exists already"):
        Journal(tmp_path / "rank-0.jsonl")
    assert not (tmp_path / "elsewhere").exists()
