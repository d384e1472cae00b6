"""The pages, run without a browser."""

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.cached import Played
from app.choosing import WhatIf
from app.launch import MAIN
from app.views import waiting
from app.views.truth import regret_words, row_of
from app.views.waiting import Progress
from app.words import labels
from app.words import tune as words
from app.words.labels import PICK_WORDS
from sim.errors import InputError
from sim.formats import documents
from sim.formats.record_files import load_record
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Regret
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.conftest import make_traces
from tests.effort import PATIENCE_S
from tests.saving import save_measurement


@pytest.fixture
def page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    return AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)


def metric(page: AppTest, label: str) -> str:
    return next(found.value for found in page.metric if found.label == label)


def subheaders(page: AppTest) -> list[str]:
    return [found.value for found in page.subheader]


def is_clean(page: AppTest) -> bool:
    return not page.exception and not page.error


def test_the_default_run_is_clean_and_whole(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    page.run()
    assert is_clean(page)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload)))
    assert metric(page, "Step time") == format_ms(report.step_ns)
    assert metric(page, "Exposed communication") == format_ms(report.exposed_comm_ns)
    assert metric(page, "Overlap") == f"{report.overlap_ratio:.1%}"
    assert metric(page, "Gain against DDP's default") == "0.00 ms"
    assert subheaders(page) == [
        "What would another cap do?",
        "Recommended",
        "What each knob can reach",
        "Is it true?",
        "Take it home",
    ]
    assert any(labels.sentence(report.verdict) in found.value for found in page.markdown)
    assert [button.label for button in page.get("download_button")] == [
        "bucket_indices JSON",
        "Sweep CSV",
        "Perfetto JSON",
        "Report JSON",
        "Recommendation JSON",
        "Timeline HTML",
        "Python snippet",
    ]


def test_a_cap_changes_the_number(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    page.run()
    page.number_input(key="cap").set_value(4.0).run()
    assert is_clean(page)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=4)))
    assert page.selectbox(key="pick").value == "cap"
    assert metric(page, "Step time") == format_ms(report.step_ns)


def test_the_slider_moves_the_number(page: AppTest) -> None:
    page.run()
    page.select_slider(key="cap_slider").set_value(8).run()
    assert page.number_input(key="cap").value == 8
    assert page.selectbox(key="pick").value == "cap"


def test_the_slider_follows_the_number(page: AppTest) -> None:
    page.run()
    page.number_input(key="cap").set_value(11.7).run()
    assert page.select_slider(key="cap_slider").value == 12.5
    assert page.number_input(key="cap").value == 11.7


@pytest.mark.parametrize("pick", ["recommended", "single", "per-parameter"])
def test_every_assignment_can_be_shown(page: AppTest, pick: str) -> None:
    page.query_params["pick"] = PICK_WORDS[pick]
    page.run()
    assert is_clean(page)
    assert page.selectbox(key="pick").value == pick


def test_the_recommended_is_shown_before_all_else_is_known(
    page: AppTest, workload: Workload, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that fails leaves the headline and the timeline where they are."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise InputError("the search was stopped by a test")

    monkeypatch.setattr(sim, "tune", fail, raising=False)
    page.query_params["pick"] = PICK_WORDS["recommended"]
    page.run()
    assert [found.value for found in page.error] == ["the search was stopped by a test"]
    assert metric(page, "Step time") == format_ms(
        sim.summarize(sim.simulate(workload, hardware, sim.best(workload, hardware))).step_ns
    )
    assert len(page.get("plotly_chart")) >= 1
    assert "Take it home" in subheaders(page)


def test_a_knob_that_is_turned_does_not_wait_for_the_search() -> None:
    """The search is left in the middle, its thread ends, and what it would have found is not kept."""
    told: list[str] = []
    ended = threading.Event()

    def search(progress: Progress) -> None:
        try:
            for number in range(200):
                told.append(f"step {number}")
                progress(told[-1])
                time.sleep(0.02)
        finally:
            ended.set()

    class TurnedError(Exception):
        pass

    class Place:
        def caption(self, words: str) -> None:
            raise TurnedError

        def empty(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting.st, "empty", Place)
        with pytest.raises(TurnedError):
            waiting.wait_for(search)
    assert ended.wait(2.0)
    assert len(told) < 200


def test_a_slowest_rank_is_waited_for_and_the_search_says_that_it_is_not(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    page.run()
    before = metric(page, "Step time")
    page.select_slider(key="slowest").set_value(2.0).run()
    assert is_clean(page)
    slowest = WhatIf(straggler=2.0).slowest(workload)
    timeline = sim.simulate(workload, hardware, sim.assign(workload), slowest=slowest)
    assert metric(page, "Step time") == format_ms(sim.summarize(timeline).step_ns) != before
    assert any("found under the slowest rank" in found.value for found in page.info)
    curve = drawn(page, "bucket_cap_mb")
    alone = sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=curve["x"][0]))
    assert curve["y"][0] * 1e6 > sim.summarize(alone).step_ns
    page.number_input(key="cap").set_value(4.0).run()
    (bars,) = (one for one in page.get("plotly_chart") if "backward and communication" in one.proto.spec)
    assert "best buckets found" in bars.proto.spec
    assert "shown" not in bars.proto.spec
    page.selectbox(key="family").set_value("default").run()
    specs = [one.proto.spec for one in page.get("plotly_chart")]
    assert "slowest rank" in specs[0]
    assert not any("slowest rank" in one for one in specs[1:])


