"""The Manual page, run without a browser."""

import pytest
from streamlit.testing.v1 import AppTest

from app.views.manual import PAGES
from tests.effort import PATIENCE_S


def manual() -> None:
    from app.views import manual

    manual.show()


def opened(page: str | None) -> AppTest:
    shown = AppTest.from_function(manual, default_timeout=PATIENCE_S)
    if page is not None:
        shown.query_params["page"] = page
    shown.run()
    assert not shown.exception
    assert not shown.error
    return shown


def test_it_begins_at_the_start() -> None:
    assert opened(None).title[0].value == "Start"


@pytest.mark.parametrize("page", PAGES)
def test_the_address_names_the_page(page: str) -> None:
    shown = opened(page)
    assert [title.value for title in shown.title] == [PAGES[page]]
    assert shown.radio(key="page").value == page
    assert not any(".md)" in found.value or "@@" in found.value for found in shown.markdown)


def test_pictures_are_shown_as_such() -> None:
    assert len(opened("dashboard").get("image")) == 4
