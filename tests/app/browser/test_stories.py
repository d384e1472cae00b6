"""Compare default with optimum; read a validation."""

import re
from typing import Any

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser.harness import Site, go, headline

pytestmark = pytest.mark.browser


def test_the_default_is_compared_with_the_optimum(
    site: Site, page: Any, workload: Workload, hardware: Hardware
) -> None:
    default = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload))).step_ns
    best = sim.tune(workload, hardware).report.step_ns
    go(page, f"{site.url}/compare")
    cards = headline(page)
    told = {name[0]: value for name, value in cards.items()}
    assert told["A"] == format_ms(default)
    assert told["B"] == format_ms(best)
    sentence = page.get_by_test_id("stMain").locator("strong").first.inner_text()
    assert format_ms(default - best) in sentence
    assert page.locator(".js-plotly-plot .main-svg").count() > 0


def test_a_validation_is_read(site: Site, page: Any) -> None:
    """The claim over all records, and the record's own verdict, with the rule beside it."""
    go(page, f"{site.url}/validate")
    words = page.get_by_test_id("stMain").inner_text()
    assert "made-up" in words
    assert re.search(r"\d+ of \d+|\d(\.\d+)? ?%", words)
    assert re.search(r"[Pp]assed", words)
    assert "Error" not in words
