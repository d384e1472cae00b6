"""What CUDA does to a recording, on a CPU: compiled models, events that come late, graphs, restarts."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.switch import Boundary
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.live.follower import find_recordings
from sim.recorder import live_recording as live
from sim.recorder.clocks import Clock
from sim.recorder.live_recording import LiveRecording, record


class Net(nn.Module):
    """A forward that Dynamo traces; those of torch's own containers it leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class LateClock(Clock):
    """Stamps are reached in order, ``lag`` of them later; read before, they raise as torch's events do."""

    name = "cuda events"

    def __init__(self, lag: int = 4) -> None:
        self.made = self.done = 0
        self.lag = lag
        self.captured: set[int] = set()
        self.captures = False

    def stamp(self) -> int:
        self.made += 1
        if self.captures:
            self.captured.add(self.made)
        return self.made

    def reached(self, stamp: int) -> bool:
        assert not self.captures, "a query ends a capture"
        if stamp in self.captured:
            raise RuntimeError("operation not permitted on an event last recorded in a capturing stream")
        return stamp <= self.done

    def wait(self, stamp: int) -> None:
        self.reached(stamp)
        self.done = max(self.done, stamp)

    def between_ns(self, start: int, end: int) -> int:
        if max(start, end) > self.done:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end - start) * 1000

    def is_captured(self) -> bool:
        return self.captures


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateClock:
    clock = LateClock()
    monkeypatch.setattr(live, "clock_for", lambda _: clock)
    return clock


