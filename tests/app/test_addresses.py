"""What came by address stays when the page changes, and what in it is not legal is told."""

import sys
from pathlib import Path

import pytest
from streamlit.runtime.state.query_params import QueryParams
from streamlit.testing.v1 import AppTest

import sim
from app.launch import MAIN
from sim.formats import documents
from tests.app.conftest import OTHER, add_record, make_traces, make_workload, metric
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


def test_a_number_out_of_range_is_not_legal(page: AppTest) -> None:
    page.query_params["cap"] = "-4"
    page.run()
    assert not page.exception
    assert "The address asks for cap=-4, which is not legal: give a number 0 to 65536." in alerts(page)


def test_what_is_legal_is_not_told(page: AppTest) -> None:
    legal = {"record": OTHER, "pick": "zero1", "bw": "2", "first": "", "overlap_comm": "true"}
    for key, value in legal.items():
        page.query_params[key] = value
    page.run()
    assert not alerts(page), "the bare name of an assignment is legal"
    visit(page, "", **(legal | {"pick": "DeepSpeed ZeRO-1"}))
    assert not alerts(page), "and its name on the page"
    visit(page, "compare", b_pick="recommended bucket_cap_mb", c_pick="single bucket")
    assert not alerts(page), "and its name of former days"
    assert page.selectbox(key="b_pick").value == "best-cap"
    visit(page, "compare", **QUICK)
    assert not alerts(page)


def test_what_a_page_did_not_come_to_draw_is_not_doubted(page: AppTest) -> None:
    """It ends at caps that cannot be read, above the choice of a torch version."""
    page.query_params["pick"] = "cap-list"
    page.query_params["caps"] = "abc"
    page.query_params["torch"] = "2.4"
    page.run()
    assert "caps" in alerts(page) or "bucket_cap_mb_list" in alerts(page)
    assert "torch" not in alerts(page)


def test_the_file_of_the_cluster_page_stays_while_one_looks_elsewhere(page: AppTest) -> None:
    page.run()
    asked = {"machine": "upload", "most_hosts": "2"}
    visit(page, "cluster", **asked)
    content = sim.to_text(sim.cluster("pcie_box", gpus=2)).encode()
    page.file_uploader(key="up_c").set_value(("mine.json", content, "application/json")).run()
    assert metric(page, "Ranks") == "2"
    visit(page, "about")
    visit(page, "cluster", **asked)
    assert metric(page, "Ranks") == "2"
    assert "Still in use: mine.json" in captions(page).replace("\\", "")


def test_an_uploaded_record_stays_while_one_looks_elsewhere(page: AppTest, two_records: Path) -> None:
    page.run()
    visit(page, "validate")
    files = sorted((two_records / "measured" / "made-up").iterdir())
    page.file_uploader(key="up_record").set_value(
        [(file.name, file.read_bytes(), "application/json") for file in files]
    ).run()
    chosen = page.selectbox(key="run").value
    assert chosen.startswith("upload: ")
    visit(page, "about")
    visit(page, "validate")
    assert chosen in page.selectbox(key="run").options
    page.button(key="up_record_forget").click().run()
    assert chosen not in page.selectbox(key="run").options


def test_an_address_that_the_browser_has_is_not_sent_again(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would set back a slider that a hand moves meanwhile."""
    sent: list[str] = []
    send = QueryParams._send_query_param_msg

    def noted(self: QueryParams) -> None:
        send(self)
        sent.append(str(self._query_params))

    monkeypatch.setattr(QueryParams, "_send_query_param_msg", noted)
    page.run()
    sent.clear()
    page.run()
    assert sent == []
    page.number_input(key="cap").set_value(4.0).run()
    assert page.query_params["cap"] in ("4.0", ["4.0"])
