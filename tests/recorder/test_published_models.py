"""The published models have the sizes that their publishers state, and train."""

from typing import Any

import pytest
import torch

from sim.errors import InputError
from sim.recorder import published_models as published
from sim.recorder import record
from tests.recorder.test_estimate_order import LARGE, SMALL

# Parameters, as the docstrings' sources state them, and tensors
COUNTS = {
    "gpt_82m": ({}, 82_601_472, 69),
    "nanogpt_124m": ({}, 124_475_904, 148),
    "nanogpt_124m without biases": ({"bias": False}, 124_373_760, 75),
    "gpt2_124m": ({}, 124_439_808, 148),
    "gpt2_774m": ({}, 774_030_080, 436),
    "bert_base": ({}, 109_514_298, 202),
    "llama_8b": ({}, 8_030_261_248, 291),
    "resnet18": ({}, 11_689_512, 62),
    "resnet50": ({}, 25_557_032, 161),
    "vgg13": ({}, 133_047_848, 26),
    "googlenet": ({}, 13_378_280, 128),
    "dlrm": ({}, 475_985 + 26 * 1000 * 16, 26 + 14),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    arguments, elements, tensors = COUNTS[name]
    with torch.device("meta"):
        model, _ = getattr(published, name.split()[0])(**arguments)
    parameters = list(model.parameters())
    assert (sum(parameter.numel() for parameter in parameters), len(parameters)) == (elements, tensors)


def test_every_factory_is_counted() -> None:
    assert {name.split()[0] for name in COUNTS} == set(published.__all__)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
        for name, case in SMALL.items()
        if "published" in case[0].__module__
    ],
)
def test_small_ones_train_and_are_the_same_every_time(name: str) -> None:
    factory, arguments = SMALL[name]
    before = torch.get_rng_state()
    model, batch = factory(**arguments)
    again, same = factory(**arguments)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    recorded = record((model, batch), name=name, warmup=1, repeats=1)
    assert all(gradient.ready_ns is not None for gradient in recorded.gradients)


def test_nanogpts_order_of_parameters() -> None:
    with torch.device("meta"):
        model, _ = published.nanogpt_124m()
    names = [name for name, _ in model.named_parameters()]
    assert names[:4] == ["wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias"]
    assert names[4:8] == [
        f"h.0.attn.{name}" for name in ("c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias")
    ]
    assert names[-2:] == ["ln_f.weight", "ln_f.bias"]


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        (published.gpt_82m, {"layers": 0}, "layers: 0 is not legal"),
        (published.gpt2_124m, {"width": 100}, "heads: 12 is not legal; it must divide width, 100"),
        (published.resnet18, {"image": 16}, "image: 16 is not legal"),
        (published.resnet50, {"image": 32, "batch": 1}, "image: 32 is not legal with batch 1"),
        (published.dlrm, {"rows": 0}, "rows: 0 is not legal"),
        (published.llama_8b, {"kv_heads": 5}, "kv_heads: 5 is not legal"),
        (published.gpt2_124m, {"tokens": 2000}, "tokens: 2000 is not legal"),
    ],
)
def test_illegal_sizes(factory: Any, arguments: dict[str, int], message: str) -> None:
    with torch.device("meta"), pytest.raises(InputError, match=message):
        factory(**arguments)
