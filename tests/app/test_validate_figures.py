"""Figures of the Validate page, as data: parity, order, iterations."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from app.figures.records import draw_order, draw_strips, order_data, step_points, strips_data
from sim.nouns.comparison import Agreement
from sim.nouns.measurement import MeasuredIteration
from sim.nouns.records import Record
from sim.truth import scoring
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
    data = order_data(found)
    assert len(data.right) == found.order_right
    assert len(data.right) + len(data.wrong) == found.order_pairs
    assert len(data.within_noise) == found.order_within_noise
    times = {row.name: row for row in data.rows}
    for fast, slow in data.wrong:
        assert times[fast].measured_ns <= times[slow].measured_ns
        assert times[fast].predicted_ns >= times[slow].predicted_ns
    ranks = list(range(1, len(data.rows) + 1))
    assert [row.measured_rank for row in data.rows] == ranks
    assert sorted(row.predicted_rank for row in data.rows) == ranks
    assert [row.measured_ns for row in data.rows] == sorted(row.measured_ns for row in data.rows)


@settings(max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_parity_points_have_the_errors_of_the_agreement(
    record: Record, agreement: Agreement, steps: list[list[int]]
) -> None:
    found = scored(record, agreement, steps)
    for row, point in zip(found.rows, step_points(found), strict=True):
        assert point.predicted_ns == pytest.approx(point.measured_ns * (1 + point.error))
        assert point.low_ns <= point.measured_ns <= point.high_ns
        assert point.error == row.step_error


def test_lines_of_wrong_pairs_are_marked(agreement: Agreement) -> None:
    slowest = max(agreement.rows, key=lambda row: row.measured_step_ns)
    upside_down = replace(
        agreement,
        rows=tuple(replace(row, predicted_step_ns=1) if row is slowest else row for row in agreement.rows),
    )
    data = order_data(upside_down)
    assert {slow for _, slow in data.wrong} == {slowest.name}
    figure = draw_order(data)
    marked = [trace for trace in figure.data if trace.name == "in a pair that is wrong"]
    assert len(marked) == len({name for pair in data.wrong for name in pair})
    assert not [trace for trace in draw_order(order_data(agreement)).data if "wrong" in trace.name]


def test_every_iteration_is_a_point_in_its_order(record: Record, agreement: Agreement) -> None:
    strips = strips_data(record, agreement)
    assert [strip.median_ns for strip in strips] == sorted(row.measured_step_ns for row in agreement.rows)
    measured = {one.name: one for one in record.candidates}
    for strip in strips:
        assert strip.steps_ns == tuple(one.step_ns for one in measured[strip.name].iterations)
        assert len(strip.traced_ns) == 3
    figure = draw_strips(strips)
    stock = figure.data[0]
    assert len(stock.x) == sum(len(strip.steps_ns) for strip in strips)
    first = [height for height in stock.y if height < 0.5]
    assert first == sorted(first)  # within a row from top to bottom as they ran
    assert max(first) < 0.5 - 0.1
