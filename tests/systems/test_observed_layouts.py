"""Bucket sizes that others observed on their machines, from the models' shapes and calls alone (A1, A2).

The observations are in ``tests/published/layouts.json``, with their sources. Nothing is fitted. A model is
its layers, in the order in which they are registered and called; backward makes the layer that was called
last ready first, and inside a layer a Linear's bias comes before its weight, a norm's weight before its bias
(A6.5). ``test_autograd_gives_this_order`` holds that against torch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import sim
from sim.nouns.workload import Workload
from tests.handmade import handmade
from tests.published.figures import figures


class Layer(NamedTuple):
    """A module with its parameters: (name, shape) as registered, and their places in ready order."""

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    ready: tuple[int, ...]


def weight(name: str, *shape: int) -> Layer:
    """A convolution, an embedding or a Linear without bias."""
    return Layer(name, (("weight", shape),), (0,))


def linear(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, (("weight", (outputs, inputs)), ("bias", (outputs,))), (1, 0))


def norm(name: str, width: int) -> Layer:
    """BatchNorm or LayerNorm."""
    return Layer(name, (("weight", (width,)), ("bias", (width,))), (0, 1))


def workload(name: str, layers: Sequence[Layer]) -> Workload:
    """Layers registered and called in this order, and so ready in its reverse."""
    indices = itertools.count()
    place = {layer.name: [next(indices) for _ in layer.parameters] for layer in layers}
    order = [place[layer.name][k] for layer in reversed(layers) for k in layer.ready]
    parameters = [(f"{layer.name}.{name}", shape) for layer in layers for name, shape in layer.parameters]
    return handmade(
        [order.index(index) + 1 for index in range(len(order))],
        names=[name for name, _ in parameters],
        shapes=[shape for _, shape in parameters],
        name=name,
    )


def resnet(name: str, blocks: Sequence[int], *, bottleneck: bool) -> Workload:
    """torchvision's ResNet: a projection is registered behind its block's layers, and called behind them."""
    layers = [weight("conv1", 64, 3, 7, 7), norm("bn1", 64)]
    inputs = 64
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        outputs = width * 4 if bottleneck else width
        for number in range(count):
            at = f"layer{stage}.{number}"
            shapes = (
                [(width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)]
                if bottleneck
                else [(width, inputs, 3, 3), (width, width, 3, 3)]
            )
            for k, shape in enumerate(shapes, start=1):
                layers += [weight(f"{at}.conv{k}", *shape), norm(f"{at}.bn{k}", shape[0])]
            if number == 0 and (stage > 1 or inputs != outputs):
                layers += [
                    weight(f"{at}.downsample.0", outputs, inputs, 1, 1),
                    norm(f"{at}.downsample.1", outputs),
                ]
            inputs = outputs
    layers.append(linear("fc", inputs, 1000))
    return workload(name, layers)


def gpt(layers: int, width: int, vocab: int, context: int) -> Workload:
    """A pre-norm GPT without biases in its Linears; it looks up tokens, then positions."""
    made = [weight("tokens", vocab, width), weight("positions", context, width)]
    for number in range(layers):
        at = f"blocks.{number}"
        made += [
            norm(f"{at}.norm1", width),
            weight(f"{at}.qkv", 3 * width, width),
            weight(f"{at}.out", width, width),
            norm(f"{at}.norm2", width),
            weight(f"{at}.up", 4 * width, width),
            weight(f"{at}.down", width, 4 * width),
        ]
    made += [norm("norm", width), weight("head", vocab, width)]
    return workload("gpt", made)


RESNET18 = resnet("resnet18", (2, 2, 2, 2), bottleneck=False)
RESNET50 = resnet("resnet50", (3, 4, 6, 3), bottleneck=True)
GPT = gpt(layers=8, width=768, vocab=16384, context=1024)


def sizes(made_of: Workload, **caps: Any) -> list[int]:
    bytes_of_buckets = sim.assign(made_of, **caps).bucket_bytes
    assert bytes_of_buckets is not None
    return list(bytes_of_buckets)


def layout(model: str, cap_mb: int) -> list[int]:
    """The observed bytes of each all-reduce, in order."""
    seen: list[int] = figures("layouts")[model]["bucket_bytes"][str(cap_mb)]
    return seen


def test_the_models_are_the_published_ones() -> None:
    """torchvision's own counts, and the log's: 82,601,472 parameters in 69 tensors."""
    assert (len(RESNET18.gradients), RESNET18.total_bytes) == (62, 4 * 11_689_512)
    assert (len(RESNET50.gradients), RESNET50.total_bytes) == (161, 4 * 25_557_032)
    assert (len(GPT.gradients), GPT.total_bytes) == (69, 4 * 82_601_472)


@pytest.mark.parametrize("cap_mb", [25, 35])
def test_resnet18_of_an_older_torch(cap_mb: int) -> None:
    """Its first bucket stayed at 1 MiB beside an explicit cap: what ``first_bucket_mb`` gives."""
    seen = layout("resnet18", cap_mb)
    assert sizes(RESNET18, first_bucket_mb=1, bucket_cap_mb=cap_mb) == seen


def test_resnet18_at_25_is_what_todays_default_gives() -> None:
    assert sizes(RESNET18) == layout("resnet18", 25)


@pytest.mark.parametrize("cap_mb", [25, 35])
def test_an_explicit_cap_of_today_has_no_small_first_bucket(cap_mb: int) -> None:
    """A2.1: so it gives other buckets than those that the older torch made."""
    seen = layout("resnet18", cap_mb)
    today = sizes(RESNET18, bucket_cap_mb=cap_mb)
    assert today != seen
    assert today[0] >= cap_mb << 20
    assert sum(today) == sum(seen)


def test_resnet50_at_ddps_default() -> None:
    """Limits [1 MiB, 25 MiB]: what DDP's default gives, and an explicit 25 does not (A2.1)."""
    seen = layout("resnet50", 25)
    assert sizes(RESNET50) == seen
    assert sizes(RESNET50, bucket_cap_mb=25) != seen


