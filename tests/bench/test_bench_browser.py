"""What a person waits for: from the hand to the painted frame, and from an address to the first headline.

A slider is timed twice: from a key until the browser has painted what it was given beforehand, and from when
the mouse lets go of it until the server's own answer is painted in its place. The number of the cap is drawn
by the server alone. Times are measured in the page, by its own clock, and handed to pytest-benchmark, whose
clock they move. The page beside them has one slider and one number, under ``streamlit run``: what streamlit
and the browser take by themselves. All knobs of a size are moved on the page that was opened first: a slider
by keys, there and back, then stop by stop by the mouse, each once the page rests, or after ``REST_MS``: what
the page searches for on another machine takes longer at 2,000 tensors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest

import sim
from tests.app.browser import harness
from tests.app.browser.harness import Site
from tests.bench.clock import CLOCK, hand_over
from tests.bench.machines import machine, model

pytestmark = [pytest.mark.bench, pytest.mark.browser]

TRACES = Path(__file__).parents[2] / "traces"
MACHINE = "box-2x4gbit"
TOLD = {"drawn": "drawn in the browser", "served": "the server's answer"}
# Role, name, and key. The bandwidth comes last: what the page searches for then takes time from what follows.
KNOBS = {
    "the cap's number": ("spinbutton", "Cap, MiB", "cap"),
    "the cap's slider": ("slider", "Cap, MiB", "cap_slider"),
    "the bandwidth's slider": ("slider", "Bandwidth ×", "bw"),
}
WORKLOADS = {77: "gpt-13.8M-cpu", 161: "resnet50-cpu", 2000: "made-up-2000"}
DRAGGED, MOVES, LOADS = 7, 12, 2  # moves there, and as many back; moves that the server answers
LEAST_PX = 8  # that the mouse moves
CALM_MS, REST_MS = 200, 600
BETWEEN_MS = 120  # from one stop to the next: the hand neither rests nor hurries
FIRST, MOVED = (
    "On the screen: from an address to the headline",
    "On the screen: from the hand to the painted headline",
)
PLAIN = """import streamlit as st
st.title("Plain")
st.metric("Step time", f"{st.sidebar.slider('Cap', 0, 1000, 0)} ms")
"""
_HEADLINE = "document.querySelector('[data-testid=stMetricValue]')"
# Keeps the seconds from each key, or from when the mouse lets go, to the frame in which another headline is
# painted: one that the browser drew by itself (drawn) or the server's (served), which may come of an earlier
# key where these follow each other.
_WATCH = """() => {
  const served = () => document.querySelector('[data-testid=stMetricValue]')?.textContent;
  const drawn = () => document.querySelector('.bucketsim-dragged [data-copied=stMetricValue]')?.textContent;
  const took = window.bucketsimTook = {drawn: [], served: []};
  let key = null;
  for (const kind of ['keydown', 'pointerup']) document.addEventListener(kind, event => {
    const before = {drawn: drawn() ?? served(), served: served()};
    key = {began: event.timeStamp, before, drawn: false, served: false};
    Object.assign(took, {key: event.timeStamp, since: null});
  }, {capture: true});
  const look = () => {
    for (const [name, text] of [['drawn', drawn()], ['served', served()]]) {
      if (!key || key[name] || !text || text === key.before[name]) continue;
      const {began} = key;
      key[name] = true;
      requestAnimationFrame(at => took[name].push((at - began) / 1000));
    }
    requestAnimationFrame(look);
  };
  look();
}"""
_ANEW = "Object.assign(window.bucketsimTook, {drawn: [], served: []})"
# The server's headline for the last key is painted, or the page rests with the same as before.
_ANSWERED = """([before, calm]) => {
  const {served, key} = window.bucketsimTook, rests = window.bucketsimRests;
  const isOver = rests?.since > key && !document.querySelector('[data-moves]');
  return served.length > before || (isOver && performance.now() - rests.since > calm);
}"""
# Nothing runs any more, or it has run for long.
_RESTS = """([calm, most]) => {
  const now = performance.now(), since = window.bucketsimTook.since ??= now, rests = window.bucketsimRests;
  const isAsked = rests === null || document.querySelector('[data-moves]');
  return now - since > most || (!isAsked && now - rests.since > calm);
}"""
# All that the slider leads to is there.
_AT_HAND = """slider =>
  [...document.querySelectorAll('.st-key-follow *')].some(each => each.follower?.isWhole(slider))"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundled workloads and one of 2,000 tensors, on a measured machine."""
    home = tmp_path_factory.mktemp("traces")
    for kind in ("workloads", "hardware"):
        (home / kind).mkdir()
    for name in (WORKLOADS[77], WORKLOADS[161]):
        copy(TRACES / "workloads" / f"{name}.json", home / "workloads")
    copy(TRACES / "hardware" / f"{MACHINE}.json", home / "hardware")
    (home / "workloads" / f"{WORKLOADS[2000]}.json").write_text(sim.to_text(model(2000, "two channels")))
    assert machine("two channels") == sim.load_hardware(home / "hardware" / f"{MACHINE}.json")
    return home


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    harness.require()
    with harness.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    harness.require()
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.py").write_text(PLAIN)
    with harness.serve(folder, script=folder / "plain.py") as made:
        yield made


