"""The estimated ready order is the one that hooks see in a real backward on the CPU (A3.2, A6.5)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sim
from sim.recorder import models
from sim.recorder.estimate import estimate
from sim.recorder.training_step import ModelStep, record
from tests.contracts.clusters import a40
from tests.convolutional import resnet, resnet50, vgg13
from tests.effort import needs_package, tries
from tests.published.figures import figures

TINY = {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "context": 8, "batch": 2}
TEXT = {"batch": 2, "tokens": 8, "vocab_size": 32}

NARROW = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
OF_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "gpt2": {**TEXT, "n_layer": 2, "n_embd": 16, "n_head": 2},
    "bert": {**TEXT, **NARROW},
    "llama": {**TEXT, **NARROW, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32},
    "t5": {**TEXT, "num_layers": 2, "d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2},
    "vit": {"batch": 2, "image_size": 32, **NARROW},
    "convnext": {"batch": 2, "image_size": 32, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]},
    "resnet": {"batch": 2, "depths": [1, 1, 1, 1], "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32]},
}
SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt": (models.gpt, TINY),
    "tied gpt": (models.gpt, {**TINY, "tied": True}),
    "gpt without biases": (models.gpt, {**TINY, "bias": False}),
    "resnet18": (lambda: resnet([2, 2, 2, 2], bottleneck=False, image=32), {}),
    "vgg13": (vgg13, {"batch": 1, "image": 32, "hidden": 16}),
    "torchvision's mobilenet_v3_small": (models.torchvision, {"name": "mobilenet_v3_small", "image": 32}),
    **{
        f"transformers' {model_type}": (models.huggingface, {"model_type": model_type, **settings})
        for model_type, settings in OF_TRANSFORMERS.items()
    },
}


def small(name: str) -> Any:
    """The pair; the test is skipped where the model's package is not installed."""
    if "'" in name:
        needs_package(name.partition("'")[0])
    factory, arguments = SMALL[name]
    return factory(**arguments)


def real_order(model: nn.Module, batch: Any, autocast: bool = False) -> tuple[int, ...]:
    """Indices by the last firing of their hooks, in one true backward."""
    step, fired = ModelStep(model.train(), batch), list[int]()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for index, parameter in enumerate(trained):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: fired.append(index))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = step.loss()
    loss.backward()
    return tuple(dict.fromkeys(reversed(fired)))[::-1]


def has_order_of_hooks(make: Any, autocast: bool = False) -> bool:
    dtype = "bfloat16" if autocast else None
    return estimate(make, backward_ns=10**9, autocast=dtype).order() == real_order(*make(), autocast=autocast)


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, False) for name in SMALL]
    + [(name, True) for name in ("gpt", "tied gpt", "gpt without biases", "vgg13")]
    + [pytest.param(f"transformers' {of}", True, marks=pytest.mark.slow) for of in ("gpt2", "bert", "llama")],
)
def test_ready_made_models(name: str, autocast: bool) -> None:
    """Casts are nodes too: a Linear's weight is then ready before its bias."""
    small(name)
    assert has_order_of_hooks(partial(small, name), autocast)


class Casting(nn.Module):
    """A forward that enters a GPU's autocast itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.inner(x).sum()


def test_a_models_own_autocast_is_a_gpus() -> None:
    own = estimate(lambda: (Casting(), torch.ones(1, 4)), backward_ns=10**6)
    assert own.order() == (4, 5, 2, 3, 0, 1)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast("cpu", dtype=torch.float16).fast_dtype is torch.float16


class Encoder(nn.Module):
    """``nn.TransformerEncoder``, whose norms are declared last and called in between."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
        self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out.square().mean()


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_own_encoder(norm_first: bool) -> None:
    assert has_order_of_hooks(lambda: (Encoder(norm_first=norm_first), torch.randn(2, 5, 16)))


PARTS = st.sampled_from(
    ["linear", "bare", "again", "norm", "skip", "branch", "unused", "checkpoint", "frozen", "scale", "tied"]
)


