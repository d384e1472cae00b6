"""What ZeRO's buckets hold: by hand, and as real DeepSpeed allocates it (A5.5, A5.7)."""

from typing import Any

import pytest

import sim
from sim.metrics.step import buffer_memory
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.memory import Holding
from tests.systems.sharded import SYSTEMS, everyday_answers, workload_of
from tests.systems.sharded_cases import REFUSED, ZERO, m1_workload

FLAT = (CurvePoint(num_bytes=0, duration_ns=3),)
HARDWARE = Hardware(name="any", world_size=2, all_reduce=FLAT, all_gather=FLAT)


def holdings(workload: Any, policy: str, settings: dict[str, Any]) -> tuple[Holding, ...]:
    given = settings | ({"offload_bytes_per_s": 1e9} if settings.get("cpu_offload") else {})
    return sim.simulate(workload, HARDWARE, sim.assign(workload, policy, **given)).holdings


@pytest.mark.dist
@pytest.mark.parametrize("name", [name for name in ZERO if name not in REFUSED])
def test_contiguous_buffers_are_those_that_deepspeed_allocates(name: str) -> None:
    """A5.5: reduce_bucket_size elements each, full or not; two of them with overlap_comm."""
    for answer in everyday_answers("zero")[name]:
        policy, settings = SYSTEMS["zero"].asked(ZERO[name])
        held = holdings(workload_of(answer), policy, settings)
        buffers = sum(one.num_bytes for one in held if one.what == "contiguous buffers")
        assert buffers == answer["buffers_bytes"]


def copies(**settings: Any) -> list[int]:
    """What is made for each collective of M1, in bytes."""
    held = holdings(m1_workload(), "zero2", {"reduce_bucket_size": 15000} | settings)
    return [one.num_bytes for one in held if one.what == "copies to send"]


def test_what_each_collective_needs_beside_the_buffers() -> None:
    """A5.7: several owners' slices are flattened, and what has another dtype on the wire is cast."""
    assert copies() == [0, 0, 4 * 12416, 0]  # the third bucket straddles the partitions
    assert copies(reduce_scatter=False) == [0, 0, 0, 0]
    halves = [2 * elements for elements in (12768, 7776, 12416, 8192)]
    assert copies(reduce_scatter=False, communication_data_type="bf16") == halves
    # Without buffers all that is sent together is flattened; the last flush is one gradient.
    assert copies(contiguous_gradients=False) == [4 * 12768, 4 * 7776, 4 * 12416, 0]


def test_offloading_stages_the_largest_parameter() -> None:
    """A8.8, on the device."""
    held = holdings(m1_workload(), "zero2", {"cpu_offload": True})
    assert [one.num_bytes for one in held if one.what == "offloading"] == [4 * 12288]


def test_one_flush_is_under_way_at_most() -> None:
    """A5.6: the peak is the largest of the copies, not their sum."""
    assignment = sim.assign(m1_workload(), "zero2", reduce_bucket_size=15000, contiguous_gradients=False)
    memory = buffer_memory(sim.simulate(m1_workload(), HARDWARE, assignment))
    assert (memory.buffers_bytes, memory.transient_peak_bytes) == (0, 4 * 12768)
