"""Loops that ``sim.record`` meets: without optimizers, with sparse gradients, compiled, with closures."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.errors import InputError, NotModelledError
from sim.importer.recorded.recording_import import read_recording
from sim.nouns.imported import ImportOptions
from sim.recorder import live_recording as live
from sim.recorder.live_recording import record
from sim.recorder.tap import attach
from tests.handmade import wired


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
    monkeypatch.setattr(live, "_MOST_BACKWARDS", 4)
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
    assert "under torch.compile" in imported.assumed[2]
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


def test_a_directory_that_is_none_is_refused(ddp: DistributedDataParallel) -> None:
    with pytest.raises(InputError, match="directory: None is not legal"), record(ddp, None):  # type: ignore[arg-type]
        pass
