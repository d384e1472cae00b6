"""The keyboard alone: Tab reaches every knob, arrow keys and Enter turn them, and one sees where one is."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.browser.harness import PAGES, UNMEASURED, Site, go

pytestmark = pytest.mark.browser

_SEEN = 25  # levels of grey, of 255

_KNOBS = """() => [...document.querySelectorAll(
    '[data-testid=stSidebar] input:not([type=file]), [data-testid=stSidebar] [role=slider],' +
    '[data-testid=stSidebar] [role=combobox], [data-testid=stSidebar] summary,' +
    '[data-testid=stMain] input:not([type=file]), [data-testid=stMain] [role=combobox],' +
    '[data-testid=stMain] [role=tab][aria-selected=true], [data-testid=stMain] a[href],' +
    '[data-testid=stSidebar] button, [data-testid=stMain] button')]
  .filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
  .map(e => e.closest('[data-testid^=st][class*=st-key]') || e)
  .map((e, i) => { e.dataset.knob = e.dataset.knob || String(i); return e.dataset.knob; })"""
_AT_REST = "document.getAnimations().every(one => one.playState !== 'running')"  # transitions too
_HERE = "() => { const k = document.activeElement.closest('[data-knob]'); return k && k.dataset.knob; }"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name != "about"])
def test_tab_reaches_every_knob(name: str, site: Site, page: Any) -> None:
    go(page, f"{site.url}/{PAGES[name]}")
    knobs = set(page.evaluate(_KNOBS))
    assert knobs
    reached = set()
    for _ in range(8 * len(knobs) + 60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(_HERE))
        if knobs <= reached:
            break
    missing = knobs - reached
    told = [page.locator(f"[data-knob='{knob}']").first.inner_text()[:40] for knob in sorted(missing)]
    assert not missing, told


_WHERE = """() => {
  const main = document.querySelector('[data-testid=stMain]');
  return [document.activeElement.textContent, main.contains(document.activeElement)];
}"""


def test_the_first_stop_skips_menu_and_sidebar(site: Site, page: Any) -> None:
    """Tab, Enter, Tab: the keyboard is in the content, and the address is as it was."""
    go(page, f"{site.url}/{UNMEASURED}&cap=4&pick=bucket_cap_mb")
    page.keyboard.press("Tab")
    assert page.evaluate(_WHERE)[0] == "Skip to main content"
    assert page.get_by_text("Skip to").count() == 1
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    words, is_inside = page.evaluate(_WHERE)
    assert is_inside, words
    assert "Skip" not in words
    assert "cap=4" in page.url


@pytest.mark.slow
def test_one_sees_where_the_keyboard_is(site: Site, page: Any) -> None:
    """Focused, each looks different, by pixels that stand out from what was there."""
    go(page, site.url)
    for find in (
        page.get_by_test_id("stSidebarNavLink").nth(1),
        page.get_by_label("Cap, MiB", exact=True),
        page.get_by_role("button", name="Sweep CSV"),
        page.get_by_test_id("stSidebar").get_by_role("slider").first,
    ):
        find.scroll_into_view_if_needed()
        find.focus()
        page.keyboard.press("Shift+Tab")
        page.wait_for_function(_AT_REST)
        box = find.bounding_box()
        clip = {
            "x": max(box["x"] - 8, 0),
            "y": max(box["y"] - 8, 0),
            "width": box["width"] + 16,
            "height": box["height"] + 16,
        }
        before = grey(page.screenshot(clip=clip))
        page.keyboard.press("Tab")
        page.wait_for_function(_AT_REST)
        changed = np.abs(before - grey(page.screenshot(clip=clip))) > _SEEN
        assert changed.sum() > box["width"], "about a line below it"


def grey(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
