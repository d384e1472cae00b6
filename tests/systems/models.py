"""Models of real ranks: those that a case is trained on, and those on which last-hook bucketing was tried.

A case has ``layers``, or ``sizes`` and ``used`` of a chain, or ``blocks``: for each the kinds of its parts;
then ``embeds`` and ``has_head`` say what stands before and behind, all of one ``width`` and ``dtype``. It may
have ``frozen``: positions of parameters that need no gradient.

A layer is a dict. ``kind`` is "linear", "norm", "conv", "batch_norm", "encoder", "embedding" or "nothing" (a
parameter without elements); ``width`` is what comes in, ``out`` what goes out (linear, conv). Further keys,
all optional:

- ``rows``, ``sparse``: of an embedding, whose output is added to what comes in;
- ``bias``: False for none; ``dtype``: of parameters and buffers;
- ``frozen``: names of parameters that need no gradient, or True for all;
- ``used``: False, or the iterations (from 1) in which the layer takes part; ``ranks``: where it does;
- ``times``: how often it is applied; ``checkpoint``: "reentrant" or "saved", recomputed in backward;
- ``tied``: place of the layer whose ``weight`` it shares;
- ``outside``: True where its output is returned, but is no part of the loss;
- ``declared``: its place among the attributes, where that is not its place in forward.

Layers that are not always used must keep the width.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Layer = dict[str, Any]
BATCH, LENGTH = 2, 3


class Net(nn.Module):
    """The layers in sequence; each casts what comes in to its own dtype."""

    def __init__(self, layers: list[Layer], rank: int) -> None:
        super().__init__()
        self.iteration = 1
        self._specs, self._rank = layers, rank
        made = [_layer(spec) for spec in layers]
        for spec, layer in zip(layers, made, strict=True):
            if "tied" in spec:
                layer.weight = made[spec["tied"]].weight
        declared = sorted(range(len(layers)), key=lambda place: layers[place].get("declared", place))
        self.layers = nn.ModuleDict({str(place): made[place] for place in declared})

    def forward(self, values: Tensor, places: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What the loss is made of, and outputs outside of it."""
        outside = []
        for place, spec in enumerate(self._specs):
            if not self._is_used(spec):
                continue
            layer = self.layers[str(place)]
            if spec.get("outside"):
                outside.append(_apply(spec, layer, values, places))
                continue
            for _ in range(spec.get("times", 1)):
                values = _apply(spec, layer, values, places)
        return values, outside

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random values of the first layer's width, and rows for embeddings."""
        rows = min((one["rows"] for one in self._specs if one["kind"] == "embedding"), default=1)
        shape = (BATCH, LENGTH, self._specs[0]["width"])
        values = torch.randn(shape, generator=generator, requires_grad=True)
        return values, torch.randint(rows, shape[:2], generator=generator)

    def _is_used(self, spec: Layer) -> bool:
        used = spec.get("used", True)
        in_iteration = used if isinstance(used, bool) else self.iteration in used
        return in_iteration and self._rank in spec.get("ranks", [self._rank])


