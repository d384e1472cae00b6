"""Every page opens without a complaint and can be read, narrow and wide, light and dark, by the keyboard too.

Tab reaches every knob, arrow keys and Enter turn them, and one sees where one is. How well a text stands out
from what is behind it is WCAG 2.1's 1.4.3.
"""

import io
import tomllib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app import launch
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

CONFIG = launch.MAIN.parent / ".streamlit" / "config.toml"
TEXT, PARTS = 4.5, 3.0  # of text; of what a control or a figure is told by
# The text streamlit draws paler than textColor (captions, ticks): as it computes to in a browser.
_PALE = """() => [...document.querySelectorAll(
    '[data-testid=stCaptionContainer] p, [data-testid=stWidgetLabel] p, [data-testid=stMarkdown] p,' +
    '[data-testid=stMetricLabel] p, [data-testid=stMetricDelta], .gtitle, .xtick text, .ytick text,' +
    '.xtitle, .ytitle, .legendtext, [data-testid=stSidebarNavLink] span')]
  .filter(e => (e.offsetParent || e.ownerSVGElement) && !e.closest('[data-testid=stIconMaterial]'))
  .map(e => {
    const style = getComputedStyle(e);
    let opacity = 1, behind = null, at = e;
    const layers = [];
    while (at) {
      const one = getComputedStyle(at);
      opacity *= Number(one.opacity);
      if (!at.ownerSVGElement && one.backgroundColor !== 'rgba(0, 0, 0, 0)') layers.push(one.backgroundColor);
      at = at.parentElement;
    }
    return {text: e.textContent.slice(0, 40), opacity, layers,
            colour: e.ownerSVGElement ? style.fill : style.color,
            alpha: e.ownerSVGElement ? Number(style.fillOpacity) : 1};
  })"""

Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, str]]:
    theme = tomllib.loads(CONFIG.read_text())["theme"]
    return {name: theme[name] for name in ("light", "dark")}


def of_hex(text: str) -> Colour:
    return (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


def luminance(colour: Colour) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def over(front: Colour, alpha: float, back: Colour) -> Colour:
    """A colour that lets some of what is behind it through."""
    mixed = [alpha * f + (1 - alpha) * b for f, b in zip(front, back, strict=True)]
    return (mixed[0], mixed[1], mixed[2])


def of_css(text: str) -> tuple[Colour, float]:
    assert text.startswith("rgb"), text
    parts = [float(part) for part in text.partition("(")[2].rstrip(")").split(",")]
    return (parts[0], parts[1], parts[2]), parts[3] if len(parts) == 4 else 1.0


def pale_texts(page: Any, scheme: str) -> dict[str, float]:
    """Texts on the page with too little contrast, and how much they have."""
    found = page.evaluate(_PALE)
    assert len(found) > 5, "texts to look at"
    pale = {}
    for one in found:
        ground: Colour = of_hex(themes()[scheme]["backgroundColor"])
        for layer in reversed(one["layers"]):
            colour, alpha = of_css(layer)
            ground = over(colour, alpha, ground)
        colour, alpha = of_css(one["colour"])
        seen = contrast(over(colour, alpha * one["alpha"] * one["opacity"], ground), ground)
        if seen < TEXT:
            pale[one["text"]] = round(seen, 2)
    return pale


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_controls_stand_out(scheme: str) -> None:
    theme = themes()[scheme]
    for ground in ("backgroundColor", "secondaryBackgroundColor"):
        assert contrast(of_hex(theme["textColor"]), of_hex(theme[ground])) >= TEXT
        assert contrast(of_hex(theme["primaryColor"]), of_hex(theme[ground])) >= PARTS


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
        corner = {name: max(box[name] - 8, 0) for name in ("x", "y")}
        clip = corner | {name: box[name] + 16 for name in ("width", "height")}
        before = grey(page.screenshot(clip=clip))
        page.keyboard.press("Tab")
        page.wait_for_function(_AT_REST)
        changed = np.abs(before - grey(page.screenshot(clip=clip))) > _SEEN
        assert changed.sum() > box["width"], "about a line below it"


def grey(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
