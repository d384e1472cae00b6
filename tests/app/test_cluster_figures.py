"""Figures of a cluster's curve, of scaling and of ranks that differ: what is drawn is what was given."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from app.figures.cluster import curve_rows, draw_curve, scaling_figure
from sim.clusters.scaling.one_machine import ScalingRow
from tests.app.conftest import make_workload

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


def test_a_reason_is_marked_in_whatever_order_sizes_were_asked_for(rows: tuple[ScalingRow, ...]) -> None:
    """From 8 GPUs to 2: the row of 2 is the first on the axis, and has a row before it all the same."""
    quiet = replace(rows[2], reason="", reason_code="")
    told = replace(rows[0], reason="bandwidth shrank", reason_code="bandwidth")
    (marks,) = traces_of(scaling_figure([quiet, told]), "best cap changes: hover for why")
    assert list(marks.x) == [rows[0].world_size]


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
