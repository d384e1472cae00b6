"""Figures: the data exactly, and of the drawing what a reader would miss."""

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

import sim
from app.figures.breakdown import PARTS, Breakdown, breakdown, breakdown_data, draw_breakdown
from app.figures.records import attribution_data, draw_attribution, draw_overlay, overlay_data, steps_data
from app.figures.style import safe
from app.figures.sweep import DEFAULT, draw_sweep, sweep_data
from app.figures.timeline import Span, bucket_text, draw_timeline, path_marks, timeline_data
from sim.metrics.intervals import length, union
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Plateau
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.truth.scoring import Agreement
from sim.tuner.gain import BandPoint
from sim.tuner.sweep import SweepRow
from tests.bench.machines import machine, model
from tests.tuner.test_tuner_plateau import ROW

TRACES = Path(__file__).parents[2] / "traces"

MS = 1_000_000


@pytest.fixture
def timeline(workload: Workload, hardware: Hardware) -> Timeline:
    return sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=4))


@pytest.fixture
def agreement(traces: Path) -> Agreement:
    return sim.agreement(sim.load_record(traces / "measured" / "made-up"))


def of_lane(spans: tuple[Span, ...], lane: str) -> list[Span]:
    return [span for span in spans if span.lane == lane]


def test_collectives_are_cut_where_backward_ends(timeline: Timeline) -> None:
    data = timeline_data(timeline)
    cut = timeline.backward_end_ns
    for bucket in timeline.buckets:
        spans = [span for span in of_lane(data.spans, "communication") if span.bucket == bucket.index]
        assert spans[0].start_ns == bucket.start_ns
        assert spans[-1].end_ns == bucket.end_ns
        assert [span.exposed for span in spans] == (
            [False, True] if bucket.start_ns < cut < bucket.end_ns else [bucket.start_ns >= cut]
        )
    exposed = [span for span in of_lane(data.spans, "communication") if span.exposed]
    assert sum(span.end_ns - span.start_ns for span in exposed) == sum(
        max(0, bucket.end_ns - max(cut, bucket.start_ns)) for bucket in timeline.buckets
    )


def test_the_compute_lane_is_whole_and_belongs_to_buckets(timeline: Timeline) -> None:
    data = timeline_data(timeline)
    lane = of_lane(data.spans, "compute")
    assert [(span.kind, span.start_ns, span.end_ns) for span in lane] == [
        (span.kind, span.start_ns, span.end_ns) for span in timeline.compute
    ]
    assert {span.bucket for span in lane} == {bucket.index for bucket in timeline.buckets} | {None}
    assert data.lanes == ("compute", "communication", "copy back")


def test_the_wait_for_the_slowest_rank_is_drawn(workload: Workload, hardware: Hardware) -> None:
    slowest, _ = sim.scale(workload, hardware, backward=1.5)
    assignment = sim.assign(workload, bucket_cap_mb=4)
    timeline = sim.simulate(workload, hardware, assignment, slowest=slowest)
    for data in (timeline_data(timeline), timeline_data(timeline, max_spans=10)):
        waits = [span for span in data.spans if span.kind == "straggler"]
        assert [(span.bucket, span.start_ns, span.end_ns) for span in waits] == [
            (bucket.index, bucket.start_ns - bucket.late_ns, bucket.start_ns)
            for bucket in timeline.buckets
            if bucket.late_ns
        ]
        assert waits
        bars = next(trace for trace in draw_timeline(data).data if trace.name == "communication")
        spans = of_lane(data.spans, "communication")
        patterns = dict(zip(spans, bars.marker.pattern.shape, strict=True))
        assert {patterns[span] for span in waits} == {"-"}
    late = next(bucket for bucket in timeline.buckets if bucket.late_ns)
    assert f"for the slowest rank {late.late_ns / MS:,.3f} ms" in bucket_text(timeline, late)
    assert "waits for the slowest rank" in {trace.name for trace in draw_timeline(data).data}


def test_names_from_files_are_escaped(workload: Workload, hardware: Hardware) -> None:
    evil = replace(workload.gradients[0], name="<a href='javascript:alert(1)'>x</a>")
    workload = replace(workload, gradients=(evil, *workload.gradients[1:]))
    data = timeline_data(sim.simulate(workload, hardware, sim.assign(workload, "single")))
    assert not any("<a" in span.text for span in data.spans)
    assert safe("<b>") == "&lt;b&gt;"


def test_of_2000_gradients_what_can_be_told_apart_is_drawn() -> None:
    workload = model(2000, "two channels")
    timeline = sim.simulate(
        workload, machine("two channels"), sim.assign(workload, bucket_cap_mb=4), "analytic"
    )
    whole, drawn = timeline_data(timeline, max_spans=100_000), timeline_data(timeline)
    assert len(whole.spans) > 4 * len(drawn.spans) > 4 * len(timeline.buckets)
    seen = timeline.sync_end_ns / 200
    assert {span for span in whole.spans if span.end_ns - span.start_ns > seen} <= set(drawn.spans)
    assert all(span in whole.spans for span in drawn.spans if span.end_ns - span.start_ns > seen)
    for lane in whole.lanes:
        length = [sum(s.end_ns - s.start_ns for s in of_lane(data.spans, lane)) for data in (whole, drawn)]
        assert length[0] == length[1]
    assert len(draw_timeline(drawn).to_json()) < 250_000


def row(cap: float | None, step: int) -> SweepRow:
    return replace(ROW, bucket_cap_mb=cap, step_ns=step * MS)


