"""A running job: the page waits for it, draws it by itself as steps come in, and says what it may gain."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.browser import harness
from tests.app.browser.harness import NARROW, fits, headline, still
from tests.effort import PATIENCE_S

pytestmark = [pytest.mark.browser, pytest.mark.dist]
RECORD = "gpt-box-2x4gbit"

ROOT = Path(__file__).parents[3]


@contextmanager
def job(folder: Path) -> Iterator[None]:
    """Two ranks that write into ``folder/watched`` until the block ends."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.app.browser.training", str(rank), str(folder)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        yield
    finally:
        (folder / "stop").touch()
        said = [rank.communicate(timeout=PATIENCE_S)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said


@pytest.mark.slow
def test_a_job_is_watched_while_it_runs(traces: Path, tmp_path: Path, tab: harness.Tab) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    with (
        harness.serve(tmp_path, traces, watch=watched) as site,
        harness.visit(tab) as page,
    ):
        harness.go(page, f"{site.url}/validate?show=Live")
        assert headline(page) == {}
        assert harness.alerts(page)
        with job(tmp_path):
            page.wait_for_function("document.querySelectorAll('[data-testid=stMetric]').length > 2")
            before = page.get_by_test_id("stMain").inner_text()
            began = time.monotonic()
            page.wait_for_function(
                "before => document.querySelector('[data-testid=stMain]').innerText !== before",
                arg=before,
            )
            print(f"new steps after {time.monotonic() - began:.1f} s, without a click")
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            cards = headline(page)
            print(cards)
            assert any("ms" in value for value in cards.values()), cards
            page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
            fits(page)
        assert page.get_by_test_id("stException").count() == 0
        still(page)


@pytest.mark.slow
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
