"""The Validate page, run without a browser: filters, one record by its URL, records that are broken."""

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import sim
from app.sources import open_record
from app.views import validate
from app.views.validate import agreement_json, order_sentence, rows_csv, wrong_pairs
from sim.formats.record_files import load_record, start_record
from sim.nouns.measurement import MeasuredIteration, Record
from sim.truth import scoring
from sim.truth.scoring import Agreement
from tests.app.conftest import MS, make_traces
from tests.effort import PATIENCE_S, tries
from tests.saving import measure_anew, save_measurement


def validate_page() -> None:
    import sys

    from app import launch, library
    from app.views import validate as page

    given = launch.settings(sys.argv[1:])
    page.show(library.find(given), given.watch)


def open_page(monkeypatch: pytest.MonkeyPatch, traces: Path, *more: str, **query: str) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces), *more])
    page = AppTest.from_function(validate_page, default_timeout=PATIENCE_S)
    for name, value in query.items():
        page.query_params[name] = value
    return page.run()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records in two folders, one that is damaged and one that has lost its hardware."""
    folder = make_traces(tmp_path_factory.mktemp("library") / "traces")
    made = folder / "measured" / "made-up"
    record = load_record(made)
    other = start_record(
        folder / "claims" / "other", replace(record.workload, name="another"), record.hardware
    )
    for number, one in enumerate(record.candidates[:2]):
        save_measurement(other, number, replace(one, world_size=4))
    damaged = folder / "claims" / "damaged"
    damaged.mkdir()
    (damaged / "measurement-00-x.json").write_text("{")
    lost = folder / "claims" / "lost"
    lost.mkdir()
    (lost / "workload.json").write_bytes((made / "workload.json").read_bytes())
    (lost / "measurement-00-default.json").write_bytes((made / "measurement-00-default.json").read_bytes())
    return folder


def shown(page: AppTest) -> list[str]:
    return list(next(one.value for one in page.dataframe if "verdict" in one.value.columns)["record"])


def test_the_page_is_clean_and_states_its_claim(monkeypatch: pytest.MonkeyPatch, traces: Path) -> None:
    page = open_page(monkeypatch, traces)
    assert not page.exception
    assert not page.error
    agreement = sim.agreement(load_record(traces / "measured" / "made-up"))
    claim = next(one.value for one in page.markdown if "candidates in" in one.value)
    assert "4 candidates in 1 record" in claim
    assert f"worst {agreement.worst_step_error:.1%}" in claim
    assert any("Passed" in one.value for one in page.success)
    assert [button.label for button in page.get("download_button")] == [
        "Agreement JSON",
        "Rows CSV",
        "Perfetto JSON",
    ]


def test_broken_records_are_a_line_each(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    page = open_page(monkeypatch, library)
    assert not page.exception
    assert not page.error
    table = next(one.value for one in page.dataframe if "verdict" in one.value.columns)
    rows = {row["record"]: row for row in table.to_dict("records")}
    assert rows["measured/made-up"]["verdict"] == "passed"
    for name in ("claims/damaged", "claims/lost"):
        assert rows[name]["verdict"] == "cannot be read"
        assert name.split("/")[1] in rows[name]["tests"]
        assert "\n" not in rows[name]["tests"]


def test_a_url_chooses_record_and_look(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    page = open_page(monkeypatch, library, run="claims/other", look="Order")
    assert not page.exception
    assert page.selectbox(key="run").value == "claims/other"
    assert [one.value for one in page.subheader] == ["claims/other"]
    assert any("Fastest at the top" in one.value for one in page.caption)


def test_every_look_is_clean_and_copies_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, traces: Path
) -> None:
    first, *others = validate.LOOKS
    page = open_page(monkeypatch, traces, look=validate.LOOKS[first])
    for look in (first, *others):
        if look != first:
            page.segmented_control(key="look").set_value(look).run()
        assert not page.exception, look
        assert not page.error, look
        assert page.segmented_control(key="look").value == look
    page.toggle(key="copies").set_value(False).run()
    assert not page.exception
    assert any(one.value == validate.COPIES_NOTE for one in page.warning), "an ablation"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"has_ranks": "4"}, ["claims/other"]),
        ({"has_load": "twenty layers"}, ["measured/made-up"]),
        ({"has_passed": "passed", "text": "made"}, ["measured/made-up"]),
    ],
)
def test_filters_of_an_address_leave_their_rows(
    monkeypatch: pytest.MonkeyPatch, library: Path, query: dict[str, str], names: list[str]
) -> None:
    page = open_page(monkeypatch, library, **query)
    assert not page.exception
    assert shown(page) == names


def test_a_record_that_is_being_written_shows_what_is_there(
    monkeypatch: pytest.MonkeyPatch, traces: Path, tmp_path: Path
) -> None:
    record = load_record(traces / "measured" / "made-up")
    folder = start_record(tmp_path / "now", record.workload, record.hardware)
    first, second = record.candidates[:2]
    save_measurement(folder, 0, first)
    save_measurement(folder, 1, replace(second, iterations=(), traced=(), complete=False))
    page = open_page(monkeypatch, traces, "--watch", str(tmp_path))
    assert shown(page)[0] == "live: now"
    assert page.selectbox(key="run").value == "live: now"
    assert not page.exception
    assert not page.error
    save_measurement(folder, 1, second)
    page.run()
    table = next(one.value for one in page.dataframe if "its prediction, ms" in one.value.columns)
    assert list(table["candidate"]) == [first.name, second.name]


def test_an_uploaded_record_is_scored_and_looked_at(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    page = open_page(monkeypatch, library)
    files = sorted((library / "measured" / "made-up").iterdir())
    page.file_uploader(key="up_record").set_value(
        [(file.name, file.read_bytes(), "application/json") for file in files]
    ).run()
    assert not page.exception
    assert not page.error
    chosen = page.selectbox(key="run").value
    assert chosen.startswith("upload: ")
    assert chosen in shown(page)
    agreement = sim.agreement(load_record(library / "measured" / "made-up"))
    table = next(one.value for one in page.dataframe if "its prediction, ms" in one.value.columns)
    assert list(table["candidate"]) == [row.name for row in agreement.rows]
    assert table["error, %"].tolist() == [row.step_error * 100 for row in agreement.rows]


def test_an_upload_without_a_record_is_one_line(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    page = open_page(monkeypatch, library)
    workload = (library / "measured" / "made-up" / "workload.json").read_bytes()
    for name, content in (("workload.json", workload), ("broken.json", b"{")):
        page.file_uploader(key="up_record").set_value([(name, content, "application/json")]).run()
        assert not page.exception, name
        assert (
            len(page.error)
            + sum(one.value.startswith("These files hold no measured record") for one in page.info)
            == 1
        ), name
        assert page.selectbox(key="run").value == "measured/made-up", name


def test_a_trace_is_left_out_of_the_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_traces(tmp_path / "traces")
    measure_anew(folder / "measured" / "made-up", lambda one: replace(one, mode="trace"))
    page = open_page(monkeypatch, folder)
    assert not page.exception
    assert not page.success
    assert not any("candidates in" in one.value for one in page.markdown)
    assert any(validate.MODE_WORDS["trace"] == one.value for one in page.caption)


def test_a_changed_record_is_scored_again(tmp_path: Path) -> None:
    made = make_traces(tmp_path / "traces") / "measured" / "made-up"
    validate.score(made)
    assert validate.score.known(made) is not None
    save_measurement(made, 9, replace(load_record(made).candidates[0], name="again"))
    assert validate.score.known(made) is None


def test_exports_hold_the_figures_and_where_they_come_from(traces: Path) -> None:
    opened = open_record(traces / "measured" / "made-up")
    agreement = validate.judge(opened)
    where_from = {"tool": "bucketsim", "workload_sha256": "aa", "hardware_sha256": "bb"}
    document = json.loads(agreement_json(agreement, where_from))
    assert document["provenance"] == where_from
    assert [row["step_error"] for row in document["rows"]] == [row.step_error for row in agreement.rows]
    rows = list(csv.DictReader(io.StringIO(rows_csv(agreement, where_from))))
    assert [int(row["predicted_step_ns"]) for row in rows] == [
        row.predicted_step_ns for row in agreement.rows
    ]
    assert {row["workload_sha256"] for row in rows} == {"aa"}


@pytest.mark.parametrize("copies", [True, False])
def test_the_timeline_taken_home_is_the_step_that_was_compared(traces: Path, copies: bool) -> None:
    opened = open_record(traces / "measured" / "made-up")
    for row in validate.judge(opened, copies).rows:
        played = sim.summarize(validate.timeline_of(opened, row.name, copies))
        assert played.step_ns == row.predicted_step_ns


@pytest.fixture(scope="module")
def record(traces: Path) -> Record:
    return sim.load_record(traces / "measured" / "made-up")


@pytest.fixture(scope="module")
def agreement(record: Record) -> Agreement:
    return sim.agreement(record)


def scored(record: Record, agreement: Agreement, steps_ms: list[list[int]]) -> Agreement:
    """The record with other measured steps, scored against the same predictions."""
    rows = {row.name: row for row in agreement.rows}
    end = {"backward_end_ns": MS, "sync_end_ns": MS}
    measurements = [
        replace(one, iterations=tuple(MeasuredIteration(step_ns=step * MS, **end) for step in steps))
        for one, steps in zip(record.candidates, steps_ms, strict=True)
    ]
    return scoring.agree(
        replace(record, measurements=tuple(measurements)), {name: row.predicted for name, row in rows.items()}
    )


STEPS = st.lists(st.lists(st.integers(60, 400), min_size=3, max_size=8), min_size=4, max_size=4)


@settings(max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_order_counts_as_the_verdict_does(
    record: Record, agreement: Agreement, steps: list[list[int]]
) -> None:
    found = scored(record, agreement, steps)
    times = {row.name: row for row in found.rows}
    wrong = wrong_pairs(found)
    assert len(wrong) == found.order_pairs - found.order_right
    for fast, slow in wrong:
        assert times[fast].measured_step_ns <= times[slow].measured_step_ns
        assert times[fast].predicted_step_ns >= times[slow].predicted_step_ns


def test_wrong_pairs_are_named(agreement: Agreement) -> None:
    slowest = max(agreement.rows, key=lambda row: row.measured_step_ns)
    upside_down = replace(
        agreement,
        rows=tuple(replace(row, predicted_step_ns=1) if row is slowest else row for row in agreement.rows),
    )
    assert {slow for _, slow in wrong_pairs(upside_down)} == {slowest.name}
    assert f"was faster than {slowest.name}" in order_sentence(upside_down)
    assert not wrong_pairs(agreement)
