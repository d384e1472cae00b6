"""A chain of layers that computes next to nothing and sleeps instead, also where torch.compile runs it.

On two cores real layers of two ranks take the processor from each other and from the network; asleep they do
not. Everything else is real: Dynamo's graph, its cuts, autograd, DDP and the wire.
"""

import time

import torch
from torch import Tensor, nn

FORWARD_S, BACKWARD_S = 0.005, 0.040


@torch.library.custom_op("bucketsim_tests::nap", mutates_args=())
def nap(x: Tensor, seconds: float) -> Tensor:
    """``x`` again, so many seconds later."""
    time.sleep(seconds)
    return x.clone()


@nap.register_fake
def _(x: Tensor, seconds: float) -> Tensor:
    return torch.empty_like(x)


def _backward(_: object, gradient: Tensor) -> tuple[Tensor, None]:
    return nap(gradient, BACKWARD_S), None


nap.register_autograd(_backward)


class Chain(nn.Module):
    """Blocks of two linear layers and a norm; a sleep behind each linear layer."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(blocks))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Mean of squares of what is left of ``x`` ``[B, width]``."""
        for up, down, norm in zip(self.up, self.down, self.norm, strict=True):
            x = norm(nap(down(nap(up(x), FORWARD_S)), FORWARD_S))
        return x.square().mean()


def chain(blocks: int = 5, width: int = 768) -> tuple[nn.Module, tuple[Tensor]]:
    """45 MiB of gradients, 0.4 s of backward."""
    return Chain(blocks, width), (torch.randn(2, width),)
