"""What ``record`` sees of a training step, and what it makes of it."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

from sim.errors import InputError, MachineError
from sim.formats.documents import parse_text, to_text
from sim.nouns.recording import RecordedBackward
from sim.nouns.workload import Gradient, Workload
from sim.recorder import models
from sim.recorder.clocks import Clock, EventClock, clock_for
from sim.recorder.training_step import find_device, record
from sim.recorder.watched_workload import workload_of_backwards
from sim.units import median_ns

MS = 1_000_000
TINY = {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "context": 8, "batch": 2}


def quick(pair: Any, **options: Any) -> Workload:
    return record(pair, **{"warmup": 1, "repeats": 2, **options})


class Loss(nn.Module):
    """A network and the mean of its squares."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).float().square().mean()


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Iterator[None]:
    yield
    assert not torch_modules._global_forward_pre_hooks
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks


# What is ready, and in which order


@pytest.mark.parametrize(
    ("layers", "order"),
    [
        ([nn.Linear(8, 8) for _ in range(5)], (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),  # its bias before its weight
        ([nn.Linear(8, 8), nn.LayerNorm(8)], (2, 3, 1, 0)),  # its weight before its bias
        ([nn.Linear(8, 8), nn.BatchNorm1d(8)], (2, 3, 1, 0)),
    ],
)
def test_gradients_of_a_layer_come_in_its_order(layers: list[nn.Module], order: tuple[int, ...]) -> None:
    """A6.5."""
    workload = quick((Loss(*layers), torch.randn(4, 8)))
    assert workload.ready_order == order
    assert [g.name for g in workload.gradients[:2]] == ["layers.0.weight", "layers.0.bias"]
    assert [g.num_bytes for g in workload.gradients[:2]] == [256, 32]


class Chooser(nn.Module):
    """Some parameters are frozen, some never used, and some only in every third step."""

    def __init__(self) -> None:
        super().__init__()
        self.now_and_then = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4, bias=False)
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.now_and_then(x) if self.calls % 3 == 1 else x
        return self.last(self.norm(self.frozen(x))).mean()


def test_unused_parameters_are_never_ready_and_frozen_ones_are_left_out() -> None:
    workload = quick((Chooser(), torch.randn(4, 4)), repeats=6)
    names = [g.name for g in workload.gradients]
    assert names[:3] == ["now_and_then.weight", "now_and_then.bias", "unused.weight"]
    assert [g.ready_ns is None for g in workload.gradients] == [False, False, True, *[False] * 4]
    assert set(workload.ready_order) == {0, 1, 3, 4, 5, 6}
    assert all(sample[2] is None and sample[6] is not None for sample in workload.samples)
    assert {b.dtype: b.num_bytes for b in workload.buffers} == {"float32": 2 * 4 * 4, "int64": 8}


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = checkpoint(self.shared, x, use_reentrant=True)
        return x.mean()


def test_a_hook_that_fires_several_times_counts_from_its_last_firing() -> None:
    """A8.5; backward inside backward is still one backward."""
    workload = quick((Reentrant(), torch.ones(1, 4)))
    assert [g.uses for g in workload.gradients] == [1, 1, 3, 3]
    assert workload.ready_order == (3, 2, 1, 0)


def test_a_sparse_gradient_and_what_it_sends() -> None:
    model = Loss(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 8))
    table, weight, _ = quick((model, torch.tensor([3, 7, 3, 9]))).gradients
    sent = 3 * 8 + 3 * 8 * 4  # three rows: int64 indices, float32 values
    assert (table.sparse, table.num_bytes, table.wire_bytes) == (True, 100 * 8 * 4, sent)
    assert (weight.sparse, weight.wire_bytes) == (False, None)


def test_bfloat16_casts_model_and_floating_inputs_only() -> None:
    seen: list[torch.dtype] = []

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, tokens: Tensor, weights: Tensor) -> Tensor:
            seen.extend([tokens.dtype, weights.dtype])
            return (self.table(tokens) * weights).mean()

    workload = quick((Typed(), (torch.tensor([1, 2]), torch.ones(2, 1))), dtype="bfloat16")
    assert seen[:2] == [torch.int64, torch.bfloat16]
    assert (workload.gradients[0].dtype, workload.gradients[0].num_bytes) == ("bfloat16", 10 * 4 * 2)


