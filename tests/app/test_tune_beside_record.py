"""The Tune page beside a measured record: what was measured of what is shown, run without a browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app import playing
from app.playing import Choice, Inputs
from app.views.tune import measured_words
from app.views.validate import row_of
from app.words import CARRIED
from sim.formats.record_files import load_record
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.conftest import is_clean, main_page, make_traces, metric, plain, visit
from tests.saving import measure_anew


@pytest.fixture
def page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return main_page(monkeypatch, traces)


def test_what_real_ranks_took_is_told(traces: Path, inputs: Inputs) -> None:
    default, four, two = (
        playing.play(inputs, choice)
        for choice in (Choice(pick="default"), *(Choice(pick="cap", cap_mb=cap) for cap in (4.0, 2.0)))
    )
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))
    measured = {row.name: row.measured_step_ns for row in agreement.rows}
    told = measured_words(agreement, four, default)
    assert told is not None
    assert told.startswith(f"Measured on real ranks: {format_ms(measured['cap 4'])} a step")
    assert f"{format_ms(measured['default'] - measured['cap 4'])} less than with DDP's default" in told
    assert measured_words(agreement, two, default) is None, "this cap was not measured"
    assert measured_words(None, four, default) is None


def test_what_is_held_against_the_measurement_is_what_is_shown(page: AppTest) -> None:
    """As many ranks as were measured, and their dtype, are the measured world; scaled, nothing is."""
    page.query_params["ranks"] = "2"
    page.query_params["precision"] = "float32"
    page.run()
    assert is_clean(page)
    assert any("Passed" in found.value for found in page.success)
    assert "Measured on real ranks: 97.26 ms a step" in plain(page.markdown)
    assert not [found for found in page.metric if "on the measured machine" in found.delta]
    page.selectbox(key="pick").set_value("single").run()
    assert "Measured on real ranks: 111.37 ms a step" in plain(page.markdown)
    page.number_input(key="ranks").set_value(3).run()
    assert is_clean(page)
    assert not page.success
    assert any("no longer applies" in found.value for found in page.info)
    assert [found for found in page.metric if "on the measured machine" in found.delta]
    assert [found for found in page.markdown if "orange-badge" in found.value]


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
    measure_anew(home, lambda one: replace(one, environment={"slow": {"1": 1.5}}))
    record = load_record(home)
    assert record.slow
    row = sim.agreement(record).rows[0]
    page = main_page(monkeypatch, folder).run()
    assert is_clean(page)
    assert metric(page, "Step time") == format_ms(row.predicted_step_ns)
    assert CARRIED in [found.value for found in page.caption]
    visit(page, "compare", b_pick="single bucket", c_pick="single bucket")
    assert CARRIED in [found.value for found in page.caption], "Compare starts from the same"
    visit(page, "")
    page.selectbox(key="start").set_value("bundled").run()
    page.selectbox(key="workload").set_value("twenty").run()
    assert is_clean(page)
    assert metric(page, "Step time") != format_ms(row.predicted_step_ns)
    assert any("made in another box" in found.value for found in page.info)


def test_a_measured_candidate_is_one_with_the_same_buckets_switches_and_machine(
    workload: Workload, hardware: Hardware, traces: Path
) -> None:
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))
    inputs = Inputs(workload=workload, hardware=hardware)

    def found(inputs: Inputs = inputs, **options: Any) -> str | None:
        given = Choice(pick="given", given=sim.assign(workload, **options))
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
