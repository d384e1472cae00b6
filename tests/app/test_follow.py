"""What the browser is given to draw while a slider moves: the figures of the steps that it stands for."""

import json
from dataclasses import replace
from typing import Any

import pytest

import sim
from app import words
from app.figures.timeline import timeline_data
from app.playing import Choice, Inputs, WhatIf
from app.views import tune_step
from app.views.tune_knobs import CAP_SLIDER
from app.views.tune_step import FOLLOWED, State, frames
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
        for lane, bars in zip(frame["lanes"], frame["bars"], strict=True):
            drawn = [
                (span.start_ns, span.end_ns, span.bucket) for span in timeline_data(timeline).of_lane(lane)
            ]
            assert [bucket for *_, bucket, _ in bars] == [-1 if one[2] is None else one[2] for one in drawn]
            ends = [end for start, until, *_ in bars for end in (start, until)]
            assert ends == pytest.approx([at / 1e6 for one in drawn for at in one[:2]], abs=1e-4)


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
