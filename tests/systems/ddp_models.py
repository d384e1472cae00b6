"""Models written down as lists of layers, for real runs of DistributedDataParallel.

A layer is a dict. ``kind`` is "linear", "norm", "conv", "batch_norm", "encoder", "embedding", "nothing" (a
parameter without elements) or "nap" (none; it sleeps for ``forward_ms`` and ``backward_ms``); ``width`` is
what comes in, ``out`` what goes out (linear and conv). Further keys, all optional:

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

import time
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


class Nap(nn.Module):
    """Nothing but time."""

    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.forward_ms, self.backward_ms = forward_ms, backward_ms

    def forward(self, values: Tensor) -> Tensor:
        time.sleep(self.forward_ms / 1e3)
        values = values.view_as(values)
        values.register_hook(lambda _: time.sleep(self.backward_ms / 1e3))
        return values


def batch(layers: list[Layer], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random values of the first layer's width, and rows for embeddings."""
    rows = min((layer["rows"] for layer in layers if layer["kind"] == "embedding"), default=1)
    return (
        torch.randn(BATCH, LENGTH, layers[0]["width"], generator=generator, requires_grad=True),
        torch.randint(rows, (BATCH, LENGTH), generator=generator),
    )


def _layer(spec: Layer) -> nn.Module:
    width, bias = spec["width"], spec.get("bias", True)
    layer: nn.Module
    match spec["kind"]:
        case "linear":
            layer = nn.Linear(width, spec["out"], bias=bias)
        case "norm":
            layer = nn.LayerNorm(width, bias=bias)
        case "conv":
            layer = nn.Conv1d(width, spec["out"], 3, padding=1, bias=bias)
        case "batch_norm":
            layer = nn.BatchNorm1d(width)
        case "encoder":
            layer = nn.TransformerEncoderLayer(width, 1, 2 * width, dropout=0.0, batch_first=True)
        case "embedding":
            layer = nn.Embedding(spec["rows"], width, sparse=spec.get("sparse", False))
        case "nothing":
            layer = Nothing()
        case "nap":
            layer = Nap(spec.get("forward_ms", 0), spec["backward_ms"])
        case kind:
            raise ValueError(f"no layer of kind {kind!r}")
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
        if spec["kind"] in ("conv", "batch_norm"):
            result: Tensor = layer(values.transpose(1, 2)).transpose(1, 2)
        else:
            result = layer(values)
        return result

    if "checkpoint" in spec:
        return checkpoint(run, values, use_reentrant=spec["checkpoint"] == "reentrant")
    return run(values)
