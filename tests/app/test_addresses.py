"""What came by address stays when the page changes, and what in it is not legal is told."""

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


def alerts(page: AppTest) -> str:
    return " ".join(one.value for one in page.error).replace("\\", "")


def test_a_record_of_the_address_is_shown_on_every_page_and_back_shows_what_it_says(page: AppTest) -> None:
    page.query_params["record"] = OTHER
    page.run()
    assert "other layers" in captions(page)
    visit(page, "compare", **QUICK)
    assert page.title[0].value == "Compare"
    assert "other layers" in captions(page)
    assert page.query_params["record"] in (OTHER, [OTHER])  # the address that one would share says so
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


NOT_LEGAL = {
    "record=othr": "give one of other, made-up. Shown instead: made-up.",
    "pick=zero9": "give one of DDP's default, ",
    "cap=oops": "give a number 0 to 65536. Shown instead: 25",
    "bw=7": "give one of ",
    "path=maybe": "give true or false.",
}


def test_what_is_not_legal_is_told_with_what_is(page: AppTest) -> None:
    """Each of an address, and a name that means nothing."""
    for asked in (*NOT_LEGAL, f"recrd={OTHER}", "bandwidth=2", "bucket_cap_mb=4"):
        key, _, value = asked.partition("=")
        page.query_params[key] = value
    page.run()
    assert not page.exception
    for asked, told in NOT_LEGAL.items():
        assert f"The address asks for {asked}, which is not legal: {told}" in alerts(page)
    assert "recrd=other, but no knob that is shown has that name" in alerts(page)
    assert "Did you mean record?" in alerts(page)
    assert (
        "bandwidth=2, but no knob that is shown has that name: it changes nothing. Did you mean bw?"
        in alerts(page)
    )
    assert (
        "bucket_cap_mb=4, but no knob that is shown has that name: it changes nothing. Did you mean cap?"
        in (alerts(page))
    )
    page.toggle(key="path").set_value(False).run()
    for asked in NOT_LEGAL:
        assert (asked == "path=maybe") != (asked in alerts(page)), "it is told until its knob is turned"
