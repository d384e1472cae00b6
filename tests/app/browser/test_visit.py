"""Tune and export: read the headline, move the cap, take files home, click on the sweep."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser.harness import Site, download, go, is_settled, metric, still

pytestmark = pytest.mark.browser


def expected(workload: Workload, hardware: Hardware, cap: float | None) -> str:
    return format_ms(
        sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, bucket_cap_mb=cap))).step_ns
    )


def test_tune_and_export(
    site: Site, page: Any, workload: Workload, hardware: Hardware, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    go(page, site.url)
    expect(metric(page, "Step time")).to_have_text(expected(workload, hardware, None))
    cap = page.get_by_label("Cap, MiB", exact=True)
    cap.fill("4")
    cap.press("Enter")
    expect(metric(page, "Step time")).to_have_text(expected(workload, hardware, 4))
    expect(page).to_have_url(re.compile(r"cap=4\b"))
    is_settled(page)

    target = tmp_path / "assignment.json"
    target.write_bytes(download(page, "bucket_indices JSON"))
    taken = sim.load_assignment(target)
    assert taken.bucket_indices == sim.assign(workload, bucket_cap_mb=4).bucket_indices
    assert taken.provenance["workload_sha256"] == sim.digest(workload)
    trace = json.loads(download(page, "Perfetto JSON"))
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}

    a_click_on_the_sweep_sets_the_cap(page, workload, hardware)


def a_click_on_the_sweep_sets_the_cap(page: Any, workload: Workload, hardware: Hardware) -> None:
    from playwright.sync_api import expect

    chart = page.locator(".js-plotly-plot").filter(has_text="bucket_cap_mb, MiB").first
    points = chart.locator(".scatterlayer .trace").nth(1).locator(".point")
    points.nth(20).scroll_into_view_if_needed()
    points.nth(20).click(force=True)
    cap = [row.bucket_cap_mb for row in sim.sweep(workload, hardware)][21]
    assert cap is not None
    expect(metric(page, "Step time")).to_have_text(expected(workload, hardware, cap))
    expect(page.get_by_label("Cap, MiB", exact=True)).to_have_value(f"{cap:.6g}")


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
