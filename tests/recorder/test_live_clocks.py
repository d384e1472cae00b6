"""Recording on a GPU made of paper: events are read later, nothing is waited for, and none is lost.

One gloo rank trains on the CPU, with events in place of the host's clock.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sim.recorder import live_recording as live
from sim.recorder.live_clocks import LiveCudaClock, LiveHostClock, live_clock_for
from sim.recorder.live_recording import record

TICK_NS = 250_000
CUDA = torch.device("cuda", 0)


class PaperGpu:
    """Each recorded event takes a tick of device time; the GPU is ``lag`` events behind the host."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.recorded = 0
        self.made = 0
        self.waits = 0

    @property
    def reached(self) -> int:
        return self.recorded - self.lag


class PaperEvent:
    gpu: PaperGpu

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.gpu.made += 1

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:0"
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
    monkeypatch.setattr(torch.cuda, "Event", PaperEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(live, "live_clock_for", lambda _: LiveCudaClock(CUDA))
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


def test_events_of_steps_that_were_read_are_used_again(
    gpu: PaperGpu, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    with record(ddp, tmp_path / "light", level="light"):
        train(ddp, 20)
    per_step = 3 + 4 + 2 + 1
    assert gpu.recorded == 20 * per_step
    assert gpu.made <= 2 * per_step


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
    assert isinstance(live_clock_for(torch.device("cpu")), LiveHostClock)
    assert isinstance(live_clock_for(CUDA), LiveCudaClock)
    clock = LiveHostClock()
    first = clock.stamp()
    assert clock.between_ns(first, clock.stamp()) >= 0
    assert clock.reached(first)
