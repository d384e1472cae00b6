"""A served page: who is let in, files that go both ways, a click, a link, and a job that is watched."""

import gzip
import http.client
import json
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from app import launch
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser import harness
from tests.app.browser.harness import (
    NARROW,
    NOT_SIDEWAYS,
    Site,
    alerts,
    choose,
    download,
    go,
    headline,
    is_drawn,
    metric,
    still,
    upload,
)
from tests.effort import PATIENCE_S
from tests.importer.built_traces import Dialect, Job, build

pytestmark = pytest.mark.browser


def knock(site: Site, **headers: str) -> int:
    """The status with which the websocket's handshake is answered; 101 is let in."""
    asked = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Protocol": "streamlit",
    } | headers
    connection = http.client.HTTPConnection(launch.ADDRESS, site.port, timeout=PATIENCE_S)
    connection.request("GET", "/_stcore/stream", headers={k.replace("_", "-"): v for k, v in asked.items()})
    status = connection.getresponse().status
    connection.close()
    return status


def test_it_listens_on_this_machine_alone(site: Site) -> None:
    hexed = f"{site.port:04X}"
    rows = [
        line.split()[1:4]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = [local for local, _, state in rows if state == "0A" and local.endswith(f":{hexed}")]
    assert listening == [f"0100007F:{hexed}"]


def test_the_websocket_is_for_its_own_origin_and_host(site: Site) -> None:
    own = f"{launch.ADDRESS}:{site.port}"
    assert knock(site, Origin=f"http://{own}") == 101
    assert knock(site, Origin="http://evil.example") == 403
    assert knock(site, Origin=f"http://evil.example:{site.port}") == 403
    assert knock(site, Origin="null") == 403
    # A name elsewhere that resolves to this machine: origin and host agree, and are still not ours.
    assert knock(site, Origin=f"http://evil.example:{site.port}", Host=f"evil.example:{site.port}") == 403


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>[a](javascript:alert(3))"
KNOBS = ["start", "record", "workload", "hardware", "pick", "cap", "first", "bw", "machine", "scaled", "x"]
QUERY = urllib.parse.urlencode(dict.fromkeys(KNOBS, HOSTILE))


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow) for path in ("", "compare", "validate", "cluster")]
)
def test_hostile_query_parameters_act_on_nothing(path: str, site: Site, page: Any) -> None:
    """An unknown value is not shown as markup; the page keeps a legal one in its place."""
    go(page, f"{site.url}/{path}?{QUERY}")
    is_drawn(page)
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.locator("script", has_text="alert(2)").count() == 0


LABEL = "Files"
LAYERS = 24
MIB = 1 << 20


@pytest.fixture(scope="module")
def trace() -> list[tuple[str, bytes]]:
    """Two ranks' traces of torch.profiler, of a small transformer: three steps, four buckets."""
    shapes = tuple((512, 128) if index % 2 else (512,) for index in range(LAYERS))
    job = Job(
        shapes=shapes,
        buckets=(4, 8, 8, 4),
        gradient_ns=tuple(400_000 if index % 2 else 50_000 for index in range(LAYERS)),
        transfer_ns=(300_000, 900_000, 900_000, 1_500_000),
        forward_ns=((2_000_000, 2_100_000), (2_050_000, 2_000_000), (2_000_000, 2_000_000)),
        offsets_ns=(0, 3_000),
    )
    texts, _ = build(job, Dialect())
    return [(f"rank{rank}.json.gz", gzip.compress(text.encode())) for rank, text in enumerate(texts)]


def test_a_page_with_a_bad_upload_goes_on_and_a_trace_gives_a_recommendation(
    site: Site, page: Any, trace: list[tuple[str, bytes]]
) -> None:
    go(page, f"{site.url}/?{QUERY}&start=upload")
    upload(page, LABEL, ("<img src=x onerror=alert(1)>.json", b"{}"))
    assert len([one for one in alerts(page) if one]) == 1
    assert page.locator("img[src=x], a[href^=javascript]").count() == 0
    choose(page, "Start from", "bundled files")
    metric(page, "Step time").wait_for()
    assert headline(page)["Step time"].endswith("ms")
    choose(page, "Start from", "upload")
    upload(page, LABEL, *trace)
    page.get_by_role("heading", name="What to set").wait_for()
    sidebar = page.get_by_test_id("stSidebar").inner_text()
    assert f"{LAYERS} gradients" in sidebar
    assert "2 ranks" in sidebar
    cards = headline(page)
    assert cards["Step time"].endswith("ms")
    page.locator("summary", has_text="The recommended buckets").click()  # drawn once it is opened
    assert page.get_by_test_id("stCode").first.text_content().count("torch") > 0


