"""Kernels run wherever the package does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.clock.machine_code import compiled


def test_a_kernel_without_a_file_is_compiled_without_being_kept() -> None:
    made: dict[str, Any] = {}
    exec("def total(values):\n    return values.sum()", made)
    total = compiled(made["total"])
    assert total(np.arange(5)) == 10
    assert len(total.nopython_signatures) == 1
    assert total.stats.cache_path is None
    assert not total.stats.cache_hits


THEIRS = """
from sim.clock.machine_code import compiled
FACTOR = 2

@compiled
def times(value):
    return value * FACTOR
"""
MINE = """
from sim.clock.machine_code import compiled
from {theirs} import FACTOR, times

@compiled
def both(value):
    return times(value) + FACTOR
"""


@pytest.mark.slow
def test_a_change_of_another_file_is_noticed(tmp_path: Path) -> None:
    """A kernel kept on disk, of which a kernel and a number of another file are part; its own file stays."""
    (tmp_path / "mine.py").write_text(MINE.format(theirs="theirs"))
    told = []
    for text in (THEIRS, THEIRS, THEIRS.replace("= 2", "= 3"), THEIRS.replace("value *", "7 + value *")):
        (tmp_path / "theirs.py").write_text(text)
        words = "import mine; print(mine.both(10), sum(mine.both.stats.cache_hits.values()))"
        command = [sys.executable, "-B", "-c", words]
        paths = f"{tmp_path}:{Path(__file__).parents[2]}"
        ran = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True
        )
        told.append(ran.stdout.split())
    assert told == [["22", "0"], ["22", "1"], ["33", "0"], ["29", "0"]]
