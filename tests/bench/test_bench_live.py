"""What ``sim.record`` adds to a training step on one gloo rank: in turns with plain steps, in one process."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.bench.clock import CLOCK, hand_over
from tests.bench.live_worker import CASES, LANES

pytestmark = pytest.mark.bench

REPOSITORY = Path(__file__).parents[2]
PIECE_NS = 200_000  # far beyond what a hook costs


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By case, what the worker tells."""
    folder = tmp_path_factory.mktemp("recordings")
    worker = [sys.executable, "-m", "tests.bench.live_worker", str(folder)]
    done = subprocess.run(worker, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.benchmark(timer=CLOCK)
def test_cost_of_recording(case: str, lane: str, steps: dict[str, Any], benchmark: Any) -> None:
    """In processor time; what is added is the median over rounds, each beside the plain step of its own."""
    one = steps[case]
    times, plain = one["times"][lane], one["times"]["plain"]
    added_ns = median(a - b for a, b in zip(times, plain, strict=True))
    is_plain = lane == "plain"
    assert is_plain or added_ns < 0.2 * median(plain) + PIECE_NS * (one["parameters"] + one["buckets"])
    hand_over(benchmark, [ns / 1e9 for ns in times])
    added_us = added_ns / 1e3
    benchmark.group = f"sim.record, a step of {case}"
    benchmark.extra_info |= {
        "table": benchmark.group,
        "row": LANES[lane],
        "size": one["parameters"],
        "is_reference": is_plain,
        "units": None,
        "unit": "",
        "worth": "-"
        if is_plain
        else f"{added_us:+.0f} us a step, {added_us / one['parameters']:.2f} us a parameter",
    }
