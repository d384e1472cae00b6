"""The best ``--ddp-bucket-size``: as good as trying every one there is."""

from itertools import pairwise

from hypothesis import given, settings

import sim
from sim.metrics.step import step_ns
from sim.nouns.hardware import Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.reach.megatron_family import bucket_intervals, find_megatron, fixed_settings
from tests.effort import tries
from tests.tuner.cases import link, resnet50
from tests.tuner.test_tuner_zero_family import cases


@settings(max_examples=tries(20))
@given(cases(max_gradients=6))
def test_no_size_is_better(case: tuple[Workload, Hardware]) -> None:
    workload, hardware = case
    found = find_megatron(workload, hardware)
    total = workload.total_bytes // DTYPE_BYTES[workload.gradients[0].dtype]

    def step(**size: int) -> int:
        made = assign(workload, "megatron", **fixed_settings(workload), **size)
        return step_ns(sim.simulate(workload, hardware, made, "analytic"))

    assert found.complete
    assert found.step_ns == min(step(bucket_size=size) for size in range(total + 2))


@settings(max_examples=tries(30))
@given(cases(max_gradients=6))
def test_intervals_hold_every_size_once_and_cut_alike(case: tuple[Workload, Hardware]) -> None:
    workload, _ = case
    intervals, complete = bucket_intervals(workload, 2, 1000)
    assert complete
    assert (intervals[0][0], intervals[-1][1]) == (0, NO_LIMIT)
    for (_, high), (low, _) in pairwise(intervals):
        assert low == high + 1
    for low, high in intervals:
        ends = [
            assign(workload, "megatron", overlap_grad_reduce=True, bucket_size=size).bucket_indices
            for size in (low, high)
        ]
        assert ends[0] == ends[1]


def test_many_sizes_are_thinned() -> None:
    found = find_megatron(resnet50(), link(10), most=4)
    assert not found.complete
    assert "logarithmic grid" in found.how
    assert found.assignment.settings["overlap_grad_reduce"] is True
