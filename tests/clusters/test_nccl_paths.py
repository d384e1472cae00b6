"""What links give: constants are medians of machines that nothing is tested on, and what they do to times."""

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clusters.computed import (
    MEASURED_THROUGH_HOST,
    OVER_LINKS,
    PEER_TO_PEER,
    THROUGH_HOST,
    uncertainty,
)
from sim.clusters.fabric import (
    PCIE_5_FROM_BYTES_PER_S,
    THROUGH_HOST_BYTES_PER_S,
    Fabric,
    Hop,
    Kind,
    through_host,
)
from sim.clusters.nccl_model import (
    RING,
    RING_FROM,
    RING_OVER_NVLINK,
    Method,
    as_delivered,
    choose,
    collective_ns,
    latency_us,
    time_ns,
)
from sim.clusters.nccl_tables import Algorithm, Protocol
from sim.nouns.cluster import NVLINKS
from tests.clusters import measured_paths as others
from tests.clusters.published_fabrics import GB, MIB, PCIE_4, PCIE_5, box, nccl_time_ns

KINDS = st.sampled_from(["nvlink", "nvswitch", "pcie", "shm", "qpi"])


def on_hosts(fabric: Fabric, hosts: int, net: float = 1e10) -> Fabric:
    """So many hosts like this one, with ``net`` bytes/s between them."""
    if hosts == 1:
        return fabric
    world_size = hosts * fabric.ranks_per_host
    return replace(fabric, world_size=world_size, hosts=hosts, inter=Hop(kind="net", bytes_per_s=net))


def reached_share(machine: others.Timed, size: int) -> float:
    """What is left of NCCL's bandwidth once its latency is off the measured time."""
    fabric, ranks = machine.fabric, machine.fabric.world_size
    latency = latency_us(fabric, "all_reduce", size * MIB, "ring", "Simple")
    wire_us = 2 * (ranks - 1) / ranks * size * MIB / fabric.intra.bytes_per_s * 1e6
    return wire_us / (machine.time_us[size] - latency)


@pytest.mark.parametrize("level", range(len(RING_OVER_NVLINK)))
def test_a_ring_over_nvlink_is_the_median_of_three_other_machines(level: int) -> None:
    size = (RING_FROM >> 20) << level
    shares = [reached_share(machine, size) for machine in others.NVLINK_MACHINES]
    assert RING_OVER_NVLINK[level] == round(median(shares), 2)
    assert all(each == pytest.approx(RING_OVER_NVLINK[level], rel=0.2) for each in shares)


def test_through_host_memory_is_the_median_of_other_machines_and_they_lie_far_apart() -> None:
    older = [each.bus / GB for each in others.THROUGH_HOST if each.slot < PCIE_5_FROM_BYTES_PER_S]
    newer = [each.bus / GB for each in others.THROUGH_HOST if each.slot >= PCIE_5_FROM_BYTES_PER_S]
    assert round(median(older)) * GB == THROUGH_HOST_BYTES_PER_S
    assert (min(older), max(older), min(newer), max(newer)) == (1.4, 14.9, 28.0, 35.0)
    assert f"{min(older)} to {max(older)} GB/s" == MEASURED_THROUGH_HOST


def test_from_gpu_to_gpu_nccls_figure_holds_below_switches_and_not_across_sockets() -> None:
    """Four machines have 0.84 to 1.08 of what NCCL counts; eight GPUs on two sockets have half."""
    *holding, across = (each.bus / each.slot for each in others.PEER_TO_PEER)
    assert (round(min(holding), 2), round(max(holding), 2)) == (0.84, 1.08)
    assert across < 0.5
    for each in others.PEER_TO_PEER:
        fabric = box(4, "pcie", each.slot, "ampere", 1)
        assert as_delivered(fabric, RING, 2**28) == fabric


