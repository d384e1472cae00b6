"""A served dashboard and a browser that looks at it: what all stories share."""

import importlib.util
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

from app import launch
from tests.effort import PATIENCE_S

CHROMIUM = Path(os.environ.get("BUCKETSIM_CHROMIUM", "/usr/bin/chromium"))
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
PATIENCE_MS = 1000 * PATIENCE_S
_CALM_MS = 250  # a page that computes in steps rests for less between them
_CALM_FRAMES = 10  # and draws what it was told before so many pictures, however slowly
WIDE, NARROW = (1280, 900), (400, 900)
# By the name in the menu: the path (the first page has none).
PAGES = {"tune": "", **{name: name for name in ("compare", "validate", "cluster", "manual", "about")}}
UNMEASURED = "?workload=another"  # on Tune: without a record, which takes as long to draw as all else
# Streamlit asks for these below the page's path first, when a page is opened by its address.
_ASKED_TWICE = re.compile(r"/(\w+)/_stcore/(host-config|health)$")
# The file of a download button, asked for when the page has gone on: knobs that follow each other at once. Or
# the icon of a page whose server is gone.
_GONE_ON = re.compile(r"Download Button source error|404 \(Not Found\) \S*/media/\w+\.\w+$|/favicon\.ico$")
_IS_DRAWN = """() => {
  const seen = [...document.querySelectorAll('[data-testid=stPlotlyChart]')].filter(e => e.offsetParent);
  return !document.querySelector('[data-testid=stSkeleton]')
      && seen.every(e => e.querySelector('.main-svg'));
}"""
# Read from what the page and the server say to each other, as a quick run leaves no trace in a busy page:
# how often a run has ended, and what rests since then, with no run asked for that has not begun. What the
# server says reaches the page as it comes; "slow", one by one, each drawn before the next; or not yet.
_LINE = """
window.bucketsimRuns = 0;
window.bucketsimRests = null;
window.bucketsimLine = 'quick';
const RERUN = 11, NEW_SESSION = 4, FINISHED = 6, FOR_RERUN = 2;  // BackMsg's, ForwardMsg's fields; a status
const fields = data => {
  const bytes = new Uint8Array(data.buffer || data, data.byteOffset || 0, data.byteLength), found = {};
  let at = 0;
  const number = () => {
    let value = 0, factor = 1, byte;
    do { byte = bytes[at++]; value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
    return value;
  };
  while (at < bytes.length) {
    const tag = number(), value = number();
    found[tag >> 3] = value;
    if ((tag & 7) === 2) at += value;
  }
  return found;
};
const send = WebSocket.prototype.send, listen = WebSocket.prototype.addEventListener;
let asked = false;
WebSocket.prototype.send = function(data) {
  if (RERUN in fields(data)) { asked = true; window.bucketsimRests = null; }
  return send.call(this, data);
};
WebSocket.prototype.addEventListener = function(kind, heard, options) {
  if (kind !== 'message') return listen.call(this, kind, heard, options);
  const waiting = [];
  let busy = false;
  const tell = event => {
    heard.call(this, event);
    const told = fields(event.data);
    if (NEW_SESSION in told) { asked = false; window.bucketsimRests = null; }
    if (FINISHED in told && told[FINISHED] !== FOR_RERUN) {
      window.bucketsimRuns += 1;
      if (!asked) window.bucketsimRests = {since: performance.now(), frames: 0};
    }
  };
  const next = () => {
    while (waiting.length && window.bucketsimLine !== 'held') {
      tell(waiting.shift());
      if (window.bucketsimLine === 'slow') break;
    }
    busy = waiting.length > 0;
    if (busy) setTimeout(next, 15);
  };
  listen.call(this, kind, event => { waiting.push(event); if (!busy) next(); }, options);
};
"""


