"""The ready-made models are what they say."""

from typing import Any

import pytest
import torch

from sim.errors import InputError
from sim.recorder import models

TINY = {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "context": 8, "batch": 2}


def test_resnet50_is_the_true_one() -> None:
    model, _ = models.resnet50(batch=1, image=64)
    parameters = dict(model.named_parameters())
    assert len(parameters) == 161
    assert sum(p.numel() for p in parameters.values()) == 25_557_032
    assert list(parameters)[:5] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "layer1.0.conv1.weight",
        "layer1.0.bn1.weight",
    ]
    # torchvision's: 53 batch norms, each with two float buffers and a counter
    assert len(list(model.buffers())) == 3 * 53
    shape = []
    model.layer4.register_forward_hook(lambda _, __, out: shape.append(tuple(out.shape)))
    model(torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.long))
    assert shape == [(2, 2048, 7, 7)]


def test_gpt_has_55_megabytes_by_default() -> None:
    model, (tokens, targets) = models.gpt()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert 13_000_000 * 4 <= size <= 14_000_000 * 4
    assert tokens.shape == targets.shape == (8, 128)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_tied_gpt_has_one_tensor_less() -> None:
    loose, _ = models.gpt(**TINY)
    tied, _ = models.gpt(**TINY, tied=True)
    assert len(list(loose.parameters())) - len(list(tied.parameters())) == 1
    assert tied.head.weight is tied.tokens.weight


def test_gpt_does_not_see_the_future() -> None:
    model, (tokens, _) = models.gpt(**TINY)
    logits = []
    model.head.register_forward_hook(lambda _, __, out: logits.append(out))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY["vocab"]
    model(tokens, tokens)
    model(changed, tokens)
    torch.testing.assert_close(logits[0][:, :-1], logits[1][:, :-1])
    assert not torch.allclose(logits[0][:, -1], logits[1][:, -1])


def test_bert_learns_from_masked_places_alone_and_sees_both_sides() -> None:
    model, (tokens, labels) = models.bert(**TINY)
    masked = labels != models.IGNORED
    assert masked[:, 0].all()
    assert not masked.all()
    assert (tokens[masked] == 0).all()
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY["vocab"]
    first = torch.full_like(labels, models.IGNORED)
    first[:, 0] = 1
    assert model(tokens, first) != model(changed, first)


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        (models.gpt, TINY),
        (models.bert, TINY),
        (models.resnet50, {"batch": 2, "image": 32, "classes": 10}),
    ],
)
def test_each_is_the_same_every_time_and_leaves_the_generator_alone(
    factory: Any, arguments: dict[str, int]
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model, batch = factory(**arguments)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, same_batch = factory(**arguments)
    assert all(torch.equal(a, b) for a, b in zip(batch, same_batch, strict=True))
    loss = model(*batch)
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    assert torch.equal(loss, again(*same_batch))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        (models.gpt, {"layers": 0}, "layers: 0 is not legal"),
        (models.gpt, {"width": "big"}, "width: 'big' is not legal"),
        (models.bert, {"width": 100, "heads": 6}, "heads: 6 is not legal; it must divide width, 100"),
        (models.resnet50, {"batch": 1, "image": 32}, "image: 32 is not legal with batch 1"),
    ],
)
def test_illegal_sizes_are_named(factory: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        factory(**arguments)