@pytest.mark.parametrize(
    "options",
    [{"accumulation_steps": 4}, {"accumulation_steps": 4, "no_sync": False}, {"comm_hook": "fp16_compress"}],
)
def test_under_switches_like_is_compared_with_like(
    page: AppTest, workload: Workload, hardware: Hardware, options: dict[str, Any]
) -> None:
    """What is possible, the curve and what is shown on it: all are played under the switches that are set."""

    def step(assignment: Assignment) -> int:
        return sim.summarize(sim.simulate(workload, hardware, assignment)).step_ns

    for name, value in options.items():
        page.query_params[name] = str(value).lower()
    page.query_params["pick"] = "bucket_cap_mb"
    page.run()
    assert is_clean(page)
    rows = sim.sweep(workload, hardware)
    caps = [row.bucket_cap_mb for row in rows if row.bucket_cap_mb is not None]
    possible = step(sim.assign(workload, bucket_cap_mb=drawn(page, "recommended")["x"][0], **options))
    assert possible <= 1.01 * min(step(sim.assign(workload, bucket_cap_mb=cap, **options)) for cap in caps)
    base = sim.assign(workload, accumulation_steps=options.get("accumulation_steps", 1))
    card = next(found for found in page.metric if found.label == "Gain against DDP's default")
    assert card.delta == f"possible: {format_ms(step(base) - possible)}"
    curve, (shown,) = drawn(page, "bucket_cap_mb"), drawn(page, "shown")["y"]
    for cap, ms in zip(curve["x"], curve["y"], strict=True):
        assert ms * 1e6 == pytest.approx(step(sim.assign(workload, bucket_cap_mb=cap, **options)))
    assert shown * 1e6 == pytest.approx(step(sim.assign(workload, bucket_cap_mb=25, **options)))
    assert any("knows nothing of it" in found.value for found in page.info)
    assert any("not among those that were measured" in found.value for found in page.info)


def drawn(page: AppTest, name: str) -> dict[str, Any]:
    """The trace of that name on the sweep."""
    (found,) = (
        trace
        for chart in page.get("plotly_chart")
        for trace in json.loads(chart.proto.spec)["data"]
        if trace.get("name") == name and "customdata" in trace and "x" in trace
    )
    return dict(found)


def test_a_search_that_is_refused_leaves_the_rest_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: Workload, hardware: Hardware
) -> None:
    """A gradient that is never ready: DDP trains it under a switch that the search does not know."""
    unused = replace(
        workload, gradients=(replace(workload.gradients[0], ready_ns=None), *workload.gradients[1:])
    )
    for kind, noun in (("workloads", unused), ("hardware", hardware)):
        (tmp_path / kind).mkdir()
        documents.save(tmp_path / kind / "one.json", noun)
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(tmp_path)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)
    page.query_params["find_unused_parameters"] = "true"
    page.run()
    assert not page.exception
    assert len(page.error) == 1
    assert metric(page, "Gain against DDP's default") == "0.00 ms"
    assert {"Is it true?", "Take it home"} <= set(subheaders(page))


