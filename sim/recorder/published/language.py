"""Language models that others published measurements of, in plain torch and at their true sizes.

Parameters are declared, and modules called, in the order of the code each docstring names, so that
DDP's buckets come out as they did there. A factory returns ``(model, batch)``; ``model(*batch)`` is a
scalar loss. Small arguments make small models.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.errors import InputError
from sim.recorder.seeded_batches import Batch, check_sizes, seeded


class Conv1D(nn.Module):
    """OpenAI's linear layer, as in Hugging Face's GPT-2: its weight is ``[in, out]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


class NewGelu(nn.Module):
    """GELU by tanh, written out as in Hugging Face's ``gelu_new``."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class CausalAttention(nn.Module):
    """``c_attn`` for queries, keys and values together, then ``c_proj``."""

    def __init__(self, qkv: nn.Module, out: nn.Module, *, heads: int, dropout: float) -> None:
        super().__init__()
        self.c_attn = qkv
        self.c_proj = out
        self.heads = heads
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        out: Tensor = self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, tokens, width))
        return functional.dropout(out, self.dropout, self.training)


class Mlp(nn.Module):
    """``c_fc``, GELU, ``c_proj``."""

    def __init__(self, up: nn.Module, gelu: nn.Module, down: nn.Module, *, dropout: float) -> None:
        super().__init__()
        self.c_fc = up
        self.gelu = gelu
        self.c_proj = down
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        return functional.dropout(self.c_proj(self.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    """A pre-norm block, its parts declared in the order ln_1, attn, ln_2, mlp."""

    def __init__(self, ln_1: nn.Module, attn: nn.Module, ln_2: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.ln_1 = ln_1
        self.attn = attn
        self.ln_2 = ln_2
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class CausalLm(nn.Module):
    """Embeddings, blocks, a last norm and a head without bias, tied to the token embedding or not."""

    def __init__(
        self,
        blocks: list[Block],
        norm: nn.Module,
        *,
        width: int,
        vocab: int,
        context: int,
        tied: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(blocks)
        self.ln_f = norm
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.dropout = dropout
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of ``targets`` after ``tokens``, both ``[B, T]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = functional.dropout(self.wte(tokens) + self.wpe(places), self.dropout, self.training)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def check_tokens(tokens: int, context: int) -> None:
    """Raises ``InputError`` where a text is longer than there are positions."""
    if tokens > context:
        raise InputError(f"tokens: {tokens} is not legal; there are positions for {context}, context")


def _text(vocab: int, batch: int, context: int) -> Batch:
    text = torch.randint(vocab, (batch, context + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _causal_lm(
    *,
    layers: int,
    width: int,
    heads: int,
    vocab: int,
    context: int,
    tied: bool,
    dropout: float,
    linear: Callable[[int, int], nn.Module],
    norm: Callable[[], nn.Module],
    gelu: Callable[[], nn.Module],
) -> CausalLm:
    def block() -> Block:
        attention = CausalAttention(
            linear(width, 3 * width), linear(width, width), heads=heads, dropout=dropout
        )
        mlp = Mlp(linear(width, 4 * width), gelu(), linear(4 * width, width), dropout=dropout)
        return Block(norm(), attention, norm(), mlp)

    return CausalLm(
        [block() for _ in range(layers)],
        norm(),
        width=width,
        vocab=vocab,
        context=context,
        tied=tied,
        dropout=dropout,
    )


def _linear_gpt(
    *, vocab: int, context: int, batch: int, linear_bias: bool, norm_bias: bool, **sizes: Any
) -> tuple[CausalLm, Batch]:
    width = sizes["width"]
    check_sizes(
        layers=sizes["layers"], width=width, heads=sizes["heads"], vocab=vocab, context=context, batch=batch
    )
    with seeded():
        model = _causal_lm(
            vocab=vocab,
            context=context,
            linear=partial(nn.Linear, bias=linear_bias),
            norm=partial(nn.LayerNorm, width, bias=norm_bias),
            gelu=nn.GELU,
            **sizes,
        )
        return model, _text(vocab, batch, context)


def gpt_82m(
    *,
    layers: int = 8,
    width: int = 768,
    heads: int = 12,
    vocab: int = 16384,
    context: int = 1024,
    batch: int = 16,
) -> tuple[CausalLm, Batch]:
    """The GPT of the 4x A40 study (kopernik278/nccl-network-benchmark): 82,601,472 parameters, 69 tensors.

    Its counts and bucket sizes leave one architecture: linear layers without biases, layer norms with
    them, an untied head. It ran under bfloat16 autocast.
    """
    return _linear_gpt(**locals(), tied=False, linear_bias=False, norm_bias=True, dropout=0.0)


def nanogpt_124m(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocab: int = 50304,
    context: int = 1024,
    batch: int = 12,
    bias: bool = True,
    dropout: float = 0.0,
) -> tuple[CausalLm, Batch]:
    """karpathy/nanoGPT at GPT-2's size, tied: 124,475,904 parameters in 148 tensors.

    ``bias=False`` takes the biases out of linear layers and norms: 124,373,760 in 75.
    """
    return _linear_gpt(
        layers=layers,
        width=width,
        heads=heads,
        vocab=vocab,
        context=context,
        batch=batch,
        tied=True,
        linear_bias=bias,
        norm_bias=bias,
        dropout=dropout,
    )


def gpt2_124m(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    context: int = 1024,
    tokens: int = 512,
    batch: int = 16,
    dropout: float = 0.1,
) -> tuple[CausalLm, Batch]:
    """Hugging Face's ``gpt2``: 124,439,808 parameters in 148 tensors, tied; ``[batch, tokens]`` of text."""
    check_sizes(
        layers=layers, width=width, heads=heads, vocab=vocab, context=context, tokens=tokens, batch=batch
    )
    check_tokens(tokens, context)

    with seeded():
        model = _causal_lm(
            layers=layers,
            width=width,
            heads=heads,
            vocab=vocab,
            context=context,
            tied=True,
            dropout=dropout,
            linear=Conv1D,
            norm=partial(nn.LayerNorm, width),
            gelu=NewGelu,
        )
        return model, _text(vocab, batch, tokens)


def gpt2_774m(
    *,
    layers: int = 36,
    width: int = 1280,
    heads: int = 20,
    vocab: int = 50257,
    context: int = 1024,
    tokens: int = 512,
    batch: int = 16,
    dropout: float = 0.1,
) -> tuple[CausalLm, Batch]:
    """Hugging Face's ``gpt2-large``: 774,030,080 parameters in 436 tensors, tied."""
    return gpt2_124m(**locals())
