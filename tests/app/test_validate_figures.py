"""Figures of the Validate page, as data: parity, order, iterations."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from app.figures.iterations import draw_strips, strips_data
from app.figures.measured import draw_overlay, overlay_data
from app.figures.order import draw_order, order_data
from app.figures.parity import draw_all, draw_parity, end_points, step_points
from app.shelf import card_of, kind_of, score_of
from app.words.validate import KINDS
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


def test_without_error_points_lie_on_the_line(agreement: Agreement) -> None:
    exact = replace(
        agreement,
        rows=tuple(
            replace(row, measured_step_ns=row.predicted_step_ns, step_error=0.0) for row in agreement.rows
        ),
    )
    *_, drawn = draw_parity(step_points(exact), 0.05, "step").data
    assert list(drawn.x) == list(drawn.y)
    # The band and the line have the same ends on both axes.
    band, line = draw_parity(step_points(exact), 0.05, "step").data[:2]
    assert list(line.x) == list(line.y)
    for across, up in zip(band.x, band.y, strict=True):
        assert abs(up / across - 1) == pytest.approx(0.05)


def test_a_trace_has_no_band(agreement: Agreement) -> None:
    assert [trace.name for trace in draw_parity(step_points(agreement), None, "step").data] == [
        "no error",
        "step",
    ]


def test_every_bucket_end_is_a_point(agreement: Agreement) -> None:
    points = end_points(agreement)
    assert len(points) == sum(len(row.bucket_ends) for row in agreement.rows)
    assert {point.bucket for point in points if point.name == "single"} == {0}
    assert len(draw_parity(points, None, "bucket end").data[-1].x) == len(points)


def test_all_records_on_one_picture(agreement: Agreement) -> None:
    points = [
        *step_points(agreement, record="measured/one", kind="measured"),
        *step_points(agreement, record="<b>claims</b>/two", kind="claims"),
    ]
    figure = draw_all(points, {"measured": "even machines"})
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    assert [trace.name for trace in markers] == ["even machines", "even machines", "claims", "claims"]
    assert {data[1] for data in markers[2].customdata} == {"<b>claims</b>/two"}
    assert "<b>claims" not in markers[2].customdata[0][0]
    assert [round(error, 9) for error in markers[1].y] == [
        round(row.step_error * 100, 9) for row in agreement.rows
    ]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "ms" in figure.layout.yaxis.title.text
    assert "%" in figure.layout.yaxis2.title.text


def test_each_kind_of_record_has_its_own_look(agreement: Agreement) -> None:
    points = [point for kind in KINDS for point in step_points(agreement, record="any", kind=kind)]
    markers = [trace for trace in draw_all(points, KINDS).data if trace.mode == "markers"]
    looks = {(trace.name, trace.marker.color, trace.marker.symbol) for trace in markers}
    assert len(looks) == len({look[1:] for look in looks}) == len(KINDS)


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


def test_backward_stands_above_the_buckets(agreement: Agreement) -> None:
    row = agreement.rows[0]
    figure = draw_overlay(overlay_data(row))
    lane = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert [shape.x1 for shape in lane] == [
        row.predicted.backward_end_ns / MS,
        row.measured_backward_end_ns / MS,
    ]
    assert all(shape.y1 < 0 for shape in lane)
    assert figure.layout.yaxis.ticktext[0] == "backward"


def test_a_card_says_what_was_tested(record: Record) -> None:
    card = card_of(record)
    assert (card.workload, card.ranks, card.backend, card.mode) == ("twenty layers", 2, "gloo", "paced")
    assert card.candidates == 4
    assert card.tests == card.place == "two hosts"
    slow = card_of(replace(record, slow=((1, 1.5),)))
    assert slow.tests == "two hosts; rank 1 x 1.5"


def test_a_score_is_the_agreement_boiled_down(agreement: Agreement) -> None:
    score = score_of(agreement, "measured/made-up")
    assert score.worst_step_error == max(abs(point.error) for point in score.points)
    assert {point.kind for point in score.points} == {"measured"}
    assert [kind_of(name) for name in ("live: x", "upload: y/z", "claims/x")] == ["live", "upload", "claims"]