ROWS = (row(None, 98), row(0, 90), row(8, 80), row(1, 79), row(2, 85), row(64, 110))
PLATEAU = Plateau(
    tolerance=0.02,
    caps_mb=(1.0, 8.0),
    stretches_mb=((1.0, 1.0), (8.0, 8.0)),
    low_mb=1,
    high_mb=1,
    holds_default=False,
    is_flat=False,
)


def test_the_default_is_no_point_of_the_curve() -> None:
    data = sweep_data(
        ROWS,
        PLATEAU,
        chosen_cap_mb=2,
        chosen_step_ns=85 * MS,
        optimum_step_ns=78 * MS,
        recommended_cap_mb=8,
    )
    assert [point.cap_mb for point in data.curve] == [1, 2, 8, 64]
    assert [point.cap_mb for point in data.beside] == [None, 0]
    assert data.recommended is not None
    assert data.recommended.cap_mb == 8
    assert data.zones_mb == ((1, 1), (8, 8))
    assert data.chosen is not None
    assert data.chosen.step_ms == 85
    assert data.optimum_ms == 78


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("cap", [0.25, 4.0, 64.0])
def test_the_parts_of_a_step_add_up(
    workload: Workload, hardware: Hardware, cap: float, channels: int
) -> None:
    machine = replace(hardware, comm_channels=channels)
    timeline = sim.simulate(workload, machine, sim.assign(workload, bucket_cap_mb=cap))
    report = sim.summarize(timeline)
    parts = assert_adds_up(report, timeline)
    assert parts == breakdown("x", report), "of DDP its report is enough"
    assert parts.overlapped / (parts.overlapped + parts.exposed) == pytest.approx(report.overlap_ratio)


def assert_adds_up(report: Report, timeline: Timeline) -> Breakdown:
    parts = breakdown("x", report, timeline)
    found = [getattr(parts, name) for name in PARTS]
    assert sum(found) == report.step_ns
    assert min(found) >= 0
    return parts


@pytest.mark.parametrize("policy", ["zero1", "zero2", "megatron", "fully_shard", "after-backward"])
def test_what_waits_for_parameters_is_no_computing(policy: str) -> None:
    """On a measured machine with all curves."""
    workload = sim.load_workload(TRACES / "workloads" / "gpt-13.8M-cpu.json")
    machine = sim.load_hardware(TRACES / "hardware" / "box-2x1gbit-every-collective.json")
    timeline = sim.simulate(workload, machine, sim.assign(workload, policy))
    report = sim.summarize(timeline)
    parts = assert_adds_up(report, timeline)
    assert parts.compute + parts.overlapped <= length(union((s.start_ns, s.end_ns) for s in timeline.compute))
    assert parts.rest < 1.1 * (workload.forward_ns + workload.loss_ns + workload.optimizer_ns)


def test_the_bars_of_an_attribution_add_up_to_the_error(agreement: Agreement) -> None:
    rows = attribution_data(agreement)
    assert [name for name, _ in rows] == [pair.name for pair in steps_data(agreement)]
    *bars, error = draw_attribution(rows).data
    assert len(bars) == 5
    for place, (_, parts) in enumerate(rows):
        assert error.x[place] == parts.total_ns / MS
        assert sum(bar.x[place] for bar in bars) == pytest.approx(parts.total_ns / MS)


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
    assert {shape.name for shape in figure.layout.shapes} == {
        "backward ends, predicted",
        "backward ends, measured",
    }


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
    marks = path_marks(timeline, path)
    lanes = {mark.lane for mark in marks}
    data = timeline_data(timeline)
    assert lanes <= set(data.lanes)
    assert sum(mark.end_ns - mark.start_ns for mark in marks) == sum(
        span.end_ns - span.start_ns for span in path
    )
    assert [mark.start_ns for mark in marks] == sorted(mark.start_ns for mark in marks)
    assert marks[0].start_ns == 0
    assert marks[-1].end_ns == timeline.sync_end_ns
    for mark in marks:
        there = of_lane(data.spans, mark.lane)
        covered = sum(
            max(0, min(span.end_ns, mark.end_ns) - max(span.start_ns, mark.start_ns)) for span in there
        )
        assert covered == mark.end_ns - mark.start_ns


def band_points() -> tuple[BandPoint, ...]:
    return tuple(
        BandPoint(cap_mb=row.bucket_cap_mb, low_ns=row.step_ns - 2 * MS, high_ns=row.step_ns + 3 * MS)
        for row in ROWS
    )


def test_the_band_lies_around_the_curve_and_behind_it() -> None:
    band = band_points()
    figure = draw_sweep(sweep_data(ROWS, PLATEAU), band)
    area, *bars = [trace for trace in figure.data if trace.zorder == -1]
    assert list(area.x) == [1, 2, 8, 64, 64, 8, 2, 1]
    assert list(area.y) == [82, 88, 83, 113, 108, 78, 83, 77]
    assert [list(bar.x) for bar in bars] == [[DEFAULT, DEFAULT], ["0", "0"]]
    assert all(trace.hoverinfo == "skip" for trace in (area, *bars))  # clicks are for the points


def test_figures_built_unchecked_are_legal(timeline: Timeline) -> None:
    """``style.built`` leaves plotly's checks out; here they are."""
    marks = path_marks(timeline, sim.critical_path(timeline))
    report = sim.summarize(timeline)
    for figure in (
        draw_timeline(timeline_data(timeline), marks),
        draw_sweep(sweep_data(ROWS, PLATEAU, optimum_step_ns=78 * MS), band_points()),
        draw_sweep(sweep_data(())),
        draw_breakdown(breakdown_data({"a": report})),
    ):
        go.Figure(figure.to_dict())
