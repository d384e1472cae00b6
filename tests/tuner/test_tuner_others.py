"""The best sizes of other systems' buckets: as good as trying every size there is."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError, NotModelledError
from sim.metrics.step import step_ns
from sim.nouns.hardware import Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.systems.zero import read_zero_settings
from sim.tuner.others import best_of, megatron_intervals, megatron_settings, zero_intervals
from tests.effort import tries
from tests.strategies import TINY, curves, hardwares, workloads
from tests.tuner.cases import link, resnet50

POLICIES = st.sampled_from(["zero1", "zero2"])


@st.composite
def cases(draw: st.DrawFn, max_gradients: int = 7) -> tuple[Workload, Hardware]:
    """What ZeRO can train: one dtype, nothing sparse, no ``wire_bytes``; with all curves."""
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    workload = draw(
        workloads(TINY, max_gradients=max_gradients, dtypes=(dtype,), devices=(None,), sparse=False)
    )
    gradients = [
        replace(
            gradient,
            num_bytes=gradient.num_bytes * DTYPE_BYTES[dtype],
            wire_bytes=None,
            group=draw(st.integers(0, 1)) if gradient.num_bytes else 0,
        )
        for gradient in workload.gradients
    ]
    gradients[0] = replace(gradients[0], num_bytes=4 * DTYPE_BYTES[dtype], group=0)
    machine = draw(hardwares(TINY))
    return (
        replace(workload, gradients=tuple(gradients)),
        replace(machine, all_gather=draw(curves(TINY))),
    )


def step(workload: Workload, hardware: Hardware, policy: str, size: int) -> int:
    assignment = sim.assign(workload, policy, reduce_bucket_size=size)
    return step_ns(sim.simulate(workload, hardware, assignment, engine="analytic"))


def elements(workload: Workload) -> int:
    return workload.total_bytes // DTYPE_BYTES[workload.gradients[0].dtype]


@given(cases(), POLICIES)
def test_no_size_is_better(case, policy):
    workload, hardware = case
    found = best_of(workload, hardware, policy)
    every = [step(workload, hardware, policy, size) for size in range(1, elements(workload) + 2)]
    assert found.complete
    assert found.step_ns == min(every)
    size = found.assignment.settings["reduce_bucket_size"]
    assert step(workload, hardware, policy, size) == found.step_ns


@given(cases(), POLICIES)
def test_sizes_of_one_interval_take_the_same_step(case, policy):
    workload, hardware = case
    settings = read_zero_settings({}, 1 if policy == "zero1" else 2, workload)
    intervals, complete = zero_intervals(workload, settings, hardware.world_size, 10_000)
    assert complete
    assert (intervals[0][0], intervals[-1][1]) == (1, NO_LIMIT)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(intervals))
    for low, high in intervals:
        highest = min(high, elements(workload) + 5)
        assert step(workload, hardware, policy, low) == step(workload, hardware, policy, highest)


def equipped() -> Hardware:
    machine = link(10)
    return replace(machine, all_gather=machine.all_reduce)


def test_too_many_sizes_are_thinned_out_and_say_so():
    few = best_of(resnet50(), equipped(), "zero2", most=8)
    assert not few.complete
    assert few.how.endswith("sizes on a logarithmic grid")
    assert few.step_ns <= step(resnet50(), equipped(), "zero2", 500_000_000)


def test_a_thinned_grid_holds_deepspeeds_default():
    small = resnet50()
    large = tuple(replace(gradient, num_bytes=100 * gradient.num_bytes) for gradient in small.gradients)
    workload = replace(small, gradients=large)
    zero2 = read_zero_settings({}, 2, workload)
    thinned, complete = zero_intervals(workload, zero2, 2, 8)
    assert not complete
    assert len(thinned) <= 8
    assert any(low <= zero2.reduce_bucket_size <= high for low, high in thinned[:-1])


def test_what_cannot_be_trained_or_timed_says_why():
    with pytest.raises(NotModelledError, match="no all_gather curve"):
        best_of(resnet50(), link(10), "zero1")
    workload = resnet50()
    sparse = replace(
        workload, gradients=(replace(workload.gradients[0], sparse=True), *workload.gradients[1:])
    )
    with pytest.raises((InputError, NotModelledError), match="sparse"):
        best_of(sparse, equipped(), "zero1")


@settings(max_examples=tries(20))
@given(cases(max_gradients=6))
def test_no_size_of_megatron_is_better(case: tuple[Workload, Hardware]) -> None:
    workload, hardware = case
    found = best_of(workload, hardware, "megatron")
    total = workload.total_bytes // DTYPE_BYTES[workload.gradients[0].dtype]

    def step(**size: int) -> int:
        made = assign(workload, "megatron", **megatron_settings(workload), **size)
        return step_ns(sim.simulate(workload, hardware, made, "analytic"))

    assert found.complete
    assert found.step_ns == min(step(bucket_size=size) for size in range(total + 2))


@settings(max_examples=tries(30))
@given(cases(max_gradients=6))
def test_intervals_hold_every_size_once_and_cut_alike(case: tuple[Workload, Hardware]) -> None:
    workload, _ = case
    intervals, complete = megatron_intervals(workload, 2, 1000)
    assert complete
    assert (intervals[0][0], intervals[-1][1]) == (0, NO_LIMIT)
    for (_, high), (low, _) in pairwise(intervals):
        assert low == high + 1
    for low, high in intervals:
        ends = [
            assign(workload, "megatron", **megatron_settings(workload), bucket_size=size).bucket_indices
            for size in (low, high)
        ]
        assert ends[0] == ends[1]


def test_many_sizes_are_thinned() -> None:
    found = best_of(resnet50(), link(10), "megatron", most=4)
    assert not found.complete
    assert "logarithmic grid" in found.how
    assert found.assignment.settings["overlap_grad_reduce"] is True
