"""``sim.record`` in one process: its file, the loops that it meets, and what CUDA does to a recording."""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.errors import InputError, NotModelledError
from sim.formats.recordings import load_recording
from sim.importer.imported import ImportOptions
from sim.importer.recorded import read_recording
from sim.live.follower import find_recordings
from sim.recorder import live_recording as live
from sim.recorder import watch
from sim.recorder.clocks import Clock
from sim.recorder.live_recording import Journal, record
from sim.recorder.watch import attach
from tests.handmade import wired

BATCH = torch.ones(2, 3)


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A gloo process group of one rank, for all tests: torch aborts where a thread of gloo is the last to let
    go of one. What uses it is dropped before it goes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


@pytest.fixture
def ddp(one_rank: None) -> DistributedDataParallel:
    """A model of four parameters on one rank."""
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Flatten(0)))


def rows(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    return [row for row in read if row["kind"] == kind]


def train(
    ddp: DistributedDataParallel, count: int, after: Callable[[], object] = lambda: None, run: Any = None
) -> None:
    """Steps of SGD, of ``ddp`` or of what was compiled of it; ``after`` is called after each."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        (ddp if run is None else run)(BATCH).sum().backward()
        optimizer.step()
        after()


def test_a_place_that_is_taken_or_impossible_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    Journal(path).close()
    with pytest.raises(InputError, match=r"rank-0\.jsonl: exists already; give a new or empty directory"):
        Journal(path)
    with pytest.raises(InputError, match=r"rank-0\.jsonl: cannot be made: "):
        Journal(path / "rank-0.jsonl")
    link = tmp_path / "rank-1.jsonl"
    link.symlink_to("elsewhere")  # to nothing: a file that is there
    with pytest.raises(InputError, match="exists already"):
        Journal(link)
    assert not (tmp_path / "elsewhere").exists()


# Loops that ``sim.record`` meets: without optimizers, with sparse gradients, compiled, with closures.


def test_a_loop_without_torchs_optimizers_needs_step(
    ddp: DistributedDataParallel, tmp_path: Path, caplog: Any
) -> None:
    with record(ddp, tmp_path / "unseen"):
        ddp(BATCH).sum().backward()
    assert rows(tmp_path / "unseen") == []
    assert "no step was recorded; call recording.step()" in caplog.text
    with record(ddp, tmp_path / "seen") as recording:
        for number in range(3):
            ddp(BATCH).sum().backward()
            recording.step()
            recording.step()  # nothing has happened since
            assert recording.steps_recorded == number + 1
    found = rows(tmp_path / "seen")
    assert [(row["step"], row["optimizer_ns"]) for row in found] == [(1, None), (2, None), (3, None)]
    assert all(row["step_ns"] >= row["backwards"][0]["sync_end_ns"] for row in found)
    assert rows(tmp_path / "seen", "end") == [{"kind": "end", "failed": False}]


def test_a_step_that_never_ends_is_given_up(
    ddp: DistributedDataParallel, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(watch, "MOST_BACKWARDS", 4)
    with record(ddp, tmp_path / "run"):
        for _ in range(8):
            ddp(BATCH).sum().backward()
        assert not any(p._post_accumulate_grad_hooks for p in ddp.parameters())
    assert "4 backwards without an optimizer step" in caplog.text


def with_a_closure(ddp: DistributedDataParallel) -> None:
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=1e-3, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        (loss := ddp(BATCH).square().sum()).backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def with_a_backward_that_raises(ddp: DistributedDataParallel) -> None:
    def fail(_: Tensor) -> None:
        raise ZeroDivisionError

    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for number in range(4):
        optimizer.zero_grad()
        with ddp.no_sync(), pytest.raises(ZeroDivisionError) if number == 1 else nullcontext():
            handle = ddp.module[0].weight.register_hook(fail if number == 1 else lambda _: None)
            ddp(BATCH).sum().backward()
        handle.remove()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "numbers"), [(with_a_closure, [1, 2, 3, 4]), (with_a_backward_that_raises, [1, 3, 4])]
)
def test_loops(loop: Any, numbers: list[int], ddp: DistributedDataParallel, tmp_path: Path) -> None:
    with record(ddp, tmp_path / "run", level="light"):
        loop(ddp)
    assert [row["step"] for row in rows(tmp_path / "run")] == numbers
    assert all(row["optimizer_ns"] >= 0 for row in rows(tmp_path / "run"))


def test_sparse_gradients_are_those_of_plain_ddp(one_rank: None, tmp_path: Path) -> None:
    """A3.18: a bucket of its own, divided, and counted by what travels."""
    seen: dict[bool, list[Tensor]] = {False: [], True: []}
    for is_recorded, gradients in seen.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(
            nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)), bucket_cap_mb=1e-5
        )
        with record(model, tmp_path / "run") if is_recorded else nullcontext() as recording:
            for _ in range(4):
                model.zero_grad()
                model(torch.tensor([[1, 7]])).square().sum().backward()
                gradients += [p.grad.to_dense().clone() for p in model.parameters() if p.grad is not None]
            if recording is not None:
                recording.step()
    assert len(seen[True]) == 12
    assert all(torch.equal(a, b) for a, b in zip(*seen.values(), strict=True))
    header = rows(tmp_path / "run", "recording")[0]
    assert [parameter["sparse"] for parameter in header["parameters"]] == [True, False, False]
    (row,) = rows(tmp_path / "run")
    sizes = {bucket["num_bytes"] for bucket in row["backwards"][-1]["buckets"]}
    assert 2 * 8 + 2 * 4 * 4 in sizes


@pytest.mark.parametrize("outside", [False, True])
def test_a_recording_says_that_backward_was_compiled(outside: bool, one_rank: None, tmp_path: Path) -> None:
    """Around DDP or inside it; its workload is not compiled again, and an answer says whose cuts it has."""
    module: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    ddp = DistributedDataParallel(module if outside else torch.compile(module, backend="aot_eager"))
    run: Any = torch.compile(ddp, backend="aot_eager") if outside else ddp
    with record(ddp, tmp_path / "run"):
        train(ddp, 6, run=run)
    (header,) = rows(tmp_path / "run", "recording")
    names = [parameter["name"] for parameter in header["parameters"]]
    assert (header["module"], names) == ("Sequential", ["0.weight", "0.bias", "1.weight", "1.bias"])
    assert all(step["compiled"] for step in rows(tmp_path / "run"))
    imported = read_recording([tmp_path / "run"], ImportOptions())
    assert "under torch.compile" in imported.said("assumed")[1]
    workload = imported.workload
    assert workload is not None
    with pytest.raises(NotModelledError, match=r"recorded under torch\.compile"):
        sim.assign(workload, optimize_ddp="ddp_optimizer")
    timeline = sim.simulate(workload, wired({0: 1000}), sim.assign(workload))
    assert any("bucket_cap_mb would move these cuts too" in note for note in timeline.notes)


def test_what_a_hook_cannot_round_is_refused(ddp: DistributedDataParallel, monkeypatch: Any) -> None:
    """A3.4: with bucket views, gradients that are views already are divided, others multiplied by 1/n."""
    monkeypatch.setattr(ddp, "process_group", SimpleNamespace(size=lambda: 3))
    monkeypatch.setattr(ddp, "gradient_as_bucket_view", True)
    with pytest.raises(InputError, match=r"on 3 ranks \(no power of two\).*level='light'"):
        attach(ddp)


# What CUDA does: events that come late, graphs that are captured, compiled models.

TICK_NS = 250_000


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
        self.waits = 0
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

    def settle(self) -> None:
        self.waits += self.made > self.done
        self.done = self.made

    def between_ns(self, start: int, end: int) -> int:
        if max(start, end) > self.done:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end - start) * TICK_NS


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateClock:
    clock = LateClock()
    monkeypatch.setattr(live, "clock_for", lambda _: clock)
    monkeypatch.setattr(watch, "is_captured", lambda: clock.captures)
    return clock


def test_a_whole_step_is_read_from_stamps(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    """Stamps: started, module, end of forward, 4 gradients, then (bucket ready, launched, done and the
    two ends of backward, of which the done may come at any place), optimizer."""
    with record(ddp, tmp_path / "full"):
        train(ddp, 3, lambda: setattr(late, "done", late.made))
    assert late.waits == 0
    assert rows(tmp_path / "full", "recording")[0]["clock"] == "cuda events"
    assert [row["step"] for row in rows(tmp_path / "full")] == [1, 2, 3]
    for row in rows(tmp_path / "full"):
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
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    """By three and a half steps; after an error of the user's only what it has come to is written."""

    def behind() -> None:
        late.done = late.made - 35

    with record(ddp, tmp_path / "light", level="light"):
        train(ddp, 10, behind)
        assert late.waits == 0
        assert 5 <= len(rows(tmp_path / "light")) <= 7
    assert late.waits > 0
    assert [row["step"] for row in rows(tmp_path / "light")] == list(range(1, 11))

    waits = late.waits

    def fail() -> None:
        with record(ddp, tmp_path / "failed", level="light"):
            train(ddp, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (late.waits, rows(tmp_path / "failed")) == (waits, [])


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
            run(BATCH).sum().backward()
            step()
            optimizer.zero_grad()
    assert recording.steps_recorded == 5
    assert len(rows(tmp_path / "run")) == 5
    assert traced
    assert not any(traced)
    assert len(graphs) == 1  # the model's, or the optimizer's, whole
    assert not any("event" in target or "stream" in target for graph in graphs for target in graph)


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
            ddp(BATCH).sum().backward()
            late.done = late.made - late.lag
            ddp.zero_grad()
    assert recording.steps_recorded == 20
    for row in rows(tmp_path / "run"):
        (backward,) = row["backwards"]
        assert row["optimizer_ns"] is None
        assert row["step_ns"] == backward["forward_end_ns"] + backward["sync_end_ns"]


def test_a_step_captured_in_a_graph_ends_the_recording(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path, caplog: Any
) -> None:
    """Hooks run once under the capture and never at a replay; events of a capture cannot be read."""
    with record(ddp, tmp_path / "run", level="light") as recording:
        train(ddp, 11, lambda: setattr(late, "done", late.made - late.lag))
        late.captures = True
        train(ddp, 1)
        late.captures = False
        assert not any(p._post_accumulate_grad_hooks for p in ddp.parameters())
        assert not ddp._forward_pre_hooks
        for _ in range(5):
            recording.step()  # replays
        train(ddp, 2)
    assert recording.steps_recorded == 11
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 12))
    assert not late.captured
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "goes into a CUDA graph" in caplog.text


