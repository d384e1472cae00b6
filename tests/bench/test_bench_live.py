"""What ``sim.record`` costs: per parameter, per bucket, and as a share of a real training step."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytestmark = pytest.mark.bench

REPOSITORY = Path(__file__).parents[2]


def compare(folder: Path, world_size: int) -> dict[str, Any]:
    words = [str(world_size), str(folder)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.live_worker", str(rank), *words],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        said = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * world_size
    answers: dict[str, Any] = json.loads(said[0])
    return answers


@pytest.mark.parametrize("world_size", [1, 2])
def test_cost_of_recording(world_size: int, tmp_path: Path) -> None:
    """Prints, per lane, the median added to the plain step of the same round, in processor time."""
    for name, case in compare(tmp_path, world_size).items():
        plain = case["times"]["plain"]
        for lane in ("light", "full", "after"):
            added = median(a - b for a, b in zip(case["times"][lane], plain, strict=True))
            print(
                f"{world_size} ranks, {name} ({case['parameters']} parameters, {case['buckets']} buckets), "
                f"{lane}: {added / 1e3:+.0f} us on {median(plain) / 1e6:.2f} ms "
                f"({added / median(plain):+.2%}; {added / 1e3 / case['parameters']:.2f} us a parameter, "
                f"{added / 1e3 / case['buckets']:.1f} us a bucket)"
            )
            pieces = case["parameters"] + case["buckets"]
            assert added < 50_000_000 + 200_000 * pieces, "far beyond a cost of hooks"