def require() -> None:
    """Skip without a browser, or fail where one is demanded."""
    there = {
        "the package playwright": importlib.util.find_spec("playwright") is not None,
        str(CHROMIUM): CHROMIUM.exists(),
    }
    missing = [what for what, is_there in there.items() if not is_there]
    if missing and os.environ.get("BUCKETSIM_REQUIRE_BROWSER") == "1":
        pytest.fail(f"no browser: {' and '.join(missing)} missing")
    if missing:
        pytest.skip(f"no browser: {' and '.join(missing)} missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running server."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((launch.ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve(folder: Path, traces: Path | None = None, watch: Path | None = None) -> Iterator[Site]:
    """A dashboard started from ``folder``, which has nothing to do with it."""
    port = free_port()
    argv = launch.command(port, traces, watch)
    log = folder / "server.txt"
    with log.open("w") as out:
        process = subprocess.Popen(argv, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    site = Site(url=f"http://{launch.ADDRESS}:{port}", process=process, log=log)
    try:
        _wait_for(site)
        yield site
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _wait_for(site: Site) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert site.process.poll() is None, site.log.read_text()
        try:
            with urllib.request.urlopen(f"{site.url}/_stcore/health", timeout=PATIENCE_S):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not come up: {site.log.read_text()}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield browser
        browser.close()


@dataclass  # no slots: playwright leaves a mark on who listens
class Complaints:
    """What a page complained of: errors of its scripts, of its console, and dialogs that opened."""

    heard: list[str] = field(default_factory=list)

    def listen(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.heard.append(f"page error: {error}"))
        page.on("console", self._console)
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        address = message.location.get("url", "")
        is_told = not _ASKED_TWICE.search(address) and not _GONE_ON.search(f"{message.text} {address}")
        if message.type == "error" and is_told:
            self.heard.append(f"console: {message.text} {address}")

    def _dialog(self, dialog: Any) -> None:
        self.heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab, and what its pages complained of."""

    page: Any
    complaints: Complaints


@contextmanager
def tab(browser: Any, *, motion: str = "reduce") -> Iterator[Tab]:
    """A tab of somebody's browser. What it has loaded and compiled once serves all that is opened in it.

    ``motion="no-preference"``: with animations, which the processor draws picture by picture.
    """
    context = browser.new_context(accept_downloads=True, reduced_motion=motion)
    context.add_init_script(_LINE)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints = Complaints()
    complaints.listen(page)
    try:
        yield Tab(page=page, complaints=complaints)
    finally:
        context.close()


@contextmanager
def visit(tab: Tab, *, size: tuple[int, int] = WIDE, scheme: str = "light") -> Iterator[Any]:
    """The tab's page for a visitor who was never here; ends with an error where the page had one."""
    page = tab.page
    tab.complaints.heard.clear()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme)
    page.mouse.move(0, 0)
    try:
        yield page
    finally:
        page.mouse.up()
        if page.url.startswith("http"):
            page.goto(urljoin(page.url, "/_stcore/health"))  # of the same origin, whose storage it is
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.context.clear_cookies()
    assert not tab.complaints.heard, "\n".join(tab.complaints.heard)


def is_settled(page: Any) -> None:
    """The page computes nothing more, nor is a slider's move still to be told: what is drawn belongs to the
    knobs, and a click is not lost."""
    page.wait_for_function(
        """([calm, frames]) => {
      const rests = document.querySelector('[data-moves]') ? null : window.bucketsimRests;
      return rests !== null && ++rests.frames > frames && performance.now() - rests.since > calm;
    }""",
        arg=[_CALM_MS, _CALM_FRAMES],
    )


def is_drawn(page: Any) -> None:
    """The page is whole: it has its title, its script has ended, and no error is there."""
    page.wait_for_function("window.bucketsimRuns > 0")
    is_settled(page)
    assert [one.inner_text() for one in page.get_by_test_id("stException").all()] == []
    assert page.get_by_text("Traceback").count() == 0
    page.get_by_role("heading", level=1).first.wait_for()
    page.wait_for_function(_IS_DRAWN)


def go(page: Any, url: str) -> None:
    """Open an address and wait until its page is whole."""
    page.goto(url)
    is_drawn(page)


@contextmanager
def line(page: Any, how: str) -> Iterator[None]:
    """Meanwhile the server's messages come to the page one by one (``slow``), or not at all (``held``)."""
    page.evaluate("how => { window.bucketsimLine = how }", how)
    yield
    page.evaluate("window.bucketsimLine = 'quick'")


@contextmanager
def rerun(page: Any) -> Iterator[None]:
    """Wait until the script has ended once more than before the block."""
    before = page.evaluate("window.bucketsimRuns")
    yield
    page.wait_for_function("before => window.bucketsimRuns > before", arg=before)
    is_settled(page)


def metric(page: Any, label: str) -> Any:
    """The number on a card."""
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


def headline(page: Any) -> dict[str, str]:
    """All cards on the page: label and number."""
    cards = page.get_by_test_id("stMetric").all()
    parts = ("stMetricLabel", "stMetricValue")
    return dict(tuple(card.get_by_test_id(part).inner_text() for part in parts) for card in cards)


def choose(page: Any, label: str, option: str) -> None:
    """Take one of a select box's options, as a person does."""
    page.get_by_role("combobox", name=label).first.click()
    with rerun(page):
        page.get_by_role("option", name=option, exact=True).click()


def upload(page: Any, label: str, *files: tuple[str, bytes]) -> None:
    """Give files to an uploader by its label; returns when the page has taken them."""
    place = page.get_by_test_id("stFileUploader").filter(has_text=label).first
    with rerun(page):
        place.locator("input[type=file]").set_input_files(
            [{"name": name, "mimeType": "application/json", "buffer": content} for name, content in files]
        )


def download(page: Any, button: str) -> bytes:
    """What a download button gives."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return Path(waiting.value.path()).read_bytes()


def sideways(page: Any) -> dict[str, int]:
    """By how many pixels the page, or a text in it, is wider than the window; empty where it fits."""
    return dict(page.evaluate(_SIDEWAYS))


_SIDEWAYS = """() => {
      const main = document.querySelector('[data-testid=stMain]');
      const found = {};
      if (main.scrollWidth > main.clientWidth) found['page'] = main.scrollWidth - main.clientWidth;
      const body = document.documentElement;
      if (body.scrollWidth > body.clientWidth) found['document'] = body.scrollWidth - body.clientWidth;
      return found;
    }"""
NOT_SIDEWAYS = f"() => Object.keys(({_SIDEWAYS})()).length === 0"


def still(page: Any) -> None:
    """Wait until two looks at the page, a quarter of a second apart, see the same layout."""
    layout = """() => [...document.querySelectorAll('[data-testid=stMain] *')]
        .map(e => Math.round(e.getBoundingClientRect().top) + ':' + Math.round(e.offsetWidth || 0)).join()"""
    before, deadline = None, time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = page.evaluate(layout)
        if now == before:
            return
        before = now
        page.wait_for_timeout(250)
    pytest.fail("the page does not come to rest")


def alerts(page: Any) -> list[str]:
    """The lines in which the page tells an error or a warning."""
    return [one.inner_text().strip() for one in page.get_by_test_id("stAlert").all()]
