"""Every page opens without a complaint, in a narrow window as in a wide one, light and dark."""

from typing import Any

import pytest

from tests.app.browser.contrast import (
    PARTS,
    TEXT,
    contrast,
    luminance,
    of_css,
    of_hex,
    over,
    pale_texts,
    themes,
)
from tests.app.browser.harness import (
    NARROW,
    PAGES,
    UNMEASURED,
    WIDE,
    Site,
    Tab,
    go,
    is_drawn,
    sideways,
    still,
    visit,
)

pytestmark = pytest.mark.browser


def brightness(page: Any) -> float:
    return luminance(
        of_css(page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor"))[0]
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tune" else pytest.mark.slow) for name in PAGES]
)
def test_it_fits_and_can_be_read(name: str, site: Site, tab: Tab) -> None:
    with visit(tab, size=NARROW, scheme="dark") as page:
        go(page, f"{site.url}/{PAGES[name]}" + "?bw=10" * (name == "tune"))  # with long numbers on its cards
        assert brightness(page) < 0.05, "the page is not dark"
        assert sideways(page) == {}
        if name == "tune":
            no_card_is_cut_beside_the_sidebar_of_a_small_window(page)
        page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        still(page)
        assert sideways(page) == {}
        assert pale_texts(page, "dark") == {}
        page.emulate_media(color_scheme="light")
        is_drawn(page)
        still(page)
        assert brightness(page) > 0.8, "the page is not light"
        assert pale_texts(page, "light") == {}


_CUT = """() => [...document.querySelectorAll('[data-testid=stMetric] *')]
    .filter(one => one.children.length === 0 && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
    .map(one => one.textContent)"""


def no_card_is_cut_beside_the_sidebar_of_a_small_window(page: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 900})
    still(page)
    assert page.get_by_test_id("stMetric").count() == 4
    assert page.evaluate(_CUT) == []


_LANES = """() => {
  const layout = document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout;
  return [layout._size.h, layout.yaxis._categories.length];
}"""


@pytest.mark.slow
def test_a_long_legend_leaves_the_lanes_room_in_a_narrow_window(site: Site, tab: Tab) -> None:
    """Its entries, one a row, took half of the figure."""
    with visit(tab, size=NARROW) as page:
        go(page, f"{site.url}/{UNMEASURED}&cap=4&pick=bucket_cap_mb")
        height, lanes = page.evaluate(_LANES)
        assert height > 45 * lanes


def test_contrast_is_wcags() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)  # WebAIM's example
    assert over((0, 0, 0), 0.5, (255, 255, 255)) == (127.5, 127.5, 127.5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_controls_stand_out(scheme: str) -> None:
    theme = themes()[scheme]
    for ground in ("backgroundColor", "secondaryBackgroundColor"):
        assert contrast(of_hex(theme["textColor"]), of_hex(theme[ground])) >= TEXT
        assert contrast(of_hex(theme["primaryColor"]), of_hex(theme[ground])) >= PARTS