@pytest.mark.parametrize("cap_mb", [4, 16])
def test_gpt_on_four_a40(cap_mb: int) -> None:
    """An explicit cap of 4 and of 16 MiB; the head alone is larger than either."""
    assert figures("layouts")["gpt"]["param_tensors"] == len(GPT.gradients)
    assert sizes(GPT, bucket_cap_mb=cap_mb) == layout("gpt", cap_mb)


def in_order(made_of: Workload, order: Sequence[int]) -> Workload:
    """The same gradients, ready in another order."""
    gradients = (replace(gradient, ready_ns=order.index(gradient.index)) for gradient in made_of.gradients)
    return replace(made_of, gradients=tuple(gradients))


def test_layouts_tell_ready_order_from_others() -> None:
    """The observations are no easy prey: gradients ready first to last give other buckets.

    The GPT's at 4 MiB even tell apart orders that differ in a norm and an embedding alone.
    """
    log = layout("gpt", 4)
    for made_of, seen, caps in ((RESNET50, layout("resnet50", 25), {}), (GPT, log, {"bucket_cap_mb": 4})):
        forward = range(len(made_of.gradients))
        assert sizes(in_order(made_of, forward), **caps) != seen
    ready = list(GPT.order())
    ready[-2:] = ready[:-3:-1]  # tokens before positions
    assert sizes(in_order(GPT, ready), bucket_cap_mb=4) != log


class Residual(nn.Module):
    """A residual block with a projection called last, as torchvision's, then a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.positions = nn.Embedding(3, 4)
        self.conv = nn.Conv1d(3, 3, 1, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.projection = nn.Conv1d(3, 3, 1, bias=False)
        self.layer_norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(3))
        out = self.norm(self.conv(x))
        out = out + self.projection(x)
        return self.fc(self.layer_norm(torch.relu(out))).sum()


def test_autograd_gives_this_order() -> None:
    """A6.5, in torch itself: what was called last comes first; the order inside a layer is as above."""
    model = Residual()
    fired: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    model(torch.tensor([[0, 1, 2], [2, 3, 4]])).backward()
    layers = [
        weight("tokens", 5, 4),
        weight("positions", 3, 4),
        weight("conv", 3, 3, 1),
        norm("norm", 3),
        weight("projection", 3, 3, 1),
        norm("layer_norm", 4),
        linear("fc", 4, 2),
    ]
    derived = workload("residual", layers)
    assert [derived.gradients[index].name for index in derived.order()] == fired
    assert [g.name for g in derived.gradients] == [name for name, _ in model.named_parameters()]
    assert [g.shape for g in derived.gradients] == [tuple(p.shape) for p in model.parameters()]