def test_exposed_communication_of_all_micro_batches_is_told(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    """Where each of them is reduced, all but forward, loss, backward and optimizer is exposed."""
    page.query_params["accumulation_steps"] = "4"
    page.query_params["no_sync"] = "false"
    page.run()
    assert is_clean(page)
    report = sim.summarize(
        sim.simulate(workload, hardware, sim.assign(workload, accumulation_steps=4, no_sync=False))
    )
    computed = 4 * (workload.forward_ns + workload.loss_ns + workload.backward_ns) + workload.optimizer_ns
    card = next(found for found in page.metric if found.label == "Exposed communication")
    assert card.delta == f"the last of 4; all: {format_ms(report.step_ns - computed)}"


def test_a_step_that_lacks_a_part_says_so_at_the_headline(page: AppTest) -> None:
    page.query_params["pick"] = PICK_WORDS["zero1"]
    page.run()
    assert is_clean(page)
    assert any("not counted" in found.value for found in page.warning)


def test_a_trace_of_whole_buckets_is_told_from_one_of_gradients(workload: Workload) -> None:
    buckets = tuple(replace(one, name=f"bucket {one.index}") for one in workload.gradients)
    assert replace(workload, gradients=buckets).is_of_whole_buckets
    assert replace(workload, whole_buckets=True).is_of_whole_buckets
    assert not replace(workload, gradients=buckets, whole_buckets=False).is_of_whole_buckets
    assert not replace(workload, gradients=(workload.gradients[0], *buckets[1:])).is_of_whole_buckets


def test_the_path_is_marked_and_can_be_left_out(page: AppTest) -> None:
    page.run()
    assert "critical path" in str(page.get("plotly_chart")[0].proto)
    page.toggle(key="path").set_value(False).run()
    assert is_clean(page)
    assert "critical path" not in str(page.get("plotly_chart")[0].proto)


def test_a_family_can_be_looked_at(page: AppTest) -> None:
    page.run()
    count = len(page.get("plotly_chart"))
    page.selectbox(key="family").set_value("single").run()
    assert is_clean(page)
    assert len(page.get("plotly_chart")) == count + 1


def test_without_noise_the_page_says_that_there_is_no_band(page: AppTest) -> None:
    page.run()
    assert any("No band of how steps vary" in found.value for found in page.caption)


def test_the_cost_of_a_limit_is_searched_when_it_is_asked_for(page: AppTest) -> None:
    page.run()
    assert not [chart for chart in page.get("plotly_chart") if "memory" in str(chart.proto)]
    page.button(key="search_memory").click().run()
    assert is_clean(page)
    assert [chart for chart in page.get("plotly_chart") if "memory" in str(chart.proto)]


def test_a_cap_neither_searches_nor_sweeps_again(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> Any:
        real = getattr(sim, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("tune", "sweep", "simulate"):
        monkeypatch.setattr(sim, name, counted(name), raising=False)
    page.run()
    assert sorted(set(calls)) == ["simulate", "sweep", "tune"]
    calls.clear()
    page.number_input(key="cap").set_value(4.0).run()
    assert calls == ["simulate"]
    calls.clear()
    page.select_slider(key="bw").set_value(2.0).run()
    assert calls.count("tune") == calls.count("sweep") == 1


def test_a_url_restores_every_knob(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    knobs = {
        "start": "bundled files",
        "workload": "twenty",
        "pick": "bucket_cap_mb",
        "cap": "3",
        "first": "0.5",
        "bw": "0.5",
    }
    for name, value in knobs.items():
        page.query_params[name] = value
    page.run()
    assert is_clean(page)
    assert page.selectbox(key="workload").value == "twenty"
    assert page.number_input(key="cap").value == 3
    assert page.number_input(key="first").value == 0.5
    slower = sim.scale(workload, hardware, bandwidth=0.5)
    assignment = sim.assign(workload, bucket_cap_mb=3, first_bucket_mb=0.5)
    report = sim.summarize(sim.simulate(*slower, assignment))
    assert metric(page, "Step time") == format_ms(report.step_ns)


def test_a_record_is_found_by_its_digests(page: AppTest) -> None:
    page.query_params["start"] = "bundled files"
    page.query_params["workload"] = "twenty"
    page.run()
    assert is_clean(page)
    assert any("Passed" in found.value for found in page.success)
    page.selectbox(key="workload").set_value("another").run()
    assert not page.success
    assert any("No measured run belongs" in found.value for found in page.info)


def test_a_run_with_a_slow_rank_is_shown_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its record the page starts with the slow rank; from its bare files it shows no measurement."""
    folder = make_traces(tmp_path / "traces")
    home = folder / "measured" / "made-up"
    read = load_record(home)
    for path in home.glob("measurement-*.json"):
        path.unlink()
    for number, one in enumerate(read.candidates):
        save_measurement(home, number, replace(one, environment={"slow": {"1": 1.5}}))
    record = load_record(home)
    assert record.slow
    row = sim.agreement(record).rows[0]
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(folder)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    assert metric(page, "Step time") == format_ms(row.predicted_step_ns)
    assert words.CARRIED in [found.value for found in page.caption]
    assert page.selectbox(key="overlay").value == row.name
    page.selectbox(key="start").set_value("bundled").run()
    page.selectbox(key="workload").set_value("twenty").run()
    assert is_clean(page)
    assert metric(page, "Step time") != format_ms(row.predicted_step_ns)
    assert words.OTHER_CONDITIONS in [found.value for found in page.info]
    assert not [box for box in page.selectbox if box.key == "overlay"]


def test_a_run_beside_a_neighbour_is_not_held_against_a_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = MAIN.parents[1] / "traces"
    watched = str(bundled / "contention" / "gpt-beside-gpt")
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(bundled), "--watch", watched])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    assert words.BESIDE in [found.value for found in page.info]
    assert not [box for box in page.selectbox if box.key == "overlay"]


def test_a_measured_candidate_is_one_with_the_same_buckets_switches_and_machine(
    workload: Workload, hardware: Hardware, traces: Path
) -> None:
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))

    def found(**options: Any) -> str | None:
        timeline = sim.simulate(workload, hardware, sim.assign(workload, **options), "analytic")
        row = row_of(agreement, Played(timeline=timeline, report=sim.summarize(timeline)))
        return None if row is None else row.name

    assert found() == "default"
    assert found(bucket_cap_mb=4) == "cap 4"
    assert found(bucket_cap_mb=1000) == "single"
    assert found(bucket_cap_mb=3) is None
    for options in (
        {"accumulation_steps": 4},
        {"accumulation_steps": 4, "no_sync": False},
        {"comm_hook": "fp16_compress"},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
    ):
        assert found(**options) is None
    slowest, _ = sim.scale(workload, hardware, backward=1.5)
    late = sim.simulate(workload, hardware, sim.assign(workload), "analytic", slowest=slowest)
    assert row_of(agreement, Played(timeline=late, report=sim.summarize(late))) is None


def test_the_link_to_validate_keeps_the_record(page: AppTest) -> None:
    page.run()
    (link,) = page.get("page_link")
    assert "made-up" in link.proto.query_string


def test_scaled_knobs_leave_the_measurement_behind(page: AppTest) -> None:
    page.run()
    assert page.success
    page.select_slider(key="lat").set_value(2.0).run()
    assert is_clean(page)
    assert not page.success
    assert any("no longer applies" in found.value for found in page.info)


def test_the_measured_candidate_follows_the_assignment(page: AppTest) -> None:
    page.run()
    assert page.selectbox(key="overlay").value == "default"
    page.selectbox(key="pick").set_value("single").run()
    assert page.selectbox(key="overlay").value == "single"
    page.selectbox(key="overlay").set_value("cap 4").run()
    assert page.selectbox(key="overlay").value == "cap 4"


def test_the_error_is_shown_by_mechanism_and_held_to_the_targets(page: AppTest) -> None:
    page.run()
    assert is_clean(page)
    assert [box.label for box in page.expander if "error" in box.label] == ["Where the error comes from"]
    assert any("Targets, set for paced replays" in found.value for found in page.caption)


@pytest.mark.parametrize(
    ("regret_ns", "low_ns", "words"),
    [
        (0, 0, "The recommendation was the fastest."),
        (
            2_500_000,
            100_000,
            "The recommendation was 2.50 ms (0.50%) behind cap 4, 95 % interval 0.10 to 4.00 ms.",
        ),
        (
            2_500_000,
            -100_000,
            "The recommendation was 2.50 ms (0.50%) behind cap 4, "
            "95 % interval -0.10 to 4.00 ms: within noise.",
        ),
    ],
    ids=["none", "certain", "within noise"],
)
def test_regret_in_words(regret_ns: int, low_ns: int, words: str) -> None:
    regret = Regret(
        best="cap 4",
        regret_ns=regret_ns,
        low_ns=low_ns,
        high_ns=4_000_000,
        relative=0.005,
        within_noise=low_ns <= 0,
        paired_rounds=10,
    )
    assert regret_words(regret) == words


def test_a_regret_of_few_rounds_has_no_interval() -> None:
    regret = Regret(
        best="a", regret_ns=10**6, low_ns=0, high_ns=10**6, relative=0.01, within_noise=False, paired_rounds=2
    )
    assert regret_words(regret) == (
        "The recommendation was 1.00 ms (1.00%) behind a, over 2 rounds, too few for an interval."
    )


def test_steps_of_a_trace_are_laid_over_without_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imported: what is tested is said, and which parts are its own; no pass, no fail, no best."""
    folder = make_traces(tmp_path / "traces")
    record = folder / "measured" / "made-up"
    read = load_record(record)
    for path in record.glob("measurement-*.json"):
        path.unlink()
    for number, one in enumerate(read.candidates):
        few = replace(one, mode="trace", iterations=one.iterations[:1], traced=one.traced[:1])
        save_measurement(record, number, few)
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(folder)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    assert any("Bucket ends" in found.value for found in page.info)
    assert not any("median step error" in found.value for found in (*page.success, *page.warning))
    said = [found.value for found in page.caption]
    assert any("No pass or fail of a step that is predicted from the trace itself" in one for one in said)
    assert not any("Best measured" in found.value for found in page.markdown)
    (shown,) = (found.value for found in page.dataframe if "95 % interval" in found.value.columns)
    assert set(shown["95 % interval"]) == {"-"}


def test_copies_can_be_left_out_of_the_model(page: AppTest) -> None:
    page.run()
    before = [found.value for found in page.success]
    page.toggle(key="copies").set_value(False).run()
    assert is_clean(page)
    assert [found.value for found in (*page.success, *page.warning)] != before
    assert sum("Copies are switched off" in found.value for found in page.warning) == 2
    assert page.selectbox(key="overlay").value == "default"


def test_an_uploaded_workload_is_shown(page: AppTest, workload: Workload) -> None:
    page.query_params["start"] = "upload"
    page.run()
    content = documents.to_text(replace(workload, name="mine")).encode()
    page.file_uploader(key="up").set_value(("mine.json", content, "application/json")).run()
    assert is_clean(page)
    assert metric(page, "Step time")
    assert any("mine" in found.value for found in page.caption)


def test_a_bad_upload_is_one_line(page: AppTest) -> None:
    page.query_params["start"] = "upload"
    page.run()
    page.file_uploader(key="up").set_value(("<script>.json", b"[" * 100_000, "application/json")).run()
    assert not page.exception
    (error,) = page.error
    assert "\n" not in error.value
    assert "<script>" not in error.value
    assert page.number_input(key="cap").value == 25  # the knobs are still in their places


def test_with_nothing_at_hand_the_page_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(tmp_path)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    assert any("upload a workload" in found.value for found in page.info)


def test_a_broken_record_is_one_line(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "measured" / "broken"
    record.mkdir(parents=True)
    for name in ("workload.json", "hardware.json"):
        (record / name).write_bytes((traces / "measured" / "made-up" / name).read_bytes())
    (record / "measurement-00-x.json").write_text("{")
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(tmp_path)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert not page.exception
    assert len(page.error) == 1
    assert "Take it home" in subheaders(page)


def about() -> None:
    from app.views import about

    about.show()


def test_the_about_page_is_clean() -> None:
    page = AppTest.from_function(about, default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    assert page.title[0].value == "About"
