"""The manual's table of common models on common machines is what is predicted today."""

from sim.examples import table
from tests.manual.pages import ROOT

PAGE = (ROOT / "app" / "manual" / "table.md").read_text(encoding="utf-8").splitlines()


def test_the_page_has_a_row_for_each_model_on_each_machine() -> None:
    rows = [
        line.split(" | ") for line in PAGE if line.startswith("| ") and line.endswith(("D |", "M |", "E |"))
    ]
    assert [(model.removeprefix("| "), machine) for model, machine, *_ in rows] == [
        (model, machine) for model in table.MODELS for machine in table.MACHINES
    ]


def test_the_smallest_models_rows_are_those_of_today() -> None:
    """DLRM's, whose estimate takes a second; all others come from the same lines."""
    assert set(table.rows_of("DLRM's dense layers, 2048")) <= set(PAGE)
