"""From words to a factory, and every way in which a user can get it wrong."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from sim.errors import InputError
from sim.recorder import load_factory, parse_arguments

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module into a working directory of the test's own; forget it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: list[str] = []

    def write_module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield write_module
    for name in names:
        sys.modules.pop(name, None)


def test_arguments_are_json_and_otherwise_strings() -> None:
    words = ["layers=4", "tied=true", "rate=0.5", "name=big", "path=a=b", "none=null", "sizes=[1,2]", "x=NaN"]
    assert parse_arguments(words) == {
        "layers": 4,
        "tied": True,
        "rate": 0.5,
        "name": "big",
        "path": "a=b",
        "none": None,
        "sizes": [1, 2],
        "x": "NaN",
    }


@pytest.mark.parametrize("word", ["layers", "=4", "4layers=1", "a-b=1", ""])
def test_an_illegal_argument_is_named(word: str) -> None:
    with pytest.raises(InputError, match="give NAME=VALUE") as caught:
        parse_arguments([word])
    assert repr(word) in str(caught.value)


def test_an_argument_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'layers' is given twice"):
        parse_arguments(["layers=4", "layers=5"])


def test_a_ready_made_model_with_arguments() -> None:
    made = load_factory(
        "sim.recorder.models:gpt", arguments={"layers": 1, "width": 8, "heads": 2, "vocab": 16}
    )
    assert isinstance(made, tuple)
    assert isinstance(made[0], nn.Module)
    assert len(made[0].blocks) == 1


def test_a_factory_in_the_working_directory_may_make_a_callable(write: Write) -> None:
    write("own_step", "def make(twice):\n    return lambda: twice * 2\n")
    made = load_factory("own_step:make", arguments={"twice": 21})
    assert callable(made)
    assert made() == 42


def test_a_dotted_attribute(write: Write) -> None:
    write("own_class", "class Box:\n    @staticmethod\n    def make():\n        return print\n")
    assert load_factory("own_class:Box.make") is print


BODY = """
from torch import nn

class Small(nn.Module):
    pass

def gpt_small(layers, width=3):
    return (Small(), ())

def module(): return Small()
def nothing(): return None
def triple(): return (Small(), 1, 2)
def broken(): raise RuntimeError("no weights\\nin detail")
def leaving():
    raise SystemExit(3)
def lazily():
    import not_a_package_of_mine
number = 3
"""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_body", r"'own_body' is not legal; give MODULE:FACTORY"),
        ("sim.recorder.model:gpt", r"module 'sim.recorder.model' was not found.*near it: models"),
        ("own_body:gpt_smal", r"own_body has no 'gpt_smal'; near it: gpt_small"),
        ("own_body:number", r"own_body:number is a int; give the name of a callable"),
        ("own_body:gpt_small", r"missing a required argument: 'layers'; it takes \(layers, width=3\)"),
        ("own_body:module", r"returned a module alone; return \(model, batch\), or a callable"),
        ("own_body:broken", r"own_body:broken raised RuntimeError: no weights$"),
        ("own_body:leaving", r"own_body:leaving raised SystemExit: 3"),
        ("own_body:lazily", r"raised ModuleNotFoundError: No module named 'not_a_package_of_mine'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write: Write, spec: str, message: str) -> None:
    write("own_body", BODY)
    with pytest.raises(InputError, match=message) as caught:
        load_factory(spec)
    assert "\n" not in str(caught.value)


def test_an_argument_that_the_factory_does_not_take(write: Write) -> None:
    write("own_body", BODY)
    with pytest.raises(
        InputError, match=r"own_body:gpt_small takes no 'layer'; it takes \(layers, width=3\)"
    ):
        load_factory("own_body:gpt_small", arguments={"layer": 3})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import a_package_that_is_not_here\n", "importing own_import raised ModuleNotFoundError"),
        ("raise SystemExit(0)\n", "importing own_import raised SystemExit: 0"),
    ],
)
def test_a_module_that_fails_to_import_is_not_called_missing(write: Write, body: str, message: str) -> None:
    write("own_import", body)
    with pytest.raises(InputError, match=message):
        load_factory("own_import:make")