# When


class Sleep(torch.autograd.Function):
    """The identity, which takes a while in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Sleeper(nn.Module):
    """Weight *k* becomes ready after the sleeps of all later layers; 100 ms of backward, 10 of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        for weight, seconds in zip(self.weights, (0.02, 0.05, 0.03, 0.0), strict=True):
            x = Sleep.apply(x * weight, seconds)
        return x.mean()


def test_ready_times_are_the_known_instants() -> None:
    """Backward begins at the end of forward."""
    workload = quick((Sleeper(), torch.ones(4)), repeats=5)
    ready = [g.ready_ns or 0 for g in workload.gradients]
    assert workload.ready_order == (3, 2, 1, 0)
    # sleeps only ever overshoot, all of them by this together
    overshot_ns = workload.backward_ns - 100 * MS
    for time_ns, expected_ms in zip(ready, (100, 80, 30, 0), strict=True):
        assert expected_ms * MS * 0.85 <= time_ns <= (expected_ms + 30) * MS + overshot_ns
    assert workload.forward_ns >= 9 * MS
    assert len(workload.samples) == 5
    assert [median_ns([s[i] or 0 for s in workload.samples]) for i in range(4)] == pytest.approx(ready)


# What is made of the times


@pytest.mark.parametrize(
    ("backwards", "pace", "ready", "order"),
    [
        ([(2000, {2: 100, 1: 1001, 0: 1990})], 2.0, [995, 500, 50], (2, 1, 0)),  # 500.5 rounds half to even
        ([(1000, {0: 990}), (1000, {0: 1400}), (1000, {0: 1300})], 1.0, [1000, None, None], (0,)),
        (
            [(9, {2: 1, 1: 2, 0: 3}), (9, {1: 2, 2: 4, 0: 5}), (9, {1: 1, 2: 3, 0: 6})],
            1.0,
            [5, 2, 3],
            (1, 2, 0),
        ),
        ([(100, {2: 10, 0: 30}), (100, {2: 10, 1: 20, 0: 40})], 1.0, [35, 20, 10], (2, 1, 0)),
        ([(100, {0: 20, 2: 20, 1: 50})], 1.0, [20, 50, 20], (2, 0, 1)),  # of one time: as they fired
    ],
)
def test_ready_times_are_medians_within_backward_without_the_cost_of_hooks(
    backwards: Any, pace: float, ready: list[int | None], order: tuple[int, ...]
) -> None:
    """Of those steps in which a gradient fired."""
    gradients = [
        Gradient(index=index, name=str(index), shape=(2,), dtype="float32", num_bytes=8, ready_ns=None)
        for index in range(3)
    ]
    rows = [
        RecordedBackward(
            synchronised=False,
            forwards=1,
            **{"started_ns": 0, "forward_start_ns": 0, "forward_end_ns": 7, "sync_end_ns": backward_ns},
            backward_ns=backward_ns,
            ready_ns=tuple(map(times.get, range(3))),
            uses={1: 2},
        )
        for backward_ns, times in backwards
    ]
    given = {"pace": pace, "fired": (2, 0, 1), "forward_ns": 7, "optimizer_ns": 0}
    made = workload_of_backwards("made", gradients, rows, **given)
    assert ([g.ready_ns for g in made.gradients], made.ready_order) == (ready, order)
    assert [g.uses for g in made.gradients] == [1, 2, 1]
    never = [replace(row, ready_ns=(None,) * 3) for row in rows]
    with pytest.raises(InputError, match="no gradient became ready"):
        workload_of_backwards("made", gradients, never, **given)


# The document


