"""A case of any system that is not plain DDP, beside another rank or alone."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

import sim
from tests.strategies import TINY, Case, hardwares, other_ranks, workloads
from tests.systems.textbook_cases import POLICIES

SMALL = {"reduce_bucket_size": 5}
SYSTEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((policy, {}) for policy in POLICIES),
    ("zero1", SMALL),
    ("zero2", SMALL),
    ("zero2", SMALL | {"accelerator": "cpu"}),
    ("zero2", SMALL | {"overlap_comm": True}),
    ("zero2", SMALL | {"overlap_comm": True, "contiguous_gradients": False}),
    ("megatron", {}),
    ("fully_shard", {}),
    ("megatron", {"overlap_grad_reduce": True, "bucket_size": 5}),
    ("single", {"find_unused_parameters": True}),
    ("per-parameter", {"comm_hook": "bf16_compress", "accumulation_steps": 2}),
    ("per-parameter", {"optimize_ddp": "ddp_optimizer"}),
)


@st.composite
def system_cases(draw: st.DrawFn) -> Case:
    """float32 on one device; all collectives are timed as all-reduces are."""
    workload = draw(workloads(TINY, sparse=False, dtypes=("float32",), devices=(None,), empty=False))
    whole = tuple(
        replace(g, wire_bytes=None, num_bytes=4 * g.num_bytes, shape=(g.num_bytes,))
        for g in workload.gradients
    )
    workload = replace(workload, gradients=whole)
    hardware = draw(hardwares(TINY))
    policy, options = draw(st.sampled_from(SYSTEMS))
    return Case(
        workload=workload,
        hardware=replace(
            hardware,
            world_size=2,
            reduce_scatter=hardware.all_reduce,
            all_gather=hardware.all_reduce,
        ),
        assignment=sim.assign(workload, policy, **options),
        slowest=draw(st.none() | other_ranks(workload, TINY)),
    )
