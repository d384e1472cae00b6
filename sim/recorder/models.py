"""Models to record or to estimate: yours by ``MODULE:FACTORY``, a small GPT, transformers' and torchvision's.

Each factory returns ``(model, batch)``, and the model a scalar loss. Weights and data of those here are
random and the same every time (seed 0; the caller's generator is left alone). Nothing is fetched.
"""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.errors import InputError, SimError

Pair = tuple[nn.Module, object]  # a model and its batch

# Short for those of this module: nobody's own models.py has factories of these names.
_OURS = ("models:huggingface", "models:torchvision")


def load_factory(spec: str, *, arguments: Mapping[str, Any] | None = None) -> Pair:
    """Import ``MODULE:FACTORY``, call it with ``arguments`` and return the ``(model, batch)`` that it made.

    ``spec`` is such as ``sim.recorder.models:gpt``; the part after the colon may have dots. Two may be
    shortened: ``models:huggingface`` and ``models:torchvision``.

    Raises:
        InputError: a malformed spec, a module or name that is not there, arguments that the factory
            does not take, or an exception inside it.
    """
    module, given, takes = import_module_of(spec), dict(arguments or {}), ""
    try:
        found = attrgetter(spec.partition(":")[2])(module)
        signature = inspect.signature(found)
        takes = f"; it takes {signature}"
        signature.bind(**given)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"factory: {spec}: {error}{takes}") from None
    try:
        made: Pair = found(**given)
        return made
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"factory: {spec} raised {describe(error)}") from error


def import_module_of(spec: str) -> ModuleType:
    """Import a factory's module, from the working directory too, which stays on ``sys.path``: the step may
    import more when it runs. Raises ``InputError`` of a malformed spec, or where it cannot be imported.
    """
    name, _, attribute = spec.partition(":")
    if not attribute or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"factory: {spec!r} is not legal; give MODULE:FACTORY, as sim.recorder.models:gpt")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # first, as ``python -m`` does
    importlib.invalidate_caches()
    try:
        return importlib.import_module(__name__ if spec in _OURS else name)
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        searched = f", in {here} and sys.path" if isinstance(error, ModuleNotFoundError) else ""
        raise InputError(f"factory: importing {name} raised {describe(error)}{searched}") from error


def describe(error: BaseException) -> str:
    """``ValueError: its first line``, for messages of one line."""
    name, text = type(error).__name__, str(error).strip()
    return f"{name}: {text.splitlines()[0]}" if text else name


# ---- what comes with bucketsim


@contextmanager
def seeded() -> Iterator[None]:
    """The same weights and batches each time; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class GptBlock(nn.Module):
    """A pre-norm transformer block with causal multi-head self-attention."""

    def __init__(self, *, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        qkv, out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.attention = nn.ModuleDict({"qkv": qkv, "out": out})
        self.norm2 = nn.LayerNorm(width)
        up, down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, C] -> [B, T, C]``."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attention["qkv"](self.norm1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention["out"](mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Gpt(nn.Module):
    """A GPT-2-like language model."""

    def __init__(
        self, layers: int, width: int, heads: int, vocab: int, context: int, *, tied: bool, bias: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width=width, heads=heads, bias=bias) for _ in range(layers))
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
    bias: bool = True,
) -> tuple[Gpt, tuple[Tensor, Tensor]]:
    """A small GPT and a batch of ``[batch, context]`` tokens: 13.8 M parameters, 55 MB, by default.

    ``tied`` shares the embedding with the head, which then becomes ready last instead of first. Linear layers
    have a ``bias`` or not; layer norms always have.
    """
    if width % heads:
        raise InputError(f"heads: {heads} is not legal; it must divide width, {width}")
    with seeded():
        model = Gpt(layers, width, heads, vocab, context, tied=tied, bias=bias)
        text = torch.randint(vocab, (batch, context + 1))
    return model, (text[:, :-1].contiguous(), text[:, 1:].contiguous())


# what ``AutoModelFor...`` of transformers return a loss, in the order in which they are looked at
_HEADS = ("MaskedLM", "CausalLM", "Seq2SeqLM", "ImageClassification")


def huggingface(
    *, model_type: str, batch: int = 8, tokens: int = 128, **settings: Any
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model of transformers, such as ``llama``, with its package's own configuration but for ``settings``.

    It is masked-LM, causal-LM, sequence-to-sequence or an image classifier, the first that its type has; the
    batch is ``[batch, tokens]`` of text, or ``batch`` images.
    """
    package = _package("transformers")
    _check_known("model_type", model_type, package.CONFIG_MAPPING)
    default = package.CONFIG_MAPPING[model_type]()
    for setting in settings:
        if not hasattr(default, setting):
            _check_known("setting", setting, default.to_dict())
    try:
        config = package.AutoConfig.for_model(model_type, **settings)
    except Exception as error:  # noqa: BLE001  (whatever a configuration's own checks raise, in several lines)
        raise InputError(f"{model_type}: {' '.join(str(error).split())}") from None
    makers = {head: getattr(package, f"AutoModelFor{head}") for head in _HEADS}
    head = next((head for head, one in makers.items() if type(config) in one._model_mapping), None)
    if head is None:
        raise InputError(f"model_type: {model_type!r} has none of {', '.join(_HEADS)}; give your own factory")
    with seeded():
        model = makers[head].from_config(config)
        if head == "ImageClassification":
            size = getattr(config, "image_size", 224)
            height, width = size if isinstance(size, (list, tuple)) else (size, size)
            pictures = torch.randn(batch, getattr(config, "num_channels", 3), height, width)
            return model, {"pixel_values": pictures, "labels": torch.randint(config.num_labels, (batch,))}
        text_config = config.get_text_config()
        if tokens > (longest := getattr(text_config, "max_position_embeddings", -1)) > 0:
            raise InputError(f"tokens: {tokens} is not legal; max_position_embeddings is {longest}")
        text = torch.randint(text_config.vocab_size, (batch, tokens))
    decoded = {"decoder_input_ids": text} if head == "Seq2SeqLM" else {}
    return model, {"input_ids": text, "labels": text, **decoded}


class Classifier(nn.Module):
    """A model of images with its loss: cross-entropy, summed where it has auxiliary heads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of ``labels`` ``[B]`` for ``images`` ``[B, 3, H, W]``."""
        logits = self.model(images)
        heads = logits if isinstance(logits, tuple) else (logits,)
        return torch.stack([functional.cross_entropy(head, labels) for head in heads]).sum()


def torchvision(
    *, name: str, batch: int = 8, image: int = 224, **settings: Any
) -> tuple[Classifier, tuple[Tensor, Tensor]]:
    """A classifier of torchvision, such as ``resnet50``, and ``batch`` images of ``image`` pixels square.

    ``settings`` are those of torchvision's own function of that name, such as ``num_classes``.
    """
    models = _package("torchvision.models")
    _check_known("name", name, models.list_models(module=models))
    with seeded():
        try:
            model = models.get_model(name, weights=None, **settings)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {error}") from None
        labels = torch.randint(settings.get("num_classes", 1000), (batch,))
        return Classifier(model), (torch.randn(batch, 3, image, image), labels)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        raise InputError(f"{name} cannot be imported ({error}); pip install 'bucketsim[models]'") from None


def _check_known(what: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(value, known, n=3, cutoff=0.5) or sorted(known)[:8]
        raise InputError(f"{what}: {value!r} is not legal; near it: {', '.join(near)}")
