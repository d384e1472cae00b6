"""Files of one's own: a profiler's trace gives a recommendation, and a bad file one line."""

import gzip
from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.app.browser.harness import Site, alerts, choose, go, headline, is_drawn, metric, upload
from tests.importer.built_traces import Dialect, Job, build

pytestmark = pytest.mark.browser

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
    go(page, f"{site.url}/?start=upload")
    upload(page, LABEL, ("<img src=x onerror=alert(1)>.json", b"{}"))
    assert len([one for one in alerts(page) if one]) == 1
    assert page.locator("img[src=x]").count() == 0
    choose(page, "Start from", "bundled files")
    metric(page, "Step time").wait_for()
    assert headline(page)["Step time"].endswith("ms")
    choose(page, "Start from", "upload")
    upload(page, LABEL, *trace)
    page.get_by_role("heading", name="Recommended").wait_for()
    sidebar = page.get_by_test_id("stSidebar").inner_text()
    assert f"{LAYERS} gradients" in sidebar
    assert "2 ranks" in sidebar
    cards = headline(page)
    assert cards["Step time"].endswith("ms")
    page.locator("summary", has_text="The best buckets found").click()  # drawn once it is opened
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
    for forbidden in (
        "img[src=x]",
        "img[src='x']",
        "a[href^='javascript']",
        ".js-plotly-plot a",
        ".js-plotly-plot b",
        ".katex",
    ):
        assert page.locator(forbidden).count() == 0, forbidden
    assert page.evaluate("[...document.scripts].every(one => !one.textContent.includes('alert('))")
