"""The search by labels: exact to the last nanosecond on one run and one FIFO channel."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.systems.cut import NO_LIMIT
from sim.tuner.search import labels
from sim.tuner.search.labels import applies, best_by_labels
from sim.tuner.search.problem import Problem
from tests.effort import tries
from tests.tuner.cases import (
    Case,
    brute_force,
    compiled_minimum,
    contiguous_partitions,
    is_contiguous,
    keeps_to,
    limits,
    link,
    one_channel_optimum,
    one_run,
    resnet50,
    simulated,
    tiny,
)

FOREVER = 2**62


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10), st.data())
def test_labels_find_the_optimum(case: Case, data: st.DataObject) -> None:
    """From any upper bound above it, and nothing from any that is not."""
    best = one_channel_optimum(*case)
    problem = Problem(*case)
    assert applies(problem)
    limit = data.draw(st.sampled_from([best + 1, best + 2, best + 1000, 2 * best + 1, FOREVER]))
    buckets, complete = best_by_labels(problem, limit)
    assert complete
    assert buckets is not None
    assert simulated(*case, buckets) == best
    assert buckets in set(contiguous_partitions(case[0]))
    assert best_by_labels(problem, best) == (None, True)
    assert best_by_labels(problem, max(0, best - 3)) == (None, True)


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10), st.data())
def test_labels_keep_to_a_limit(case: Case, data: st.DataObject) -> None:
    problem = Problem(*case)
    max_bytes = data.draw(limits(case[0]))
    buckets, complete = best_by_labels(problem, FOREVER, max_bytes)
    assert complete
    assert buckets is not None
    assert is_contiguous(case[0], buckets)
    assert keeps_to(case[0], buckets, max_bytes)
    assert simulated(*case, buckets) == compiled_minimum(problem, max_bytes)


@settings(
    max_examples=tries(100), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(one_run(max_gradients=12))
def test_the_first_narrow_search_decides_nothing(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """However poor the first search is, the second finds the optimum."""
    monkeypatch.setattr(labels, "FEW_LABELS", 1)
    buckets, complete = best_by_labels(Problem(*case), FOREVER)
    assert complete
    assert buckets is not None
    assert simulated(*case, buckets) == one_channel_optimum(*case)


@settings(
    max_examples=tries(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(one_run(max_gradients=10), st.integers(1, 6))
def test_cut_short_it_claims_nothing_wrong(monkeypatch: pytest.MonkeyPatch, case: Case, most: int) -> None:
    """With few labels a prefix the search may miss the optimum, but then it must not claim it."""
    monkeypatch.setattr(labels, "MAX_LABELS", most)
    best = one_channel_optimum(*case)
    buckets, complete = best_by_labels(Problem(*case), FOREVER)
    assert buckets is not None
    found = simulated(*case, buckets)
    assert found >= best
    assert found == best or not complete


def test_labels_refuse_two_dtypes() -> None:
    workload = resnet50()
    other = replace(workload.gradients[5], dtype="bfloat16")
    gradients = (*workload.gradients[:5], other, *workload.gradients[6:])
    assert not applies(Problem(replace(workload, gradients=gradients), link(4)))


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
    case = tiny(ready, [1] * 7, dict(enumerate(curve, start=1)), 20, launch_cost_ns=launch_cost_ns)
    found, complete = labels._search(Problem(*case), FOREVER, NO_LIMIT, labels.MAX_LABELS)
    assert complete
    assert found is not None
    assert found.available == brute_force(*case) == best


def test_the_second_search_finds_one_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that the first search leaves is itself beaten by as little as 1 ns."""
    ready = [0, 990, 990, 648, 348, 770, 380, 990, 0, 348, 250]
    sizes = [98, 18, 0, 42, 58, 0, 46, 0, 0, 49, 17]
    case = tiny(ready, sizes, {1: 0}, 1195, launch_cost_ns=361, copy_out_bytes_per_s=3e8)
    narrow, complete = labels._search(Problem(*case), FOREVER, NO_LIMIT, 1)
    assert narrow is not None
    assert not complete
    best = one_channel_optimum(*case)
    assert narrow.available == best + 1
    monkeypatch.setattr(labels, "FEW_LABELS", 1)
    buckets, complete = best_by_labels(Problem(*case), FOREVER)
    assert complete
    assert buckets is not None
    assert simulated(*case, buckets) == best