MARKUP = (
    "<img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>a</a>"
    "[b](javascript:alert(4)) ![c](x) :red[d] $e$ **f** <b>g</b>"
)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "compare"])
def test_markup_in_names_is_only_text(
    path: str, site: Site, page: Any, workload: Workload, hardware: Hardware
) -> None:
    gradients = tuple(replace(one, name=f"{MARKUP} {one.index}") for one in workload.gradients)
    hostile = [
        ("workload.json", sim.to_text(replace(workload, name=MARKUP, gradients=gradients)).encode()),
        ("hardware.json", sim.to_text(replace(hardware, name=f"{MARKUP} machine")).encode()),
    ]
    go(page, f"{site.url}/{path}?start=upload")
    upload(page, LABEL, *hostile)
    is_drawn(page)
    main = page.get_by_test_id("stMain")
    assert "<img src=x onerror=alert(1)>" in main.inner_text()
    forbidden = "img[src=x], a[href^='javascript'], .js-plotly-plot a, .js-plotly-plot b, .katex"
    assert page.locator(forbidden).count() == 0
    assert page.evaluate("[...document.scripts].every(one => !one.textContent.includes('alert('))")


def test_files_go_home_and_a_click_on_the_sweep_sets_the_cap(
    site: Site, page: Any, workload: Workload, hardware: Hardware, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    go(page, f"{site.url}/?pick=cap&cap=4")
    target = tmp_path / "assignment.json"
    target.write_bytes(download(page, "bucket_indices JSON"))
    taken = sim.load_assignment(target)
    assert taken.bucket_indices == sim.assign(workload, bucket_cap_mb=4).bucket_indices
    assert taken.provenance["workload_sha256"] == sim.digest(workload)
    trace = json.loads(download(page, "Perfetto JSON"))
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}
    chart = page.locator(".js-plotly-plot").filter(has_text="bucket_cap_mb, MiB").first
    point = chart.locator(".scatterlayer .trace").nth(1).locator(".point").nth(20)
    point.scroll_into_view_if_needed()
    point.click(force=True)
    row = sim.sweep(workload, hardware)[21]
    expect(metric(page, "Step time")).to_have_text(format_ms(row.step_ns))
    expect(page.get_by_label("Cap, MiB", exact=True)).to_have_value(f"{row.bucket_cap_mb:.6g}")


def test_a_page_is_chosen_by_its_bare_name_and_a_link_leads_to_its_word(site: Site, page: Any) -> None:
    go(page, f"{site.url}/manual?page=how-it-works")
    still(page)
    main = page.get_by_test_id("stMain")
    assert main.locator("h1").inner_text() == "How it works"
    assert page.url.endswith("?page=How+it+works"), "the address says the page's title"
    main.get_by_role("link", name="exposed communication").first.click()
    page.wait_for_url("**/manual?page=Glossary#exposed-communication")
    page.wait_for_function(
        """() => {
      const word = document.getElementById('exposed-communication');
      return word && Math.abs(word.getBoundingClientRect().top) < window.innerHeight / 2;
    }"""
    )


RECORD = "gpt-box-2x4gbit"

ROOT = Path(__file__).parents[3]


@contextmanager
def job(folder: Path) -> Iterator[None]:
    """The manual's two ranks, which write into ``folder/watched`` until the block ends."""
    words = "-m torch.distributed.run --standalone --nproc-per-node 2 -m sim.examples.train --width 256"
    argv = [sys.executable, *words.split(), "--steps", "50000", "--record", str(folder / "watched" / "run")]
    ranks = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield
        assert ranks.poll() is None, "they still train"
    finally:
        ranks.terminate()
        said = ranks.communicate(timeout=PATIENCE_S)[1].decode()
        print(said[-2000:])


@pytest.mark.slow
@pytest.mark.dist
def test_a_job_is_watched_while_it_runs(traces: Path, tmp_path: Path, tab: harness.Tab) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    with harness.serve(tmp_path, traces, watch=watched) as site, harness.visit(tab) as page:
        harness.go(page, f"{site.url}/validate?show=Live")
        assert headline(page) == {}
        assert harness.alerts(page)
        with job(tmp_path):
            page.wait_for_function("document.querySelectorAll('[data-testid=stMetric]').length > 2")
            before = page.get_by_test_id("stMain").inner_text()
            began = time.monotonic()
            page.wait_for_function(
                "before => document.querySelector('[data-testid=stMain]').innerText !== before", arg=before
            )
            print(f"new steps after {time.monotonic() - began:.1f} s, without a click")
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            cards = headline(page)
            print(cards)
            assert any("ms" in value for value in cards.values()), cards
            page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
            page.wait_for_function(NOT_SIDEWAYS)
        assert page.get_by_test_id("stException").count() == 0
        still(page)


@pytest.mark.slow
@pytest.mark.dist
def test_an_open_page_tells_what_ranks_have_measured_since(tmp_path: Path, tab: harness.Tab) -> None:
    """As ``bucketsim demo`` has it: the bundled record meanwhile, then the new one beside it."""
    watched = tmp_path / "watched"
    watched.mkdir()
    with harness.serve(tmp_path, watch=watched) as site, harness.visit(tab) as page:
        harness.go(page, f"{site.url}/?start=measured+run&record={RECORD}")
        assert headline(page)
        shutil.copytree(ROOT / "traces" / "measured" / RECORD, watched / "measured")
        page.get_by_test_id("stToast").wait_for()
        still(page)
