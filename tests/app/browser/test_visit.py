"""Taking files home, a click on the sweep, and a link into the manual."""

import json
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser.harness import Site, download, go, metric, still

pytestmark = pytest.mark.browser


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
