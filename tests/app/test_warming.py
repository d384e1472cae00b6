"""What is loaded before the first visitor comes is loaded, and needs no page."""

import subprocess
import sys
from pathlib import Path

from tests.effort import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


def test_warming_up_needs_no_page_and_says_nothing() -> None:
    code = """import gc, sys
from app import warming
warming.warm_up()
assert {"app.figures.timeline", "app.words.labels", "numba"} <= sys.modules.keys()
assert gc.get_freeze_count() > 0
assert gc.get_threshold()[2] == 100
assert "app.cached" not in sys.modules, "which says that no server runs"
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
