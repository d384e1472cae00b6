"""Tables of the manual that are computed are those of today's model; a module's own command prints each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.examples import table
from tests.contracts import clusters, fabrics, scaling_view, test_traces
from tests.manual.pages import ROOT, TRUTH, UNMEASURED, assert_holds
from tests.packages import needs_package

README = ROOT / "traces" / "README.md"
MODELS = (ROOT / "app" / "manual" / "table.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("rows", "page"),
    [
        (fabrics.fabric_rows, TRUTH),
        (fabrics.preset_rows, TRUTH),
        (test_traces.rows, TRUTH),
        (clusters.prediction_rows, TRUTH),
        pytest.param(clusters.anchor_rows, README, marks=pytest.mark.slow),
        (scaling_view.scaling_rows, UNMEASURED),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_page_has_the_table(rows: Callable[[], Iterator[str]], page: Path) -> None:
    if rows is scaling_view.scaling_rows:
        needs_package("transformers")
    assert_holds(page, list(rows()))


def test_common_models_on_common_machines() -> None:
    """All rows are there, and DLRM's, whose estimate takes a second; all others come from the same lines."""
    rows = [
        line.split(" | ") for line in MODELS if line.startswith("| ") and line.endswith(("D |", "M |", "E |"))
    ]
    assert [(model.removeprefix("| "), machine) for model, machine, *_ in rows] == [
        (model, machine) for model in table.MODELS for machine in table.MACHINES
    ]
    assert set(table.rows_of("DLRM's dense layers, 2048")) <= set(MODELS)
