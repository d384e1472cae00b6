"""What a person waits for: from a key to the painted frame, and from an address to the first headline.

A move is timed twice: until the browser has painted what it was given beforehand, and until the server's own
answer is painted in its place. Times are measured in the page, by its own clock, and handed to
pytest-benchmark, whose clock they move. The page beside them has one slider and one number: what streamlit
and the browser take by themselves. Each test stops after ``SHARE_S`` with as many moves as it has made.
"""

import time
from collections.abc import Iterator
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
WORKLOADS = {77: "gpt-13.8M-cpu", 161: "resnet50-cpu", 2000: "made-up-2000"}
MOVES, LOADS, COLD = 24, 3, 2
SHARE_S = 10.0  # of the wall clock for the moves of one row: with all others it ends in five minutes
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
# What the slider leads to is there.
_AT_HAND = "slider => document.querySelector('.stBidiComponent [data-testid]')?.follower?.isKnown(slider)"


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


def drawn(page: Any, name: str, count: int) -> list[float]:
    """Seconds from keys that follow each other to what the browser painted of itself."""
    page.get_by_role("slider", name=name).first.focus()
    page.evaluate(_WATCH)
    for _ in range(count):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(BETWEEN_MS)
    harness.is_settled(page)
    return list(page.evaluate("window.bucketsimTook.drawn"))


def served(page: Any, name: str, count: int, until: float) -> list[float]:
    """Seconds from keys, each once the page rests, to what the server answered.

    ``count`` of them, or as many as there are until ``time.monotonic()`` is ``until``, but one at least. A
    step that is the same is not counted.
    """
    page.get_by_role("slider", name=name).first.focus()
    page.evaluate(_WATCH)
    for _ in range(count):
        with harness.rerun(page):
            page.keyboard.press("ArrowRight")
        if time.monotonic() > until:
            break
    return list(page.evaluate("window.bucketsimTook.served"))


def give(
    benchmark: Any, seconds: list[float], table: str, row: str, size: int, *, is_reference: bool
) -> None:
    """Times to pytest-benchmark, with what the catalogue's tables need."""
    rest = iter(seconds)
    benchmark.pedantic(lambda: CLOCK.move(next(rest)), rounds=len(seconds), iterations=1)
    p50, p95 = (1000 * value for value in np.percentile(seconds, [50, 95]))
    benchmark.group = table
    benchmark.extra_info |= {
        "table": table,
        "row": row,
        "size": size,
        "is_reference": is_reference,
        "units": None,
        "unit": "",
        "worth": f"p50 {p50:.0f} ms, p95 {p95:.0f} ms of {len(seconds)}",
    }


def start(site: Site, knob: str, size: int, turn: int) -> tuple[str, str, int, str]:
    """An address at which a slider stands at its first place; its name, its moves, its key."""
    if knob == "cap":
        return f"{address(site, size)}&cap=0.25&bwd={harness.FACTORS[turn]}", "Cap, MiB", 23, "cap_slider"
    return f"{address(site, size)}&bw=0.1&cap={2 + turn}", "Bandwidth ×", 17, "bw"


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize("knob", ["cap", "bandwidth"])
@pytest.mark.benchmark(timer=CLOCK)
def test_a_slider_drawn_in_the_browser(
    knob: str, size: int, site: Site, chromium: Any, benchmark: Any
) -> None:
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        url, name, count, key = start(site, knob, size, 0)
        harness.go(page, url)
        page.get_by_role("slider", name=name).first.focus()
        page.wait_for_function(_AT_HAND, arg=key)
        harness.is_settled(page)
        seconds = drawn(page, name, count)
    give(benchmark, seconds, MOVED, f"the {knob}'s slider, drawn in the browser", size, is_reference=False)


@pytest.fixture(scope="module")
def empty(plain: Site, chromium: Any) -> list[float]:
    """Seconds of the slider of a page that has nothing else."""
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        harness.go(page, plain.url)
        return served(page, "Cap", MOVES, time.monotonic() + SHARE_S)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.benchmark(timer=CLOCK)
def test_an_empty_page_s_slider(size: int, empty: list[float], benchmark: Any) -> None:
    give(benchmark, empty, MOVED, "an empty page's slider", size, is_reference=True)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize("knob", ["cap", "bandwidth"])
@pytest.mark.benchmark(timer=CLOCK)
def test_a_slider_s_answer(knob: str, size: int, site: Site, chromium: Any, benchmark: Any) -> None:
    """Where no stop changes the step in the time that there is, the next address is tried."""
    seconds: list[float] = []
    began = time.monotonic()
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        for turn in range(len(harness.FACTORS)):
            url, name, count, _ = start(site, knob, size, turn)
            harness.go(page, url)
            seconds += served(page, name, min(count, MOVES - len(seconds)), began + SHARE_S)
            if len(seconds) >= MOVES or (seconds and time.monotonic() - began > SHARE_S):
                break
    give(benchmark, seconds, MOVED, f"the {knob}'s slider, the server's answer", size, is_reference=False)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize("what", ["an empty page", "the Tune page, opened before", "the Tune page"])
@pytest.mark.benchmark(timer=CLOCK)
def test_first_paint(
    what: str, size: int, world: Path, plain: Site, site: Site, tmp_path: Path, chromium: Any, benchmark: Any
) -> None:
    """``the Tune page`` alone is of a server that has just started, and so has computed nothing yet."""
    seconds = []
    for turn in range(COLD if what == "the Tune page" else LOADS):
        if what == "the Tune page":
            folder = tmp_path / str(turn)
            folder.mkdir()
            with harness.serve(folder, world) as fresh:
                seconds.append(first_paint(chromium, address(fresh, size)))
        else:
            seconds.append(first_paint(chromium, address(site, size) if "Tune" in what else plain.url))
    give(benchmark, seconds, FIRST, what, size, is_reference=what == "an empty page")


def first_paint(chromium: Any, url: str) -> float:
    """Seconds from the start of the navigation until the headline's number is there; nothing is cached."""
    with harness.tab(chromium, motion="no-preference") as tab, harness.visit(tab) as page:
        page.goto(url, wait_until="commit")
        page.wait_for_function(f"{_HEADLINE} && {_HEADLINE}.innerText.includes('ms')", polling="raf")
        return float(page.evaluate("performance.now()")) / 1000
