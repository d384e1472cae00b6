"""A slider that moves: drawn before the server has answered, and the same as what it answers."""

import io
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
from PIL import Image

from tests.app.browser.harness import UNMEASURED, Site, Tab, go, headline, is_settled, line, still, visit
from tests.effort import IS_WHOLE

pytestmark = pytest.mark.browser

CAP, BANDWIDTH = "Cap, MiB (slider)", "Bandwidth ×"
_DRAWN = "[data-drawn]"  # what the browser shows over what the server said
_TEXTS = """() => [...document.querySelectorAll('.st-key-cards .stMetric')].map(card => [
  card.querySelectorAll('p')[0].innerText, card.querySelectorAll('p')[1].parentElement.dataset.drawn])"""
# All stops of a slider are there, for what is shown.
_AT_HAND = """slider =>
  [...document.querySelectorAll('.st-key-follow *')].some(each => each.listener?.isWhole(slider))"""


def at_hand(page: Any, slider: str) -> None:
    page.wait_for_function(_AT_HAND, arg=slider)
    is_settled(page)


def dragged(page: Any) -> tuple[dict[str, str], str]:
    """Cards and sentence that the browser drew by itself."""
    page.locator(_DRAWN).first.wait_for(state="attached")
    return dict(page.evaluate(_TEXTS)), page.locator(".st-key-sentence p").get_attribute("data-drawn")


def served(page: Any) -> tuple[dict[str, str], str]:
    """The same as the server says them, once it has caught up."""
    page.wait_for_function(f"!document.querySelector('{_DRAWN}')")
    is_settled(page)
    return headline(page), page.locator(".st-key-sentence strong").inner_text()


def nothing_is_drawn(page: Any) -> None:
    """Not now, nor once the page has drawn what came of the last key."""
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.locator(_DRAWN).count() == 0


def test_what_is_dragged_is_what_the_server_says_and_nothing_else_is_drawn(page: Any, site: Site) -> None:
    go(page, f"{site.url}/{UNMEASURED}")
    at_hand(page, "cap_slider")
    a_mouse_draws_each_stop_that_it_passes(page)
    keys_draw_where_they_lead(page, CAP, "cap_slider", "ArrowRight", (3, 5))
    if IS_WHOLE:  # else only held: test_the_server_hears_of_it_once_the_hand_rests
        keys_draw_where_they_lead(page, BANDWIDTH, "bw", "ArrowRight", (1, 3))
    a_knob_on_its_way_is_not_drawn_over(page)
    a_touch_elsewhere_takes_it_away(page)


def a_mouse_draws_each_stop_that_it_passes(page: Any) -> None:
    track = page.locator(".st-key-cap_slider [role=group]").bounding_box()
    handle = page.locator(".st-key-cap_slider input").locator("xpath=..").bounding_box()
    across, down = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(across, down)
    page.mouse.down()
    with line(page, "held"):
        seen = []
        for part in (1, 2, 4, 6):
            page.mouse.move(across - part * track["width"] / 16, down)
            seen.append(dragged(page)[0]["Step time"])
        page.mouse.up()
        last = dragged(page)
    assert served(page) == last
    assert len(set(seen)) > 2


def keys_draw_where_they_lead(page: Any, knob: str, slider: str, key: str, turns: tuple[int, ...]) -> None:
    handle = page.get_by_role("slider", name=knob)
    handle.focus()  # the hand comes near: the server is asked for what this one leads to
    at_hand(page, slider)
    before, seen = served(page), set()
    for turn in turns:
        with line(page, "held"):
            for _ in range(turn):
                page.keyboard.press(key)
            cards, sentence = dragged(page)
        assert served(page) == (cards, sentence)
        assert handle.get_attribute("aria-valuetext") == parse_qs(urlparse(page.url).query)[
            "cap" if knob == CAP else "bw"
        ][0].removesuffix(".0")
        seen.add(cards["Step time"])
    assert len(seen | {before[0]["Step time"]}) > 2


@pytest.mark.slow  # numbers that are drawn under the hand are those above
@pytest.mark.parametrize(("scheme", "key"), [("dark", "ArrowLeft"), ("light", "ArrowRight")])
def test_the_picture_is_the_figure_s(scheme: str, key: str, tab: Tab, site: Site) -> None:
    with visit(tab, scheme=scheme) as page:
        go(page, f"{site.url}/{UNMEASURED}")
        still(page)
        at_hand(page, "cap_slider")
        before = picture(page)
        page.get_by_role("slider", name=CAP).focus()
        with line(page, "held"):
            for _ in range(8):
                page.keyboard.press(key)
            dragged(page)
            ahead = picture(page)
        served(page)
        after = picture(page)
        # But for lines between gradients of one bucket, and the edges of letters.
        assert different(ahead, after) < 0.08
        assert different(before, after) > 0.2


def different(one: Any, other: Any) -> float:
    """The share of pixels that anybody would tell apart."""
    return float(np.mean(np.abs(one - other).max(axis=2) > 60))


def picture(page: Any) -> Any:
    """The lanes, as the visitor sees them."""
    lanes = page.locator(".st-key-timeline .nsewdrag").first.bounding_box()
    return np.asarray(Image.open(io.BytesIO(page.screenshot(clip=lanes))).convert("RGB"), dtype=int)


def a_knob_on_its_way_is_not_drawn_over(page: Any) -> None:
    """What was played for other buckets or another machine is not shown for this one."""
    page.get_by_role("slider", name=BANDWIDTH).focus()
    at_hand(page, "bw")
    with line(page, "held"):
        page.keyboard.press("ArrowRight")
        dragged(page)
        page.get_by_role("slider", name=CAP).focus()
        page.keyboard.press("ArrowLeft")
        nothing_is_drawn(page)
    served(page)
    at_hand(page, "cap_slider")
    with line(page, "held"):
        page.get_by_role("spinbutton", name="First bucket, MiB").fill("2")
        page.get_by_role("slider", name=CAP).focus()
        page.keyboard.press("ArrowLeft")
        nothing_is_drawn(page)
    served(page)
    at_hand(page, "cap_slider")
    page.get_by_role("slider", name=CAP).focus()
    with line(page, "held"):
        page.keyboard.press("ArrowLeft")
        last = dragged(page)
    assert served(page) == last


def a_touch_elsewhere_takes_it_away(page: Any) -> None:
    at_hand(page, "cap_slider")
    page.get_by_role("slider", name=CAP).focus()
    with line(page, "held"):
        page.keyboard.press("End")
        dragged(page)
        page.get_by_role("heading", name="Tune").click()
        nothing_is_drawn(page)
        assert page.locator("canvas.bucketsim-drawn").count() == 0
    is_settled(page)
    assert "cap=512" in page.url
