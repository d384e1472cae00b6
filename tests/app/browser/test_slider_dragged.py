"""A slider that moves: drawn before the server has answered, and the same as what it answers."""

import io
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
from PIL import Image

from tests.app.browser.harness import (
    NARROW,
    UNMEASURED,
    Site,
    Tab,
    go,
    headline,
    is_settled,
    line,
    rerun,
    still,
    visit,
)
from tests.effort import IS_WHOLE

pytestmark = pytest.mark.browser

CAP, BANDWIDTH = "Cap, MiB (slider)", "Bandwidth ×"
_DRAWN = ".bucketsim-dragged"
_TEXTS = """() => [...document.querySelectorAll('.bucketsim-dragged [data-copied=stMetric]')].map(card => [
  card.querySelector('[data-copied=stMetricLabel]').innerText,
  card.querySelector('[data-copied=stMetricValue]').innerText])"""
# All stops of a slider are there, for what is shown.
_AT_HAND = """slider =>
  [...document.querySelectorAll('.st-key-follow *')].some(each => each.follower?.isWhole(slider))"""


def at_hand(page: Any, slider: str) -> None:
    page.wait_for_function(_AT_HAND, arg=slider)
    is_settled(page)


def dragged(page: Any) -> tuple[dict[str, str], str]:
    """Cards and sentence that the browser drew by itself."""
    page.locator(_DRAWN).first.wait_for(state="attached")
    return dict(page.evaluate(_TEXTS)), page.locator(f"{_DRAWN} strong").inner_text()


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
            assert page.get_by_test_id("stMetricValue").count() == 4  # the copy answers to no test's name
        assert served(page) == (cards, sentence)
        assert handle.get_attribute("aria-valuetext") == parse_qs(urlparse(page.url).query)[
            "cap" if knob == CAP else "bw"
        ][0].removesuffix(".0")
        seen.add(cards["Step time"])
    assert len(seen | {before[0]["Step time"]}) > 2


def test_the_server_hears_of_it_once_the_hand_rests(page: Any, site: Site) -> None:
    """What it draws would take the browser's time from what is drawn while the hand moves."""
    go(page, f"{site.url}/{UNMEASURED}&cap=4")
    knobs = {CAP: ("cap_slider", "cap=0.5"), BANDWIDTH: ("bw", "bw=0.33")}
    for knob, (slider, told) in [*knobs.items()][0 if IS_WHOLE else 1 :]:
        page.get_by_role("slider", name=knob).focus()
        at_hand(page, slider)
        before, runs = served(page), page.evaluate("window.bucketsimRuns")
        for _ in range(5):
            page.keyboard.down("ArrowLeft")  # held: it repeats, and is not let go
            last = dragged(page)
            page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")
            assert page.evaluate("window.bucketsimRests !== null"), "no run was asked for"
        with rerun(page):
            page.keyboard.up("ArrowLeft")
        assert served(page) == last != before
        assert page.evaluate("window.bucketsimRuns") > runs
        assert told in page.url


def test_the_server_hears_at_once_where_the_mouse_lets_go(page: Any, site: Site) -> None:
    go(page, f"{site.url}/{UNMEASURED}")
    at_hand(page, "cap_slider")
    page.get_by_role("spinbutton", name="First bucket, MiB").focus()  # which loses it as the slider is taken
    track = page.locator(".st-key-cap_slider [role=group]").bounding_box()
    handle = page.locator(".st-key-cap_slider input").locator("xpath=..").bounding_box()
    across, down = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(across, down)
    page.mouse.down()
    page.mouse.move(across - track["width"] / 4, down)
    last = dragged(page)
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")
    assert page.evaluate("window.bucketsimRests !== null"), "a run was asked for before"
    # From now on nothing that waits comes about.
    page.evaluate("""() => {
      const wait = window.setTimeout;
      window.setTimeout = (done, ms, ...more) => ms > 250 ? 0 : wait(done, ms, ...more);
    }""")
    with rerun(page):
        page.mouse.up()
    assert served(page) == last


def test_a_first_what_if_leaves_all_below_it_in_its_place(page: Any, site: Site) -> None:
    """Else the browser takes it for something new, which takes it three times as long to draw."""
    go(page, f"{site.url}/{UNMEASURED}")
    page.evaluate("document.querySelector('.st-key-path').isTheSame = true")
    page.get_by_role("slider", name=BANDWIDTH).focus()
    at_hand(page, "bw")
    with rerun(page):
        page.keyboard.press("ArrowRight")
    page.get_by_text("bandwidth × 1.1").wait_for()
    assert page.evaluate("document.querySelector('.st-key-path').isTheSame")


@pytest.mark.parametrize(
    ("scheme", "key"),
    [("dark", "ArrowLeft"), pytest.param("light", "ArrowRight", marks=pytest.mark.slow)],
)
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


@pytest.mark.slow  # that there is nothing to draw: test_drag
def test_where_the_answer_has_to_be_searched_the_server_gives_it(page: Any, site: Site) -> None:
    go(page, f"{site.url}/?pick=recommended")
    page.get_by_role("slider", name=BANDWIDTH).focus()
    is_settled(page)
    before = headline(page)["Step time"]
    page.keyboard.press("ArrowLeft")
    nothing_is_drawn(page)
    page.wait_for_function(
        """before => {
            const card = document.querySelector('[data-testid=stMetricValue]');
            return card && card.innerText !== before;
        }""",
        arg=before,
    )


@pytest.mark.slow
def test_on_a_phone_it_fits(tab: Tab, site: Site) -> None:
    with visit(tab, size=NARROW) as page:
        go(page, site.url)
        at_hand(page, "cap_slider")
        page.evaluate("document.querySelector('.st-key-cap_slider input').focus()")
        with line(page, "held"):
            page.keyboard.press("ArrowLeft")
            last = dragged(page)
            assert page.evaluate(
                "document.querySelector('[data-testid=stMain]').scrollWidth"
            ) <= page.evaluate("document.querySelector('[data-testid=stMain]').clientWidth")
        assert served(page) == last