def rows(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    return [row for row in read if row["kind"] == kind]


def train(ddp: DistributedDataParallel, count: int, after: Callable[[], None] = lambda: None) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(count):
        ddp(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


@pytest.mark.parametrize("compiled", ["ddp", "ddp in place", "module in place, whole", "optimizer"])
def test_no_stamp_is_traced_into_a_graph(
    one_rank: None, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a traced event is one of the graph's own, and reading it raises in the user's first steps."""
    torch._dynamo.reset()
    traced: list[bool] = []

    class Seeing(Clock):
        def stamp(self) -> int:
            traced.append(torch.compiler.is_compiling())
            return super().stamp()

    monkeypatch.setattr(live, "clock_for", lambda _: Seeing())
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    module = Net()
    if compiled == "module in place, whole":
        module.compile(backend=backend, fullgraph=True)
    ddp = DistributedDataParallel(module)
    run: Any = torch.compile(ddp, backend=backend) if compiled == "ddp" else ddp
    if compiled == "ddp in place":
        ddp.compile(backend=backend)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    step: Any = torch.compile(optimizer.step, backend=backend) if compiled == "optimizer" else optimizer.step
    with record(ddp, tmp_path / "run") as recording:
        for _ in range(5):
            run(torch.ones(2, 3)).sum().backward()
            step()
            optimizer.zero_grad()
    assert recording.steps_recorded == 5
    assert len(rows(tmp_path / "run")) == 5
    assert traced
    assert not any(traced)
    assert len(graphs) == 1  # the model's, or the optimizer's, whole
    assert not any("event" in target or "stream" in target for graph in graphs for target in graph)


def test_autotunes_boundary_is_not_traced_either(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    traced: list[bool] = []
    monkeypatch.setattr(
        Boundary, "_after_forward", lambda *_: traced.append(torch.compiler.is_compiling()), raising=True
    )
    ddp = DistributedDataParallel(Net())
    boundary = Boundary(ddp, object())
    run: Any = torch.compile(ddp, backend="eager")
    for _ in range(3):
        run(torch.ones(2, 3)).sum().backward()
    boundary.close()
    assert traced == [False] * 3


@pytest.mark.parametrize("level", ["light", "full"])
def test_an_optimizer_inside_backward_leaves_the_end_of_backward_last(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path, level: str
) -> None:
    for parameter in ddp.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, optimizer=optimizer: optimizer.step()
        )
    with record(ddp, tmp_path / "run", level=level) as recording:
        for _ in range(20):
            ddp(torch.ones(2, 3)).sum().backward()
            late.done = late.made - late.lag
            ddp.zero_grad()
    assert recording.steps_recorded == 20
    for row in rows(tmp_path / "run"):
        (backward,) = row["backwards"]
        assert row["optimizer_ns"] is None
        assert row["step_ns"] == backward["forward_end_ns"] + backward["sync_end_ns"]


def test_a_step_captured_in_a_graph_ends_the_recording(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks run once under the capture and never at a replay; events of a capture cannot be read."""
    with caplog.at_level(logging.WARNING), record(ddp, tmp_path / "run", level="light") as recording:
        train(ddp, 11, lambda: setattr(late, "done", late.made - late.lag))
        late.captures = True
        train(ddp, 1)
        late.captures = False
        for _ in range(5):
            recording.step()  # replays
        train(ddp, 2)
    assert recording.steps_recorded == 11
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 12))
    assert not late.captured
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "captured in a CUDA graph" in caplog.text


def test_a_stamp_that_cannot_be_read_ends_the_recording_and_not_the_training(
    late: LateClock,
    ddp: DistributedDataParallel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unrecorded(start: int, end: int) -> int:
        raise ValueError("Both events must be recorded before calculating elapsed time.")

    with caplog.at_level(logging.WARNING), record(ddp, tmp_path / "run"):
        train(ddp, 3, lambda: setattr(late, "done", late.made))
        monkeypatch.setattr(late, "between_ns", unrecorded)
        train(ddp, 3, lambda: setattr(late, "done", late.made))
    assert len(rows(tmp_path / "run")) == 2  # the third was finished by the forward after it
    assert rows(tmp_path / "run", "end") == [{"kind": "end", "failed": False}]
    assert caplog.text.count("Both events must be recorded") == 1


@pytest.mark.parametrize("aside", [False, True])
def test_gradients_accumulated_on_another_stream_than_forwards_are_told(
    aside: bool, ddp: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine runs AccumulateGrad, and the Reducer's copies, on the stream that DDP was made under."""

    class Streams(Clock):
        def stream(self) -> str:
            in_backward = torch._C._current_graph_task_id() != -1
            return "that of DDP" if aside and in_backward else "that of forward"

    monkeypatch.setattr(live, "clock_for", lambda _: Streams())
    with record(ddp, tmp_path / "run"):
        train(ddp, 3)
    assert [row.get("aside", False) for row in rows(tmp_path / "run")] == [aside] * 3
    (rank,) = load_recording(tmp_path / "run").ranks
    assert {step.aside for step in rank.steps} == {aside}


def test_light_after_full_is_ddps_own_all_reduce_still(ddp: DistributedDataParallel, tmp_path: Path) -> None:
    """The hook of the first recording stays on the Reducer, and does what DDP does."""
    for level in ("full", "light"):
        with record(ddp, tmp_path / level, level=level):
            train(ddp, 3)
        (header,) = rows(tmp_path / level, "recording")
        assert header["comm_hook"] is None


def test_a_restarted_job_records_beside_its_earlier_starts(
    ddp: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[dict[str, str]] = [
        {"TORCHELASTIC_RESTART_COUNT": "0"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "2"},
        {"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "3"},
    ]
    for environment in starts:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with record(ddp, tmp_path / "run"):
            train(ddp, 2)
    folders = [tmp_path / "run", *(tmp_path / "run" / f"restart-{number}" for number in (1, 2, 3))]
    assert all(len(load_recording(folder).ranks[0].steps) == 2 for folder in folders)
    assert set(find_recordings(tmp_path)) == set(folders)
    with pytest.raises(InputError, match="exists already"), record(ddp, tmp_path / "run"):
        pass


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"])
def test_a_variable_that_takes_the_overlap_away_is_told(
    ddp: DistributedDataParallel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv(name, "1")
    with record(ddp, tmp_path / "cpu"):
        train(ddp, 1)
    assert rows(tmp_path / "cpu", "recording")[0]["environment"] == {}
    assert not caplog.records
    found = live.environment(torch.device("cuda", 0))
    assert found == {name: "1"}
    monkeypatch.setattr(live, "environment", lambda _: found)
    with caplog.at_level(logging.WARNING), record(ddp, tmp_path / "gpu"):
        train(ddp, 1)
    assert name in caplog.text


def test_hooks_of_the_recorder_are_gone_after_a_capture(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    with record(ddp, tmp_path / "run") as recording:
        late.captures = True
        train(ddp, 1)
        late.captures = False
        assert isinstance(recording, LiveRecording)
        assert [len(p._post_accumulate_grad_hooks or ()) for p in ddp.parameters()] == [0] * 4
        assert not ddp._forward_pre_hooks
