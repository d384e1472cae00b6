"""The scorer against the engines."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

import sim
from sim.nouns.assignment import Assignment
from sim.tuner import problem as score
from sim.tuner.problem import Problem
from tests import strategies
from tests.effort import tries
from tests.tuner.cases import Case, anything, contiguous_partitions, link, resnet50, simulated

ENGINES = ("simpy", "analytic")


@settings(max_examples=tries(250))
@given(strategies.cases())
def test_scorer_agrees_with_both_engines(case: strategies.Case) -> None:
    """Any legal assignment, in any order, on any machine, to the nanosecond. Bucket views (A3.4) are a
    matter of ``ddp_kwargs``, of which the scorer knows nothing."""
    buckets = case.assignment.bucket_indices
    problem = Problem(case.workload, case.hardware)
    end = problem.sync_end_ns(buckets)
    for engine in ENGINES:
        bare = Assignment(bucket_indices=buckets)
        assert end == sim.simulate(case.workload, case.hardware, bare, engine).sync_end_ns


@settings(max_examples=tries(100))
@given(anything(max_gradients=6))
def test_scorer_agrees_on_every_contiguous_partition(case: Case) -> None:
    problem = Problem(*case)
    for buckets in contiguous_partitions(case[0]):
        assert problem.sync_end_ns(buckets) == simulated(*case, buckets)


def test_only_a_search_puts_small_messages_aside() -> None:
    machine = link(4, comm_channels=2)
    shared = replace(machine, shared_connection=True)
    problem = Problem(resnet50(), shared)
    assert (problem.hardware, problem.for_search.hardware) == (shared, machine)


def test_scorer_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists or tuples: one step is played."""
    steps = []
    play = score.play_step
    monkeypatch.setattr(score, "play_step", lambda *arguments: steps.append(1) or play(*arguments))
    workload = resnet50()
    problem = Problem(workload, link(4))
    buckets = sim.assign(workload).bucket_indices
    assert problem.sync_end_ns(buckets) == problem.sync_end_ns([list(bucket) for bucket in buckets])
    assert len(steps) == 1
