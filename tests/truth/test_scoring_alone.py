"""An agreement without where its errors come from is the same in all else."""

from dataclasses import replace
from pathlib import Path

import sim

RECORD = Path(__file__).parents[2] / "traces" / "claims" / "gpt-1.3M-box-2x1gbit"


def test_what_is_left_out_changes_nothing_else() -> None:
    record = sim.load_record(RECORD)
    whole, lean = sim.agreement(record), sim.agreement(record, attributed=False)
    assert any(row.attribution for row in whole.rows)
    rows = [
        replace(row, attribution=None, predicted=replace(row.predicted, engine="analytic"))
        for row in whole.rows
    ]
    assert replace(whole, rows=tuple(rows)) == lean
