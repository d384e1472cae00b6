"""The tuner against every partition there is."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, ReadyIncludes, Workload
from sim.tuner import exact
from sim.tuner.partitions import cut, cut_places, cuts_of, every_partition, runs
from sim.tuner.recommend import EXHAUSTIVE_PLACES, find_optimum
from sim.tuner.score import Scorer
from tests.tuner.cases import (
    Case,
    anything,
    brute_force,
    contiguous_partitions,
    link,
    one_channel_optimum,
    one_run,
    oracle_runs,
    resnet50,
    simulated,
)

FOREVER = 2**62


@settings(max_examples=250)
@given(one_run(max_gradients=8))
def test_tune_finds_the_best_of_all_simulated_partitions(case: Case) -> None:
    """DESIGN, "The tuner": contiguous partitions, exact on one FIFO channel for any curve."""
    recommendation = sim.tune(*case)
    best = brute_force(*case)
    assert recommendation.report.sync_end_ns == best
    assert recommendation.proved_optimal
    assert recommendation.lower_bound_ns <= best
    assert recommendation.report.engine == "simpy"


@settings(max_examples=250)
@given(one_run(max_gradients=12))
def test_tune_finds_the_best_of_2048_partitions(case: Case) -> None:
    """The same on up to 12 gradients, against an oracle that shares no line with the engines."""
    recommendation = sim.tune(*case)
    assert recommendation.report.sync_end_ns == one_channel_optimum(*case)
    assert recommendation.proved_optimal


@settings(max_examples=400)
@given(one_run(max_gradients=10), st.data())
def test_exact_search_alone(case: Case, data: st.DataObject) -> None:
    """It finds the optimum from any upper bound above it, and nothing from any that is not."""
    workload, hardware = case
    best = one_channel_optimum(workload, hardware)
    limit = data.draw(st.sampled_from([best + 1, best + 2, best + 1000, 2 * best + 1, FOREVER]))
    buckets, complete = exact.exact_optimum(workload, hardware, limit)
    assert complete
    assert buckets is not None
    assert simulated(workload, hardware, buckets) == best
    assert buckets in set(contiguous_partitions(workload))
    assert exact.exact_optimum(workload, hardware, best) == (None, True)
    assert exact.exact_optimum(workload, hardware, max(0, best - 3)) == (None, True)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(one_run(max_gradients=12))
def test_the_first_narrow_search_decides_nothing(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """However poor the first search is, the second finds the optimum."""
    monkeypatch.setattr(exact, "FEW_LABELS", 1)
    buckets, complete = exact.exact_optimum(*case, FOREVER)
    assert complete
    assert buckets is not None
    assert simulated(*case, buckets) == one_channel_optimum(*case)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(one_run(max_gradients=10), st.integers(1, 6))
def test_cut_short_it_claims_nothing_wrong(monkeypatch: pytest.MonkeyPatch, case: Case, labels: int) -> None:
    """With few labels a prefix the search may miss the optimum, but then it must not claim it."""
    monkeypatch.setattr(exact, "MAX_LABELS", labels)
    workload, hardware = case
    best = one_channel_optimum(workload, hardware)
    buckets, complete = exact.exact_optimum(workload, hardware, FOREVER)
    assert buckets is not None
    found = simulated(workload, hardware, buckets)
    assert found >= best
    assert found == best or not complete


def test_cut_short_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_LABELS", 2)
    recommendation = sim.tune(resnet50(), link(4, copy_out_bytes_per_s=4e9))
    assert not recommendation.proved_optimal
    assert "cut short" in recommendation.proof


@settings(max_examples=200)
@given(anything(max_gradients=7))
def test_tune_finds_the_best_where_every_partition_is_tried(case: Case) -> None:
    """Two channels that share, interference, blocking launches, several dtypes, sparse gradients.

    DDP's own launch order among dtypes (A1.5, A3.18) is not by last-ready gradient; where that wins, the
    tuner must not lose to it.
    """
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    knobs = min(family.report.sync_end_ns for family in recommendation.families.values())
    assert recommendation.report.sync_end_ns == min(brute_force(workload, hardware), knobs)
    assert recommendation.proved_optimal
    if len(oracle_runs(workload)) == 1:
        assert recommendation.report.sync_end_ns == brute_force(workload, hardware)


@pytest.mark.parametrize(
    ("changes", "includes", "inside"),
    [
        ({}, (), True),
        ({"comm_channels": 2}, (), False),
        ({"channel_slowdown": 2.0}, (), True),
        ({"comm_slowdown": 1.01}, (), False),
        ({"compute_slowdown": 1.01}, (), False),
        ({"compute_slowdown": 1.01}, ("interference",), True),
        ({"comm_slowdown": 1.01}, ("interference",), False),
        ({"launch_blocks_compute": True, "launch_cost_ns": 1}, (), False),
        ({"launch_blocks_compute": True, "launch_cost_ns": 0}, (), True),
        ({"launch_blocks_compute": True, "launch_cost_ns": 1}, ("launch",), True),
        ({"launch_cost_ns": 1}, (), True),
    ],
)
def test_exact_search_applies_where_it_may(
    changes: dict[str, Any], includes: tuple[ReadyIncludes, ...], inside: bool
) -> None:
    """One run, one channel, nothing that stretches or blocks."""
    workload = replace(resnet50(), ready_includes=includes)
    assert exact.applies(workload, replace(link(4), **changes)) == inside


def test_exact_search_refuses_two_dtypes() -> None:
    workload = resnet50()
    other = replace(workload.gradients[5], dtype="bfloat16")
    gradients = (*workload.gradients[:5], other, *workload.gradients[6:])
    assert not exact.applies(replace(workload, gradients=gradients), link(4))


@settings(max_examples=60)
@given(anything(max_gradients=8), st.randoms(use_true_random=False))
def test_find_optimum_is_never_worse_than_what_it_starts_from(case: Case, random: Random) -> None:
    workload, hardware = case
    every = list(contiguous_partitions(workload))
    known = [random.choice(every) for _ in range(3)]
    scorer = Scorer(workload, hardware)
    buckets, _, _ = find_optimum(workload, hardware, scorer, known)
    assert simulated(workload, hardware, buckets) <= min(simulated(workload, hardware, k) for k in known)


def tiny(ready: list[int], sizes: list[int], curve: list[int], backward_ns: int, **machine: Any) -> Case:
    """Gradients by their ready times and sizes; ``curve[k]`` is the service time of k + 1 bytes."""
    workload = Workload(
        name="tiny",
        gradients=tuple(
            Gradient(index=k, name=f"g{k}", shape=(), dtype="float32", num_bytes=size, ready_ns=time)
            for k, (time, size) in enumerate(zip(ready, sizes, strict=True))
        ),
        forward_ns=0,
        backward_ns=backward_ns,
        optimizer_ns=0,
    )
    points = tuple(CurvePoint(num_bytes=k, duration_ns=time) for k, time in enumerate(curve, start=1))
    return workload, Hardware(name="tiny", world_size=2, all_reduce=points, **machine)


@pytest.mark.parametrize(
    ("ready", "curve", "launch_cost_ns", "best"),
    [
        ([0, 0, 17, 11, 0, 0, 0], [0, 17, 45, 0, 21, 82, 2, 1], 8, 25),
        ([0, 18, 0, 16, 0, 15, 2], [0, 16, 29, 72, 82, 25, 25, 2], 6, 35),
    ],
)
def test_a_later_launch_is_kept_apart(
    ready: list[int], curve: list[int], launch_cost_ns: int, best: int
) -> None:
    """A prefix that ended no later, but launched its last bucket later, can lose: one random case in
    4,300 where the better comes second, one in 120,000 where it comes first."""
    case = tiny(ready, [1] * 7, curve, 20, launch_cost_ns=launch_cost_ns)
    found, complete = exact._search(*case, FOREVER, exact.MAX_LABELS)
    assert complete
    assert found is not None
    assert found.available == brute_force(*case) == best


def test_the_second_search_finds_one_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that the first search leaves is itself beaten by as little as 1 ns."""
    ready = [0, 990, 990, 648, 348, 770, 380, 990, 0, 348, 250]
    case = tiny(
        ready,
        [98, 18, 0, 42, 58, 0, 46, 0, 0, 49, 17],
        [0],
        1195,
        launch_cost_ns=361,
        copy_out_bytes_per_s=3e8,
    )
    narrow, complete = exact._search(*case, FOREVER, 1)
    assert narrow is not None
    assert not complete
    best = one_channel_optimum(*case)
    assert narrow.available == best + 1
    monkeypatch.setattr(exact, "FEW_LABELS", 1)
    buckets, complete = exact.exact_optimum(*case, FOREVER)
    assert complete
    assert buckets is not None
    assert simulated(*case, buckets) == best


