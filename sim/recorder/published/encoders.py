"""BERT, Llama and DLRM as published, in plain torch, laid out as the models of ``published.language`` are."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.errors import InputError
from sim.recorder.published.language import check_tokens
from sim.recorder.seeded_batches import IGNORED, MASKED_FRACTION, Batch, check_sizes, seeded


class BertSelfAttention(nn.Module):
    """Queries, keys and values apart; output, dropout, residual and norm: ``[B, T, C] -> [B, T, C]``."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.heads = heads
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        query, key, value = (
            layer(x).view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        out = self.dense(mixed.transpose(1, 2).reshape(batch, tokens, width))
        normed: Tensor = self.norm(functional.dropout(out, self.dropout, self.training) + x)
        return normed


class BertLayer(nn.Module):
    """A post-norm block."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = BertSelfAttention(width=width, heads=heads, dropout=dropout)
        self.intermediate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        x = self.attention(x)
        out = self.output(functional.gelu(self.intermediate(x)))
        normed: Tensor = self.norm(functional.dropout(out, self.dropout, self.training) + x)
        return normed


class BertMlmHead(nn.Module):
    """Transform and decoder, the decoder tied to the word embedding; its bias is declared first."""

    def __init__(self, *, width: int, words: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(words.shape[0]))
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.weight = words

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, vocab]``."""
        return functional.linear(self.norm(functional.gelu(self.dense(x))), self.weight, self.bias)


class BertForMaskedLm(nn.Module):
    """Hugging Face's ``BertForMaskedLM``."""

    def __init__(
        self, *, layers: int, width: int, heads: int, vocab: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(
            BertLayer(width=width, heads=heads, dropout=dropout) for _ in range(layers)
        )
        for embedding in (self.words, self.positions, self.types):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head = BertMlmHead(width=width, words=self.words.weight)
        self.dropout = dropout

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the masked places (``labels`` other than -100), both ``[B, T]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.types(torch.zeros_like(tokens)) + self.positions(places)
        x = functional.dropout(self.norm(x), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def bert_base(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocab: int = 30522,
    context: int = 512,
    tokens: int = 128,
    batch: int = 32,
    dropout: float = 0.1,
) -> tuple[BertForMaskedLm, Batch]:
    """Hugging Face's ``bert-base-uncased`` with its masked-LM head: 109,514,298 parameters in 202 tensors."""
    check_sizes(
        layers=layers, width=width, heads=heads, vocab=vocab, context=context, tokens=tokens, batch=batch
    )
    check_tokens(tokens, context)
    with seeded():
        model = BertForMaskedLm(
            layers=layers, width=width, heads=heads, vocab=vocab, context=context, dropout=dropout
        )
        text = torch.randint(vocab, (batch, tokens))
        masked = torch.rand(batch, tokens) < MASKED_FRACTION
    masked[:, 0] = True  # never a batch without a loss
    return model, (text.masked_fill(masked, 0), text.masked_fill(~masked, IGNORED))


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in float32 as Llama's is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions: ``[B, T, C] -> [B, T, C]``."""

    def __init__(self, *, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.copies = heads // kv_heads

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        query, key, value = (
            layer(x).view(batch, tokens, -1, self.size).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        key, value = (part.repeat_interleave(self.copies, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class LlamaLayer(nn.Module):
    """Attention and a gated MLP; both norms are declared after them, as in Hugging Face's code."""

    def __init__(self, *, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(width=width, heads=heads, kv_heads=kv_heads)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.input_layernorm = RmsNorm(width)
        self.post_attention_layernorm = RmsNorm(width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        inner = self.post_attention_layernorm(x)
        out: Tensor = x + self.down_proj(functional.silu(self.gate_proj(inner)) * self.up_proj(inner))
        return out


class Llama(nn.Module):
    """A Llama 3 with an untied head."""

    def __init__(
        self, *, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocab: int
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            LlamaLayer(width=width, heads=heads, kv_heads=kv_heads, hidden=hidden) for _ in range(layers)
        )
        self.norm = RmsNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.size = width // heads

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of ``targets`` after ``tokens``, both ``[B, T]``."""
        x = self.embed_tokens(tokens)
        powers = torch.arange(0, self.size, 2, device=tokens.device) / self.size
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), 500000.0**-powers)
        turns = torch.cat((angles, angles), dim=-1)
        cosine, sine = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return functional.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), targets.flatten())


def llama_8b(
    *,
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 14336,
    vocab: int = 128256,
    tokens: int = 2048,
    batch: int = 1,
) -> tuple[Llama, Batch]:
    """Llama 3 8B (Meta, 2024; its published config): 8,030,261,248 parameters in 291 tensors.

    Made for real it takes 32 GB in float32; ``estimate`` needs none of it.
    """
    check_sizes(
        layers=layers, width=width, heads=heads, hidden=hidden, vocab=vocab, tokens=tokens, batch=batch
    )
    check_sizes(kv_heads=kv_heads)
    if heads % kv_heads or width % (2 * heads):
        raise InputError(
            f"kv_heads: {kv_heads} is not legal; it must divide heads, {heads}, and twice heads must divide "
            f"width, {width}"
        )
    with seeded():
        model = Llama(layers=layers, width=width, heads=heads, kv_heads=kv_heads, hidden=hidden, vocab=vocab)
        text = torch.randint(vocab, (batch, tokens + 1))
    return model, (text[:, :-1].contiguous(), text[:, 1:].contiguous())


class Dlrm(nn.Module):
    """Embedding tables, a bottom MLP, pairwise products, a top MLP (Naumov et al., 2019)."""

    def __init__(self, *, tables: int, rows: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables)
        )
        self.bottom = _mlp([13, 512, 256, 64, width])
        self.top = _mlp([width + tables * (tables + 1) // 2, 512, 256, 1])

    def forward(self, dense: Tensor, lookups: Tensor, clicks: Tensor) -> Tensor:
        """Binary cross-entropy; ``dense`` ``[B, 13]``, ``lookups`` ``[tables, B, K]``, ``clicks`` ``[B]``."""
        low = functional.relu(self.bottom(dense))
        vectors = torch.stack(
            [low, *(table(ids) for table, ids in zip(self.tables, lookups, strict=True))], 1
        )
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        count = vectors.shape[1]
        pairs = torch.tril_indices(count, count, offset=-1, device=dense.device)
        features = torch.cat((low, products[:, pairs[0], pairs[1]]), dim=1)
        return functional.binary_cross_entropy_with_logits(self.top(features).squeeze(1), clicks)


def _mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def dlrm(
    *,
    tables: int = 26,
    rows: int = 1000,
    width: int = 16,
    batch: int = 128,
    lookups: int = 1,
    sparse: bool = False,
) -> tuple[Dlrm, tuple[Tensor, Tensor, Tensor]]:
    """DLRM with the MLPs of facebookresearch/dlrm's Criteo Kaggle run: 475,985 parameters beside the tables.

    ``rows`` is the same for all tables here (Criteo's are up to ten million long).
    """
    check_sizes(tables=tables, rows=rows, width=width, batch=batch, lookups=lookups)
    with seeded():
        model = Dlrm(tables=tables, rows=rows, width=width, sparse=sparse)
        ids = torch.randint(rows, (tables, batch, lookups))
        return model, (torch.rand(batch, 13), ids, torch.randint(2, (batch,)).float())
