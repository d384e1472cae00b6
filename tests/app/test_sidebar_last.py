"""What the browser is told of the sidebar comes after the headline, and comes in any case."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.RootContainer_pb2 import RootContainer
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.testing.v1 import AppTest

from app.launch import MAIN
from app.views import headline, sidebar_last
from tests.effort import PATIENCE_S


@pytest.fixture
def page(unmeasured: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(unmeasured)])
    return AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Where each message belongs and what it draws, in the order in which they are sent."""
    found: list[str] = []

    def note(message: ForwardMsg) -> None:
        if message.HasField("delta"):
            place = RootContainer.Name(message.metadata.delta_path[0]).lower()
            found.append(f"{place} {message.delta.new_element.WhichOneof('type') or 'block'}")

    ForwardMsgQueue.on_before_enqueue_msg(note)
    yield found
    ForwardMsgQueue.on_before_enqueue_msg(None)


def test_the_headline_is_sent_before_the_sidebar(page: AppTest, sent: list[str]) -> None:
    page.run()
    first = next(at for at, one in enumerate(sent) if one.startswith("sidebar"))
    assert sent[:first].count("main metric") >= 4
    assert "main plotly_chart" not in sent[:first]
    assert page.sidebar.number_input(key="cap").value == 25


def test_the_sidebar_does_not_wait_for_a_search_before_the_headline(page: AppTest, sent: list[str]) -> None:
    page.query_params["pick"] = "recommended"
    page.run()
    assert sent.index("sidebar number_input") < sent.index("main metric")


def test_an_error_before_the_headline_leaves_every_knob(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no headline")

    monkeypatch.setattr(headline, "show", refuse)
    page.run()
    assert page.exception[0].message == "no headline"
    assert page.sidebar.number_input(key="cap").value == 25
    assert page.sidebar.button(key="reset").disabled


def test_outside_of_a_run_nothing_is_kept() -> None:
    with sidebar_last.kept():
        sidebar_last.send()