def test_a_recording_survives_its_file_and_says_where_it_comes_from() -> None:
    spec = "sim.recorder.models:gpt"
    workload = quick(models.gpt(**TINY), name="gpt", repeats=3, factory_spec=spec, arguments=TINY)
    assert parse_text(to_text(workload), Workload, "text") == workload
    known = {"source": "bucketsim record", "factory": spec, "arguments": TINY, "warmup": 1, "repeats": 3}
    provenance = workload.provenance
    assert {key: provenance[key] for key in known} == known
    low, middle, high = (provenance["plain_backward_ns"][key] for key in ("min", "median", "max"))
    assert 0 < low <= middle == workload.backward_ns <= high
    assert len(workload.samples) == 3


# Batches and outputs


class Flexible(nn.Linear):
    """Returns its loss in the wrapping asked for."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__(4, 4)
        self.wrap = wrap

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return self.wrap(super().forward(x) * scale)


def flexible(wrap: Callable[[Tensor], Any], batch: object = None) -> tuple[nn.Module, object]:
    return Flexible(wrap), torch.ones(4) if batch is None else batch


@pytest.mark.parametrize(
    "pair",
    [
        *(flexible(torch.mean, batch) for batch in ((torch.ones(4), 2.0), [torch.ones(4)])),
        flexible(torch.mean, {"x": torch.ones(4), "scale": 3.0}),
        flexible(lambda out: out.sum().reshape(1)),
        flexible(lambda out: {"loss": out.sum(), "logits": out}),
        flexible(lambda out: SimpleNamespace(loss=out.sum())),
    ],
)
def test_every_form_of_batch_and_of_loss(pair: tuple[nn.Module, object]) -> None:
    """The workload is called after the model, not after the function that made it."""
    workload = quick(pair, repeats=1)
    assert (workload.ready_order, workload.name) == ((1, 0), "Flexible")


class Elsewhere(nn.Linear):
    """A loss that is not this module's."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (flexible(lambda out: out), {}, r"a Tensor of shape \(4,\), is no scalar loss.*wrap"),
        (
            flexible(lambda out: {"logits": out}),
            {},
            r"a dict, is no scalar loss, and has none as .*\['loss'\]",
        ),
        (flexible(lambda out: out.detach().sum()), {}, "its loss does not require grad"),
        (flexible(lambda out: out.sum() * float("nan")), {}, "the loss is nan"),
        (flexible(lambda out: torch.ones(3, 2) @ out), {}, "step: it raised RuntimeError: size"),
        (flexible(torch.sum, 3), {}, "step: it raised TypeError: .* must be an iterable, not int"),
        (flexible(torch.sum)[0], {}, r"factory: a Flexible is not legal; return \(model, batch\)"),
        ((nn.DataParallel(nn.Linear(4, 4)), torch.ones(4)), {}, "sharded by DataParallel already"),
        (flexible(torch.sum), {"repeats": 0}, "repeats: 0 is not legal"),
        (flexible(torch.sum), {"dtype": "int8"}, "dtype: 'int8' is not legal; give one of float32, bfloat16"),
        (flexible(torch.sum), {"device": "tpu"}, "device: 'tpu' is not legal; give one of cpu, cuda"),
        ((Elsewhere(4, 4), torch.ones(4)), {}, "backward of the module ran 0 times; it has to run once"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_line(
    given: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        quick(given, **options)
    assert "\n" not in str(caught.value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(clock_for(find_device("cpu"))) is Clock
    for is_here in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_here=is_here: is_here)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        with nullcontext() if is_here else pytest.raises(MachineError, match="'cuda' is not here"):
            assert find_device("cuda") == torch.device("cuda:1")
    assert isinstance(clock_for(torch.device("cuda:1")), EventClock)


def test_a_stamp_is_on_its_device_whichever_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself torch's event takes the current device, which scripts leave at GPU 0 on every rank."""
    recorded: list[str] = []
    event = SimpleNamespace(record=lambda stream="of GPU 0": recorded.append(stream))
    monkeypatch.setattr(torch, "Event", lambda device, enable_timing: event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"of {device}")
    place = torch.device("cuda:3")
    idle: Any = "idle"
    for clock in (clock_for(place), EventClock(place, idle)):
        clock.stamp()
    assert recorded == ["of cuda:3", "idle"]
