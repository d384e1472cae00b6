"""What the browser is given to draw while a slider moves: the figures of the steps that it stands for."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

import sim
from app import playing, words
from app.choosing import Choice, WhatIf
from app.drag import follow
from app.drag.follow import CELLS, PATTERNS, lane_runs, part
from app.drag.states import CAP, SLIDERS, Slider, State, mark
from app.figures.timeline import Span, timeline_data
from app.playing import Inputs, Played
from app.views.tune_step import gain_card
from app.widgets import Card
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.conftest import make_inputs


def make_state(workload: Workload, hardware: Hardware) -> State:
    return State(
        measured=make_inputs(workload, hardware), what_if=WhatIf(), choice=Choice(pick="default"), cap_stop=25
    )


def gain(shown: Played, default: Played) -> Card:
    return gain_card(shown, default, None)


def payload(state: State, slider: Slider) -> dict[str, str]:
    """By stop its frame, as JSON, once the browser has all parts."""
    has, stops = None, {}
    while has is None or not has["isLast"]:
        has = part(state, slider, gain, has)
        stops |= {stop: has["frames"][number] for stop, number in has["stops"].items()}
    return stops


@pytest.fixture(autouse=True)
def _nothing_played() -> None:
    follow._made._kept.clear()


@pytest.fixture
def state(workload: Workload, hardware: Hardware) -> State:
    return make_state(workload, hardware)


@pytest.mark.parametrize("key", SLIDERS)
def test_each_stop_says_what_its_step_is(state: State, key: str) -> None:
    slider = SLIDERS[key]
    made = payload(state, slider)
    assert made.keys() == {f"{stop:g}" for stop in slider.stops}
    for stop in slider.stops:
        moved = slider.at(state, stop)
        if key == CAP:
            assignment = sim.assign(state.inputs.workload, bucket_cap_mb=stop)
        else:
            assignment = sim.assign(moved.inputs.workload)
        inputs = moved.inputs
        timeline = sim.simulate(inputs.workload, inputs.hardware, assignment, slowest=inputs.slowest)
        report, frame = sim.summarize(timeline), json.loads(made[f"{stop:g}"])
        base = sim.simulate(
            inputs.workload, inputs.hardware, sim.assign(inputs.workload), slowest=inputs.slowest
        )
        assert [value for value, _ in frame["cards"]] == [
            format_ms(report.step_ns),
            format_ms(report.exposed_comm_ns),
            f"{report.overlap_ratio:.1%}",
            format_ms(sim.summarize(base).step_ns - report.step_ns),
        ]
        assert words.plain(frame["sentence"]) == words.sentence(report.verdict)
        assert mark(moved)["at"][key] == f"{stop:g}"
        assert frame["sync"] * 1e6 == pytest.approx(timeline.sync_end_ns)
        for lane, runs in zip(frame["lanes"], frame["runs"], strict=True):
            spans = [span for span in timeline_data(timeline).spans if span.lane == lane]
            assert_drawn(runs, spans, timeline.sync_end_ns)


def assert_drawn(runs: Sequence[int], spans: Sequence[Span], until_ns: int) -> None:
    """Each cell whose middle is in a span longer than two cells shows its bucket, and none beyond all."""
    cells = [style for style, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
    assert len(cells) == CELLS
    cell = until_ns / CELLS
    for span in spans:
        if span.end_ns - span.start_ns > 2 * cell:
            bucket = 0 if span.bucket is None else span.bucket + 1
            middle = int((span.start_ns + span.end_ns) / 2 / cell)
            assert cells[middle] // len(PATTERNS) == bucket
    busy = sum(span.end_ns - span.start_ns for span in spans) / cell
    assert abs(sum(style >= 0 for style in cells) - busy) <= len(spans)


def test_once_the_search_has_ended_all_frames_come_again(state: State) -> None:
    """Those from before it do not say what could be gained; they serve until then."""
    slider, searched = SLIDERS[CAP], replace(state, is_searched=True)
    possible = playing.play_assignment(state.inputs, sim.assign(state.inputs.workload, bucket_cap_mb=4))

    def gain(shown: Played, default: Played) -> Card:
        return gain_card(shown, default, possible)

    before = part(state, slider, gain)
    after = part(searched, slider, gain, before)
    assert (after["group"], after["first"]) == (before["group"], 0)
    blank, told = (
        [json.loads(one["frames"][number])["cards"][-1][1] for number in set(one["stops"].values())]
        for one in (before, after)
    )
    assert set(blank) == {""}
    assert all(told)
    assert part(searched, slider, gain, after)["first"] == after["next"]


def test_what_only_the_server_knows_is_left_to_it(state: State) -> None:
    searched = replace(state, choice=Choice(pick="recommended"))
    other = replace(state, choice=Choice(pick="zero1"))
    assert payload(searched, SLIDERS["bw"]) == {}
    assert payload(other, SLIDERS[CAP]) == {}
    # A switch that is hidden now comes back with a cap: streamlit keeps what was turned.
    assert payload(searched, SLIDERS[CAP]) == {}


@pytest.mark.usefixtures("fresh")
def test_a_stop_that_is_refused_is_left_out(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    played = playing.play_assignment

    def refuse(inputs: Inputs, assignment: Assignment) -> Played:
        if len(assignment.bucket_indices) == 1:
            raise InputError("one bucket is refused by a test")
        return played(inputs, assignment)

    monkeypatch.setattr(playing, "play_assignment", refuse)
    stops = payload(state, SLIDERS[CAP])
    assert "512" not in stops
    assert "4" in stops


def test_all_spans_shorter_than_a_cell_are_still_no_more_runs_than_cells() -> None:
    spans = [
        Span(
            lane="compute",
            kind="backward",
            bucket=index % 7,
            start_ns=index,
            end_ns=index + 1,
            exposed=False,
            text="",
        )
        for index in range(20_000)
    ]
    assert len(lane_runs(spans, 20_000)) <= 2 * CELLS
    assert sum(lane_runs(spans, 100_000)[1::2]) == CELLS
    assert lane_runs([], 0) == [-1, CELLS]
