"""Figures: the data exactly, and of the drawing what a reader would miss."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import sim
from app.figures.cluster import curve_rows, draw_curve, scaling_figure
from app.figures.compare import DEFAULT, breakdown, draw_parts, draw_sweep
from app.figures.records import draw_attribution, draw_overlay, draw_steps, overlay_data
from app.figures.style import safe
from app.figures.timeline import bucket_text, draw_timeline, path_marks, stacked_data, timeline_data
from sim import plot
from sim.clusters.scaling import ScalingRow
from sim.errors import InputError
from sim.metrics.intervals import length, union
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Plateau
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.truth.scoring import Agreement
from sim.tuner.gain import BandPoint
from sim.tuner.sweep import SweepRow
from tests.app.conftest import make_workload
from tests.effort import tries
from tests.machines import machine, model
from tests.strategies import Case, cases
from tests.tuner.test_tuner_caps import ROW

TRACES = Path(__file__).parents[2] / "traces"
MS = 1_000_000
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def timeline(workload: Workload, hardware: Hardware) -> Timeline:
    return sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=4))


@pytest.fixture
def agreement(traces: Path) -> Agreement:
    return sim.agreement(sim.load_record(traces / "measured" / "made-up"))


def traces_of(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


@settings(max_examples=tries(30), deadline=None)
@given(cases())
def test_lanes_are_drawn_whole_and_collectives_are_cut_where_backward_ends(case: Case) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic")
    (row, again), _ = stacked_data([("A", "a", timeline), ("B", "b", timeline)])
    assert row.spans == again.spans
    drawn: Counter[int | None] = Counter()
    for span in row.spans:
        if span.lane.startswith("communication") and span.kind != "straggler":
            drawn[span.bucket] += span.end_ns - span.start_ns
            assert span.exposed == (span.start_ns >= timeline.backward_end_ns)
    for bucket in timeline.buckets:
        assert drawn[bucket.index] == bucket.end_ns - bucket.start_ns
    lane = [(span.kind, span.start_ns, span.end_ns) for span in row.of_lane("compute")]
    assert lane == [(span.kind, span.start_ns, span.end_ns) for span in timeline.compute]


def test_the_wait_for_the_slowest_rank_is_drawn(workload: Workload, hardware: Hardware) -> None:
    slowest, _ = sim.scale(workload, hardware, backward=1.5)
    assignment = sim.assign(workload, bucket_cap_mb=4)
    timeline = sim.simulate(workload, hardware, assignment, slowest=slowest)
    for data in (timeline_data(timeline), timeline_data(timeline, max_spans=10)):
        waits = [span for span in data.spans if span.kind == "straggler"]
        late = [bucket for bucket in timeline.buckets if bucket.late_ns]
        assert [(span.bucket, span.start_ns, span.end_ns) for span in waits] == [
            (bucket.index, bucket.start_ns - bucket.late_ns, bucket.start_ns) for bucket in late
        ]
        assert waits
        (bars,) = traces_of(draw_timeline(data), "communication")
        patterns = dict(zip(data.of_lane("communication"), bars.marker.pattern.shape, strict=True))
        assert {patterns[span] for span in waits} == {"-"}
    assert f"for the slowest rank {late[0].late_ns / MS:,.3f} ms" in bucket_text(timeline, late[0])
    assert traces_of(draw_timeline(data), "waits for the slowest rank")


def test_names_from_files_are_escaped(workload: Workload, hardware: Hardware) -> None:
    evil = replace(workload.gradients[0], name="<a href='javascript:alert(1)'>x</a>")
    workload = replace(workload, gradients=(evil, *workload.gradients[1:]))
    data = timeline_data(sim.simulate(workload, hardware, sim.assign(workload, "single")))
    assert not any("<a" in span.text for span in data.spans)
    assert safe("<b>") == "&lt;b&gt;"


def test_of_2000_gradients_what_can_be_told_apart_is_drawn() -> None:
    workload = model(2000, "two channels")
    made = sim.assign(workload, bucket_cap_mb=4)
    timeline = sim.simulate(workload, machine("two channels"), made, "analytic")
    whole, drawn = timeline_data(timeline, max_spans=100_000), timeline_data(timeline)
    assert len(whole.spans) > 4 * len(drawn.spans) > 4 * len(timeline.buckets)
    seen = timeline.sync_end_ns / 200
    assert {span for span in whole.spans if span.length_ns > seen} <= set(drawn.spans)
    assert all(span in whole.spans for span in drawn.spans if span.length_ns > seen)
    for lane in whole.lanes:
        assert len({sum(span.length_ns for span in data.of_lane(lane)) for data in (whole, drawn)}) == 1
    assert len(draw_timeline(drawn).to_json()) < 250_000


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("cap", [None, 0.25, 4.0, 64.0])
@pytest.mark.parametrize("blocks", [True, False])
def test_what_is_marked_is_the_critical_path(
    workload: Workload, hardware: Hardware, cap: float | None, channels: int, blocks: bool
) -> None:
    """As much is marked as the path has spans, and every mark lies over what its lane does."""
    machine = replace(hardware, comm_channels=channels, launch_cost_ns=20_000, launch_blocks_compute=blocks)
    timeline = sim.simulate(workload, machine, sim.assign(workload, bucket_cap_mb=cap))
    path = sim.critical_path(timeline)
    marks, data = path_marks(timeline, path), timeline_data(timeline)
    assert {mark.lane for mark in marks} <= set(data.lanes)
    both = (sum(one.end_ns - one.start_ns for one in each) for each in (marks, path))
    assert len({*both}) == 1
    assert [mark.start_ns for mark in marks] == sorted(mark.start_ns for mark in marks)
    assert (marks[0].start_ns, marks[-1].end_ns) == (0, timeline.sync_end_ns)
    for mark in marks:
        covered = sum(
            max(0, min(span.end_ns, mark.end_ns) - max(span.start_ns, mark.start_ns))
            for span in data.of_lane(mark.lane)
        )
        assert covered == mark.end_ns - mark.start_ns


def row(cap: float | None, step: int) -> SweepRow:
    return replace(ROW, bucket_cap_mb=cap, step_ns=step * MS)


ROWS = (row(None, 98), row(8, 80), row(1, 79), row(2, 85), row(64, 110))
PLATEAU = Plateau(
    caps_mb=(1.0, 8.0),
    stretches_mb=((1.0, 1.0), (8.0, 8.0)),
    holds_default=False,
    is_flat=False,
    decided_by="tolerance",
    sentence="",
)


def test_the_default_is_no_point_of_the_curve_and_a_band_lies_behind_it() -> None:
    points = [
        BandPoint(cap_mb=row.bucket_cap_mb, low_ns=row.step_ns - 2 * MS, high_ns=row.step_ns + 3 * MS)
        for row in ROWS
    ]
    figure = draw_sweep(ROWS, PLATEAU, points, shown=(2, 85 * MS), best_ns=78 * MS, star_mb=8)
    (curve,), (beside,) = traces_of(figure, "bucket_cap_mb"), traces_of(figure, "DDP's default")
    assert (list(curve.x), list(curve.y)) == ([1, 2, 8, 64], [79, 85, 80, 110])
    assert [cap for _, cap in curve.customdata] == [1, 2, 8, 64], "for clicks"
    assert list(beside.x) == [DEFAULT]
    assert [list(traces_of(figure, name)[0].x) for name in ("recommended cap", "shown")] == [[8], [2]]
    zones = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert [zone.x0 < cap < zone.x1 for zone, cap in zip(zones, (1, 8), strict=True)] == [True, True]
    assert {shape.y0 for shape in figure.layout.shapes if shape.type == "line"} == {98, 78}
    area, bar = [trace for trace in figure.data if trace.zorder == -1]
    assert list(area.x) == [1, 2, 8, 64, 64, 8, 2, 1]
    assert list(area.y) == [82, 88, 83, 113, 108, 78, 83, 77]
    assert list(bar.x) == [DEFAULT, DEFAULT]
    assert all(trace.hoverinfo == "skip" for trace in (area, bar)), "clicks are for the points"
    assert not draw_sweep(()).data


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("cap", [0.25, 4.0, 64.0])
def test_the_parts_of_a_step_add_up(
    workload: Workload, hardware: Hardware, cap: float, channels: int
) -> None:
    machine = replace(hardware, comm_channels=channels)
    timeline = sim.simulate(workload, machine, sim.assign(workload, bucket_cap_mb=cap))
    report = sim.summarize(timeline)
    parts = breakdown(report, timeline)
    assert parts == breakdown(report), "of DDP its report is enough"
    assert (sum(parts.values()), min(parts.values()) >= 0) == (report.step_ns, True)
    shares = parts["overlapped"] / (parts["overlapped"] + parts["exposed"])
    assert shares == pytest.approx(report.overlap_ratio)


@pytest.mark.parametrize("policy", ["zero1", "zero2", "megatron", "fully_shard", "after-backward"])
def test_what_waits_for_parameters_is_no_computing(policy: str) -> None:
    """On a measured machine with all curves."""
    workload = sim.load_workload(TRACES / "workloads" / "gpt-13.8M-cpu.json")
    machine = sim.load_hardware(TRACES / "hardware" / "box-2x1gbit-every-collective.json")
    timeline = sim.simulate(workload, machine, sim.assign(workload, policy))
    parts = breakdown(sim.summarize(timeline), timeline)
    assert sum(parts.values()) == sim.summarize(timeline).step_ns
    assert min(parts.values()) >= 0
    lane = length(union((span.start_ns, span.end_ns) for span in timeline.compute))
    assert parts["compute"] + parts["overlapped"] <= lane
    assert parts["rest"] < 1.1 * (workload.forward_ns + workload.loss_ns + workload.optimizer_ns)


def test_differences_begin_where_the_last_ended() -> None:
    (bars,) = draw_parts([("latency", -70), ("bytes", 20), ("compute", 0)]).data
    assert list(bars.y) == ["latency", "bytes", "together"]
    assert [round(base * MS) for base in bars.base] == [0, -70, 0]
    assert [round(change * MS) for change in bars.x] == [-70, 20, -50]


def test_the_bars_of_an_attribution_add_up_to_the_error(agreement: Agreement, traces: Path) -> None:
    parts = sim.attribution(sim.load_record(traces / "measured" / "made-up"))
    *bars, error = draw_attribution(agreement, parts).data
    assert list(error.y) == list(draw_steps(agreement).data[1].y), "the fastest first"
    assert len(bars) == 5
    for place, name in enumerate(error.y):
        assert error.x[place] == parts[name].total_ns / MS
        assert sum(bar.x[place] for bar in bars) == pytest.approx(parts[name].total_ns / MS)


def test_the_overlay_compares_like_with_like(agreement: Agreement) -> None:
    row = next(row for row in agreement.rows if row.name == "cap 4")
    for pair, bucket, seen in zip(overlay_data(row), row.predicted.buckets, row.buckets, strict=True):
        assert pair.since == "launch"  # the made-up backend cannot tell starts
        assert pair.predicted == (bucket.launch_ns, bucket.end_ns)
        assert pair.measured == (seen.launch_ns, seen.end_ns)
        assert pair.error_ns == bucket.end_ns - (seen.end_ns or 0)
    figure = draw_overlay(row)
    assert [trace.name for trace in figure.data] == ["predicted", "measured"]
    assert list(figure.data[0].marker.color) == list(figure.data[1].marker.color)
    names = {shape.name for shape in figure.layout.shapes if shape.name}
    assert names == {"backward ends, predicted", "backward ends, measured"}


@pytest.fixture(scope="module")
def rows() -> tuple[ScalingRow, ...]:
    few = replace(make_workload(), gradients=make_workload().gradients[:4])
    return sim.scaling(few, "pcie_hosts", hosts=[1, 2, 4, 8], settings={"gpus": [2], "gbit_per_s": [10]})


def test_the_range_of_the_curve_is_a_band(rows: tuple[ScalingRow, ...]) -> None:
    (band,) = traces_of(scaling_figure(rows), "best cap over the range of the curve")
    assert band.y[0] == 100 * rows[0].single_step_ns / rows[0].cap_step_high_ns
    assert band.y[-1] == 100 * rows[0].single_step_ns / rows[0].cap_step_low_ns
    efficiency, exposed, _ = traces_of(scaling_figure(rows), "best cap")
    assert list(efficiency.y) == pytest.approx([100 * row.cap_efficiency for row in rows])
    assert list(exposed.y) == pytest.approx([row.cap_exposed_comm_ns / MS for row in rows])
    sure = [replace(row, cap_step_low_ns=row.cap_step_ns, cap_step_high_ns=row.cap_step_ns) for row in rows]
    assert not traces_of(scaling_figure(sure), "best cap over the range of the curve")


def test_a_change_of_the_best_cap_is_marked_with_its_reason(rows: tuple[ScalingRow, ...]) -> None:
    """In whatever order sizes were asked for: from 8 GPUs to 2 the row of 2 is the first on the axis, too."""
    quiet = [replace(row, reason="", reason_code="") for row in rows]
    told = [*quiet[:2], replace(quiet[2], reason=f"latency grew {EVIL}", reason_code="latency"), quiet[3]]
    assert not traces_of(scaling_figure(quiet), "best cap changes: hover for why")
    for given_rows in (told, told[::-1], [told[3], told[2]]):
        (marks,) = traces_of(scaling_figure(given_rows), "best cap changes: hover for why")
        assert list(marks.x) == [8]
        assert "latency grew &lt;script" in marks.customdata[0]


def test_a_computed_curve_shows_its_range_and_methods() -> None:
    hardware = sim.cluster_hardware(sim.cluster("dgx_h100", hosts=2))
    rows = curve_rows(hardware)
    assert [(row.num_bytes, row.duration_ns) for row in rows] == [
        (point.num_bytes, point.duration_ns) for point in hardware.all_reduce
    ]
    for row in rows:
        assert row.low_ns < row.duration_ns < row.high_ns
        expected = 2 * 15 / 16 * row.num_bytes / row.duration_ns * 1e9
        assert row.bytes_per_s(row.duration_ns) == pytest.approx(expected)
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


def test_figures_without_a_page_are_its_own(workload: Workload, hardware: Hardware, traces: Path) -> None:
    found = sim.tune(workload, hardware)
    played = sim.simulate(workload, hardware, found.assignment)
    marks = path_marks(played, sim.critical_path(played))
    assert sim.plot is plot
    assert plot.timeline(played) == draw_timeline(timeline_data(played), marks)
    rows = sim.sweep(workload, hardware)
    names = [trace.name for trace in plot.sweep(rows, found).data]
    assert names == ["DDP's default", "bucket_cap_mb", "recommended cap"]
    assert len(plot.sweep(rows).data) == 2
    both = {"best": played, "default": sim.simulate(workload, hardware, sim.assign(workload))}
    titles = [one.text for one in plot.compare(both).layout.annotations]
    assert titles == ["<b>A</b> best", "<b>B</b> default"]
    assert list(plot.compare(both, parts=True).data[0].y) == ["best", "default"]
    agreement = sim.agreement(sim.load_record(traces / "measured" / "made-up"))
    assert len(plot.measured(agreement).data[1].x) == len(agreement.rows)
    with pytest.raises(InputError, match="compare: 0 steps"):
        plot.compare({})
