"""What ``import sim`` offers: all of it exists, all of it is documented, and nothing else (httpx's idea)."""

import ast
import inspect
from pathlib import Path

import pytest

import sim
from sim.errors import SimError
from tests.commands import process


def test_the_stub_says_what_is_offered() -> None:
    listed = ast.parse(Path(sim.__file__).with_suffix(".pyi").read_text())
    (said,) = (node.value for node in listed.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(said) == sim.__all__ == dir(sim)


@pytest.mark.parametrize("name", sim.__all__)
def test_everything_exported_exists_and_is_documented(name: str) -> None:
    member = getattr(sim, name)
    assert inspect.getdoc(member)
    if inspect.isfunction(member):
        hints = inspect.get_annotations(member)
        assert set(hints) >= {*inspect.signature(member).parameters, "return"}


def test_the_contracts_names_are_there() -> None:
    """CONTRACT, Python."""
    promised = {"load_workload", "load_hardware", "load_assignment", "assign", "simulate", "summarize"}
    assert promised | {"sweep", "tune"} <= set(sim.__all__)


def test_nothing_else_passes_for_a_member() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lanes'"):
        sim.lanes  # noqa: B018


def test_no_module_bears_the_name_of_a_function() -> None:
    """CONTRACT, Python: otherwise ``import sim.tuner.tune`` would hide ``sim.tune``."""
    modules = {
        path.stem for path in Path(sim.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    assert modules & set(sim.__all__) == set()


def test_every_module_of_the_house_is_documented() -> None:
    for path in Path(sim.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), path


def test_every_error_is_a_sim_error() -> None:
    import sim.errors

    errors = [one for one in vars(sim.errors).values() if isinstance(one, type)]
    assert len(errors) >= 6
    for error in errors:
        assert issubclass(error, SimError)
        assert error.__doc__
        assert error.__name__ in (sim.errors.__doc__ or "")


def test_importing_sim_is_light() -> None:
    """The worker on a measured rank imports ``sim.nouns`` without SimPy, pydantic or networkx."""
    said = process(
        "-c",
        "import sys, sim, sim.nouns.workload, sim.nouns.assignment; "
        "print(sorted({'simpy', 'pydantic', 'networkx', 'torch', 'numpy', 'typer'} & set(sys.modules)))",
    )
    assert said.out == "[]\n"
