"""The GPU's clock, on a GPU made of paper."""

from typing import Any

import pytest
import torch

from sim.errors import InputError, MachineError
from sim.recorder.clocks import CudaClock, HostClock, clock_for, find_device

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
