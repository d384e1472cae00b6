"""Models that nobody here wrote, of transformers and torchvision: three small enough for two cores."""

from typing import Any

from sim.recorder import models

TEXT = {"batch": 4, "tokens": 64}


def gpt2() -> Any:
    """6 layers of width 256, 16 MB of tied embedding, 33.8 MiB of gradients in all."""
    sizes = {"n_layer": 6, "n_head": 8, "n_embd": 256, "vocab_size": 16000, "n_positions": 256}
    return models.huggingface(model_type="gpt2", **TEXT, **sizes)


def bert() -> Any:
    """For masked language modelling: 6 layers of width 320, 38.8 MiB of gradients."""
    sizes = {"num_hidden_layers": 6, "hidden_size": 320, "num_attention_heads": 5, "intermediate_size": 1280}
    return models.huggingface(
        model_type="bert", **TEXT, **sizes, vocab_size=8000, max_position_embeddings=128
    )


def resnet18() -> Any:
    """With its BatchNorm: 44.6 MiB of gradients."""
    return models.torchvision(name="resnet18", batch=4, image=96)


def gpt2_124m() -> Any:
    """For a GPU: transformers' own GPT-2, batches of 8 x 512 tokens."""
    return models.huggingface(model_type="gpt2", batch=8, tokens=512)


def resnet50() -> Any:
    """For a GPU: torchvision's own, 64 images."""
    return models.torchvision(name="resnet50", batch=64)