class Nothing(nn.Module):
    """A parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.nothing.sum()


def _layer(spec: Layer) -> nn.Module:
    width, out, bias = spec["width"], spec.get("out", 0), spec.get("bias", True)
    made: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(width, out, bias=bias),
        "norm": lambda: nn.LayerNorm(width, bias=bias),
        "conv": lambda: nn.Conv1d(width, out, 3, padding=1, bias=bias),
        "batch_norm": lambda: nn.BatchNorm1d(width),
        "encoder": lambda: nn.TransformerEncoderLayer(width, 1, 2 * width, dropout=0.0, batch_first=True),
        "embedding": lambda: nn.Embedding(spec["rows"], width, sparse=spec.get("sparse", False)),
        "nothing": Nothing,
    }
    layer = made[spec["kind"]]()
    layer.to(getattr(torch, spec.get("dtype", "float32")))
    frozen = spec.get("frozen", [])
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(frozen is not True and (frozen is False or name not in frozen))
    return layer


def _apply(spec: Layer, layer: nn.Module, values: Tensor, places: Tensor) -> Tensor:
    def run(values: Tensor) -> Tensor:
        if isinstance(layer, nn.Embedding):
            looked_up: Tensor = layer(places)
            return values.to(looked_up.dtype) + looked_up
        values = values.to(next(layer.parameters(), values).dtype)
        turns = spec["kind"] in ("conv", "batch_norm")
        result: Tensor = layer(values.transpose(1, 2)).transpose(1, 2) if turns else layer(values)
        return result

    if "checkpoint" in spec:
        return checkpoint(run, values, use_reentrant=spec["checkpoint"] == "reentrant")
    return run(values)


class Chain(nn.Module):
    """Parameters of any size, used one after the other: the one used last is ready first."""

    def __init__(self, sizes: list[int], used: list[int]) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(nn.Parameter(torch.full((size,), 0.01)) for size in sizes)
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        for place in self.used:
            x = x * (1 + self.pieces[place].sum() / 1000)
        return x

    def batch(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.ones(1),)


class Residual(nn.Module):
    """Its parts one after the other, all of one width, and a residual connection."""

    def __init__(self, kinds: list[str], width: int) -> None:
        super().__init__()
        parts = (nn.Linear(width, width) if kind == "linear" else nn.LayerNorm(width) for kind in kinds)
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class Blocks(nn.Module):
    """Blocks in a list, perhaps behind an embedding and before a head."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width = case["width"]
        self.tokens = nn.Embedding(7, width) if case["embeds"] else None
        self.blocks = nn.ModuleList(Residual(kinds, width) for kinds in case["blocks"])
        self.head = nn.Linear(width, 5) if case["has_head"] else None
        self.to(getattr(torch, case["dtype"]))
        self._given = torch.ones(3, width, dtype=getattr(torch, case["dtype"]))

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            x = self.tokens(torch.arange(x.shape[0]))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)

    def batch(self, generator: torch.Generator) -> tuple[Tensor]:
        return (self._given,)


def build(case: dict[str, Any], rank: int) -> Any:
    """The model of a case, as ``rank`` trains it."""
    if "layers" in case:
        model: Any = Net(case["layers"], rank)
    else:
        model = Chain(case["sizes"], case["used"]) if "sizes" in case else Blocks(case)
    parameters = list(model.parameters())
    for place in case.get("frozen", ()):
        parameters[place].requires_grad_(False)
    return model


def loss_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    values = model(*inputs)
    return (values[0] if isinstance(values, tuple) else values).float().square().mean()


WIDTH = 32
Built = tuple[nn.Module, tuple[Tensor, ...]]


class Block(nn.Module):
    """A pre-norm transformer block, its layers declared in the order of forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        return y


class SeparateLists(nn.Module):
    """Convolutions in one list and their norms in another."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(channels))
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        return x


class HeadFirst(nn.Module):
    """A stack of Linear layers whose head is declared before them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.tanh(layer(x))
        y: Tensor = self.head(x)
        return y


def _transformer() -> Built:
    blocks = [nn.Embedding(50, WIDTH), *(Block(WIDTH) for _ in range(4))]
    model = nn.Sequential(*blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50))
    return model, (torch.randint(50, (2, 6)),)


def _encoder() -> Built:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (torch.randn(2, 6, WIDTH),)


def _conv_norm() -> Built:
    layers: list[nn.Module] = []
    for i, o in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*layers), (torch.randn(2, 3, 6, 6),)


MODELS: dict[str, Callable[[], Built]] = {
    "small transformer with LayerNorm": _transformer,
    "nn.TransformerEncoder": _encoder,
    "Conv and BatchNorm in Sequential": _conv_norm,
    "convs and norms in separate lists": lambda: (
        SeparateLists((3, 16, 16, 32, 32, 64, 64)),
        (torch.randn(2, 3, 6, 6),),
    ),
    "head declared first": lambda: (HeadFirst(64, 6), (torch.randn(4, 64),)),
}