def address(site: Site, size: int) -> str:
    return f"{site.url}/?start=bundled+files&workload={WORKLOADS[size]}&hardware={MACHINE}&pick=cap&cap=4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Seconds of each move of one knob, from the hand to the painted frame."""

    drawn: list[float]
    served: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Seconds that the page of one size took: opened first of all, then moved, then opened again."""

    first: list[float]
    moves: dict[str, Moves]
    again: list[float]


@pytest.fixture(scope="module")
def seen(world: Path, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Seen]:
    """By size, what its page takes: measured when it is first asked for."""
    known: dict[int, Seen] = {}

    def find(size: int) -> Seen:
        if size not in known:
            with harness.serve(tmp_path_factory.mktemp("served"), world) as site:
                known[size] = look(chromium, address(site, size))
        return known[size]

    return find


def look(chromium: Any, url: str) -> Seen:
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        first = [arrive(page, url)]
        harness.is_drawn(page)
        page.evaluate(_WATCH)
        moves = {knob: move(page, knob) for knob in KNOBS}
    return Seen(first=first, moves=moves, again=[first_paint(chromium, url) for _ in range(LOADS)])


def move(page: Any, knob: str) -> Moves:
    role, name, key = KNOBS[knob]
    found = page.get_by_role(role, name=name).first
    found.focus()
    if role == "spinbutton":
        return Moves(drawn=[], served=served(page, lambda: page.keyboard.press("ArrowUp")))
    page.wait_for_function(_AT_HAND, arg=key)
    harness.is_settled(page)
    way = [1]
    return Moves(drawn=drag(page), served=served(page, lambda: slide(page, found, way)))


def slide(page: Any, slider: Any, way: list[int]) -> None:
    """Drag a slider one stop on by the mouse, and let it go; at its end ``way``, 1 or -1, turns round."""
    at, least, stops = slider.evaluate("input => [input.value, input.min, input.max].map(Number)")
    if at == (stops if way[0] == 1 else least):
        way[0] *= -1
    track = slider.locator("xpath=ancestor::*[@role='group'][1]").bounding_box()
    handle = slider.locator("xpath=..").bounding_box()
    across, down = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(across, down)
    page.mouse.down()
    page.mouse.move(across + way[0] * max(track["width"] / (stops - least), LEAST_PX), down)
    page.mouse.up()


def drag(page: Any) -> list[float]:
    """Seconds from keys that follow each other to what the browser painted of itself."""
    page.evaluate(_ANEW)
    for key in ["ArrowRight"] * DRAGGED + ["ArrowLeft"] * DRAGGED:
        page.keyboard.press(key)
        page.wait_for_timeout(BETWEEN_MS)
    harness.is_settled(page)
    return list(page.evaluate("window.bucketsimTook.drawn"))


def served(page: Any, turn: Callable[[], None]) -> list[float]:
    """Seconds from each ``turn`` of a knob, once the page rests, to what the server answered.

    ``MOVES`` of them, or what twice as many turns give: a step that is the same is not counted.
    """
    page.evaluate(_ANEW)
    took: list[float] = []
    for _ in range(2 * MOVES):
        if len(took) == MOVES:
            break
        turn()
        page.wait_for_function(_ANSWERED, arg=[len(took), CALM_MS])
        took = list(page.evaluate("window.bucketsimTook.served"))
        page.wait_for_function(_RESTS, arg=[CALM_MS, REST_MS])
    return took


def give(
    benchmark: Any,
    seconds: list[float],
    table: str,
    row: str,
    size: int,
    beside: list[float] | None = None,
) -> None:
    """Times to pytest-benchmark, with what the tables need; ``beside`` None: these are the empty page's."""
    hand_over(benchmark, seconds)
    p50, p95 = (1000 * value for value in np.percentile(seconds, [50, 95]))
    times = "" if beside is None else f", {p95 / (1000 * np.percentile(beside, 95)):.2g}x the empty page's"
    benchmark.group = table
    benchmark.extra_info |= {
        "table": table,
        "row": row,
        "size": size,
        "is_reference": beside is None,
        "units": None,
        "unit": "",
        "worth": f"p50 {p50:.0f} ms, p95 {p95:.0f} ms{times}, of {len(seconds)}",
    }


