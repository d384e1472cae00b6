"""What ``sim.autotune`` gained in real training: the manual's table; and that nothing slower was kept."""

import json

from tests.manual.pages import TRUTH
from traces.tools.autotuned import RESULTS, TRACES, table

ROWS = json.loads((TRACES / RESULTS).read_text())


def test_the_manual_has_the_table() -> None:
    assert table(TRACES) in TRUTH.read_text()


def test_what_was_kept_is_not_slower_to_an_independent_comparison() -> None:
    kept = [row for row in ROWS if row["outcome"] == "kept"]
    assert kept
    for row in kept:
        assert row["ab"]["gain_low_ns"] > 0, row["factory"]
        assert row["independent"]["gain_high_ns"] > 0, row["factory"]


def test_predicted_intervals_hold_what_an_independent_comparison_measured() -> None:
    """Each holds 95 % of the time: of eight, one miss is chance, two are hardly."""
    kept = [row for row in ROWS if row["outcome"] == "kept"]
    inside = [
        row["predicted_low_ns"] <= row["independent"]["gain_ns"] <= row["predicted_high_ns"] for row in kept
    ]
    assert len(kept) >= 6
    assert sum(inside) >= len(kept) - 1
