"""Small models for model mode: what a user's factory returns, and what one should not return."""

from itertools import count

import torch
from torch import nn

_calls = count()


class Regression(nn.Module):
    """Four linear layers and a loss."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, dtype=dtype) for _ in range(4)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.layers(x).float() - y).square().mean()
        return loss


def regression(width: int = 64) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    return Regression(width), (torch.randn(12, width), torch.randn(12, width))


def compiled(width: int = 64) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model, batch = regression(width)
    return torch.compile(model, backend="aot_eager"), batch  # type: ignore[return-value]


def changing() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Another model at each call."""
    return regression(64 + next(_calls))


def wrapped() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model, batch = regression()
    return nn.DataParallel(model), batch


def step() -> object:
    return lambda: None