def test_the_stated_ranges_come_from_those_machines() -> None:
    """Measured over computed; none of the systems that are predicted went into it."""
    least, greatest = THROUGH_HOST
    older = [THROUGH_HOST_BYTES_PER_S / each.bus for each in others.THROUGH_HOST if each.slot < PCIE_5]
    assert (least, greatest) == (round(min(older), 2), round(max(older), 1))
    ratios = [
        machine.time_us[size] * 1000 / collective_ns(machine.fabric, "all_reduce", size * MIB)
        for machine in others.NVLINK_MACHINES
        for size in machine.time_us
    ]
    assert (math.floor(min(ratios) * 10) / 10, math.ceil(max(ratios) * 10) / 10) == OVER_LINKS
    assert PEER_TO_PEER == (0.9, PCIE_4 / THROUGH_HOST_BYTES_PER_S)
    assert all(PEER_TO_PEER[0] <= each.slot / each.bus for each in others.PEER_TO_PEER)


@given(
    KINDS,
    st.floats(1e8, 1e12),
    st.integers(2, 16),
    st.integers(1, 4),
    st.integers(0, 2**36),
    st.sampled_from(["ring", "tree"]),
    st.sampled_from(["LL", "LL128", "Simple"]),
)
def test_a_path_reaches_no_more_than_it_carries_and_as_much_whatever_the_hosts(
    kind: Kind, rate: float, ranks: int, hosts: int, size: int, algorithm: Algorithm, protocol: Protocol
) -> None:
    fabric = on_hosts(box(ranks, kind, rate, "ampere", 1), hosts)
    method = Method(algorithm=algorithm, protocol=protocol)
    reached = as_delivered(fabric, method, size)
    alone = as_delivered(box(ranks, kind, rate, "ampere", 1), method, size)
    assert 0 < reached.intra.bytes_per_s <= rate
    assert reached.intra == alone.intra
    assert replace(reached, intra=fabric.intra) == fabric
    if kind == "shm":
        assert reached.intra.bytes_per_s == through_host(rate)
    elif kind not in NVLINKS or (algorithm, protocol) != ("ring", "Simple"):
        assert reached == fabric


def test_nccl_does_not_know_what_links_give() -> None:
    """The choice is by its own figures, wherever the time then ends up."""
    slow, fast = box(4, "shm", PCIE_4, "ampere", 1), box(4, "pcie", PCIE_4, "ampere", 1)
    for size in (2**10, 2**20, 2**30):
        method = choose(slow, "all_reduce", size)
        assert method == choose(fast, "all_reduce", size)
        assert method is not None
        assert nccl_time_ns(slow, "all_reduce", size, method) == time_ns(fast, "all_reduce", size, method)
        assert time_ns(slow, "all_reduce", size, method) > time_ns(fast, "all_reduce", size, method)


@given(st.floats(1e8, 1e11), st.none() | st.floats(0.1, 1), st.integers(0, 2**36))
def test_what_is_staged_before_a_nic_is_no_faster_than_through_host_memory(
    net: float, share: float | None, size: int
) -> None:
    """And of the rest of the network nothing is taken; without staging nothing is."""
    staged = None if share is None else net * share
    inter = Hop(kind="net", bytes_per_s=net, staged_bytes_per_s=staged)
    fabric = replace(on_hosts(box(1, "pcie", 12e9, "ampere", 1), 4), inter=inter)
    direct = replace(fabric, inter=Hop(kind="net", bytes_per_s=net))
    reached = as_delivered(fabric, RING, size).inter
    assert reached is not None
    assert reached.bytes_per_s == (staged or net)
    assert choose(fabric, "all_reduce", size) == choose(direct, "all_reduce", size)
    assert collective_ns(fabric, "all_reduce", size) >= collective_ns(direct, "all_reduce", size)
    least, greatest = uncertainty(fabric)
    if reached.bytes_per_s == net:
        assert (least, greatest) == OVER_LINKS
    else:  # never faster than the network, by what else is known of it
        assert least >= THROUGH_HOST[0]
        assert least == pytest.approx(max(THROUGH_HOST[0], OVER_LINKS[0] * reached.bytes_per_s / net))
        assert greatest == THROUGH_HOST[1]
