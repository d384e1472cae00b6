"""The Validate page, run without a browser: one record by its URL, all of them, broken ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.sources import open_record
from app.views import validate
from app.views.validate import agreement_json
from sim.formats.record_files import load_record, start_record
from tests.app.conftest import is_clean, make_traces, open_page, said, upload
from tests.saving import measure_anew, save_measurement


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records in two folders, one that is damaged and one that has lost its hardware."""
    folder = make_traces(tmp_path_factory.mktemp("library") / "traces")
    made = folder / "measured" / "made-up"
    record = load_record(made)
    another = replace(record.workload, name="another")
    other = start_record(folder / "claims" / "other", another, record.hardware)
    for number, one in enumerate(record.candidates[:2]):
        save_measurement(other, number, replace(one, world_size=4))
    for name in ("damaged", "lost"):
        (folder / "claims" / name).mkdir()
    (folder / "claims" / "damaged" / "measurement-00-x.json").write_text("{")
    for name in ("workload.json", "measurement-00-default.json"):
        (folder / "claims" / "lost" / name).write_bytes((made / name).read_bytes())
    return folder


def rows(page: AppTest) -> dict[str, dict[str, Any]]:
    table = next(one.value for one in page.dataframe if "verdict" in one.value.columns)
    return {row["record"]: row for row in table.to_dict("records")}


def candidates(page: AppTest) -> Any:
    return next(one.value for one in page.dataframe if "its prediction, ms" in one.value.columns)


def test_the_page_is_clean_and_states_its_claim(monkeypatch: pytest.MonkeyPatch, traces: Path) -> None:
    page = open_page(monkeypatch, "validate", traces).run()
    assert is_clean(page)
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))
    assert "4 candidates in 1 record" in said(page)
    assert f"worst {agreement.worst_step_error:.1%}" in said(page)
    assert "Passed" in said(page)
    buttons = [button.label for button in page.get("download_button")]
    assert buttons == ["Agreement JSON", "Perfetto JSON"]


def test_broken_records_are_a_line_each(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    page = open_page(monkeypatch, "validate", library, run="claims/other").run()
    assert is_clean(page)
    assert [one.value for one in page.subheader] == ["claims/other", "All records"]
    assert rows(page)["measured/made-up"]["verdict"] == "passed"
    for name in ("claims/damaged", "claims/lost"):
        assert rows(page)[name]["verdict"] == "cannot be scored"
        assert name.split("/")[1] in rows(page)[name]["tests"]
        assert validate.score.known(library / name) == rows(page)[name]["tests"]  # and not tried again
        assert "\n" not in rows(page)[name]["tests"]
    page.session_state["folded_error"] = True
    page.run()
    assert is_clean(page)


def test_a_record_that_is_being_written_shows_what_is_there(
    monkeypatch: pytest.MonkeyPatch, traces: Path, tmp_path: Path
) -> None:
    record = load_record(traces / "measured" / "made-up")
    folder = start_record(tmp_path / "now", record.workload, record.hardware)
    first, second = record.candidates[:2]
    save_measurement(folder, 0, first)
    save_measurement(folder, 1, replace(second, iterations=(), traced=(), complete=False))
    page = open_page(monkeypatch, "validate", traces, "--watch", str(tmp_path)).run()
    assert "live: now" in rows(page)
    assert page.selectbox(key="run").value == "live: now"
    assert is_clean(page)
    save_measurement(folder, 1, second)
    page.run()
    assert list(candidates(page)["candidate"]) == [first.name, second.name]


def test_an_uploaded_record_is_scored_and_looked_at(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """And one line where files hold none."""
    made = library / "measured" / "made-up"
    page = open_page(monkeypatch, "validate", library).run()
    for name, content in (("workload.json", (made / "workload.json").read_bytes()), ("broken.json", b"{")):
        upload(page, (name, content))
        assert not page.exception, name
        told = [one.value for one in page.info if one.value.startswith("These files hold no measured record")]
        assert len(page.error) + len(told) == 1, name
        assert page.selectbox(key="run").value == "measured/made-up", name
    upload(page, *((file.name, file.read_bytes()) for file in sorted(made.iterdir())))
    assert is_clean(page)
    chosen = page.selectbox(key="run").value
    assert chosen.startswith("upload: ")
    assert chosen in rows(page)
    agreement = sim.agreement(load_record(made))
    assert list(candidates(page)["candidate"]) == [row.name for row in agreement.rows]
    assert candidates(page)["error, %"].tolist() == [row.step_error * 100 for row in agreement.rows]


def test_a_trace_is_left_out_of_the_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_traces(tmp_path / "traces")
    measure_anew(folder / "measured" / "made-up", lambda one: replace(one, mode="trace"))
    page = open_page(monkeypatch, "validate", folder).run()
    assert not page.exception
    assert not page.success
    assert "candidates in" not in said(page)
    assert validate.MODE_WORDS["trace"] in said(page)


def test_a_changed_record_is_scored_again(tmp_path: Path) -> None:
    made = make_traces(tmp_path / "traces") / "measured" / "made-up"
    validate.judge(made)
    assert validate.score.known(made) is not None
    save_measurement(made, 9, replace(load_record(made).candidates[0], name="again"))
    assert validate.score.known(made) is None


def test_what_is_taken_home_is_what_was_compared(traces: Path) -> None:
    opened = open_record(traces / "measured" / "made-up")
    _, agreement = validate.judge(opened)
    where_from = {"tool": "bucketsim", "workload_sha256": "aa", "hardware_sha256": "bb"}
    document = json.loads(agreement_json(opened, agreement, where_from))
    assert document["provenance"] == where_from
    assert [row["step_error"] for row in document["rows"]] == [row.step_error for row in agreement.rows]
    for row in agreement.rows:
        played = sim.summarize(validate.timeline_of(opened, row.name))
        assert played.step_ns == row.predicted_step_ns
