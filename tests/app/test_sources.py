"""Start from an upload, from bundled files or on a ready-made machine: what the pages are given."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.sources import Given
from app.views import validate
from app.words import is_computed
from sim.formats.documents import to_text
from sim.importer.imported import Imported
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.app.conftest import upload
from tests.effort import PATIENCE_S


def page_of_sources() -> None:
    """A page that draws what every page draws, and keeps what it was given."""
    import sys

    import streamlit as st

    from app import launch, sources
    from app.widgets import told

    found = sources.find(launch.settings(sys.argv[1:]))
    st.session_state["given"] = None
    if st.checkbox("a page that asks for no files", key="elsewhere"):
        return
    with st.sidebar:
        asked = sources.ask(found)
    with told():
        st.session_state["given"] = sources.read(found, asked)
        if st.session_state["given"] is None:
            sources.nothing_to_show(found)
    st.slider("another knob", 0, 10, key="knob")


@pytest.fixture
def page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    return AppTest.from_function(page_of_sources, default_timeout=PATIENCE_S)


def uploaded(page: AppTest, *files: tuple[str, bytes]) -> AppTest:
    page.query_params["start"] = "upload"
    return upload(page.run(), *files)


def given(page: AppTest) -> Given:
    assert not page.exception
    assert not page.error, page.error[0].value
    found = page.session_state["given"]
    assert found is not None
    return found


def text(noun: Any) -> bytes:
    return to_text(noun).encode()


def test_what_is_not_uploaded_is_chosen_from_the_bundled_files(page: AppTest, workload: Workload) -> None:
    mine = replace(workload, name="mine")
    best = sim.assign(workload, bucket_cap_mb=3)
    found = given(uploaded(page, ("mine.json", text(mine)), ("best.json", text(best))))
    assert (found.inputs.workload, found.assignment) == (mine, best)
    assert found.inputs.hardware.name == "two hosts"
    assert [box.label for box in page.selectbox] == ["Start from", "Hardware"]
    assert page.selectbox(key="hardware").options[0] == "two-hosts"


def test_of_several_hardware_one_is_chosen(page: AppTest, hardware: Hardware) -> None:
    files = [(f"{ranks}.json", text(replace(hardware, world_size=ranks))) for ranks in (4, 2)]
    page = uploaded(page, *files)
    assert page.selectbox(key="up_hardware").options[:2] == [
        "uploaded: two hosts, 2 ranks",
        "uploaded: two hosts, 4 ranks",
    ]
    assert given(page).inputs.hardware.world_size == 2
    page.selectbox(key="up_hardware").set_value("uploaded: two hosts, 4 ranks").run()
    assert given(page).inputs.hardware.world_size == 4
    page.selectbox(key="up_hardware").set_value("two-hosts").run()
    assert given(page).inputs.hardware == hardware


def test_a_record_that_was_uploaded_is_found_among_the_bundled_by_its_digests(
    page: AppTest, traces: Path
) -> None:
    files = sorted((traces / "measured" / "made-up").iterdir())
    found = given(uploaded(page, *((path.name, path.read_bytes()) for path in files)))
    assert found.record == "made-up"
    assert found.measured is not None
    expected = sim.agreement(sim.load_record(traces / "measured" / "made-up"))
    assert validate.judge(found.measured)[1].rows == expected.rows
    page.selectbox(key="up_hardware").set_value("computed: DGX H100").run()
    assert given(page).measured is None  # it was not measured there
    assert is_computed(given(page).inputs.hardware)


def test_a_cluster_is_computed(page: AppTest) -> None:
    cluster = sim.cluster("dgx_h100", hosts=2)
    found = given(uploaded(page, ("c.json", text(cluster))))
    assert is_computed(found.inputs.hardware)
    assert found.inputs.hardware == sim.cluster_hardware(cluster)
    assert page.selectbox(key="up_hardware").value == f"uploaded: {cluster.name}, computed"


def test_a_url_restores_a_ready_made_machine(page: AppTest, workload: Workload) -> None:
    address = {"start": "bundled files", "workload": "twenty", "hardware": "computed: DGX H100"}
    for name, value in {**address, "dgx_h100_hosts": "2"}.items():
        page.query_params[name] = value
    page.run()
    found = given(page)
    assert is_computed(found.inputs.hardware)
    assert found.inputs.workload == workload
    assert found.inputs.hardware == sim.cluster_hardware(sim.cluster("dgx_h100", hosts=2))
    assert any(one.value.startswith("Computed from data sheets") for one in page.caption)
    page.number_input(key="dgx_h100_hosts").set_value(4).run()
    assert given(page).inputs.hardware.world_size == 32


@pytest.mark.usefixtures("fresh")
def test_only_the_same_content_is_shared_between_sessions(
    page: AppTest, traces: Path, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    real = sim.read_uploads

    def read(*args: Any) -> Imported:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(sim, "read_uploads", read, raising=False)
    others = [AppTest.from_function(page_of_sources, default_timeout=PATIENCE_S) for _ in range(2)]
    mine = text(replace(workload, name="mine"))
    assert given(uploaded(page, ("w.json", mine))).inputs.workload.name == "mine"
    assert given(uploaded(others[0], ("w.json", mine))).inputs.workload.name == "mine"
    assert len(calls) == 1
    theirs = text(replace(workload, name="them"))
    assert len(theirs) == len(mine)
    assert given(uploaded(others[1], ("w.json", theirs))).inputs.workload.name == "them"
    assert len(calls) == 2
    assert given(page.run()).inputs.workload.name == "mine"


BAD = {
    "text": b"none of these",
    "empty": b"",
    "a pickle": b"\x80\x04K\x01.",
    "a zip": b"PK\x03\x04" + b"\0" * 50,
    "a page": b"<html><script>alert(1)</script>",
    "deep": b"[" * 100_000,
    "broken text": b'{"schema_version": 1, "kind": "workload", "name": "\xff"}',
    "damaged gzip": gzip.compress(b"x" * 1000)[:20],
    "another kind": json.dumps({"schema_version": 1, "kind": "<b>x</b>"}).encode(),
}


def test_a_bad_upload_is_one_line_and_all_widgets_stay(page: AppTest) -> None:
    page.query_params["start"] = "upload"
    page.run()
    for what, content in BAD.items():
        upload(page, ("<script>*evil*\n[a](b).json", content))
        assert not page.exception, what
        (error,) = page.error
        assert "\n" not in error.value, what
        assert "<script>" not in error.value, what
        assert error.value.replace("\\", "").startswith("<script>*evil* [a](b).json: "), what
        assert [box.label for box in page.selectbox] == ["Start from", "Workload", "Hardware"], what
        assert page.number_input(key="up_world_size").value is None, what
        assert page.session_state["given"] is None, what


def test_an_upload_stays_when_the_page_changes_until_it_is_forgotten(
    page: AppTest, workload: Workload
) -> None:
    mine = replace(workload, name="mine")
    page = uploaded(page, ("mine.json", text(mine)))
    assert given(page).inputs.workload == mine
    assert not [one for one in page.button if one.key == "up_forget"]
    for is_elsewhere in (True, False):
        page.checkbox(key="elsewhere").set_value(is_elsewhere).run()
    page.selectbox(key="start").set_value("upload").run()
    assert given(page).inputs.workload == mine
    assert any("Still in use" in one.value and "mine" in one.value for one in page.caption)
    page.button(key="up_forget").click().run()
    assert page.session_state["given"] is None
    assert any("An address does not hold files" in one.value for one in page.info)


def test_without_a_file_nothing_else_is_shown_in_its_place(page: AppTest) -> None:
    page.query_params["start"] = "upload"
    page.run()
    assert not page.exception
    assert page.session_state["given"] is None
    assert [box.label for box in page.selectbox] == ["Start from"]
