"""How far above the optimum the tuner can be at most, on what was recorded: the manual says it."""

from pathlib import Path
from statistics import median

import pytest

import sim
from sim.tuner.search.bound import lower_bound_ns
from sim.tuner.search.optimum import find_optimum
from sim.tuner.search.score import Scorer

TRACES = Path(__file__).parents[2] / "traces"
WIRES = ("box-*gbit", "box-2x1gbit-claims", "loopback-2")


@pytest.mark.slow
def test_gaps_to_the_bounds() -> None:
    searched, free = [], []
    files = sorted({path for wire in WIRES for path in (TRACES / "hardware").glob(f"{wire}.json")})
    for path in sorted((TRACES / "workloads").glob("*.json")):
        workload = sim.load_workload(path)
        known = [sim.assign(workload, bucket_cap_mb=cap).bucket_indices for cap in (1, 2, 4, 8, 16, 25, 1000)]
        for wire in files:
            scorer = Scorer(workload, sim.load_hardware(wire))
            optimum = find_optimum(scorer, known)
            searched.append(optimum.sync_end_ns / optimum.at_least_ns - 1)
            free.append(optimum.sync_end_ns / lower_bound_ns(scorer.problem) - 1)
    assert len(searched) == 21
    assert max(searched) <= 0.030
    assert median(searched) <= 0.0075
    assert max(free) <= 0.132
    assert median(free) <= 0.0205
