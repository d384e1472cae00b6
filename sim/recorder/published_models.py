"""Models that others published measurements of, as factories for ``record`` and ``estimate``."""

from sim.recorder.published.encoders import bert_base, dlrm, llama_8b
from sim.recorder.published.language import gpt2_124m, gpt2_774m, gpt_82m, nanogpt_124m
from sim.recorder.published.vision import googlenet, resnet18, resnet50, vgg13

__all__ = [
    "bert_base",
    "dlrm",
    "googlenet",
    "gpt2_124m",
    "gpt2_774m",
    "gpt_82m",
    "llama_8b",
    "nanogpt_124m",
    "resnet18",
    "resnet50",
    "vgg13",
]
