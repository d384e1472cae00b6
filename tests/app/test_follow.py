"""What the browser is given to draw while a slider moves: the figures of the steps that it stands for."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import sim
from app import words
from app.figures.timeline import Span, timeline_data
from app.playing import Choice, Inputs, WhatIf
from app.views import tune_step
from app.views.tune_knobs import CAP_SLIDER
from app.views.tune_step import CELLS, FOLLOWED, PATTERNS, State, frames, lane_runs
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms


@pytest.fixture(autouse=True)
def _nothing_played() -> None:
    tune_step._made._kept.clear()


@pytest.fixture
def state(inputs: Inputs) -> State:
    return State(measured=inputs, what_if=WhatIf(), choice=Choice(pick="default"), cap_stop=25.0)


@pytest.mark.parametrize("slider", FOLLOWED)
def test_each_stop_says_what_its_step_is(state: State, slider: str) -> None:
    made = frames(state, slider)
    assert set(made) == set(FOLLOWED[slider][1])
    for stop, text in made.items():
        moved = state.at(slider, stop)
        inputs, cap_mb = moved.inputs, stop if slider == CAP_SLIDER else None
        both = [sim.assign(inputs.workload, bucket_cap_mb=cap_mb), sim.assign(inputs.workload)]
        timeline, base = (sim.simulate(inputs.workload, inputs.hardware, one) for one in both)
        report, frame = sim.summarize(timeline), json.loads(text or "")
        assert [value for value, _ in frame["cards"]] == [
            format_ms(report.step_ns),
            format_ms(report.exposed_comm_ns),
            f"{report.overlap_ratio:.1%}",
            format_ms(sim.summarize(base).step_ns - report.step_ns),
        ]
        assert words.plain(frame["sentence"]) == words.sentence(report.verdict)
        assert moved.mark()["at"][slider] == f"{stop:g}"
        assert moved.mark()["groups"][slider] == state.group(slider)
        assert frame["sync"] * 1e6 == pytest.approx(timeline.sync_end_ns)
        for lane, runs in zip(frame["lanes"], frame["runs"], strict=True):
            assert_drawn(runs, timeline_data(timeline).of_lane(lane), timeline.sync_end_ns)


def assert_drawn(runs: Sequence[int], spans: Sequence[Span], until_ns: int) -> None:
    """Each cell whose middle is in a span longer than two cells shows its bucket, and none beyond all."""
    cells = [style for style, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
    assert len(cells) == CELLS
    cell = until_ns / CELLS
    for span in spans:
        if span.length_ns > 2 * cell:
            bucket = 0 if span.bucket is None else span.bucket + 1
            middle = int((span.start_ns + span.end_ns) / 2 / cell)
            assert cells[middle] // len(PATTERNS) == bucket
    busy = sum(span.length_ns for span in spans) / cell
    assert abs(sum(style >= 0 for style in cells) - busy) <= len(spans)


def test_what_only_the_server_knows_is_left_to_it(state: State) -> None:
    searched = replace(state, choice=Choice(pick="recommended"))
    assert not searched.group("bw")
    assert not replace(state, choice=Choice(pick="zero1")).group(CAP_SLIDER)
    # A switch that is hidden now comes back with a cap: streamlit keeps what was turned.
    assert not searched.group(CAP_SLIDER)


def test_some_stops_are_there_soon_the_nearest_first(state: State) -> None:
    assert list(frames(state, CAP_SLIDER, 0.0)) == [25.0]


@pytest.mark.usefixtures("fresh")
def test_a_stop_that_is_refused_is_left_out(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = sim.simulate

    def refuse(workload: Workload, hardware: Hardware, assignment: Assignment, *of: Any, **more: Any) -> Any:
        if len(assignment.bucket_indices) == 1:
            raise InputError("one bucket is refused by a test")
        return simulate(workload, hardware, assignment, *of, **more)

    monkeypatch.setattr(sim, "simulate", refuse)
    made = frames(state, CAP_SLIDER)
    assert (made[512.0], made[4.0] is None) == (None, False)


def test_all_spans_shorter_than_a_cell_are_still_no_more_runs_than_cells() -> None:
    plain = {"lane": "compute", "kind": "backward", "exposed": False, "text": ""}
    spans = [
        Span(bucket=index % 7, start_ns=index, end_ns=index + 1, **plain)  # type: ignore[arg-type]
        for index in range(20_000)
    ]
    assert len(lane_runs(spans, 20_000)) <= 2 * CELLS
    assert sum(lane_runs(spans, 100_000)[1::2]) == CELLS
    assert lane_runs([], 0) == [-1, CELLS]
