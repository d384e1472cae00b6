"""The Tune page, without a browser: knobs and answer agree, what was measured stands beside, files."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app import playing, widgets, words
from app.figures.timeline import timeline_data
from app.playing import Choice, Inputs, Progress, WhatIf
from app.views import tune, tune_step
from app.views.tune_knobs import CAP_SLIDER
from app.views.tune_step import FOLLOWED, State, frames
from app.views.validate import row_of
from app.widgets import Files
from app.words import CARRIED, PICK_WORDS
from sim.errors import InputError
from sim.formats import documents
from sim.formats.record_files import load_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.setting import tell_setting
from sim.units import format_ms
from tests.app.browser.conftest import BUNDLED
from tests.app.conftest import (
    OTHER,
    add_record,
    cards,
    charts,
    is_clean,
    make_traces,
    make_workload,
    open_page,
    plain,
    said,
    upload,
    visit,
)
from tests.effort import PATIENCE_S
from tests.importer.built_traces import Dialect, build
from tests.saving import measure_anew
from tests.truth.test_traced_job import LATE

GAIN = "Gain against DDP's default"
STARS = ("recommended cap", "best round cap")


def step_of(workload: Workload, hardware: Hardware, policy: str = "ddp", **knobs: Any) -> int:
    return sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, policy, **knobs))).step_ns


def drawn(page: AppTest, *names: str) -> dict[str, Any]:
    """The trace of the sweep that has one of these names."""
    traces = [trace for chart in charts(page).values() for trace in chart["data"]]
    (found,) = (one for one in traces if one.get("name") in names and "customdata" in one and "x" in one)
    return dict(found)


def subheaders(page: AppTest) -> set[str]:
    return {found.value for found in page.subheader}


# Knobs and headline


def test_number_and_slider_follow_each_other_and_the_headline_both(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    page.run()
    page.number_input(key="cap").set_value(4.0).run()
    assert is_clean(page)
    assert page.selectbox(key="pick").value == "cap", "the number turns the assignment"
    assert cards(page)["Step time"] == format_ms(step_of(workload, hardware, bucket_cap_mb=4))
    page.number_input(key="cap").set_value(11.7).run()
    assert page.select_slider(key="cap_slider").value == 12.5, "the slider follows the number"
    assert page.number_input(key="cap").value == 11.7
    page.selectbox(key="pick").set_value("default").run()
    page.select_slider(key="cap_slider").set_value(8).run()
    assert page.number_input(key="cap").value == 8, "the number follows the slider"
    assert page.selectbox(key="pick").value == "cap", "the slider turns the assignment"


@pytest.mark.usefixtures("fresh")
def test_a_search_that_fails_leaves_headline_and_timeline_where_they_are(
    page: AppTest, workload: Workload, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise InputError("the search was stopped by a test")

    monkeypatch.setattr(sim, "tune", fail, raising=False)
    page.query_params["pick"] = PICK_WORDS["recommended"]
    page.run()
    assert [found.value for found in page.error] == ["the search was stopped by a test"]
    best = sim.summarize(sim.simulate(workload, hardware, sim.best(workload, hardware)))
    assert cards(page)["Step time"] == format_ms(best.step_ns)
    assert "timeline" in charts(page)
    assert "Take it home" in subheaders(page)


def test_a_search_that_is_refused_leaves_the_rest_of_the_page(page: AppTest) -> None:
    """Each cap would move torch.compile's cuts, and with them the times that the search rests on."""
    page.query_params["optimize_ddp"] = "ddp_optimizer"
    page.run()
    assert not page.exception
    assert len(page.error) == 1
    assert cards(page)[GAIN] == "0.00 ms"
    assert {"Is it true?", "Take it home"} <= subheaders(page)


def test_a_knob_that_is_turned_does_not_wait_for_the_search() -> None:
    """The search is left in the middle, its thread ends, and what it would have found is not kept."""
    ended, left = threading.Event(), threading.Event()

    def search(progress: Progress) -> None:
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                progress("a step")
                time.sleep(0.02)
        except BaseException:
            left.set()
            raise
        finally:
            ended.set()

    class TurnedError(Exception):
        pass

    class Place:
        def caption(self, words: str) -> None:
            raise TurnedError

        def empty(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widgets.st, "empty", Place)
        with pytest.raises(TurnedError):
            widgets.wait_for(search)
    assert ended.wait(PATIENCE_S)
    assert left.is_set()


