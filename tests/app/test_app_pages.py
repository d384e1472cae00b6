"""The pages, run without a browser."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app import widgets
from app.playing import Progress
from app.words import PICK_WORDS
from sim.errors import InputError
from sim.formats import documents
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.conftest import (
    OTHER,
    add_record,
    counted_calls,
    is_clean,
    main_page,
    make_traces,
    make_workload,
    metric,
    plain,
    visit,
)
from tests.effort import PATIENCE_S


def subheaders(page: AppTest) -> list[str]:
    return [found.value for found in page.subheader]


def test_number_and_slider_follow_each_other_and_the_headline_both(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    page.run()
    page.number_input(key="cap").set_value(4.0).run()
    assert is_clean(page)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=4)))
    assert page.selectbox(key="pick").value == "cap", "the number turns the assignment"
    assert metric(page, "Step time") == format_ms(report.step_ns)
    page.number_input(key="cap").set_value(11.7).run()
    assert page.select_slider(key="cap_slider").value == 12.5, "the slider follows the number"
    assert page.number_input(key="cap").value == 11.7
    page.selectbox(key="pick").set_value("default").run()
    page.select_slider(key="cap_slider").set_value(8).run()
    assert page.number_input(key="cap").value == 8, "the number follows the slider"
    assert page.selectbox(key="pick").value == "cap", "the slider turns the assignment"


@pytest.mark.usefixtures("fresh")
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


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"accumulation_steps": 4}, marks=pytest.mark.slow),
        {"accumulation_steps": 4, "no_sync": False},
        pytest.param({"comm_hook": "fp16_compress"}, marks=pytest.mark.slow),
    ],
)
def test_under_switches_like_is_compared_with_like(
    page: AppTest,
    traces: Path,
    workload: Workload,
    hardware: Hardware,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is possible, the curve and what is shown on it: all are played under the switches that are set."""

    def step(assignment: Assignment) -> int:
        return sim.summarize(sim.simulate(workload, hardware, assignment)).step_ns

    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    for name, value in options.items():
        page.query_params[name] = str(value).lower()
    page.query_params["pick"] = "bucket_cap_mb"
    page.run()
    assert is_clean(page)
    rows = sim.sweep(workload, hardware)
    caps = [row.bucket_cap_mb for row in rows if row.bucket_cap_mb is not None]
    possible = step(sim.assign(workload, bucket_cap_mb=drawn(page, "recommended cap")["x"][0], **options))
    assert possible <= 1.01 * min(step(sim.assign(workload, bucket_cap_mb=cap, **options)) for cap in caps)
    base = sim.assign(workload, **options)
    card = next(found for found in page.metric if found.label == "Gain against DDP's default")
    assert card.delta == f"possible: {format_ms(step(base) - possible)}"
    curve, (shown,) = drawn(page, "bucket_cap_mb"), drawn(page, "shown")["y"]
    for cap, ms in zip(curve["x"], curve["y"], strict=True):
        assert ms * 1e6 == pytest.approx(step(sim.assign(workload, bucket_cap_mb=cap, **options)))
    assert shown * 1e6 == pytest.approx(step(sim.assign(workload, bucket_cap_mb=25, **options)))
    assert f"Under {next(iter(options))}" in plain(page.markdown)
    assert any("not among those that were measured" in found.value for found in page.markdown)


def drawn(page: AppTest, name: str) -> dict[str, Any]:
    """The trace of that name on the sweep."""
    (found,) = (
        trace
        for chart in page.get("plotly_chart")
        for trace in json.loads(chart.proto.spec)["data"]
        if trace.get("name") == name and "customdata" in trace and "x" in trace
    )
    return dict(found)


def test_a_search_that_is_refused_leaves_the_rest_of_the_page(page: AppTest) -> None:
    """Each cap would move torch.compile's cuts, and with them the times that the search rests on."""
    page.query_params["optimize_ddp"] = "ddp_optimizer"
    page.run()
    assert not page.exception
    assert len(page.error) == 1
    assert metric(page, "Gain against DDP's default") == "0.00 ms"
    assert {"Is it true?", "Take it home"} <= set(subheaders(page))


@pytest.mark.usefixtures("fresh")
def test_a_cap_neither_searches_nor_sweeps_again(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_calls(monkeypatch, "tune", "sweep", "simulate")
    page.run()
    assert sorted(set(calls)) == ["simulate", "sweep", "tune"]
    calls.clear()
    page.number_input(key="cap").set_value(4.0).run()
    assert set(calls) <= {"simulate"}  # what no stop of the slider was played for
    calls.clear()
    page.select_slider(key="bw").set_value(2.0).run()
    assert calls.count("tune") == calls.count("sweep") == 1


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
    page = main_page(monkeypatch, tmp_path).run()
    assert is_clean(page)
    assert any("upload a workload" in found.value for found in page.info)


@pytest.fixture(scope="module")
def two_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that is shown at first, and another one."""
    traces = make_traces(tmp_path_factory.mktemp("two") / "traces")
    add_record(traces)
    documents.save(traces / "workloads" / "other.json", make_workload("other layers"))
    return traces


def test_a_record_of_the_address_is_shown_on_every_page_and_back_shows_what_it_says(
    two_records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came by address stays when the page changes."""
    quick = {"b_pick": "one per parameter", "c_pick": "single bucket"}  # candidates without a search
    page = main_page(monkeypatch, two_records, record=OTHER)
    page.run()
    assert "other layers" in plain(page.caption)
    visit(page, "compare", **quick)
    assert page.title[0].value == "Compare"
    assert "other layers" in plain(page.caption)
    visit(page, "validate")
    assert page.selectbox(key="run").value == f"measured/{OTHER}"
    visit(page, "")
    assert page.title[0].value == "Tune"
    assert page.selectbox(key="record").value == OTHER
    assert "other layers" in plain(page.caption)
    visit(page, "compare", **quick)
    visit(page, "", record=OTHER, pick="bucket_cap_mb", cap="4")
    assert "other layers" in plain(page.caption)
    assert page.number_input(key="cap").value == 4
