"""Figures of a cluster's curve, of scaling and of ranks that differ: what is drawn is what was given."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from app.figures.curve import curve_rows, draw_curve, row_text
from app.figures.scaling import scaling_figure, series_of
from app.figures.scaling_words import CURVES, cap_text, text_of
from sim.nouns.hardware import Hardware
from sim.nouns.scaling_row import ScalingRow
from tests.app.conftest import make_workload
from tests.clusters.scaling_cases import workload_of

EVIL = "<script>alert(1)</script>"


def traces_of(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


@pytest.fixture(scope="module")
def rows() -> tuple[ScalingRow, ...]:
    return sim.scaling(
        make_workload(), "pcie_hosts", hosts=[1, 2, 4, 8], settings={"gpus": [2], "gbit_per_s": [10]}
    )


def test_the_range_of_the_curve_is_a_band(rows: tuple[ScalingRow, ...]) -> None:
    (band,) = traces_of(scaling_figure(rows), "best cap over the range of the curve")
    assert band.y[0] == 100 * rows[0].single_step_ns / rows[0].cap_step_high_ns
    assert band.y[-1] == 100 * rows[0].single_step_ns / rows[0].cap_step_low_ns
    sure = [replace(row, cap_step_low_ns=row.cap_step_ns, cap_step_high_ns=row.cap_step_ns) for row in rows]
    assert not traces_of(scaling_figure(sure), "best cap over the range of the curve")


def test_a_change_of_the_best_cap_is_marked_with_its_reason(rows: tuple[ScalingRow, ...]) -> None:
    quiet = [replace(row, reason="", reason_code="") for row in rows]
    told = [*quiet[:2], replace(quiet[2], reason=f"latency grew {EVIL}", reason_code="latency"), quiet[3]]
    assert not traces_of(scaling_figure(quiet), "best cap changes: hover for why")
    (marks,) = traces_of(scaling_figure(told), "best cap changes: hover for why")
    assert list(marks.x) == [8]
    assert "latency grew &lt;script" in marks.customdata[0]


def test_a_plateau_without_an_end_reaches_the_edge(rows: tuple[ScalingRow, ...]) -> None:
    endless = [replace(row, bucket_cap_mb=8.0, cap_low_mb=4.0, cap_high_mb=None) for row in rows]
    (band,) = traces_of(scaling_figure(endless), "caps around the best within 0.1 % of it")
    assert set(band.y) == {4.0, 16.0}
    assert "4 up" in cap_text(endless[0])


def test_a_cap_of_zero_is_drawn_below_all_others(rows: tuple[ScalingRow, ...]) -> None:
    zero = [replace(rows[0], bucket_cap_mb=0.0, cap_low_mb=0.0, cap_high_mb=2.0), *rows[1:]]
    caps = traces_of(scaling_figure(zero), "best cap")[2]
    assert 0 < caps.y[0] < min(caps.y[1:])
    assert "bucket_cap_mb=0," in caps.customdata[0]


def test_several_series_are_told_apart(rows: tuple[ScalingRow, ...]) -> None:
    both = [*rows, *(replace(row, settings="oversubscription=2") for row in rows)]
    assert list(series_of(rows)) == [""]
    assert list(series_of(both)) == [rows[0].settings, "oversubscription=2"]
    figure = scaling_figure([replace(row, machine=EVIL) for row in rows] + list(rows))
    names = {trace.name for trace in figure.data}
    assert not any("<script" in (name or "") for name in names)
    assert any("&lt;script" in (name or "") for name in names)


def test_jitter_is_a_curve_of_its_own(rows: tuple[ScalingRow, ...]) -> None:
    shaky = [
        replace(
            row, jitter="5 %", samples=10, mean_step_ns=2 * row.cap_step_ns, p95_step_ns=3 * row.cap_step_ns
        )
        for row in rows
    ]
    (mean,) = traces_of(scaling_figure(shaky), "best cap, mean with jitter")
    assert list(mean.y) == [50 * row.single_step_ns / row.cap_step_ns for row in rows]
    assert "p95" in text_of(CURVES[1], shaky[0])


def test_one_row_and_none_draw(rows: tuple[ScalingRow, ...]) -> None:
    assert scaling_figure(rows[:1]).data
    assert scaling_figure(()).data == ()


def test_a_reason_is_marked_in_whatever_order_sizes_were_asked_for(rows: tuple[ScalingRow, ...]) -> None:
    """From 8 GPUs to 2: the row of 2 is the first on the axis, and has a row before it all the same."""
    quiet = replace(rows[2], reason="", reason_code="")
    told = replace(rows[0], reason="bandwidth shrank", reason_code="bandwidth")
    (marks,) = traces_of(scaling_figure([quiet, told]), "best cap changes: hover for why")
    assert list(marks.x) == [rows[0].world_size]


def test_a_workload_without_times_draws() -> None:
    """One host of one GPU: the step is 0 ns, and nothing of it is exposed."""
    still = workload_of([0, 0], [1, 1], forward_ms=0)
    made = sim.scaling(still, "pcie_hosts", hosts=[1, 2], settings={"gpus": [1], "gbit_per_s": [10]})
    assert made[0].cap_step_ns == 0 < made[1].cap_step_ns
    (curve, *_) = traces_of(scaling_figure(made), CURVES[0].name)
    assert list(curve.y) == [100, 0]
    assert "exposed 0.00 ms, 0.0% of the step" in text_of(CURVES[0], made[0])
    shaky = [replace(row, mean_step_ns=row.cap_step_ns, jitter="r") for row in made]
    (mean,) = traces_of(scaling_figure(shaky), "best cap, mean with jitter")
    assert list(mean.y) == [100, 0]


def test_a_computed_curve_shows_its_range_and_methods() -> None:
    hardware = sim.cluster_hardware(sim.cluster("dgx_h100", hosts=2))
    rows = curve_rows(hardware)
    assert [(row.num_bytes, row.duration_ns) for row in rows] == [
        (point.num_bytes, point.duration_ns) for point in hardware.all_reduce
    ]
    factor = 2 * 15 / 16
    for row in rows:
        assert row.low_ns < row.duration_ns < row.high_ns
        assert row.bytes_per_s == pytest.approx(factor * row.num_bytes / row.duration_ns * 1e9)
        assert (row.low_bytes_per_s or 0) < (row.bytes_per_s or 0) < (row.high_bytes_per_s or 0)
    figure = draw_curve(rows)
    legend = figure.layout.legend
    assert (legend.yref, legend.yanchor) == ("container", "bottom"), "not upon the titles of both plots"
    methods = set(hardware.provenance["methods"].values())
    assert {trace.name for trace in figure.data} == {*methods, "stated range", None}
    points = {
        (x, y)
        for trace in figure.data
        if trace.name in methods and trace.xaxis == "x"
        for x, y in zip(trace.x, trace.y, strict=True)
    }
    assert points == {(row.num_bytes, row.duration_ns / 1000) for row in rows}


def test_a_measured_curve_has_neither(hardware: Hardware) -> None:
    rows = curve_rows(hardware)
    assert [row.num_bytes for row in rows] == [1 << 20, 64 << 20]
    assert all(row.low_ns == row.duration_ns == row.high_ns and not row.method for row in rows)
    assert {trace.name for trace in draw_curve(rows).data} == {None, "measured"}
    assert "bus bandwidth 0.6554 GB/s" in row_text(rows[0])
    alone = curve_rows(replace(hardware, world_size=1))
    assert {row.bytes_per_s for row in alone} == {None}
    assert draw_curve(alone).data


def test_a_range_that_is_no_range_of_ours_is_left_out(hardware: Hardware) -> None:
    for known in ({"min_ns": 1}, {"min_ns": 0, "max_ns": 1}, {"note": []}):
        odd = replace(hardware, spread={"all_reduce": {str(1 << 20): known}})
        assert all(row.low_ns == row.high_ns for row in curve_rows(odd))
