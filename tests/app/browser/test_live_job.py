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
from tests.app.browser.harness import NARROW, NOT_SIDEWAYS, headline, still
from tests.effort import PATIENCE_S

pytestmark = [pytest.mark.browser, pytest.mark.dist]
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
            page.wait_for_function(NOT_SIDEWAYS)
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
