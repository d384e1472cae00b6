"""The browser's Back leads to what was looked at before, press by press."""

import re
from typing import Any

import pytest

from tests.app.browser.harness import Site, go, headline, is_drawn, rerun
from tests.app.conftest import OTHER

pytestmark = pytest.mark.browser


def test_back_goes_over_one_entry_a_press(site: Site, page: Any) -> None:
    """Neither the menu nor a button that sets two knobs leaves an address in which a part is missing."""
    from playwright.sync_api import expect

    go(page, f"{site.url}/?record={OTHER}")
    before = headline(page)
    with rerun(page):
        page.get_by_role("button", name="Apply the recommended").click()
    expect(page).to_have_url(re.compile("cap="))
    page.go_back()
    is_drawn(page)
    assert headline(page) == before
    expect(page).to_have_url(f"{site.url}/?record={OTHER}")

    for name in ("About", "Tune"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        is_drawn(page)
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("About")
