"""A tuner that nobody calls: models are copied and pickled as without it, and each has its options."""

import copy
import inspect
import io
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from sim.autotuner import attached, loop
from sim.autotuner.loop import autotune
from sim.errors import InputError


@pytest.fixture
def ddp(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedDataParallel]:
    """On one rank, which is not refused here."""
    monkeypatch.setattr(loop, "check_switchable", lambda ddp: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    dist.destroy_process_group()


def saved(module: nn.Module) -> Any:
    stream = io.BytesIO()
    torch.save(module, stream)
    assert b"sim." not in stream.getvalue()  # it is loaded where bucketsim is not
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, AveragedModel, saved])
def test_a_model_is_copied_as_without_a_tuner(
    copied: Any, ddp: DistributedDataParallel, tmp_path: Path
) -> None:
    attached.attach(ddp)
    hooks = len(ddp._forward_pre_hooks), len(ddp._forward_hooks)
    assert hooks == (1, 1)
    other = copied(ddp)
    x = torch.ones(2, 3)
    other(x).sum().backward()
    assert (len(ddp._forward_pre_hooks), len(ddp._forward_hooks)) == hooks
    (boundary,) = (inspect.unwrap(hook._act).__self__ for hook in ddp._forward_hooks.values())
    assert boundary.obstacle is None
    assert not boundary.take_step()
    assert torch.equal(ddp(x), other(x))
    assert "a forward waits" in boundary.obstacle
    ddp(x).sum().backward()
    assert boundary.take_step()


def test_the_pickle_of_a_tuned_model_names_nothing_of_ours(ddp: DistributedDataParallel) -> None:
    before = pickle.dumps(ddp.module)
    tuner = autotune(ddp)
    assert b"sim." not in pickle.dumps(ddp)
    tuner.stop()
    assert pickle.dumps(ddp.module) == before


def test_only_the_first_model_of_all_ranks_has_the_cache(
    ddp: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tmp_path, Path("kept.json")
    assert attached._of_its_own(ddp, 0, *options) == {"live": tmp_path, "cache": Path("kept.json")}
    assert attached._of_its_own(ddp, 1, *options) == {"live": tmp_path / "model-1", "cache": None}
    assert attached._of_its_own(ddp, 0, None, None) == {"live": None, "cache": None}
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert attached._of_its_own(ddp, 0, *options) == {"live": tmp_path / "model-0-rank-0", "cache": None}


def test_a_cache_that_cannot_be_written_ends_no_training(
    ddp: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why = "kept.json: cannot be written: No space left on device"

    def full(*_: object) -> None:
        raise InputError(why)

    monkeypatch.setattr(loop.kept, "save_kept", full)
    tuning = cast("Any", autotune(ddp, cache="kept.json"))._work.gi_frame.f_locals["self"]
    with caplog.at_level(logging.WARNING):
        tuning._save(None)
    assert caplog.messages == [f"autotune: the buckets are kept, but not for the next run: {why}"]