def test_a_stamp_that_cannot_be_read_ends_the_recording_and_not_the_training(
    late: LateClock, ddp: DistributedDataParallel, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    def unrecorded(start: int, end: int) -> int:
        raise ValueError("Both events must be recorded before calculating elapsed time.")

    with record(ddp, tmp_path / "run"):
        train(ddp, 3, lambda: setattr(late, "done", late.made))
        monkeypatch.setattr(late, "between_ns", unrecorded)
        train(ddp, 3, lambda: setattr(late, "done", late.made))
    assert len(rows(tmp_path / "run")) == 2  # the third was finished by the forward after it
    assert rows(tmp_path / "run", "end") == [{"kind": "end", "failed": False}]
    assert caplog.text.count("Both events must be recorded") == 1


def test_a_restarted_job_records_beside_its_earlier_starts(
    ddp: DistributedDataParallel, tmp_path: Path, monkeypatch: Any
) -> None:
    for first, slurm in (("0", ""), ("1", ""), ("2", ""), ("0", "3")):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", first)
        monkeypatch.setenv("SLURM_RESTART_COUNT", slurm)
        with record(ddp, tmp_path / "run"):
            train(ddp, 2)
    folders = [tmp_path / "run", *(tmp_path / "run" / f"restart-{number}" for number in (1, 2, 3))]
    assert all(len(load_recording(folder).ranks[0].steps) == 2 for folder in folders)
    assert set(find_recordings(tmp_path)) == set(folders)
    with pytest.raises(InputError, match="exists already"), record(ddp, tmp_path / "run"):
        pass


def test_a_variable_that_takes_the_overlap_away_is_told(
    ddp: DistributedDataParallel, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    """Of a GPU; on a CPU it changes nothing."""
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.setenv(name, "1")
    environment = live.environment
    for device, told in (("cpu", 0), ("cuda", 2)):
        found = environment(torch.device(device))
        monkeypatch.setattr(live, "environment", lambda _, found=found: found)
        with record(ddp, tmp_path / device):
            train(ddp, 1)
        assert rows(tmp_path / device, "recording")[0]["environment"] == found
        assert (len(found), len(caplog.records)) == (told, told)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_recording_says_whether_gradients_are_kept(
    set_to_none: bool, late: bool, view: bool, one_rank: None, tmp_path: Path
) -> None:
    """Whenever they are zeroed between a backward and the next, and with views of buckets, which DDP puts in
    their place in either case."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with record(ddp, tmp_path / "run"):
        for _ in range(8):
            if not late:
                optimizer.zero_grad(set_to_none=set_to_none)
            loss = ddp(BATCH).sum()
            if late:
                optimizer.zero_grad(set_to_none=set_to_none)
            with ddp.no_sync():
                loss.backward()
            ddp(BATCH).sum().backward()
            optimizer.step()
    assert [row["kept"] for row in rows(tmp_path / "run")] == [False, *[not set_to_none] * 7]
    workload = read_recording([tmp_path / "run"], ImportOptions()).workload
    assert workload.switches.get("set_to_none", True) is set_to_none
    assert sim.assign(workload).settings.get("set_to_none", True) is set_to_none
