"""The GPU's clock, on a GPU made of paper."""

from typing import Any

import pytest
import torch
from torch import nn

from sim.errors import InputError, MachineError
from sim.recorder.clocks import CudaClock, HostClock, clock_for, find_device
from sim.recorder.instruments import measure, survey
from sim.recorder.training_step import ModelStep

TICK_MS = 0.25


class PaperGpu:
    """Every recorded event takes ``TICK_MS`` of device time; it is reached at synchronize only."""

    def __init__(self) -> None:
        self.recorded = 0
        self.reached = 0
        self.made = 0
        self.synchronized: list[torch.device] = []
        self.streams: list[Any] = []

    def synchronize(self, device: torch.device) -> None:
        self.synchronized.append(device)
        self.reached = self.recorded

    def current_stream(self, device: torch.device) -> str:
        return f"stream of {device}"


class PaperEvent:
    gpu: PaperGpu

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.gpu.made += 1

    def record(self, stream: str) -> None:
        self.gpu.recorded += 1
        self.gpu.streams.append(stream)
        self.at = self.gpu.recorded

    def elapsed_time(self, end: "PaperEvent") -> float:
        if max(self.at, end.at) > self.gpu.reached:
            raise RuntimeError("CUDA error: device not ready")
        return (end.at - self.at) * TICK_MS


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PaperGpu:
    paper = PaperGpu()
    monkeypatch.setattr(PaperEvent, "gpu", paper, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", PaperEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", paper.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", paper.current_stream)
    return paper


def test_elapsed_milliseconds_become_nanoseconds(gpu: PaperGpu) -> None:
    clock = CudaClock(torch.device("cuda", 1))
    clock.begin()
    first, second, third = clock.stamp(), clock.stamp(), clock.stamp()
    clock.settle()
    assert clock.between_ns(first, second) == 250_000
    assert clock.between_ns(first, third) == 500_000
    assert gpu.streams == ["stream of cuda:1"] * 3
    assert gpu.synchronized == [torch.device("cuda", 1)] * 2


def test_a_whole_step_is_read_from_events(gpu: PaperGpu) -> None:
    """Stamps: step, forward, its end, backward, 4 gradients, its end, optimizer, its end, step end."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Flatten(0))
    step = ModelStep(model, torch.ones(1, 3))
    seen = survey(step, root=model)
    clock = CudaClock(torch.device("cuda", 0))
    hooked = measure(step, seen=seen, clock=clock, hooked=True)
    tick = 250_000
    assert hooked.forward_ns == tick
    assert hooked.loss_ns == tick
    assert hooked.firings == ((3, tick), (2, 2 * tick), (1, 3 * tick), (0, 4 * tick))
    assert hooked.backward_ns == 5 * tick
    assert hooked.optimizer_ns == 2 * tick
    assert hooked.inside_optimizer_ns == tick
    assert hooked.step_ns == 11 * tick
    assert len(gpu.synchronized) == 2  # ahead of the step and behind it, never within
    plain = measure(step, seen=seen, clock=clock, hooked=False)
    assert plain.backward_ns == tick
    assert plain.firings == ()
    assert gpu.made == 12  # the second iteration used events of the first


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(clock_for(find_device("cpu")), HostClock)
    for name in ("gpu", "meta", ""):
        with pytest.raises(InputError, match="give cpu, cuda or cuda:N"):
            find_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="sees 0 GPUs"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device("cuda") == torch.device("cuda:1")
    assert find_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(MachineError, match="'cuda:2' is not here"):
        find_device("cuda:2")
    assert isinstance(clock_for(find_device("cuda:0")), CudaClock)
