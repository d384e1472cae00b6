"""What computation and collectives cost each other, out of one trace; steps predicted from it."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.importer.kineto.events import SPAN, Spans
from sim.importer.kineto.ranks import FEWEST_KERNELS, find_interference
from sim.nouns.measurement import Record
from sim.truth.scoring import CandidateAgreement
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job
from tests.importer.test_kineto_built import imported
from tests.importer.traced import Traced

# The slow-down beside collectives, from kernels that one step ran beside one and another step alone.

STEP_NS = 100_000_000


def beside(
    alone_ns: list[int], slowdown: float, steps: int, share: float, seed: int
) -> tuple[list[Spans], list[tuple[int, int]]]:
    """Steps of the same kernels; some stretches of each run beside a collective, another stretch in each."""
    chance = random.Random(seed)
    played, busy = [], []
    for number in range(steps):
        now, lane = number * STEP_NS, []
        beside = {place for place in range(len(alone_ns)) if chance.random() < share}
        for place, alone in enumerate(alone_ns):
            duration = round(alone * slowdown) if place in beside else alone
            lane.append((now, now + duration, now, 0, place, 0, 0))
            if place in beside:
                busy.append((now, now + duration))
            now += duration + 100  # a gap, so that a neighbour's collective is clear of it
        played.append(np.array(lane, SPAN))
    return played, busy


@settings(deadline=None, max_examples=tries(50))
@given(
    slowdown=st.floats(0.9, 3.0),
    steps=st.integers(4, 8),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 2**32),
)
def test_the_slowdown_that_was_built_in_is_found(slowdown, steps, share, seed):
    alone = [random.Random(seed).randrange(10_000, 200_000) for _ in range(80)]
    found = find_interference(*beside(alone, slowdown, steps, share, seed))
    assert found is not None
    assert found[0] == pytest.approx(max(1.0, slowdown), rel=1e-3)  # nothing speeds up


@pytest.mark.parametrize(
    ("kernels", "each_ns", "change"),
    [
        (FEWEST_KERNELS - 1, 50_000, None),
        (100, 2_000, None),
        (100, 50_000, "other names"),
        (100, 50_000, "half in a collective"),
    ],
)
def test_few_short_or_other_kernels_tell_nothing(kernels: int, each_ns: int, change: str | None) -> None:
    steps, busy = beside([each_ns] * kernels, 1.5, 6, 0.5, 1)
    if change == "other names":
        steps[1]["name"] += 1
    if change == "half in a collective":
        busy = [(start + 10_000, end) for start, end in busy]
    assert find_interference(steps, busy) is None


# What computation costs all-reduces, out of traces of a known truth; and the steps predicted from it.

# A transformer on a slow wire: all-reduces queue up, and the last ones run after backward.
LAYER = ((1024, 1024), (1024,))
JOB = Job(
    shapes=(*LAYER * 6, (4096, 1024)),
    buckets=(2, 2, 2, 2, 2, 2, 1),
    gradient_ns=(400_000, 100_000) * 6 + (300_000,),
    transfer_ns=(600_000,) * 6 + (2_400_000,),
    forward_ns=((1_500_000,) * 4,) * 5,
    offsets_ns=(0, 3_000_000, -2_000_000, 500_000),
)


def as_run(found: Traced) -> CandidateAgreement:
    assert found.workload is not None
    record = Record(
        name="as run",
        workload=found.workload,
        hardware=found.hardware[0],
        measurements=found.measurements,
    )
    (row,) = sim.agreement(record).rows
    return row


@pytest.mark.parametrize("factors", [(1.0, 1.3, 1.2, 1.25, 1.3), (0.8, 1.0, 1.1, 1.0, 1.05)])
def test_one_rank_shows_what_queues_after_backward_without_its_least_step(factors: tuple[float, ...]) -> None:
    """What was sent behind another, after backward, waited for nobody: its median counts, not its best."""
    found, _ = imported(replace(JOB, transfer_factors=factors), Dialect(), ranks=1)
    middle = sorted(factors)[2]
    largest = found.hardware[0].all_reduce[-1]
    assert largest.duration_ns == pytest.approx(2_400_000 * middle, rel=1e-3)
    row = as_run(found)
    measured = row.measured_sync_end_ns - row.predicted.backward_end_ns
    least = sum(JOB.transfer_ns) * min(factors) - (row.predicted.backward_end_ns - 500_000)
    assert abs(row.predicted.exposed_comm_ns - measured) < 0.3 * abs(least - measured)
