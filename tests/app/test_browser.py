"""The dashboard in a real browser: read the headline, move the cap, take a file home, come back by URL."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sim
from app import launch
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms

pytestmark = pytest.mark.browser

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
PATIENCE_MS = 20_000


def require() -> None:
    """Skip without a browser, or fail where one is demanded."""
    missing = [
        what
        for what, there in (
            ("the package playwright", importlib.util.find_spec("playwright") is not None),
            (str(CHROMIUM), CHROMIUM.exists()),
        )
        if not there
    ]
    if missing and os.environ.get("BUCKETSIM_REQUIRE_BROWSER") == "1":
        pytest.fail(f"no browser: {' and '.join(missing)} missing")
    if missing:
        pytest.skip(f"no browser: {' and '.join(missing)} missing")


@pytest.fixture(scope="module")
def address(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running dashboard, started from a directory that has nothing to do with it."""
    require()
    with socket.socket() as probe:
        probe.bind((launch.ADDRESS, 0))
        port = probe.getsockname()[1]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with (elsewhere / "log.txt").open("w") as log:
        server = subprocess.Popen(
            launch.command(port, traces), cwd=elsewhere, stdout=log, stderr=subprocess.STDOUT
        )
    url = f"http://{launch.ADDRESS}:{port}"
    try:
        wait_for(url, server, elsewhere / "log.txt")
        yield url
    finally:
        server.terminate()
        server.wait(timeout=10)


def wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not come up: {log.read_text()}")


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert not complaints


def step_time(page: Any) -> Any:
    return page.get_by_test_id("stMetric").filter(has_text="Step time").get_by_test_id("stMetricValue")


def expected(workload: Workload, hardware: Hardware, cap: float | None) -> str:
    return format_ms(
        sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=cap))).step_ns
    )


def is_settled(page: Any) -> None:
    """The page computes nothing more: what is drawn belongs to the knobs, and a click is not lost."""
    page.locator("[data-test-script-state=notRunning]").wait_for()


def is_drawn(page: Any) -> None:
    """The page is whole: its last section is there, and no error is."""
    page.get_by_text("Take it home").wait_for()
    is_settled(page)
    assert page.get_by_test_id("stException").count() == 0
    assert page.get_by_text("Traceback").count() == 0


def test_a_visit(address: str, page: Any, workload: Workload, hardware: Hardware, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    page.goto(address)
    expect(step_time(page)).to_have_text(expected(workload, hardware, None))
    is_drawn(page)
    expect(page.locator(".js-plotly-plot")).to_have_count(6)

    cap = page.get_by_label("Cap, MiB", exact=True)
    cap.fill("4")
    moved = time.monotonic()
    cap.press("Enter")
    expect(step_time(page)).to_have_text(expected(workload, hardware, 4))
    print(f"a cap move took {1000 * (time.monotonic() - moved):.0f} ms")
    expect(page).to_have_url(re.compile(r"cap=4\b"))
    is_settled(page)

    with page.expect_download() as waiting:
        page.get_by_role("button", name="bucket_indices JSON").click()
    target = tmp_path / "assignment.json"
    waiting.value.save_as(target)
    taken = sim.load_assignment(target)
    assert taken.bucket_indices == sim.assign(workload, bucket_cap_mb=4).bucket_indices
    assert taken.provenance["workload_sha256"] == sim.digest(workload)

    with page.expect_download() as waiting:
        page.get_by_role("button", name="Perfetto JSON").click()
    trace = json.loads(Path(waiting.value.path()).read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}

    page.goto(page.url)
    expect(step_time(page)).to_have_text(expected(workload, hardware, 4))
    expect(cap).to_have_value("4")


def test_a_click_on_the_sweep_sets_the_cap(
    address: str, page: Any, workload: Workload, hardware: Hardware
) -> None:
    from playwright.sync_api import expect

    page.goto(address)
    is_drawn(page)
    points = page.locator(".js-plotly-plot").nth(1).locator(".scatterlayer .trace").nth(1).locator(".point")
    points.nth(20).scroll_into_view_if_needed()
    points.nth(20).click(force=True)
    cap = [row.bucket_cap_mb for row in sim.sweep(workload, hardware)][21]
    assert cap is not None
    expect(step_time(page)).to_have_text(expected(workload, hardware, cap))
    expect(page.get_by_label("Cap, MiB", exact=True)).to_have_value(f"{cap:.6g}")


def test_it_fits_a_narrow_window(address: str, page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(address)
    is_drawn(page)
    page.wait_for_timeout(500)
    width = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
    assert width <= 400


def test_the_about_page_opens(address: str, page: Any) -> None:
    page.goto(f"{address}/about")
    page.get_by_role("heading", name="About").wait_for()


def test_the_cluster_page(address: str, page: Any, tmp_path: Path) -> None:
    """Choose a machine, see it, take its collectives to the Tune page's file format, come back by URL."""
    from playwright.sync_api import expect

    page.goto(f"{address}/cluster?machine=AWS+p4de+%28and+p4d%29&most_hosts=2")
    is_drawn(page)
    expect(page.locator(".js-plotly-plot")).to_have_count(3)
    expect(page.get_by_test_id("stMetricValue").first).to_have_text("32")
    hosts = page.get_by_label("Hosts", exact=True)
    hosts.fill("2")
    hosts.press("Enter")
    expect(page.get_by_test_id("stMetricValue").first).to_have_text("16")
    expect(page).to_have_url(re.compile(r"p4de_hosts=2\b"))
    is_drawn(page)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Hardware JSON").click()
    target = tmp_path / "hardware.json"
    waiting.value.save_as(target)
    assert target.read_text() == sim.to_text(sim.cluster_hardware(sim.cluster("p4de", hosts=2)))
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_timeout(500)
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= 400
