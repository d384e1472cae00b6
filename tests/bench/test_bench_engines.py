"""Speed as ratios: the engines against each other and the tuner, on a ResNet-50-sized workload."""

from typing import Any

import pytest

from sim.engine import lanes, recurrence
from sim.engine.systems import assign, write
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from sim.tuner.recommend import tune
from sim.tuner.score import Scorer

pytestmark = pytest.mark.bench

COUNT = 161
WORKLOAD = Workload(
    name="161 tensors",
    gradients=tuple(
        Gradient(
            index=index,
            name=f"p{index}",
            shape=(1 + 37 * index % 400, 1000),
            dtype="float32",
            num_bytes=4000 * (1 + 37 * index % 400),
            ready_ns=(COUNT - index) * 600_000,
        )
        for index in range(COUNT)
    ),
    forward_ns=50_000_000,
    backward_ns=100_000_000,
    optimizer_ns=5_000_000,
)
HARDWARE = Hardware(
    name="affine",
    world_size=8,
    all_reduce=(
        CurvePoint(num_bytes=0, duration_ns=100_000),
        CurvePoint(num_bytes=100_000_000, duration_ns=60_000_000),
    ),
)
(PROGRAM,) = write(WORKLOAD, HARDWARE, assign(WORKLOAD))


@pytest.mark.benchmark(group="one candidate, 161 tensors")
def test_simpy(benchmark: Any) -> None:
    assert benchmark(lanes.play, PROGRAM) == recurrence.solve(PROGRAM)


@pytest.mark.benchmark(group="one candidate, 161 tensors")
def test_analytic(benchmark: Any) -> None:
    benchmark(recurrence.solve, PROGRAM)


@pytest.mark.benchmark(group="one candidate, 161 tensors")
def test_scorer_amortised(benchmark: Any) -> None:
    """Walks buckets only; the compute lane is shared by all candidates."""
    scorer = Scorer(WORKLOAD, HARDWARE)
    order = WORKLOAD.order()
    partitions = [
        tuple(order[start : start + size] for start in range(0, COUNT, size)) for size in range(5, 45)
    ]

    def run() -> None:
        scorer._known.clear()
        for buckets in partitions:
            scorer.sync_end_ns(buckets)

    benchmark(run)
    benchmark.extra_info["candidates"] = len(partitions)


@pytest.mark.benchmark(group="tune, 161 tensors")
def test_tune(benchmark: Any) -> None:
    assert benchmark(tune, WORKLOAD, HARDWARE).proved_optimal