# ---------------------------------------------------------------------------------------------------
# The search space.


@settings(max_examples=150)
@given(anything(max_gradients=8))
def test_search_space_is_all_contiguous_partitions(case: Case) -> None:
    workload, _ = case
    every = [cut(workload, cuts) for cuts in every_partition(workload)]
    assert len(set(every)) == len(every) == 2 ** len(cut_places(workload))
    assert set(every) == set(contiguous_partitions(workload))
    for buckets in every:
        Assignment(bucket_indices=buckets).check_fits(workload)


@settings(max_examples=150)
@given(anything(max_gradients=8), st.data())
def test_cuts_come_back_from_buckets(case: Case, data: st.DataObject) -> None:
    workload, _ = case
    places = cut_places(workload)
    cuts = frozenset(data.draw(st.sets(st.sampled_from(places)))) if places else frozenset()
    buckets = cut(workload, cuts)
    assert cuts_of(workload, buckets) == cuts
    assert cuts_of(workload, buckets[::-1]) == cuts


def test_buckets_that_are_not_contiguous_have_no_cuts() -> None:
    workload = resnet50()
    run = runs(workload)[0]
    assert cuts_of(workload, (tuple(run[::2]), tuple(run[1::2]))) is None


def test_every_run_is_in_ready_order() -> None:
    workload = resnet50()
    times = [workload.gradients[index].ready_ns or 0 for index in runs(workload)[0]]
    assert all(before <= after for before, after in pairwise(times))


def test_exhaustive_search_stays_small() -> None:
    assert 2**EXHAUSTIVE_PLACES <= 4096
