"""The models on which last-hook bucketing was tried (A6.3), and how their gradients come."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

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
    blocks = [Block(WIDTH) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(50, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50))
    return model, (torch.randint(50, (2, 6)),)


def _encoder() -> Built:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (torch.randn(2, 6, WIDTH),)


def _conv_norm() -> Built:
    layers: list[nn.Module] = []
    for i, o in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*layers), (torch.randn(2, 3, 6, 6),)


def _separate_lists() -> Built:
    return SeparateLists((3, 16, 16, 32, 32, 64, 64)), (torch.randn(2, 3, 6, 6),)


def _head_first() -> Built:
    return HeadFirst(64, 6), (torch.randn(4, 64),)


MODELS: dict[str, Callable[[], Built]] = {
    "small transformer with LayerNorm": _transformer,
    "nn.TransformerEncoder": _encoder,
    "Conv and BatchNorm in Sequential": _conv_norm,
    "convs and norms in separate lists": _separate_lists,
    "head declared first": _head_first,
}
