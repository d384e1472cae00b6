"""What a person waits for: from the hand to the painted frame, and from an address to the first headline.

The slider of the cap is timed twice: from a key until the browser has painted what it was given beforehand,
and from when the mouse lets go of it until the server's own answer is painted in its place. Times are
measured in the page, by its own clock.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np

import sim
from tests.app.browser import harness
from tests.machines import model

TRACES = Path(__file__).parents[2]
MACHINE = "box-2x4gbit"
WORKLOADS = {161: "resnet50-cpu", 2000: "made-up-2000"}
DRAGGED, MOVES = 7, 12  # moves there, and as many back; moves that the server answers
LEAST_PX = 8  # that the mouse moves
CALM_MS, REST_MS = 200, 600
BETWEEN_MS = 120  # from one stop to the next: the hand neither rests nor hurries
FIRST, DRAWN, SERVED = (
    "the page, of a server that has just started",
    "the cap's slider, drawn in the browser",
    "the cap's slider, the server's answer",
)
_HEADLINE = "document.querySelector('[data-testid=stMetricValue]')"
# Keeps the seconds from each key, or from when the mouse lets go, to the frame in which another headline is
# painted: one that the browser drew by itself (drawn) or the server's (served), which may come of an earlier
# key where these follow each other.
_WATCH = """() => {
  const served = () => document.querySelector('[data-testid=stMetricValue]')?.textContent;
  const drawn = () => document.querySelector('[data-testid=stMetricValue] [data-drawn]')?.dataset.drawn;
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
  [...document.querySelectorAll('.st-key-follow *')].some(each => each.listener?.isWhole(slider))"""


def rows() -> Iterator[dict[str, Any]]:
    """Of a bundled workload and one of 2,000 tensors: the page, opened first of all, then moved."""
    for size, workload in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            for row, seconds in _seen(Path(folder), workload).items():
                p50, p95 = (1000 * value for value in np.percentile(seconds, [50, 95]))
                yield {
                    "table": "On the screen: from the hand to the painted headline",
                    "row": row,
                    "size": size,
                    "seconds": seconds,
                    "worth": f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, of {len(seconds)}",
                }


def _seen(home: Path, workload: str) -> dict[str, list[float]]:
    """The seconds that a workload's page took, on a measured machine."""
    for kind, name in (("workloads", WORKLOADS[161]), ("hardware", MACHINE)):
        (home / kind).mkdir()
        copy(TRACES / kind / f"{name}.json", home / kind)
    (home / "workloads" / f"{WORKLOADS[2000]}.json").write_text(sim.to_text(model(2000, "two channels")))
    query = f"?start=bundled+files&workload={workload}&hardware={MACHINE}&pick=cap&cap=4"
    with (
        harness.chromium() as chromium,
        harness.serve(home, home) as site,
        harness.tab(chromium, motion="no-preference") as tab,
        harness.visit(tab) as page,
    ):
        page.goto(f"{site.url}/{query}", wait_until="commit")
        page.wait_for_function(f"{_HEADLINE} && {_HEADLINE}.innerText.includes('ms')", polling="raf")
        first = float(page.evaluate("performance.now()")) / 1000
        harness.is_drawn(page)
        page.evaluate(_WATCH)
        slider = page.get_by_role("slider", name="Cap, MiB").first
        slider.focus()
        page.wait_for_function(_AT_HAND, arg="cap_slider")
        harness.is_settled(page)
        way = [1]
        drawn = drag(page)
        answered = served(page, lambda: slide(page, slider, way))
    return {FIRST: [first], DRAWN: drawn, SERVED: answered}


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
