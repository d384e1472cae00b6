"""A shared address brings every knob back, in the browser of someone else."""

import re
from typing import Any

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.app.browser.harness import PATIENCE_MS, Site, go, headline, line, rerun, visit

pytestmark = pytest.mark.browser

_VALUES = """() => {
  const read = e => e.getAttribute('aria-valuetext') ? e.getAttribute('aria-valuetext')
    : e.type === 'checkbox' ? String(e.checked) : e.value || e.textContent;
  return [...document.querySelectorAll('[data-testid=stSidebar] [class*=st-key-]')].map(e => {
    const inner = e.querySelector('[role=slider], input, [role=combobox]');
    return [[...e.classList].find(c => c.startsWith('st-key-')), inner && read(inner)];
  });
}"""


def knobs(page: Any) -> dict[str, str]:
    return {name: value for name, value in page.evaluate(_VALUES) if value is not None}


def test_every_knob_of_the_tune_page_comes_back(site: Site, page: Any, chromium: Any) -> None:
    """Numbers and sliders are turned one by one, after a change that drew the sidebar anew piece by piece."""
    go(page, site.url)
    fresh = knobs(page)
    with line(page, "slow"), rerun(page):
        page.get_by_label("Cap, MiB", exact=True).fill("3")
        page.get_by_label("Cap, MiB", exact=True).press("Enter")
    first = page.get_by_label("First bucket, MiB", exact=True)
    with rerun(page):
        first.fill("0.5")
        first.press("Enter")
    for name in ("Bandwidth ×", "Latency ×", "Backward ×"):
        slider = page.get_by_role("slider", name=name)
        assert slider.count() == 1, name
        slider.focus()
        with rerun(page):
            page.keyboard.press("ArrowRight")
    turned = knobs(page)
    assert sum(turned[name] != fresh.get(name) for name in turned) >= 6, turned  # pick and slider follow
    assert re.search(r"cap=3\b", page.url)
    cards = headline(page)
    with visit(chromium) as other:
        go(other, page.url)
        assert knobs(other) == turned
        assert headline(other) == cards


@pytest.mark.slow
def test_a_knob_that_is_turned_meanwhile_stays_in_the_address(site: Site, page: Any, chromium: Any) -> None:
    """The server picks the explicit cap as one is entered; its address comes after a slider was turned."""
    with page.expect_event("websocket") as opened:
        go(page, site.url)
    first = page.get_by_label("First bucket, MiB", exact=True)
    with rerun(page), line(page, "held"):
        with opened.value.expect_event("framereceived", has_an_address, timeout=PATIENCE_MS):
            first.fill("0.5")
            first.press("Enter")
        page.get_by_role("slider", name="Bandwidth ×").press("ArrowRight")
        assert "bw=1.1" in page.url
    turned = knobs(page)
    assert (turned["st-key-first"], turned["st-key-bw"]) == ("0.5", "1.1")
    with visit(chromium) as other:
        go(other, page.url)
        assert knobs(other) == turned


def has_an_address(message: bytes) -> bool:
    return ForwardMsg.FromString(message).WhichOneof("type") == "page_info_changed"


@pytest.mark.slow
def test_an_address_of_the_cluster_page(site: Site, page: Any, chromium: Any) -> None:
    go(page, f"{site.url}/cluster")
    hosts = page.get_by_label("Hosts", exact=True)
    with rerun(page):
        hosts.fill("2")
        hosts.press("Enter")
    page.get_by_role("slider", name="Scale up to, hosts").focus()
    with rerun(page):
        page.keyboard.press("ArrowLeft")
    with visit(chromium) as other:
        go(other, page.url)
        assert knobs(other) == knobs(page)
        assert headline(other) == headline(page)


def test_a_record_of_the_address_stays_through_the_menu_and_back(bundled: Site, page: Any) -> None:
    """Compare, Validate and the browser's Back show what the address asked for, and say so in the address."""
    from playwright.sync_api import expect

    record = "gpt-box-2x4gbit"
    go(page, f"{bundled.url}/?record={record}")
    for name in ("Compare", "Validate"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page).to_have_url(re.compile(rf"/{name.lower()}\?.*{record}"))
        expect(page.get_by_role("combobox", name="Record")).to_have_value(re.compile(record))
    for name in ("Compare", "Tune"):
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.get_by_role("combobox", name="Record")).to_have_value(record)
        expect(page).to_have_url(re.compile(f"record={record}"))
