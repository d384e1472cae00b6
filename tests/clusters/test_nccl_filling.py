"""NVLS' pipeline of chunks, against its kernel played stage by stage and NCCL's rules for chunks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clusters.nccl.computed import OVER_LINKS, hardware_of
from sim.clusters.nccl.constants import Algorithm
from sim.clusters.nccl.fabric import Fabric, Hop
from sim.clusters.nccl.model import (
    Method,
    bytes_per_us,
    collective_ns,
    filling_bytes,
    filling_ns,
    loop_bytes,
    time_ns,
)
from tests.clusters.published_fabrics import GH200_NVLINK, MIB, box, nccl_time_ns

NVLS = Method(algorithm="nvls", protocol="Simple")
H100 = replace(box(8, "nvswitch", GH200_NVLINK, "hopper", 16), nvls=True)


def hosts_of_h100(hosts: int) -> Fabric:
    return replace(H100, hosts=hosts, world_size=8 * hosts, inter=Hop(kind="net", bytes_per_s=384e9))


def played(loops: int, stages: int) -> int:
    """When the last loop leaves the last stage: a stage takes a loop once it has done the one before, and
    the stage before has done this one. All take as long."""
    left = [0] * stages
    for _ in range(loops):
        for stage in range(stages):
            left[stage] = max(left[stage], left[stage - 1] if stage else 0) + 1
    return left[-1]


@given(st.integers(1, 200), st.sampled_from([("all_reduce", 3), ("reduce_scatter", 2), ("all_gather", 2)]))
def test_filling_is_what_a_schedule_of_stages_takes_beyond_its_loops(
    loops: int, kind: tuple[str, int]
) -> None:
    collective, stages = kind
    size = loops * loop_bytes(H100, 2**40, "nvls")
    loop = loop_bytes(H100, size, "nvls")
    whole = size // loop
    assert filling_bytes(H100, collective, size, "nvls") == (played(whole, stages) - whole) * loop


@pytest.mark.parametrize(
    ("mib", "chunk_kib"),
    [(1, 16), (2, 16), (7, 16), (8, 32), (63, 32), (64, 64), (1023, 64), (1024, 128), (8192, 128)],
)
def test_chunks_of_eight_h100_are_nccls(mib: int, chunk_kib: int) -> None:
    """16 channels of 8 heads: 128 chunks at once, halved below 64, 8 and 2 loops (calcCollChunking)."""
    assert loop_bytes(H100, mib * MIB, "nvls") == 128 * chunk_kib * 1024


@pytest.mark.parametrize(
    ("hosts", "gib", "chunk_kib"), [(2, 8, 128), (2, 0.03, 64), (2, 0.005, 32), (4, 8, 64)]
)
def test_chunks_of_a_tree_are_nccls(hosts: int, gib: float, chunk_kib: int) -> None:
    assert loop_bytes(hosts_of_h100(hosts), round(gib * 2**30), "nvls_tree") == 128 * chunk_kib * 1024


def test_blackwell_has_channels_of_its_own() -> None:
    alone = replace(box(8, "nvswitch", 18 * 40.1e9, "blackwell", 32), nvls=True)
    several = replace(alone, hosts=2, world_size=16, inter=Hop(kind="net", bytes_per_s=384e9))
    large = 2**40
    assert loop_bytes(alone, large, "nvls") == 24 * 8 * 128 * 1024
    assert loop_bytes(several, large, "nvls_tree") == 32 * 8 * 128 * 1024


def test_every_level_of_a_tree_has_a_stage_up_and_one_down() -> None:
    for hosts, stages in ((2, 5), (4, 7), (16, 11)):
        fabric = hosts_of_h100(hosts)
        loop = loop_bytes(fabric, 2**40, "nvls_tree")
        assert filling_bytes(fabric, "all_reduce", 2**40, "nvls_tree") == (stages - 1) * loop


@given(st.sampled_from(["ring", "tree", "collnet_direct", "collnet_chain"]), st.integers(0, 2**34))
def test_what_is_not_nvls_has_no_term_of_its_own(algorithm: Algorithm, size: int) -> None:
    assert filling_bytes(hosts_of_h100(2), "all_reduce", size, algorithm) == 0


@given(st.integers(0, 2**34))
def test_it_is_beyond_what_nccl_counts_and_part_of_the_time(size: int) -> None:
    beyond = filling_bytes(H100, "all_reduce", size, "nvls") / bytes_per_us(
        H100, "all_reduce", "nvls", "Simple"
    )
    counted = nccl_time_ns(H100, "all_reduce", size, NVLS)
    assert time_ns(H100, "all_reduce", size, NVLS) == pytest.approx(counted + 1000 * beyond, abs=1)
    assert 0 <= filling_ns(H100, "all_reduce", size) < collective_ns(H100, "all_reduce", size)


def test_where_buckets_lie_filling_counts_and_far_beyond_it_does_not() -> None:
    shares = {
        mib: filling_ns(H100, "all_reduce", mib * MIB) / collective_ns(H100, "all_reduce", mib * MIB)
        for mib in (2, 8, 32, 256, 8192)
    }
    assert all(shares[mib] > 0.15 for mib in (2, 8, 32))
    assert shares[256] < 0.06
    assert shares[8192] < 0.005


def test_the_stated_range_leaves_open_whether_it_counts() -> None:
    made = hardware_of(H100, "8 H100")
    for point in made.all_reduce:
        known = made.spread["all_reduce"][str(point.num_bytes)]
        without = point.duration_ns - filling_ns(H100, "all_reduce", point.num_bytes)
        assert known["min_ns"] == pytest.approx(OVER_LINKS[0] * without, abs=1)
        assert known["max_ns"] == pytest.approx(OVER_LINKS[1] * point.duration_ns, abs=1)
    assert any("NVLS" in line for line in made.provenance["not_known"])
    assert hardware_of(box(8, "nvswitch", GH200_NVLINK, "hopper", 16), "none").provenance["not_known"] == []
