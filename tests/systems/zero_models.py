"""Models for real ZeRO: small, of any shape; some use their parameters in any order, or not at all."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn


class Chain(nn.Module):
    """Parameters of any size, used one after the other: the one used last is ready first."""

    def __init__(self, sizes: list[int], used: list[int]) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(nn.Parameter(torch.full((size,), 0.01)) for size in sizes)
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        for place in self.used:
            x = x * (1 + self.pieces[place].sum() / 1000)
        return x.float().sum()


class Layers(nn.Module):
    """Modules in sequence, a scalar at the end."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).float().square().mean()


def build(spec: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    """The model of a case, the same on all ranks, and an input for it."""
    torch.manual_seed(0)
    match spec["kind"]:
        case "mlp":
            dims = spec["dims"]
            return Layers([nn.Linear(a, b) for a, b in itertools.pairwise(dims)]), torch.randn(4, dims[0])
        case "norms":
            width = spec["width"]
            layers = [part for _ in range(3) for part in (nn.LayerNorm(width), nn.Linear(width, width))]
            return Layers(layers), torch.randn(4, width)
        case "transformer":
            width = spec["width"]
            block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            return Layers([block, nn.Linear(width, 3)]), torch.randn(2, 5, width)
        case "chain":
            return Chain(spec["sizes"], spec["used"]), torch.ones(1)
    raise ValueError(f"no model {spec['kind']!r}")
