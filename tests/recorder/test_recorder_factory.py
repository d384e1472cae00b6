"""From words to a factory, every way in which a user can get it wrong, and the models that come with it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sim.errors import InputError
from sim.recorder import models
from sim.recorder.models import load_factory
from sim.recorder.training_step import record
from tests.effort import needs_package
from tests.recorder.test_estimate_order import SMALL, small

Write = Callable[[str], None]
HUGGINGFACE, TORCHVISION = "models:huggingface", "models:torchvision"

BODY = """
from torch import nn

class Small(nn.Module):
    pass

class Box:
    def make(twice):
        return nn.Linear(1, 1), twice * 2

def gpt_small(layers, width=3):
    return (Small(), ())

def broken(): raise RuntimeError("no weights\\nin detail")
def leaving():
    raise SystemExit(3)
def lazily():
    import not_a_package_of_mine
number = 3
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the module ``own`` into a working directory of the test's own; forget it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield lambda text: (tmp_path / "own.py").write_text(text) and None
    sys.modules.pop("own", None)


def test_a_dotted_name_in_the_working_directory(write: Write) -> None:
    write(BODY)
    assert load_factory("own:Box.make", arguments={"twice": 21})[1] == 42


def needs(spec: str) -> None:
    if spec.startswith("models:"):
        needs_package("transformers" if spec == HUGGINGFACE else "torchvision")


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("own", {}, r"'own' is not legal; give MODULE:FACTORY"),
        ("sim.recorder.model:gpt", {}, r"No module named 'sim.recorder.model', in /"),
        ("own:gpt_smal", {}, r"own:gpt_smal: module 'own' has no attribute 'gpt_smal'$"),
        ("own:number", {}, r"own:number: 3 is not a callable object$"),
        ("own:gpt_small", {}, r"missing a required argument: 'layers'; it takes \(layers, width=3\)"),
        ("own:gpt_small", {"layer": 3}, r"missing a required argument: 'layers'; it takes \(layers"),
        ("own:broken", {}, r"own:broken raised RuntimeError: no weights$"),
        ("own:leaving", {}, r"own:leaving raised SystemExit: 3"),
        ("own:lazily", {}, r"raised ModuleNotFoundError: No module named 'not_a_package_of_mine'"),
        ("sim.recorder.models:gpt", {"width": 100}, "heads: 6 is not legal; it must divide width, 100"),
        (HUGGINGFACE, {}, "missing a required argument: 'model_type'; it takes"),
        (HUGGINGFACE, {"model_type": "gtp2"}, "model_type: 'gtp2' is not legal; near it: gpt2"),
        (HUGGINGFACE, {"model_type": "gpt2", "n_layers": 3}, "setting: 'n_layers' is not legal; near it: n_"),
        (HUGGINGFACE, {"model_type": "gpt2", "tokens": 2000}, "2000 .* max_position_embeddings is 1024"),
        (TORCHVISION, {"name": "resnet18", "layer": 3}, "resnet18: .*unexpected keyword argument 'layer'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    write: Write, spec: str, arguments: dict[str, Any], message: str
) -> None:
    needs(spec)
    write(BODY)
    with torch.device("meta"), pytest.raises(InputError, match=message) as caught:
        load_factory(spec, arguments=arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["import a_package_that_is_not_here\n", "raise SystemExit(0)\n"])
def test_a_module_that_fails_to_import_is_not_called_missing(write: Write, body: str) -> None:
    write(body)
    with pytest.raises(InputError, match=r"importing own raised (ModuleNotFoundError|SystemExit: 0)"):
        load_factory("own:make")


# The ready-made models are what they say, and transformers' and torchvision's are those packages' own.

LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8}
LLAMA_8B |= {"vocab_size": 128256, "max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("spec", "arguments", "elements", "tensors"),
    [  # parameters and tensors, as their publishers state them
        (HUGGINGFACE, {"model_type": "gpt2"}, 124_439_808, 148),
        ("sim.recorder.models:gpt", {}, 13_842_432, 77),
        (HUGGINGFACE, {"model_type": "llama", **LLAMA_8B}, 8_030_261_248, 291),
        (HUGGINGFACE, {"model_type": "t5"}, 60_506_624, 131),
        (TORCHVISION, {"name": "resnet50"}, 25_557_032, 161),
        (TORCHVISION, {"name": "vit_b_16"}, 86_567_656, 152),
    ],
)
def test_published_sizes(spec: str, arguments: dict[str, Any], elements: int, tensors: int) -> None:
    needs(spec)
    with torch.device("meta"):
        model, _ = load_factory(spec, arguments=arguments)
    parameters = list(model.parameters())
    assert (sum(parameter.numel() for parameter in parameters), len(parameters)) == (elements, tensors)


@pytest.mark.parametrize("name", ["gpt", *(name for name in SMALL if "'" in name)])
def test_each_is_the_same_every_time_and_trains(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model, batch = small(name)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, same = small(name)
    values = [list(one.values()) if isinstance(one, dict) else list(one) for one in (batch, same)]
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    recorded = record((model, batch), name=name, warmup=1, repeats=1)
    assert all(gradient.ready_ns is not None for gradient in recorded.gradients)


def test_auxiliary_heads_count() -> None:
    class TwoHeads(nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(x), super().forward(2 * x)

    head, labels = TwoHeads(3, 5), torch.zeros(2, dtype=torch.long)
    loss = models.Classifier(head)(torch.ones(2, 3), labels)
    one, two = (nn.functional.cross_entropy(out, labels) for out in head(torch.ones(2, 3)))
    assert loss == one + two


@pytest.mark.parametrize(
    ("spec", "package", "arguments"),
    [
        (HUGGINGFACE, "transformers", {"model_type": "gpt2"}),
        (TORCHVISION, "torchvision.models", {"name": "resnet50"}),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    spec: str, package: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package} cannot be imported .*'bucketsim\[models\]'"):
        load_factory(spec, arguments=arguments)
