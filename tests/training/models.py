"""Models that nobody here wrote, small enough for two cores: factories over transformers and torchvision.

Each returns ``(model, batch)``, as ``bucketsim record`` and ``validate --model`` take it; the model returns
its own loss. Both packages come with ``pip install 'bucketsim[models]'``.
"""

import torch
from torch import Tensor, nn


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    """transformers' GPT-2: 6 layers of width 256, 16 MB of tied embedding, 33.8 MiB of gradients in all."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, n_head=8, n_embd=256, vocab_size=16000, n_positions=256)
    tokens = torch.randint(config.vocab_size, (4, 64))
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    """transformers' BERT for masked language modelling: 6 layers of width 320, 38.8 MiB of gradients."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=6,
        hidden_size=320,
        num_attention_heads=5,
        intermediate_size=1280,
        vocab_size=8000,
        max_position_embeddings=128,
    )
    tokens = torch.randint(config.vocab_size, (4, 64))
    return BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}


def resnet18() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """torchvision's ResNet-18 with its BatchNorm: 44.6 MiB of gradients."""
    from torchvision.models import resnet18 as published

    return _Classifier(published()), (torch.randn(4, 3, 96, 96), torch.randint(1000, (4,)))


class _Classifier(nn.Module):
    """A model that returns logits, with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of ``labels`` ``[B]`` for ``images`` ``[B, 3, H, W]``."""
        return nn.functional.cross_entropy(self.model(images), labels)
