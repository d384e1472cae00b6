"""The scorer against the engines."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

import sim
from sim.clock import analytic
from sim.nouns.assignment import Assignment
from sim.tuner.search import score
from sim.tuner.search.score import Scorer
from tests import strategies
from tests.effort import tries
from tests.tuner.cases import Case, anything, contiguous_partitions, link, resnet50, simulated

ENGINES = ("simpy", "analytic")
A_FEW_NS = 12  # 2 were seen at times of training, 6 beyond 2**52 ns


@settings(max_examples=tries(250))
@given(strategies.cases())
def test_scorer_agrees_with_both_engines(case: strategies.Case) -> None:
    """Any legal assignment, in any order, on any machine, to the nanosecond. Bucket views (A3.4) are a
    matter of ``ddp_kwargs``, of which the scorer knows nothing."""
    buckets = case.assignment.bucket_indices
    scorer = Scorer(case.workload, case.hardware)
    end = scorer.sync_end_ns(buckets)
    for engine in ENGINES:
        bare = Assignment(bucket_indices=buckets)
        assert end == sim.simulate(case.workload, case.hardware, bare, engine).sync_end_ns
    assert abs(scorer.rough_ns(buckets) - end) <= A_FEW_NS


@settings(max_examples=tries(100))
@given(anything(max_gradients=6))
def test_scorer_agrees_on_every_contiguous_partition(case: Case) -> None:
    scorer = Scorer(*case)
    for buckets in contiguous_partitions(case[0]):
        assert scorer.sync_end_ns(buckets) == simulated(*case, buckets)


def test_only_a_search_puts_small_messages_aside() -> None:
    machine = link(4, comm_channels=2)
    shared = replace(machine, shared_connection=True)
    scorer = Scorer(resnet50(), shared)
    assert (scorer.problem.hardware, scorer.for_search.problem.hardware) == (shared, machine)


def test_scorer_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists or tuples, roughly or to the ns: one step is played."""
    steps = []
    play = score.kernels.play_surely
    monkeypatch.setattr(score.kernels, "play_surely", lambda *arguments: steps.append(1) or play(*arguments))
    workload = resnet50()
    scorer = Scorer(workload, link(4))
    buckets = sim.assign(workload).bucket_indices
    assert scorer.sync_end_ns(buckets) == scorer.sync_end_ns([list(bucket) for bucket in buckets])
    assert scorer.rough_ns(buckets) == scorer.sync_end_ns(buckets)
    assert len(steps) == 1


def test_scorer_needs_the_engine_only_where_it_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    play, rough = analytic.play, score.kernels.play_surely
    monkeypatch.setattr(score.analytic, "play", lambda program: asked.append(1) or play(program))
    workload = resnet50()
    buckets = sim.assign(workload).bucket_indices
    Scorer(workload, link(4, comm_channels=2)).sync_end_ns(buckets)
    assert not asked
    scorer = Scorer(workload, link(4, comm_slowdown=1.5, compute_slowdown=1.5))
    monkeypatch.setattr(score.kernels, "play_surely", lambda *given: (rough(*given)[0] + 1, False))
    expected = sim.simulate(workload, scorer.problem.hardware, sim.assign(workload)).sync_end_ns
    assert scorer.sync_end_ns(buckets) == expected
    assert asked
