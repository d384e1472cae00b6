"""Hosts with different numbers of ranks, by the rules of NCCL's ncclTopoTuneModel (src/graph/tuning.cc)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clusters.nccl.constants import BASE_US, STEP_US
from sim.clusters.nccl.fabric import Fabric, Hop
from sim.clusters.nccl.model import bytes_per_us, latency_us, methods
from tests.clusters.published_fabrics import nccl_time_ns


def uneven(world_size: int, hosts: int, least: int, most: int) -> Fabric:
    """A100 hosts of 240 GB/s within and 96 GB/s between."""
    return Fabric(
        world_size=world_size,
        hosts=hosts,
        ranks_per_host=most,
        fewest_ranks=least,
        generation="ampere",
        intra=Hop(kind="nvswitch", bytes_per_s=240e9),
        inter=Hop(kind="net", bytes_per_s=96e9) if hosts > 1 else None,
        channels=8,
    )


@given(st.lists(st.integers(1, 8), min_size=2, max_size=9), st.integers(0, 2**34))
def test_times_depend_on_the_ratio_of_ranks_to_hosts(counts: list[int], num_bytes: int) -> None:
    """Any hosts make a fabric; of the same ratio, all else equal, each ring takes as long."""
    fabric = uneven(sum(counts), len(counts), min(counts), max(counts))
    assert fabric.mean_ranks == sum(counts) / len(counts)
    for method in methods(fabric, "all_reduce"):
        assert nccl_time_ns(fabric, "all_reduce", num_bytes, method) > 0
        if sum(counts) % len(counts) == 0 and method.algorithm == "ring" and max(counts) > 1:
            even = replace(fabric, ranks_per_host=sum(counts) // len(counts), fewest_ranks=None)
            if even.ranks_per_host > 1:
                same = nccl_time_ns(even, "all_reduce", num_bytes, method)
                assert nccl_time_ns(fabric, "all_reduce", num_bytes, method) == same


def test_a_trees_chain_is_the_ratio_rounded_down() -> None:
    """1 + 8 + 8 ranks on 3 hosts: 17 // 3 - 1 = 4 steps within, and log2i(3) = 1 between, up and down."""
    fabric = uneven(17, 3, 1, 8)
    steps = 4 * STEP_US["nvlink"]["tree"][2] + STEP_US["net"]["tree"][2]
    taken = latency_us(fabric, "all_reduce", 2**20, "tree", "Simple")
    assert taken == pytest.approx(BASE_US["tree"][2] + 2 * steps)


def test_one_host_of_one_gpu_makes_its_trees_simpler_for_all() -> None:
    """comm->maxTreePattern: NCCL_TOPO_PATTERN_TREE anywhere costs 15 %."""
    one, two = (bytes_per_us(uneven(12, 3, least, 8), "all_reduce", "tree", "Simple") for least in (1, 2))
    assert one == pytest.approx(0.85 * two)
