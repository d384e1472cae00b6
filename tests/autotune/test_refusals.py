"""What ``sim.autotune`` refuses, by name and before anything is touched; the other rank is not there."""

import copy
import io
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision
from torch.optim.swa_utils import AveragedModel
from torch.testing._internal.distributed.fake_pg import FakeStore

import sim
from sim import tuned
from sim.autotuner import loop
from sim.autotuner.switch import Room
from sim.errors import InputError, MachineError
from sim.validator.ranks.reducer import InjectedDataParallel


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A process group whose other rank does not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def model(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*(layers or (nn.Linear(3, 3), nn.Linear(3, 1))))


def hooked(state: object, hook: Any) -> DistributedDataParallel:
    ddp: Any = DistributedDataParallel(model())
    if isinstance(hook, dist.BuiltinCommHookType):
        ddp._register_builtin_comm_hook(hook)
    else:
        ddp.register_comm_hook(state, hook)
    return ddp


def marked(one: Any, **attributes: Any) -> Any:
    """As a constructor leaves it where this machine may not have what it needs for it."""
    for name, value in attributes.items():
        setattr(one, name, value)
    return one


def stepping_in_backward() -> DistributedDataParallel:
    ddp = DistributedDataParallel(model())
    marked(next(iter(ddp.parameters())), _in_backward_optimizers=[])
    return ddp


def delaying() -> DistributedDataParallel:
    inner = model()
    (first, *_, (_, last)) = inner.named_parameters()
    switches: Any = {"delay_all_reduce_named_params": [first], "param_to_hook_all_reduce": last}
    return DistributedDataParallel(inner, **switches)


def ddp_of(*layers: nn.Module, **kwargs: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model(*layers), **kwargs)


REFUSED: dict[str, Any] = {
    "comm_hook: powerSGD_hook": lambda: hooked(PowerSGDState(None), powerSGD_hook),
    "comm_hook: BuiltinCommHookType.ALLREDUCE is": lambda: hooked(None, dist.BuiltinCommHookType.ALLREDUCE),
    "sparse: an embedding's": lambda: ddp_of(nn.Embedding(5, 3, sparse=True)),
    "complex: gradients": lambda: ddp_of(nn.Linear(2, 2, dtype=torch.complex64)),
    "_ddp_params_and_buffers_to_ignore: takes": lambda: DistributedDataParallel(
        marked(model(), _ddp_params_and_buffers_to_ignore=["0.weight"])
    ),
    "optimizer in backward: it steps": stepping_in_backward,
    "skip_all_reduce_unused_params: never": lambda: ddp_of(
        skip_all_reduce_unused_params=True, find_unused_parameters=True
    ),
    "reducer: the buckets of this Injected": lambda: InjectedDataParallel(model(), [[0, 1], [2, 3]]),
    "mixed_precision: its hooks": lambda: marked(ddp_of(), mixed_precision=_MixedPrecision(torch.float16)),
    "optimize_ddp: 'python_reducer'": lambda: marked(ddp_of(), _use_python_reducer=True),
    "delay_all_reduce_named_params: takes": delaying,
    "ddp: a Sequential has no buckets": model,
    "ddp: a FullyShardedDataParallel has": lambda: FullyShardedDataParallel(
        model(), device_id=torch.device("cpu")
    ),
    "ddp: a FSDPSequential has no buckets": lambda: fully_shard(model(), mesh=init_device_mesh("cpu", (2,))),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name_and_not_touched(why: str, two_ranks: None) -> None:
    given = REFUSED[why]()
    reducer, hooks = getattr(given, "reducer", None), len(given._forward_hooks)  # FSDP2 has one of its own
    tuner = sim.autotune(given)
    assert tuner.result.outcome == "refused"
    assert tuner.result.why.startswith(why)
    assert str(tuner.result).startswith(f"refused: {why}")
    assert getattr(given, "reducer", None) is reducer
    assert len(given._forward_hooks) == hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in given.parameters())
    tuner.step()
    tuner.stop()
    assert tuner.result.steps == 0


def test_a_tuner_that_has_not_ended_says_where_it_is(two_ranks: None) -> None:
    tuner = sim.autotune(DistributedDataParallel(model()))
    assert tuner.result is None
    assert str(tuner) == (
        "not decided: after 0 steps DDP had yet to rebuild its buckets; let it train for more steps"
    )
    tuner.stop()
    assert str(tuner).startswith("refused: stopped before it was decided")


def test_what_surrounds_a_model_may_be_refused_too(two_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ddp = DistributedDataParallel(model())
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert sim.autotune(ddp).result.why == f"torch {torch.__version__}: it has no gloo"
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert sim.autotune(ddp).result.why.startswith("TORCH_DISTRIBUTED_DEBUG: DETAIL")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"record_steps": 2}, "record_steps: 2 is not legal"),
        ({"verify_steps": 11}, "verify_steps: 11 is not legal"),
        ({"max_verify_steps": 19}, "max_verify_steps: 19 is not legal"),
        ({"ddp": "model"}, "ddp: a str is not legal"),
    ],
)
def test_arguments_that_are_not_legal(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.autotune(**{"ddp": model(), **arguments})


def test_a_step_captured_in_a_cuda_graph_is_refused(two_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replays run no hooks: the tuner would see no further step, and its events cannot be read."""
    ddp = DistributedDataParallel(model())
    tuner = sim.autotune(ddp)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    tuner._boundary._after_forward(ddp)
    tuner._boundary._reduced = True
    tuner.step()
    assert tuner.result.outcome == "refused"
    assert tuner.result.why.startswith("CUDA graph: ")
    assert not ddp._forward_hooks


# A tuner that nobody calls: models are copied and pickled as without it, and each has its options.


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
    tuned.attach(ddp)
    hooks = len(ddp._forward_pre_hooks), len(ddp._forward_hooks)
    assert hooks == (1, 1)
    other = copied(ddp)
    x = torch.ones(2, 3)
    other(x).sum().backward()
    assert (len(ddp._forward_pre_hooks), len(ddp._forward_hooks)) == hooks
    (boundary,) = (hook._act.__self__ for hook in ddp._forward_hooks.values())
    assert boundary.obstacle is None
    assert not boundary.take_step()
    assert torch.equal(ddp(x), other(x))
    assert "a forward waits" in boundary.obstacle
    ddp(x).sum().backward()
    assert boundary.take_step()


# What a GPU has room for beside a job: what its allocator does not hold, less what is left to NCCL.

GB = 1 << 30
GPU = torch.device("cuda", 5)


class Job:
    """A DDP as far as its memory is asked for: gradients of so many GB on a GPU, not the current one."""

    device = GPU

    def __init__(self, gradients: float) -> None:
        self._parameter = nn.Parameter(torch.empty(round(gradients * GB) // 4, device="meta"))

    def parameters(self) -> list[nn.Parameter]:
        return [self._parameter]


@pytest.mark.parametrize(
    ("gradients", "free", "fits"),
    [(6, (4,), False), (2.4, (3,), True), (2.6, (3,), False), (0.1, (0.2,), False), (5, (8, 3), True)],
)
def test_a_copy_of_the_gradients_has_to_fit_beside_the_allocator(
    gradients: float, free: tuple[float, ...], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy of ours is in the allocator's cache when the second one is asked for."""
    room = Room(Job(gradients))  # type: ignore[arg-type]
    for gigabytes in free:
        told = {GPU: (round(gigabytes * GB), 80 * GB)}
        monkeypatch.setattr(torch.cuda, "mem_get_info", told.__getitem__)
        with nullcontext() if fits else pytest.raises(MachineError, match="memory: "):
            room.check()
