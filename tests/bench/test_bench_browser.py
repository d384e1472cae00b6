"""What a person waits for: from a key to the repainted headline, and from an address to the first one.

Times are measured in the page, by its own clock, and handed to pytest-benchmark, whose clock they move.
The page beside them has one slider and one number: what streamlit and the browser take by themselves.
"""

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
MOVES, LOADS = 30, 5
FIRST, MOVED = (
    "On the screen: from an address to the headline",
    "On the screen: from a key to the new headline",
)
PLAIN = """import streamlit as st
st.title("Plain")
st.metric("Step time", f"{st.sidebar.slider('Cap', 0, 1000, 0)} ms")
"""
_HEADLINE = "document.querySelector('[data-testid=stMetricValue]')"
# Resolves with the ms from the next key to the frame in which the headline is another, or null where the
# number is still the same half a second after the script has ended: it is drawn a little later than that.
_WATCH = """() => new Promise(resolve => {
  const text = () => (document.querySelector('[data-testid=stMetricValue]') || {}).innerText;
  const before = text(), runs = window.bucketsimRuns;
  let began = null, ended = null;
  document.addEventListener('keydown', event => { began = event.timeStamp; }, {once: true, capture: true});
  const look = () => {
    const now = text();
    if (began !== null && now && now !== before) requestAnimationFrame(at => resolve(at - began));
    else if (ended !== null && performance.now() - ended > 500) resolve(null);
    else {
      if (ended === null && window.bucketsimRuns > runs) ended = performance.now();
      requestAnimationFrame(look);
    }
  };
  look();
})"""


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
    return f"{site.url}/?start=bundled+files&workload={WORKLOADS[size]}&hardware={MACHINE}&pick=explicit+cap"


def moves(page: Any, name: str, count: int) -> list[float]:
    """Seconds of ``count`` moves of a slider from its first place on, each once the page rests."""
    slider = page.get_by_role("slider", name=name).first
    slider.focus()
    found: list[float] = []
    for key in ["ArrowRight"] * count:
        page.wait_for_timeout(50)
        watched = page.evaluate_handle(f"({_WATCH.strip()})().then(value => window.bucketsimTook = value), 0")
        page.evaluate("window.bucketsimTook = undefined")
        page.keyboard.press(key)
        page.wait_for_function("window.bucketsimTook !== undefined")
        took = page.evaluate("window.bucketsimTook")
        watched.dispose()
        harness.is_settled(page)
        if took is not None:
            found.append(took / 1000)
    return found


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


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize("what", ["an empty page's slider", "the cap's slider", "the bandwidth's slider"])
@pytest.mark.benchmark(timer=CLOCK)
def test_a_slider(what: str, size: int, site: Site, plain: Site, chromium: Any, benchmark: Any) -> None:
    seconds: list[float] = []
    is_plain = what.startswith("an empty")
    with harness.visit(chromium) as page:
        for turn in range(10):
            if is_plain:
                harness.go(page, plain.url)
                seconds += moves(page, "Cap", MOVES)
            elif what.startswith("the cap"):
                harness.go(page, f"{address(site, size)}&cap=0.25&bwd={harness.FACTORS[turn]}")
                seconds += moves(page, "Cap, MiB", 23)
            else:
                harness.go(page, f"{address(site, size)}&bw=0.1&cap={2 + turn}")
                seconds += moves(page, "Bandwidth ×", 17)
            if len(seconds) >= MOVES:
                break
    give(benchmark, seconds, MOVED, what, size, is_reference=is_plain)


@pytest.mark.parametrize("size", WORKLOADS)
@pytest.mark.parametrize("what", ["an empty page", "the Tune page, opened before", "the Tune page"])
@pytest.mark.benchmark(timer=CLOCK)
def test_first_paint(
    what: str, size: int, world: Path, plain: Site, site: Site, tmp_path: Path, chromium: Any, benchmark: Any
) -> None:
    """``the Tune page`` alone is of a server that has just started, and so has computed nothing yet."""
    seconds = []
    for turn in range(LOADS):
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
    with harness.visit(chromium) as page:
        page.goto(url, wait_until="commit")
        page.wait_for_function(f"{_HEADLINE} && {_HEADLINE}.innerText.includes('ms')", polling="raf")
        return float(page.evaluate("performance.now()")) / 1000
