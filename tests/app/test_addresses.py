"""What came by address stays when the page changes."""

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.launch import MAIN
from sim.formats import documents
from tests.app.conftest import OTHER, add_record, make_traces, make_workload
from tests.effort import PATIENCE_S

QUICK = {"b_pick": "one per parameter", "c_pick": "single bucket"}  # of Compare: candidates without a search


@pytest.fixture(scope="module")
def two_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that is shown at first, and another one."""
    traces = make_traces(tmp_path_factory.mktemp("two") / "traces")
    add_record(traces)
    documents.save(traces / "workloads" / "other.json", make_workload("other layers"))
    return traces


@pytest.fixture
def page(two_records: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(two_records)])
    return AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)


def visit(page: AppTest, path: str, **address: str) -> AppTest:
    """Take the menu to the page at ``path``; its link has no knob in it but those of ``address``."""
    page._page_hash = next(
        key for key, info in page._registered_pages.items() if info.get("url_pathname") == path
    )
    page.query_params.clear()
    for key, value in address.items():
        page.query_params[key] = value
    return page.run()


def captions(page: AppTest) -> str:
    return " ".join(one.value for one in page.caption)


def test_a_record_of_the_address_is_shown_on_every_page_and_back_shows_what_it_says(page: AppTest) -> None:
    page.query_params["record"] = OTHER
    page.run()
    assert "other layers" in captions(page)
    visit(page, "compare", **QUICK)
    assert page.title[0].value == "Compare"
    assert "other layers" in captions(page)
    visit(page, "validate")
    assert page.selectbox(key="run").value == f"measured/{OTHER}"
    visit(page, "")
    assert page.title[0].value == "Tune"
    assert page.selectbox(key="record").value == OTHER
    assert "other layers" in captions(page)
    visit(page, "compare", **QUICK)
    visit(page, "", record=OTHER, pick="bucket_cap_mb", cap="4")
    assert "other layers" in captions(page)
    assert page.number_input(key="cap").value == 4
