"""How long a step under Megatron-Core takes: the example of RULES A9 by hand, and what is refused."""

from dataclasses import replace
from typing import Any

import sim
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from tests.systems.four_gradients import HARDWARE, four_gradients

WORKLOAD = four_gradients("m0", "m1", "m2", "m3")
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 60}
SHARDED = OVERLAP | {"use_distributed_optimizer": True}


def played(iteration: Iteration = "steady", workload: Workload = WORKLOAD, **settings: Any) -> Timeline:
    assignment = sim.assign(workload, "megatron", **settings)
    return sim.simulate(workload, HARDWARE, assignment, iteration=iteration)


def test_the_example_of_the_rules() -> None:
    timeline = played(**OVERLAP)
    assert timeline.assignment.bucket_indices == ((3, 2), (1, 0))
    assert [(bucket.launch_ns, bucket.end_ns) for bucket in timeline.buckets] == [(34, 59), (80, 105)]
    assert (timeline.pre_forward_ns, timeline.backward_end_ns, timeline.sync_end_ns) == (10, 90, 105)


def test_the_first_iteration_sends_after_backward() -> None:
    timeline = played(iteration=1, **OVERLAP)
    assert [(bucket.launch_ns, bucket.end_ns) for bucket in timeline.buckets] == [(77, 102), (115, 140)]


def test_the_distributed_optimizer_pads_scatters_and_gathers() -> None:
    timeline = played(**SHARDED)
    sent = [(one.collective.kind, one.collective.elements) for one in timeline.collectives]
    assert sent == [("reduce_scatter", 128), ("reduce_scatter", 256)]
    assert timeline.post_sync_ns == 50
    assert timeline.optimizer_ns == 960  # 192 of 200 elements are this rank's, padding included


def test_gathers_hide_behind_forward() -> None:
    timeline = played(**SHARDED, overlap_param_gather=True)
    zeroing = 384 // 2 // 10
    assert (timeline.pre_forward_ns, timeline.post_sync_ns) == (zeroing + 30, 0)


def test_micro_batches_add_and_the_last_one_reduces() -> None:
    each = 70 + 40  # backward with its additions, and forward
    timeline = played(**OVERLAP, num_microbatches=3)
    assert timeline.accumulation_ns == 2 * each + 10
    assert (timeline.pre_forward_ns, timeline.sync_end_ns) == (0, 105)


def test_half_precision_is_added_and_sent_as_fp32() -> None:
    halves = tuple(replace(g, dtype="bfloat16", num_bytes=g.num_bytes // 2) for g in WORKLOAD.gradients)
    timeline = played(workload=replace(WORKLOAD, gradients=halves), **OVERLAP, grad_reduce_in_fp32=True)
    assert [one.collective.num_bytes for one in timeline.collectives] == [280, 520]


def test_completion_order_is_the_order_of_launches() -> None:
    """Bucket 1 is complete first, and does not wait for bucket 0."""
    late = tuple(replace(g, ready_ns={0: 10, 1: 20, 2: 40, 3: 30}[g.index]) for g in WORKLOAD.gradients)
    timeline = played(workload=replace(WORKLOAD, gradients=late), **OVERLAP)
    assert [one.collective.bucket for one in timeline.collectives] == [1, 0]
