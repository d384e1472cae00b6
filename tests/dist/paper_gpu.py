"""A GPU made of paper: kernels of known length follow each other on streams; the host takes no time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

OVERHEAD_NS = 3_000
NS_PER_CYCLE = 0.5


class PaperStream:
    """``at_ns`` is when everything that was enqueued so far is done."""

    gpu: "PaperGpu"

    def __init__(self, device: object = None) -> None:
        self.at_ns = 0.0
        self.gpu.streams.append(self)

    def record_event(self) -> "PaperEvent":
        event = PaperEvent()
        event.record(self)
        return event

    def wait_event(self, event: "PaperEvent") -> None:
        self.at_ns = max(self.at_ns, event.at_ns)


class PaperEvent:
    def __init__(self, *, enable_timing: bool = False) -> None:
        self.at_ns = 0.0

    def record(self, stream: PaperStream) -> None:
        self.at_ns = stream.at_ns

    def elapsed_time(self, end: "PaperEvent") -> float:
        return (end.at_ns - self.at_ns) / 1e6


class PaperGpu:
    def __init__(self) -> None:
        self.streams: list[PaperStream] = []
        self.kernels: list[tuple[PaperStream, int]] = []
        self.slower = 1.0
        self.complete: dict[int, float] = {}

    def sleep(self, cycles: int) -> None:
        assert isinstance(cycles, int)
        assert cycles > 0
        self.kernels.append((self.current, cycles))
        self.current.at_ns += OVERHEAD_NS + cycles * NS_PER_CYCLE * self.slower

    def current_stream(self, device: object = None) -> PaperStream:
        return self.current

    @contextmanager
    def stream(self, stream: PaperStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def synchronize(self, device: object = None) -> None:
        latest = max(stream.at_ns for stream in self.streams)
        for stream in self.streams:
            stream.at_ns = latest


def _without_devices(future: Any, *, devices: object = None) -> None:
    torch._C.Future.__init__(future, [])


def install(monkeypatch: pytest.MonkeyPatch) -> PaperGpu:
    """Let ``torch.cuda`` be the paper one."""
    gpu = PaperGpu()
    monkeypatch.setattr(PaperStream, "gpu", gpu, raising=False)
    gpu.current = PaperStream()
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", PaperStream)
    monkeypatch.setattr(torch.cuda, "Event", PaperEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", gpu.stream)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    set_result, then = torch.futures.Future.set_result, torch.futures.Future.then

    def set_here(future: Any, result: Any) -> None:
        gpu.complete[id(future)] = gpu.current.at_ns
        set_result(future, result)

    def then_beside(future: Any, callback: Any) -> Any:
        """A callback runs on a stream of its own, behind the stream on which the future was completed."""
        beside = PaperStream()
        beside.at_ns = gpu.complete[id(future)]
        with gpu.stream(beside):
            return then(future, callback)

    monkeypatch.setattr(torch.futures.Future, "__init__", _without_devices)
    monkeypatch.setattr(torch.futures.Future, "set_result", set_here)
    monkeypatch.setattr(torch.futures.Future, "then", then_beside)
    return gpu
