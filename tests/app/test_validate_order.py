"""The order of candidates that Validate tells, as the verdict counts it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from app.views.validate import order_sentence, wrong_pairs
from sim.nouns.measurement import MeasuredIteration, Record
from sim.truth import scoring
from sim.truth.scoring import Agreement
from tests.effort import tries

MS = 1_000_000


@pytest.fixture(scope="module")
def record(traces: Path) -> Record:
    return sim.load_record(traces / "measured" / "made-up")


@pytest.fixture(scope="module")
def agreement(record: Record) -> Agreement:
    return sim.agreement(record)


def scored(record: Record, agreement: Agreement, steps_ms: list[list[int]]) -> Agreement:
    """The record with other measured steps, scored against the same predictions."""
    rows = {row.name: row for row in agreement.rows}
    measurements = [
        replace(
            one,
            iterations=tuple(
                MeasuredIteration(step_ns=step * MS, backward_end_ns=MS, sync_end_ns=MS) for step in steps
            ),
        )
        for one, steps in zip(record.candidates, steps_ms, strict=True)
    ]
    return scoring.agree(
        replace(record, measurements=tuple(measurements)), {name: row.predicted for name, row in rows.items()}
    )


STEPS = st.lists(st.lists(st.integers(60, 400), min_size=3, max_size=8), min_size=4, max_size=4)


@settings(max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_order_counts_as_the_verdict_does(
    record: Record, agreement: Agreement, steps: list[list[int]]
) -> None:
    found = scored(record, agreement, steps)
    times = {row.name: row for row in found.rows}
    wrong = wrong_pairs(found)
    assert len(wrong) == found.order_pairs - found.order_right
    for fast, slow in wrong:
        assert times[fast].measured_step_ns <= times[slow].measured_step_ns
        assert times[fast].predicted_step_ns >= times[slow].predicted_step_ns


def test_wrong_pairs_are_named(agreement: Agreement) -> None:
    slowest = max(agreement.rows, key=lambda row: row.measured_step_ns)
    upside_down = replace(
        agreement,
        rows=tuple(replace(row, predicted_step_ns=1) if row is slowest else row for row in agreement.rows),
    )
    assert {slow for _, slow in wrong_pairs(upside_down)} == {slowest.name}
    assert f"was faster than {slowest.name}" in order_sentence(upside_down)
    assert not wrong_pairs(agreement)
