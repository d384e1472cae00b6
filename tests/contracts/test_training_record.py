"""Real training, scored again with today's model: the manual's table is what the records say."""

from statistics import median

import pytest

import sim
from tests.manual.pages import TRUTH
from tests.training.table import TRACES, Row, row_of, table

# What is beyond the aims, for a reason that the manual gives; a better model takes it off this list.
BEYOND_WORST = {"bert-2gbit": 0.145, "gpt2-2gbit": 0.145}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row_of(path) for path in sim.find_records(TRACES)]


def test_the_manual_has_the_table() -> None:
    assert table() in TRUTH.read_text()


def test_predictions_hold_within_the_aims_or_the_noise(rows: list[Row]) -> None:
    """Noise is also by how much the recorded layout itself was slower or faster when it was replayed."""
    assert len(rows) == 6
    for row in rows:
        errors = [abs(error) for error in row.held]
        assert median(errors) <= max(0.03, row.floor, abs(row.drift)), row.name
        assert max(errors) <= BEYOND_WORST.get(row.name, 0.08), row.name


def test_candidates_are_in_the_predicted_order(rows: list[Row]) -> None:
    assert sum(row.right for row in rows) >= 0.9 * sum(row.apart for row in rows)


def test_gains_lie_in_their_intervals(rows: list[Row]) -> None:
    """Within what the measured gains are known to themselves: at 2 Gbit/s their medians scatter by 5 %."""
    assert sum(row.near for row in rows) >= 0.9 * sum(row.gains for row in rows)


def test_the_recommendation_is_not_worse_than_the_best_by_more_than_noise(rows: list[Row]) -> None:
    for row in rows:
        assert row.regret_is_noise, row.name