class Random(nn.Module):
    """Parts of width 4 one after the other, as drawn; every parameter is declared before any is used."""

    def __init__(self, kinds: list[str], turned: bool) -> None:
        super().__init__()
        self.kinds = kinds
        made: list[nn.Module] = []
        for kind in kinds:
            part: nn.Module = nn.LayerNorm(4) if kind in ("norm", "skip") else nn.Linear(4, 4, kind != "bare")
            linears = [one for one in made if isinstance(one, nn.Linear)]
            if kind == "tied" and linears:
                part.weight = linears[-1].weight
            if kind == "frozen":
                part.requires_grad_(False)
            made.append(part)
        self.declared = nn.ModuleList(reversed(made) if turned else made)
        self.turned = turned
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(reversed(self.declared)) if self.turned else list(self.declared)
        x = x * self.scale
        for place, (kind, part) in enumerate(zip(self.kinds, parts, strict=True)):
            if kind == "again":
                x = part(part(x))
            elif kind == "skip":
                x = x + part(x)
            elif kind == "branch":
                x = parts[place // 2](x) + part(x).relu()
            elif kind == "checkpoint":
                x = checkpoint(part, x, use_reentrant=False)
            elif kind == "scale":
                x = part(x * self.scale)
            elif kind != "unused":
                x = part(x)
        return x.sum()


@given(kinds=st.lists(PARTS, min_size=1, max_size=8), turned=st.booleans(), autocast=st.booleans())
@settings(max_examples=tries(15), deadline=None)
def test_random_models(kinds: list[str], turned: bool, autocast: bool) -> None:
    """Tied, frozen, unused, reused and checkpointed parameters, declared forwards or backwards."""
    assert has_order_of_hooks(lambda: (Random(kinds, turned), torch.randn(2, 4)), autocast)


@pytest.mark.parametrize("name", ["tied gpt", "transformers' bert", "transformers' resnet"])
def test_all_that_is_no_time_is_what_record_finds(name: str) -> None:
    recorded = record(small(name), name=name, warmup=1, repeats=1)
    estimated = estimate(partial(small, name), name=name, backward_ns=10**9)
    assert estimated.buffers == recorded.buffers
    for guess, seen in zip(estimated.gradients, recorded.gradients, strict=True):
        assert replace(guess, ready_ns=0, device="cpu") == replace(seen, ready_ns=0)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [models.gpt, lambda: resnet50(batch=8, image=160, projection_first=True)])
def test_models_of_the_traces_at_their_true_size(pair: Any) -> None:
    assert has_order_of_hooks(pair)


# Bucket sizes that others observed, from an estimated ready order and nothing else (A1, A2).


def test_gpt_at_4_and_16_mib() -> None:
    log = figures("layouts")["gpt"]
    gpt = a40().workload
    assert len(gpt.gradients) == log["param_tensors"]
    assert gpt.total_bytes == 4 * log["params"]
    assert list(log["bucket_bytes"]) == ["4", "16"]
    for cap_mb, seen in log["bucket_bytes"].items():
        assert list(sim.assign(gpt, bucket_cap_mb=int(cap_mb)).bucket_bytes) == seen


def test_resnets_by_default_and_with_a_small_first_bucket() -> None:
    """An older torch kept the first bucket at 1 MiB beside an explicit cap."""
    buckets = sim.assign(estimate(resnet50, backward_ns=10**8))
    assert list(buckets.bucket_bytes) == figures("layouts")["resnet50"]["bucket_bytes"]["25"]
    cases = figures("layouts")["resnet18"]["bucket_bytes"]
    assert list(cases) == ["25", "35"]
    resnet18 = estimate(partial(resnet, [2, 2, 2, 2], bottleneck=False), backward_ns=10**8)
    for cap_mb, seen in cases.items():
        buckets = sim.assign(resnet18, bucket_cap_mb=int(cap_mb), first_bucket_mb=1)
        assert list(buckets.bucket_bytes) == seen
