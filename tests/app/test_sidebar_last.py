"""What the browser is told of the sidebar comes after the headline, and comes in any case."""

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.launch import MAIN
from app.views import tune
from tests.effort import PATIENCE_S


@pytest.fixture
def page(unmeasured: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(unmeasured)])
    return AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)


def test_an_error_before_the_headline_leaves_every_knob(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no headline")

    monkeypatch.setattr(tune, "headline", refuse)
    page.run()
    assert page.exception[0].message == "no headline"
    assert page.sidebar.number_input(key="cap").value == 25
    assert page.sidebar.button(key="reset").disabled
