"""From page to page by the menu and back, with one record; each page says what it is about."""

import re
from typing import Any
from urllib.parse import urlparse

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser.harness import Site, go, headline, is_drawn, is_settled
from tests.app.conftest import OTHER

pytestmark = pytest.mark.browser


def test_a_record_of_the_address_stays_through_the_menu_and_back(
    site: Site, page: Any, workload: Workload, hardware: Hardware
) -> None:
    """Compare, Validate and the browser's Back show what the address asked for, and say so in the address."""
    from playwright.sync_api import expect

    go(page, f"{site.url}/?record={OTHER}&cap=4&pick=bucket_cap_mb&bw=2")
    step = headline(page)["Step time"]
    choose(page, "Compare")
    says_the_default_beside_the_optimum(page, workload, hardware)
    choose(page, "Tune")
    expect(page.get_by_label("Cap, MiB", exact=True)).to_have_value("4")
    assert headline(page)["Step time"] == step
    expect(page).to_have_url(re.compile(r"(?=.*cap=4)(?=.*bw=2)"))
    choose(page, "Validate")
    says_the_verdict(page)
    back(page, "Tune", "/")
    assert headline(page)["Step time"] == step
    back(page, "Compare", "/compare")


def choose(page: Any, name: str) -> None:
    from playwright.sync_api import expect

    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    is_drawn(page)  # until then the sidebar of the page before may stand beside it
    path = "" if name == "Tune" else name.lower()
    expect(page).to_have_url(re.compile(rf"/{path}\?.*{OTHER}"))
    expect(page.get_by_role("combobox", name="Record")).to_have_value(re.compile(OTHER))


def back(page: Any, name: str, path: str) -> None:
    """A page is one entry in the browser's history, wherever its knobs were set meanwhile."""
    from playwright.sync_api import expect

    page.go_back()
    is_settled(page)
    assert urlparse(page.url).path == path
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_role("combobox", name="Record")).to_have_value(OTHER)
    expect(page).to_have_url(re.compile(f"record={OTHER}"))


def says_the_default_beside_the_optimum(page: Any, workload: Workload, hardware: Hardware) -> None:
    default = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload))).step_ns
    best = sim.tune(workload, hardware).report.step_ns
    told = {name[0]: value for name, value in headline(page).items()}
    assert told["A"] == format_ms(default)
    assert told["B"] == format_ms(best)
    sentence = page.get_by_test_id("stMain").locator("strong").first.inner_text()
    assert format_ms(default - best) in sentence
    assert page.locator(".js-plotly-plot .main-svg").count() > 0, "a figure"


def says_the_verdict(page: Any) -> None:
    """The claim over all records, and the record's own verdict, with the rule beside it."""
    from playwright.sync_api import expect

    main = page.get_by_test_id("stMain")
    expect(main).to_contain_text(re.compile(r"\d+ of \d+|\d(\.\d+)? ?%"))  # the claim
    expect(main).to_contain_text(re.compile(r"[Pp]assed"))  # the verdict
    expect(main).to_contain_text(OTHER)
    expect(main).not_to_contain_text("Error")
