"""When Python looks for garbage among all objects."""

import gc

import pytest
from streamlit.testing.v1 import AppTest

from app import garbage
from app.launch import MAIN
from tests.effort import PATIENCE_S


def test_it_does_once_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: looks.append(1))
    for young, due in ((10, 0), (11, 1)):
        monkeypatch.setattr(gc, "get_count", lambda young=young: (0, 0, young))
        garbage.collect()
        assert len(looks) == due


def test_a_page_asks_once_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(garbage, "collect", lambda: asked.append(1))
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    assert not page.exception
    assert asked == [1]