@pytest.fixture(scope="module")
def empty(plain: Site, chromium: Any) -> list[float]:
    """Seconds of the slider of a page that has nothing else."""
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        harness.go(page, plain.url)
        page.evaluate(_WATCH)
        slider = page.get_by_role("slider", name="Cap")
        way = [1]
        return served(page, lambda: slide(page, slider, way))


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.benchmark(timer=CLOCK)
def test_an_empty_page_s_slider(size: int, empty: list[float], benchmark: Any) -> None:
    give(benchmark, empty, MOVED, "an empty page's slider", size)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize(
    ("knob", "how"),
    [
        (knob, how)
        for knob, (role, *_) in KNOBS.items()
        for how in TOLD
        if role == "slider" or how == "served"
    ],
)
@pytest.mark.benchmark(timer=CLOCK)
def test_a_knob(
    knob: str, size: int, how: str, seen: Callable[[int], Seen], empty: list[float], benchmark: Any
) -> None:
    seconds: list[float] = getattr(seen(size).moves[knob], how)
    give(benchmark, seconds, MOVED, f"{knob}, {TOLD[how]}", size, empty)


@pytest.fixture(scope="module")
def empty_loads(plain: Site, chromium: Any) -> list[float]:
    """Seconds of the first paint of the page that has nothing else."""
    return [first_paint(chromium, plain.url) for _ in range(LOADS)]


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.benchmark(timer=CLOCK)
def test_first_paint_of_an_empty_page(size: int, empty_loads: list[float], benchmark: Any) -> None:
    give(benchmark, empty_loads, FIRST, "an empty page", size)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize(
    ("row", "which"), [("the Tune page, opened before", "again"), ("the Tune page", "first")]
)
@pytest.mark.benchmark(timer=CLOCK)
def test_first_paint(
    row: str, which: str, size: int, seen: Callable[[int], Seen], empty_loads: list[float], benchmark: Any
) -> None:
    """First: of a server that has just started, and so has computed nothing yet."""
    give(benchmark, getattr(seen(size), which), FIRST, row, size, empty_loads)


def first_paint(chromium: Any, url: str) -> float:
    """Seconds from the start of the navigation until the headline's number is there; nothing is cached."""
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        return arrive(page, url)


def arrive(page: Any, url: str) -> float:
    page.goto(url, wait_until="commit")
    page.wait_for_function(f"{_HEADLINE} && {_HEADLINE}.innerText.includes('ms')", polling="raf")
    return float(page.evaluate("performance.now()")) / 1000
