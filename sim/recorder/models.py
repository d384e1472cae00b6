"""Models to record, in plain torch: ``gpt``, ``resnet50``, ``bert``.

Each factory returns ``(model, batch)``; ``model(*batch)`` is a scalar loss. Weights and data are
random and the same every time (seed 0; the caller's generator is left alone).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.errors import InputError
from sim.recorder.published.vision import ResNet
from sim.recorder.seeded_batches import IGNORED, MASKED_FRACTION, Batch, check_sizes, seeded


class Attention(nn.Module):
    """Multi-head self-attention: ``[B, T, C] -> [B, T, C]``."""

    def __init__(self, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class GptBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width=width, heads=heads, causal=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = _mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Gpt(nn.Module):
    """A GPT-2-like language model."""

    def __init__(self, *, layers: int, width: int, heads: int, vocab: int, context: int, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width=width, heads=heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of ``targets`` ``[B, T]`` after ``tokens`` ``[B, T]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def gpt(
    *,
    layers: int = 6,
    width: int = 384,
    heads: int = 6,
    vocab: int = 4096,
    context: int = 128,
    batch: int = 8,
    tied: bool = False,
) -> tuple[Gpt, Batch]:
    """A small GPT and a batch of ``[batch, context]`` tokens: 13.8 M parameters, 55 MB, by default.

    ``tied`` shares the embedding with the head, which then becomes ready last instead of first.
    """
    check_sizes(layers=layers, width=width, heads=heads, vocab=vocab, context=context, batch=batch)
    with seeded():
        model = Gpt(layers=layers, width=width, heads=heads, vocab=vocab, context=context, tied=tied)
        text = torch.randint(vocab, (batch, context + 1))
    return model, (text[:, :-1].contiguous(), text[:, 1:].contiguous())


class BertBlock(nn.Module):
    """A post-norm transformer block."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width=width, heads=heads, causal=False)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = _mlp(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        x = self.norm1(x + self.attention(x))
        out: Tensor = self.norm2(x + self.mlp(x))
        return out


class Bert(nn.Module):
    """A BERT-like encoder with the masked-language-model head, its decoder tied to the embedding."""

    def __init__(self, *, layers: int, width: int, heads: int, vocab: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(BertBlock(width=width, heads=heads) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, vocab)
        for embedding in (self.tokens, self.positions, self.segments):
            nn.init.normal_(embedding.weight, std=0.02)
        self.decoder.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the masked places (``labels`` other than -100), both ``[B, T]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        segment = torch.zeros_like(tokens)
        x = self.norm(self.tokens(tokens) + self.positions(places) + self.segments(segment))
        for block in self.blocks:
            x = block(x)
        logits = self.decoder(self.transform(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def bert(
    *,
    layers: int = 6,
    width: int = 384,
    heads: int = 6,
    vocab: int = 8192,
    context: int = 128,
    batch: int = 8,
) -> tuple[Bert, Batch]:
    """A small BERT and a batch of ``[batch, context]`` tokens, 15 % of them masked (token 0)."""
    check_sizes(layers=layers, width=width, heads=heads, vocab=vocab, context=context, batch=batch)
    with seeded():
        model = Bert(layers=layers, width=width, heads=heads, vocab=vocab, context=context)
        text = torch.randint(vocab, (batch, context))
        masked = torch.rand(batch, context) < MASKED_FRACTION
    masked[:, 0] = True  # never a batch without a loss
    return model, (text.masked_fill(masked, 0), text.masked_fill(~masked, IGNORED))


def resnet50(*, batch: int = 8, image: int = 160, classes: int = 1000) -> tuple[ResNet, Batch]:
    """ResNet-50 (25,557,032 parameters in 161 tensors) and ``batch`` images of ``image`` pixels square.

    Its blocks call their projection first; see ``sim.recorder.published_models:resnet50``.
    """
    check_sizes(batch=batch, image=image, classes=classes)
    if batch == 1 and image <= 32:
        raise InputError(
            f"image: {image} is not legal with batch 1: one value per channel is left for the last batch "
            f"norm; give an image above 32 or a batch of at least 2"
        )
    with seeded():
        model = ResNet(depths=[3, 4, 6, 3], bottleneck=True, classes=classes, projection_first=True)
        pictures = torch.randn(batch, 3, image, image)
        labels = torch.randint(classes, (batch,))
    return model, (pictures, labels)
