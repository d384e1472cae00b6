"""Of a sweep the cap to set: a round one that costs next to nothing against the best."""

from dataclasses import replace

import pytest

import sim
from sim.nouns.recommendation import Plateau
from sim.nouns.rows import SweepRow
from sim.units import MIB

ROW = SweepRow(
    label="",
    bucket_cap_mb=None,
    world_size=2,
    precision=None,
    bandwidth=1.0,
    latency=1.0,
    backward=1.0,
    num_buckets=3,
    largest_bucket_bytes=MIB,
    step_ns=90_000,
    sync_end_ns=90_000,
    exposed_comm_ns=0,
    overlap_ratio=0.5,
)
PLATEAU = Plateau(
    tolerance=0.01,
    caps_mb=(),
    stretches_mb=((0.25, 4.5),),
    low_mb=0.25,
    high_mb=4.5,
    holds_default=False,
    is_flat=False,
    alike_mb=((0.1, 0.6),),
)


@pytest.mark.parametrize(
    ("steps", "cap"),
    [
        ({0.3: 100_000, 0.5: 100_200, 1: 100_900, 25: 102_000}, 1),  # rounder, and within 1 %
        ({1: 100_900, 4: 100_100, 25: 100_800}, 4),  # equally round: the fastest
        ({2: 100_000, 3.5: 99_900, 1: 102_000}, 2),
        ({3.5: 99_900, 6: 99_800, 1: 102_000}, 6),  # none is round
        ({0: 90_000, 1: 100_000}, 1),  # 0 is one bucket a gradient, no cap
        ({}, None),
    ],
)
def test_the_cap_to_set_is_round_and_costs_next_to_nothing(steps: dict[float, int], cap: float) -> None:
    rows = [ROW, *(replace(ROW, bucket_cap_mb=float(mb), step_ns=ns) for mb, ns in steps.items())]
    found = sim.round_cap(rows)
    assert (None if found is None else found.bucket_cap_mb) == cap


def test_no_cap_that_can_be_told_apart_is_taken_unless_all_can() -> None:
    steps = {0.25: 100_000, 0.5: 100_100, 1: 100_900}
    rows = [replace(ROW, bucket_cap_mb=float(mb), step_ns=ns) for mb, ns in steps.items()]
    for alike, cap in ((((0.1, 0.6),), 0.25), ((), 1), (((0.1, 0.2),), 1)):
        found = sim.round_cap(rows, replace(PLATEAU, alike_mb=alike))
        assert found is not None
        assert found.bucket_cap_mb == cap
