"""What a person waits for: from a key to the painted frame, and from an address to the first headline.

A slider is timed twice: until the browser has painted what it was given beforehand, and until the server's
own answer is painted in its place, which it is asked for once the hand rests. The number of the cap is drawn
by the server alone. Times are measured in the page, by its own clock, and handed to pytest-benchmark, whose
clock they move. The page beside them has one slider and one number: what streamlit and the browser take by
themselves. Each knob of each size is moved on one page: a slider first as a hand drags it, there and back,
then stop by stop, each once the page rests, until ``SHARE_S`` are over. What the page searches for on another
machine is waited for no longer than ``REST_MS``: at 2,000 tensors it takes longer than all moves.
"""

import time
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
from tests.bench.machines import machine, model

pytestmark = [pytest.mark.bench, pytest.mark.browser]

TRACES = Path(__file__).parents[2] / "traces"
MACHINE = "box-2x4gbit"
TOLD = {"drawn": "drawn in the browser", "served": "the server's answer"}
# Role, name, and key.
KNOBS = {
    "the cap's slider": ("slider", "Cap, MiB", "cap_slider"),
    "the bandwidth's slider": ("slider", "Bandwidth ×", "bw"),
    "the cap's number": ("spinbutton", "Cap, MiB", "cap"),
}
WORKLOADS = {77: "gpt-13.8M-cpu", 161: "resnet50-cpu", 2000: "made-up-2000"}
DRAGGED, MOVES, FEWEST, LOADS = 8, 9, 3, 2  # moves there, and as many back; moves that the server answers
SHARE_S = 4.0  # of the wall clock for the moves of one knob that the server answers
CALM_MS, REST_MS, GIVE_UP_MS = 300, 1000, 8000  # a step that is the same paints no other headline
BETWEEN_MS = 120  # from one stop to the next: the hand neither rests nor hurries
FIRST, MOVED = (
    "On the screen: from an address to the headline",
    "On the screen: from a key to the painted headline",
)
PLAIN = """import streamlit as st
st.title("Plain")
st.metric("Step time", f"{st.sidebar.slider('Cap', 0, 1000, 0)} ms")
"""
_HEADLINE = "document.querySelector('[data-testid=stMetricValue]')"
# Keeps the ms from each key to the frame in which another headline is painted: one that the browser drew by
# itself (drawn) or the server's (served), which may come of an earlier key where these follow each other.
_WATCH = """() => {
  const served = () => document.querySelector('[data-testid=stMetricValue]')?.textContent;
  const drawn = () => document.querySelector('.bucketsim-dragged [data-copied=stMetricValue]')?.textContent;
  const took = window.bucketsimTook = {drawn: [], served: []};
  let key = null;
  document.addEventListener('keydown', event => {
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
# The server's headline for the last key is painted, or will not be another one.
_ANSWERED = """([before, limit]) => {
  const {served, key} = window.bucketsimTook;
  return served.length > before || (key && performance.now() - key > limit);
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


class Clock:
    """Stands still until it is moved: pytest-benchmark's timer for times that were measured elsewhere."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


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
def site(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    harness.require()
    with harness.serve(tmp_path_factory.mktemp("served"), world) as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    harness.require()
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.py").write_text(PLAIN)
    with harness.serve(folder, script=folder / "plain.py") as made:
        yield made


def address(site: Site, size: int) -> str:
    return f"{site.url}/?start=bundled+files&workload={WORKLOADS[size]}&hardware={MACHINE}&pick=cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Seconds of each move of one slider, from the input event to the painted frame."""

    drawn: list[float]
    served: list[float]


@pytest.fixture(scope="module")
def moves(site: Site, chromium: Any) -> Callable[[str, int], Moves]:
    """By knob and size, what its moves take: measured when it is first asked for."""
    known: dict[tuple[str, int], Moves] = {}

    def measure(knob: str, size: int) -> Moves:
        role, name, key = KNOBS[knob]
        with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
            harness.go(page, f"{address(site, size)}&cap=4")
            page.get_by_role(role, name=name).first.focus()
            if role == "spinbutton":
                return Moves(drawn=[], served=served(page, "ArrowUp"))
            page.wait_for_function(_AT_HAND, arg=key)
            harness.is_settled(page)
            ahead = drag(page)
            return Moves(drawn=ahead, served=served(page))

    def find(knob: str, size: int) -> Moves:
        if (knob, size) not in known:
            known[knob, size] = measure(knob, size)
        return known[knob, size]

    return find


def drag(page: Any) -> list[float]:
    """Seconds from keys that follow each other to what the browser painted of itself."""
    page.evaluate(_WATCH)
    for key in ["ArrowRight"] * DRAGGED + ["ArrowLeft"] * DRAGGED:
        page.keyboard.press(key)
        page.wait_for_timeout(BETWEEN_MS)
    harness.is_settled(page)
    return list(page.evaluate("window.bucketsimTook.drawn"))


def served(page: Any, key: str = "ArrowRight") -> list[float]:
    """Seconds from keys, each once the page rests, to what the server answered.

    ``MOVES`` of them, or as many as there are after ``SHARE_S``, but ``FEWEST``. A step that is the same is
    not counted.
    """
    page.evaluate(_WATCH)
    began = time.monotonic()
    took: list[float] = []
    for _ in range(MOVES):
        page.keyboard.press(key)
        page.wait_for_function(_ANSWERED, arg=[len(took), GIVE_UP_MS])
        took = list(page.evaluate("window.bucketsimTook.served"))
        if len(took) >= FEWEST and time.monotonic() - began > SHARE_S:
            break
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
    rest = iter(seconds)
    benchmark.pedantic(lambda: CLOCK.move(next(rest)), rounds=len(seconds), iterations=1)
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
        page.get_by_role("slider", name="Cap").focus()
        return served(page)


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
    knob: str, size: int, how: str, moves: Callable[[str, int], Moves], empty: list[float], benchmark: Any
) -> None:
    seconds: list[float] = getattr(moves(knob, size), how)
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
@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.benchmark(timer=CLOCK)
def test_first_paint(
    is_cold: bool,
    size: int,
    world: Path,
    site: Site,
    empty_loads: list[float],
    tmp_path: Path,
    chromium: Any,
    benchmark: Any,
) -> None:
    """Cold: of a server that has just started, and so has computed nothing yet."""
    if is_cold:
        with harness.serve(tmp_path, world) as fresh:
            seconds = [first_paint(chromium, address(fresh, size))]
    else:
        seconds = [first_paint(chromium, address(site, size)) for _ in range(LOADS)]
    row = "the Tune page" if is_cold else "the Tune page, opened before"
    give(benchmark, seconds, FIRST, row, size, empty_loads)


def first_paint(chromium: Any, url: str) -> float:
    """Seconds from the start of the navigation until the headline's number is there; nothing is cached."""
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        page.goto(url, wait_until="commit")
        page.wait_for_function(f"{_HEADLINE} && {_HEADLINE}.innerText.includes('ms')", polling="raf")
        return float(page.evaluate("performance.now()")) / 1000
