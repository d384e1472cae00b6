"""A shared address brings every knob back, in the browser of someone else."""

import re
from typing import Any

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.app.browser.harness import (
    PATIENCE_MS,
    UNMEASURED,
    Site,
    Tab,
    go,
    headline,
    is_drawn,
    is_settled,
    line,
    rerun,
    visit,
)
from tests.effort import IS_WHOLE

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


def is_the_same_for(tab: Tab, url: str, turned: dict[str, str], cards: dict[str, str]) -> None:
    """Somebody who was never here sees at ``url`` the knobs and cards of who gave it."""
    with visit(tab) as page:
        go(page, url)
        assert knobs(page) == turned
        assert headline(page) == cards


def test_every_knob_of_the_tune_page_comes_back(site: Site, tab: Tab) -> None:
    """Numbers and sliders are turned one by one, after a change that drew the sidebar anew piece by piece."""
    with visit(tab) as page:
        go(page, f"{site.url}/{UNMEASURED}")
        fresh = knobs(page)
        with line(page, "slow"), rerun(page):
            page.get_by_label("Cap, MiB", exact=True).fill("3")
            page.get_by_label("Cap, MiB", exact=True).press("Enter")
        first = page.get_by_label("First bucket, MiB", exact=True)
        with rerun(page):
            first.fill("0.5")
            first.press("Enter")
        # Every factor: test_knobs.
        factors = {"Bandwidth ×": "bw", "Backward ×": "bwd"} | ({"Latency ×": "lat"} if IS_WHOLE else {})
        for name, key in factors.items():
            slider = page.get_by_role("slider", name=name)
            assert slider.count() == 1, name
            slider.focus()
            with rerun(page):
                page.keyboard.press("ArrowRight")
            # A run that was on its way may have ended before the server was told.
            page.wait_for_function("key => new URL(location).searchParams.has(key)", arg=key)
            is_settled(page)
        turned, cards, url = knobs(page), headline(page), page.url
    assert sum(turned[name] != fresh.get(name) for name in turned) >= 6, turned  # pick and slider follow
    assert re.search(r"cap=3\b", url)
    is_the_same_for(tab, url, turned, cards)


@pytest.mark.slow
def test_a_knob_that_is_turned_meanwhile_stays_in_the_address(site: Site, tab: Tab) -> None:
    """The server picks the explicit cap as one is entered; its address comes after a slider was turned."""
    with visit(tab) as page:
        with page.expect_event("websocket") as opened:
            go(page, site.url)
        first = page.get_by_label("First bucket, MiB", exact=True)
        with rerun(page), line(page, "held"):
            with opened.value.expect_event("framereceived", has_an_address, timeout=PATIENCE_MS):
                first.fill("0.5")
                first.press("Enter")
            page.get_by_role("slider", name="Bandwidth ×").press("ArrowRight")
            assert "bw=1.1" in page.url
        turned, cards, url = knobs(page), headline(page), page.url
    assert (turned["st-key-first"], turned["st-key-bw"]) == ("0.5", "1.1")
    is_the_same_for(tab, url, turned, cards)


def has_an_address(message: bytes) -> bool:
    return ForwardMsg.FromString(message).WhichOneof("type") == "page_info_changed"


def test_the_link_to_tune_keeps_the_machine_and_cluster_the_job(site: Site, tab: Tab) -> None:
    """A knob that came by address stands twice in the link's address: streamlit alone drops it."""
    with visit(tab) as page:
        go(page, f"{site.url}/cluster?scaled=twenty&dgx_h100_hosts=2")
        with rerun(page):
            page.get_by_role("link", name="Open this workload on this machine in Tune").click()
        is_drawn(page)
        assert page.get_by_role("spinbutton", name="Hosts").first.input_value() == "2"
        assert "dgx_h100_hosts=2" in page.url
        page.goto("about:blank")
        go(page, f"{site.url}/?start=bundled+files&workload=twenty")
        with rerun(page):
            page.get_by_role("link", name="Cluster").click()
        is_drawn(page)
        assert "scaled=twenty" in page.url, "not the first workload there is"


@pytest.mark.slow
def test_an_address_of_the_cluster_page(site: Site, tab: Tab) -> None:
    with visit(tab) as page:
        go(page, f"{site.url}/cluster")
        hosts = page.get_by_label("Hosts", exact=True)
        with rerun(page):
            hosts.fill("2")
            hosts.press("Enter")
        page.get_by_role("slider", name="Scale up to, hosts").focus()
        with rerun(page):
            page.keyboard.press("ArrowLeft")
        turned, cards, url = knobs(page), headline(page), page.url
    is_the_same_for(tab, url, turned, cards)