@pytest.mark.usefixtures("fresh")
def test_a_cap_neither_searches_nor_sweeps_again(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    for name in ("tune", "sweep", "simulate"):
        monkeypatch.setattr(sim, name, partial(counted, name, getattr(sim, name)), raising=False)
    page.run()
    assert set(calls) == {"simulate", "sweep", "tune"}
    calls.clear()
    page.number_input(key="cap").set_value(4.0).run()
    assert set(calls) <= {"simulate"}  # what no stop of the slider was played for
    calls.clear()
    page.select_slider(key="bw").set_value(2.0).run()
    assert calls.count("tune") == calls.count("sweep") == 1


def test_with_nothing_at_hand_the_page_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(monkeypatch, "main", tmp_path).run()
    assert is_clean(page)
    assert "upload a workload" in said(page)


# One answer


def test_all_places_say_the_same_cap(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    """The strip, the card, the star, the lines to paste, and Compare."""
    found = sim.tune(workload, hardware)
    cap, step_ns = found.setting.cap_mb, found.setting.step_ns
    page.run()
    button, chart = page.button(key="apply"), page.get("plotly_chart")[0]
    assert [one for one in page.main if one in (button, chart)] == [button, chart], "before any figure"
    sentence = f"Set: {tell_setting(found.setting, found.against)}."
    assert plain(page.markdown).count(sentence) == 2, "the strip under the cards, and the section"
    gain = next(one for one in page.metric if one.label == GAIN)
    assert gain.delta == f"possible: {format_ms(step_of(workload, hardware) - step_ns)}"
    assert drawn(page, *STARS)["x"] == [cap]
    assert f"bucket_cap_mb={cap:g}" in page.code[0].value
    page.button(key="apply").click().run()
    assert (page.selectbox(key="pick").value, page.number_input(key="cap").value) == ("cap", cap)
    assert cards(page)["Step time"] == format_ms(step_ns)
    assert page.button(key="apply").disabled
    visit(page, "compare", a_pick="DDP's default", b_pick="best round bucket_cap_mb", c_pick="single bucket")
    assert cards(page)[f"B best round bucket_cap_mb={cap:g}"] == format_ms(step_ns)


def test_applying_leaves_no_cap_for_the_first_bucket_and_no_switch_that_is_not_shown(page: AppTest) -> None:
    """Such a switch was turned for another assignment, and the answer was found without it."""
    for key, value in {"pick": "bucket_cap_mb", "first": "0.5", "comm_hook": "fp16_compress"}.items():
        page.query_params[key] = value
    page.run()
    (cap,) = drawn(page, *STARS)["x"]
    assert f"Under comm_hook=fp16_compress, set: bucket_cap_mb={cap:g}: " in plain(page.markdown)
    page.selectbox(key="pick").set_value("zero1").run()
    assert not [one for one in page.selectbox if one.key == "comm_hook"]
    page.button(key="apply").click().run()
    assert page.selectbox(key="comm_hook").value == "none"
    assert page.number_input(key="first").value is None
    assert page.button(key="apply").disabled


def test_a_traced_job_is_told_with_its_own_buckets_and_step(page: AppTest) -> None:
    """All ranks wait for one, which no part holds."""
    texts, _ = build(LATE, Dialect())
    page.query_params["start"] = "upload"
    upload(page.run(), *((f"rank{rank}.json", text) for rank, text in enumerate(texts)))
    assert "ms longer than their parts on this link (last came rank 1" in plain(page.warning)
    own = page.button(key="apply").click().run().selectbox(key="pick").value
    assert (own, page.button(key="apply").disabled) == ("as-run", True)
    assert f"its parts alone say {cards(page)['Step time']}" in said(page)
    upload(page, ("damaged.json", "{"))  # which leaves the sidebar as it is
    assert page.selectbox(key="pick").value == "as-run"


def test_a_cap_that_is_far_behind_is_the_answer_only_where_it_cannot_be_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A BERT at 32 ranks: every round cap is 3 % or more behind.

    That they cannot be told apart is known under a switch as well.
    """
    files = {"start": "bundled files", "workload": "bert-14.0M-cpu", "hardware": "box-2x1gbit"}
    far = open_page(monkeypatch, "main", BUNDLED, **files, ranks="32").run()
    assert not far.error
    (cap,) = drawn(far, *STARS)["x"]
    told = [one for one in plain(far.markdown).split("**") if one.startswith(f"Set: bucket_cap_mb={cap:g}: ")]
    assert len(told) == 2, "the strip under the cards, and the section"
    assert told[0].endswith("over steps as they vary the two cannot be told apart.")
    assert "cannot be told apart from what is recommended" in plain(far.markdown)
    far.toggle(key="gradient_as_bucket_view").set_value(True).run()
    assert not far.error
    under = "Under gradient_as_bucket_view, set: "
    first, second = [one for one in plain(far.markdown).split("**") if one.startswith(under)]
    assert first == second


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"accumulation_steps": 4}, marks=pytest.mark.slow),
        {"accumulation_steps": 4, "no_sync": False},
        pytest.param({"comm_hook": "fp16_compress"}, marks=pytest.mark.slow),
    ],
)
def test_under_switches_like_is_compared_with_like(
    traces: Path,
    workload: Workload,
    hardware: Hardware,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is possible, the curve and what is shown on it: all are played under the switches that are set."""
    step = partial(step_of, workload, hardware, **options)
    turned = {name: str(value).lower() for name, value in options.items()}
    page = open_page(monkeypatch, "main", traces, pick="bucket_cap_mb", **turned).run()
    assert is_clean(page)
    caps = [row.bucket_cap_mb for row in sim.sweep(workload, hardware) if row.bucket_cap_mb is not None]
    possible = step(bucket_cap_mb=drawn(page, "recommended cap")["x"][0])
    assert possible <= 1.01 * min(step(bucket_cap_mb=cap) for cap in caps)
    card = next(found for found in page.metric if found.label == GAIN)
    assert card.delta == f"possible: {format_ms(step() - possible)}"
    curve, (shown,) = drawn(page, "bucket_cap_mb"), drawn(page, "shown")["y"]
    for cap, ms in zip(curve["x"], curve["y"], strict=True):
        assert ms * 1e6 == pytest.approx(step(bucket_cap_mb=cap))
    assert shown * 1e6 == pytest.approx(step(bucket_cap_mb=25))
    assert f"Under {next(iter(options))}" in plain(page.markdown)
    assert "not among those that were measured" in said(page)


# Beside a measured record


def test_a_record_of_the_address_is_shown_on_every_page_and_back_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came by address stays when the page changes."""
    traces = make_traces(tmp_path / "traces")
    add_record(traces)
    documents.save(traces / "workloads" / "other.json", make_workload("other layers"))
    quick = {"b_pick": "one per parameter", "c_pick": "single bucket"}  # candidates without a search
    page = open_page(monkeypatch, "main", traces, record=OTHER).run()
    assert "other layers" in said(page)
    visit(page, "compare", **quick)
    assert page.title[0].value == "Compare"
    assert "other layers" in said(page)
    visit(page, "validate")
    assert page.selectbox(key="run").value == f"measured/{OTHER}"
    visit(page, "")
    assert page.title[0].value == "Tune"
    assert page.selectbox(key="record").value == OTHER
    assert "other layers" in said(page)
    visit(page, "compare", **quick)
    visit(page, "", record=OTHER, pick="bucket_cap_mb", cap="4")
    assert "other layers" in said(page)
    assert page.number_input(key="cap").value == 4


def test_what_is_held_against_the_measurement_is_what_is_shown(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many ranks as were measured, and their dtype, are the measured world; scaled, nothing is."""
    page = open_page(monkeypatch, "main", traces, ranks="2", precision="float32").run()
    assert is_clean(page)
    assert "Passed" in said(page)
    assert "Measured on real ranks: 97.26 ms a step" in said(page)
    assert not [found for found in page.metric if "on the measured machine" in found.delta]
    assert "than with DDP's default" not in said(page), "it is the default"
    page.selectbox(key="pick").set_value("single").run()
    assert "14.11 ms more than with DDP's default; the prediction is off by -0.50%" in said(page)
    assert "Measured on real ranks: 111.37 ms a step" in said(page)
    page.number_input(key="ranks").set_value(3).run()
    assert is_clean(page)
    assert not page.success
    assert "no longer applies" in said(page)
    assert [found for found in page.metric if "on the measured machine" in found.delta]
    assert "orange-badge" in said(page)


def test_a_record_is_found_by_its_digests(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = open_page(monkeypatch, "main", traces, start="bundled files", workload="twenty").run()
    assert is_clean(page)
    assert "Passed" in said(page)
    page.selectbox(key="workload").set_value("another").run()
    assert not page.success
    assert "No measured run belongs" in said(page)


def test_a_run_with_a_slow_rank_is_shown_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its record the page starts with the slow rank; from its bare files it shows no measurement."""
    folder = make_traces(tmp_path / "traces")
    home = folder / "measured" / "made-up"
    measure_anew(home, lambda one: replace(one, environment={"slow": {"1": 1.5}}))
    record = load_record(home)
    assert record.slow
    step = format_ms(sim.agreement(record).rows[0].predicted_step_ns)
    page = open_page(monkeypatch, "main", folder).run()
    assert is_clean(page)
    assert cards(page)["Step time"] == step
    assert CARRIED in said(page)
    visit(page, "compare", b_pick="single bucket", c_pick="single bucket")
    assert CARRIED in said(page), "Compare starts from the same"
    visit(page, "")
    page.selectbox(key="start").set_value("bundled").run()
    page.selectbox(key="workload").set_value("twenty").run()
    assert is_clean(page)
    assert cards(page)["Step time"] != step
    assert "made in another box" in said(page)


def test_a_measured_candidate_is_one_with_the_same_buckets_switches_and_machine(
    inputs: Inputs, traces: Path
) -> None:
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))

    def found(**options: Any) -> str | None:
        given = Choice(pick="given", given=sim.assign(inputs.workload, **options))
        row = row_of(agreement, playing.play(inputs, given))
        return None if row is None else row.name

    assert [found(), found(bucket_cap_mb=4), found(bucket_cap_mb=1000)] == ["default", "cap 4", "single"]
    for options in (
        {"bucket_cap_mb": 3},
        {"accumulation_steps": 4},
        {"accumulation_steps": 4, "no_sync": False},
        {"comm_hook": "fp16_compress"},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
    ):
        assert found(**options) is None


# Taken home


def take_home(pick: str, options: dict[str, object]) -> None:
    from app import playing
    from app.playing import Choice, Inputs, WhatIf
    from app.views import tune
    from tests.app.conftest import make_hardware, make_workload

    what_if, choice = WhatIf(bandwidth=0.5), Choice(pick=pick, options=tuple(options.items()))
    inputs = playing.scale(Inputs(workload=make_workload("a/b <c>"), hardware=make_hardware()), what_if)
    tune._take_home(inputs, choice, what_if, playing.play(inputs, choice), None)


def taken_home(pick: str, **options: Any) -> AppTest:
    made = AppTest.from_function(take_home, args=(pick, options), default_timeout=PATIENCE_S)
    made.session_state["folded_lines"] = True
    return made.run()


@pytest.mark.usefixtures("fresh")
def test_every_file_is_made_when_asked_for_and_says_what_was_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Files = {}

    def row(files: Files, where_from: object = None) -> None:
        nonlocal given
        given = files

    monkeypatch.setattr(tune, "downloads", row)
    monkeypatch.setattr(sim, "tune", partial(sim.tune, draws=20), raising=False)
    assert not taken_home("recommended", static_graph=True).exception
    assert len(given) == 6
    for label, (content, name, _) in given.items():
        assert (label == "Python snippet") == isinstance(content, str), label
        assert name.startswith("a-b-c-recommended-buckets-static-graph."), name
        text = content if isinstance(content, str) else content()
        assert '"bandwidth": 0.5' in text.replace('""', '"'), label
        assert "static_graph" in text, label


def test_other_systems_get_their_own_lines() -> None:
    zero = taken_home("zero2", reduce_bucket_size=70_000)
    assert json.loads(zero.code[0].value)["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 70_000}
    assert "DeepSpeed JSON" in [button.label for button in zero.get("download_button")]
    megatron = taken_home("megatron", overlap_grad_reduce=True, bucket_size=7e4, num_microbatches=2)
    assert megatron.code[0].value.splitlines() == [
        "# Set elsewhere, and part of this assignment: num_microbatches=2",
        "--overlap-grad-reduce",
        "--ddp-bucket-size 70000",
    ]
    assert "Megatron flags" in [button.label for button in megatron.get("download_button")]


# What the browser is given to draw while a slider moves: the figures of the steps that it stands for


@pytest.fixture
def state(inputs: Inputs) -> State:
    tune_step._made._kept.clear()
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
            spans = timeline_data(timeline).of_lane(lane)
            drawn = [(span.start_ns, span.end_ns, span.bucket) for span in spans]
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
