"""NCCL's cost model: theory's limits, its own tables, schedules stepped through, and what links give."""

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clusters import computed as stated
from sim.clusters import nccl_model as nccl
from sim.clusters.fabric import PCIE_5_FROM_BYTES_PER_S, THROUGH_HOST_BYTES_PER_S, Fabric, Hop, through_host
from sim.clusters.nccl_model import RING, Method, as_delivered, choose, collective_ns, methods, time_ns
from sim.clusters.nccl_tables import BASE_US, PROTOCOLS, STEP_US, Algorithm, Protocol
from sim.errors import InputError
from sim.nouns.cluster import NVLINKS
from sim.nouns.hardware import CURVES
from tests.clusters import published_fabrics as others
from tests.clusters.published_fabrics import (
    GB,
    GH200_NVLINK,
    MIB,
    PCIE_4,
    alps,
    box,
    dgx_a100,
    nccl_time_ns,
    p4de,
)

NDR = Hop(kind="net", bytes_per_s=8 * 48 * GB)
H100 = replace(box(8, "nvswitch", GH200_NVLINK, "hopper", 16), nvls=True, inter=NDR)

EXTRA = st.none() | st.integers(0, 200_000)
PROTOCOL_SETS = [("LL", "LL128", "Simple"), ("LL", "Simple"), ("Simple",)]
within = st.sampled_from(["nvlink", "nvswitch", "pcie", "shm", "qpi"])


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Hosts alike; switches that reduce in flight only where there are some."""
    hosts, local = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    net = st.builds(
        Hop, kind=st.just("net"), bytes_per_s=st.floats(1e7, 1e12), latency_ns=EXTRA, reported_ns=EXTRA
    )
    made: Fabric = draw(
        st.builds(
            Fabric,
            world_size=st.just(hosts * local),
            hosts=st.just(hosts),
            ranks_per_host=st.just(local),
            intra=st.builds(Hop, kind=within, bytes_per_s=st.floats(1e8, 1e12), latency_ns=EXTRA),
            inter=net,
            channels=st.integers(1, 64),
            nvls=...,
            cpu=...,
            protocols=st.sampled_from(PROTOCOL_SETS),
        )
    )
    has_nvls = made.intra.kind == "nvswitch" and made.generation in ("hopper", "blackwell")
    return replace(made, nvls=made.nvls and has_nvls)


@given(fabrics(), st.sampled_from(CURVES), st.integers(0, 2**34), st.integers(0, 2**34))
def test_time_rises_with_bytes_falls_with_bandwidth_and_nccl_takes_the_least_of_its_own(
    fabric: Fabric, collective: str, one: int, two: int
) -> None:
    low, high = min(one, two), max(one, two)
    intra, inter = (replace(hop, bytes_per_s=2 * hop.bytes_per_s) for hop in (fabric.intra, fabric.inter))
    faster = (replace(fabric, inter=inter), replace(fabric, intra=intra, inter=inter))
    every = methods(fabric, collective)
    for method in every:
        taken = time_ns(fabric, collective, high, method)
        assert time_ns(fabric, collective, low, method) <= taken
        assert taken >= max(time_ns(each, collective, high, method) for each in faster)
    chosen = choose(fabric, collective, high)
    taken = collective_ns(fabric, collective, high)
    assert isinstance(taken, int)
    if chosen is None:
        assert (fabric.world_size, taken) == (1, 0)
        return
    least = nccl_time_ns(fabric, collective, high, chosen)
    assert least == min(nccl_time_ns(fabric, collective, high, method) for method in every)
    assert least >= min(nccl_time_ns(fabric, collective, low, method) for method in every)
    counted = nccl_time_ns(nccl.as_stepped(fabric), collective, high, chosen)
    assert taken == time_ns(fabric, collective, high, chosen) >= counted


@given(st.integers(2, 64), st.floats(1e9, 1e12))
def test_large_rings_are_the_textbooks(ranks: int, bytes_per_s: float) -> None:
    """Patarasuk and Yuan 2009: 2(n-1)/n of the bytes over each wire; half of it for the halves of it."""
    fabric = box(ranks, "nvlink", bytes_per_s, "hopper", 32)
    size = 2**50
    wire_ns = size / bytes_per_s * 1e9 * (ranks - 1) / ranks
    expected = {"all_reduce": 2 * wire_ns, "reduce_scatter": wire_ns, "all_gather": wire_ns}
    for collective, nanoseconds in expected.items():
        assert nccl_time_ns(fabric, collective, size, RING) == pytest.approx(nanoseconds, rel=1e-4)
    whole = size / bytes_per_s * 1e9
    assert nccl_time_ns(fabric, "broadcast", size, RING) == pytest.approx(whole, rel=1e-4)


def lockstep_ring(fabric: Fabric, num_bytes: int, steps: int) -> float:
    """us until the last rank of a ring has its last part: every rank sends on what it got before.

    Each message takes the latency of its hop, and the wire its bytes; a rank sends one after the other.
    """
    ranks, across = fabric.world_size, fabric.inter is not None and fabric.hosts > 1
    hops = (fabric.intra, fabric.inter) if fabric.inter is not None and across else (fabric.intra,)
    part = num_bytes / ranks / min(hop.bytes_per_s for hop in hops) * 1e6
    net, link = STEP_US["net"]["ring"][2], STEP_US["nvlink"]["ring"][2]  # of Simple
    arrived = [0.0] * ranks
    for _ in range(steps):
        before, arrived = arrived, [0.0] * ranks
        for rank in range(ranks):
            between = across and (rank + 1) % fabric.ranks_per_host == 0
            hop = net if between else max(link, 3.0) if across else link
            arrived[(rank + 1) % ranks] = before[rank] + hop + part
    return max(arrived)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("num_bytes", [0, 2**20, 2**26])
def test_a_ring_in_one_host_is_its_schedule(ranks: int, num_bytes: int) -> None:
    fabric = box(ranks, "nvlink", 200e9, "ampere", 12)
    for collective, steps in (("all_reduce", 2 * (ranks - 1)), ("all_gather", ranks - 1)):
        stepped = BASE_US["ring"][2] + lockstep_ring(fabric, num_bytes, steps)
        assert nccl_time_ns(fabric, collective, num_bytes, RING) == pytest.approx(stepped * 1000, abs=1)


@pytest.mark.parametrize(("hosts", "local"), [(2, 4), (3, 3), (4, 2), (8, 4)])
def test_a_ring_across_hosts_crosses_two_more_hops_than_nccl_counts_at_most(hosts: int, local: int) -> None:
    """Of 2(n-1) hops in a row 2 hosts - 1 or 2 hosts go between hosts; NCCL counts 2 (hosts - 1)."""
    fabric = replace(alps(2), hosts=hosts, ranks_per_host=local, world_size=hosts * local)
    counted = nccl.latency_us(fabric, "all_reduce", 0, "ring", "Simple")
    stepped = BASE_US["ring"][2] + lockstep_ring(fabric, 0, 2 * (hosts * local - 1))
    more = 2 * (STEP_US["net"]["ring"][2] - STEP_US["nvlink"]["ring"][2])
    assert counted - 1e-9 <= stepped <= counted + more + 1e-9


def binary_tree_parents(ranks: int) -> list[int]:
    """NCCL's ncclGetBtree: a rank's lowest set bit is its level; its parent has the next one set instead."""
    parents = [-1]
    for rank in range(1, ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parents.append(rank ^ bit if up >= ranks else up)
    return parents


@pytest.mark.parametrize("hosts", [1, 2, 4, 8, 16])
def test_a_tree_of_hosts_is_as_deep_as_counted(hosts: int) -> None:
    fabric = replace(alps(2), hosts=hosts, world_size=4 * hosts)
    parents = binary_tree_parents(hosts)

    def depth(host: int) -> int:
        return 0 if parents[host] < 0 else 1 + depth(parents[host])

    up = 3 * STEP_US["nvlink"]["tree"][2] + max(map(depth, range(hosts))) * STEP_US["net"]["tree"][2]
    counted = nccl.latency_us(fabric, "all_reduce", 0, "tree", "Simple")
    assert counted == pytest.approx(BASE_US["tree"][2] + 2 * up)


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 8])
def test_a_double_tree_loads_a_nic_as_its_bandwidth_says(hosts: int) -> None:
    """What the busiest host sends up and down both trees, each with half of the bytes (ncclGetDtree).

    The second tree is the first mirrored, or with an odd number of hosts shifted by one.
    """
    sent = [0.0] * hosts
    first = binary_tree_parents(hosts)
    second = [-1] * hosts
    for host, up in enumerate(first):
        if up >= 0:
            other = [(each + 1) % hosts if hosts % 2 else hosts - 1 - each for each in (host, up)]
            second[other[0]] = other[1]
    for tree in (first, second):
        for host, up in enumerate(tree):
            if up >= 0:
                sent[host] += 0.5
                sent[up] += 0.5
    counted = 1.0 if hosts == 2 else 2.0
    assert max(sent) == counted if hosts % 2 == 0 else max(sent) <= counted
    fabric = replace(alps(2), hosts=hosts, world_size=4 * hosts)
    fabric = replace(fabric, intra=Hop(kind="nvlink", bytes_per_s=1e12), channels=64)
    ideal = fabric.inter.bytes_per_s / 1e6 / counted
    assert nccl.bytes_per_us(fabric, "all_reduce", "tree", "Simple") == pytest.approx(0.92 * ideal)


def test_a_tree_meets_nccls_factors_at_powers_of_two() -> None:
    """treeCorrectionFactor, Simple: 0.5 at 256 KiB, 0.7 at 16 MiB, 0.9 at 256 MiB, none from 512 MiB on."""
    tree, fabric = Method(algorithm="tree", protocol="Simple"), p4de(2)
    full = nccl.bytes_per_us(fabric, "all_reduce", "tree", "Simple")
    latency = nccl.latency_us(fabric, "all_reduce", 0, "tree", "Simple")
    for size, factor in ((2**18, 0.5), (2**24, 0.7), (2**28, 0.9), (2**29, 1.0), (2**31, 1.0)):
        expected = (latency + size / (full * factor)) * 1000
        assert nccl_time_ns(fabric, "all_reduce", size, tree) == pytest.approx(expected, abs=1)


def algorithms(fabric: Fabric, collective: str = "all_reduce") -> set[str]:
    return {method.algorithm for method in methods(fabric, collective)}


def switched(ranks: int, bytes_per_s: float = 18 * 40.1e9) -> Fabric:
    """GPUs whose NVSwitches reduce in flight; by default Blackwell's."""
    return replace(box(ranks, "nvswitch", bytes_per_s, "blackwell", 32), nvls=True)


def test_what_may_be_chosen() -> None:
    assert algorithms(dgx_a100(8)) == {"ring", "tree"}
    assert algorithms(dgx_a100(8), "broadcast") == {"ring"}
    assert algorithms(H100) == {"ring", "tree", "nvls"}
    assert algorithms(replace(H100, hosts=2, world_size=16)) == {"ring", "tree", "nvls_tree"}
    pcie = methods(box(4, "pcie", GB, "ampere", 1), "broadcast")
    assert "LL128" not in {method.protocol for method in pcie}
    with pytest.raises(InputError, match="'all_to_all' is not legal"):
        methods(dgx_a100(8), "all_to_all")


@pytest.mark.parametrize(
    ("fabric", "size", "least", "most"),
    [
        (H100, 2**33, 460, 480),
        (dgx_a100(8), 2**33, 230, 250),
        (switched(8), 2**30, 0.96 * 830, 830),
        (switched(72), 2**33, 0.96 * 847, 1.08 * 847),
        (switched(72), 2**30, 0.96 * 724, 1.17 * 724),
    ],
)
def test_bus_bandwidths_are_what_was_published(fabric: Fabric, size: int, least: float, most: float) -> None:
    """In GB/s: 8 H100 and 8 A100 (docs.alayanew.com, NCCL-tests in practice, 2026); "830+" on 8 B200
    (NVIDIA/nccl#1807, of which size is not said), up to 847 and 724 on 72 GB200 (coreweave/nccl-tests, pull
    request 43), of which small messages reach less than is computed."""
    ranks = fabric.world_size
    assert least <= 2 * (ranks - 1) / ranks * size / collective_ns(fabric, "all_reduce", size) <= most


def test_nvls_has_32_heads_at_most_and_a_speed_that_links_carry_or_none() -> None:
    """Through a GPU's links goes what it sends to each head: (heads + 1) times the speed."""
    for ranks, speed in ((4, 90.0), (8, 80.0), (16, 40.0), (72, 20.0)):
        fabric = switched(ranks)
        assert nccl.nvls_speed(fabric) == speed
        assert (min(ranks, 32) + 1) * speed * 1e9 <= fabric.intra.bytes_per_s
        assert ("nvls" in algorithms(fabric, "all_gather")) == (ranks <= 32)
        assert [nccl.nvls_heads(replace(fabric, hosts=n, nics=3)) for n in (1, 2)] == [min(ranks, 32), 3]
    slow = switched(72, 9 * 40.1e9)
    assert (nccl.nvls_speed(slow), algorithms(slow)) == (0, {"ring", "tree"})


def test_what_a_plugin_reports_counts_for_the_choice_alone() -> None:
    """75 us a step make NCCL choose trees for longer; a step then takes 20 beyond NCCL's table."""
    told = p4de(4)
    silent, quick = (replace(told, inter=replace(told.inter, reported_ns=ns)) for ns in (None, 1_000))
    method = Method(algorithm="tree", protocol="Simple")
    sizes = [2**power for power in range(10, 30)]
    trees = [sum(choose(each, "all_reduce", size) == method for size in sizes) for each in (told, silent)]
    assert trees[0] > trees[1]
    levels, both = 2, 2  # up and down, with a flush each
    for fabric, step_ns in ((told, nccl.REPORTED_NS), (quick, 1_000)):
        beyond = time_ns(fabric, "all_reduce", 8, method) - time_ns(silent, "all_reduce", 8, method)
        assert beyond == pytest.approx(2 * levels * both * step_ns, abs=1)


@given(fabrics(), st.integers(0, 2**32))
def test_computed_hardware_says_so(fabric: Fabric, size: int) -> None:
    hardware = stated.hardware_of(fabric, "computed", (size, size, 2**20))
    assert "nothing of it is measured" in hardware.provenance["source"]
    assert hardware.provenance["fabric"]["world_size"] == hardware.world_size == fabric.world_size
    assert [point.num_bytes for point in hardware.all_reduce] == sorted({2**20, size})
    low, high = stated.uncertainty(fabric)
    for point in hardware.all_reduce:
        assert point.duration_ns == collective_ns(fabric, "all_reduce", point.num_bytes)
        method = choose(fabric, "all_reduce", point.num_bytes)
        if method is not None and point.duration_ns:
            known = hardware.spread["all_reduce"][str(point.num_bytes)]
            delivered = as_delivered(fabric, method, point.num_bytes)
            filling = round(nccl.filling_us(delivered, "all_reduce", point.num_bytes, method) * 1000)
            assert known["min_ns"] == round((point.duration_ns - filling) * low)  # it may not have to fill
            assert known["max_ns"] == round(high * point.duration_ns)
            assert "count" not in known


# Hosts with different numbers of ranks, by the rules of NCCL's ncclTopoTuneModel (src/graph/tuning.cc).


def test_hosts_with_different_numbers_of_ranks() -> None:
    """1 + 8 + 8 ranks on 3 hosts: 17 // 3 - 1 = 4 steps within, and log2i(3) = 1 between, up and down. One
    host of one GPU makes trees simpler for all: NCCL_TOPO_PATTERN_TREE anywhere costs 15 %."""
    fabric = replace(p4de(3), world_size=17, fewest_ranks=1, protocols=("LL", "LL128", "Simple"))
    fabric = replace(fabric, inter=Hop(kind="net", bytes_per_s=96e9), channels=8)
    steps = 4 * STEP_US["nvlink"]["tree"][2] + STEP_US["net"]["tree"][2]
    taken = nccl.latency_us(fabric, "all_reduce", 2**20, "tree", "Simple")
    assert taken == pytest.approx(BASE_US["tree"][2] + 2 * steps)
    one, two = (
        nccl.bytes_per_us(replace(fabric, world_size=12, fewest_ranks=least), "all_reduce", "tree", "Simple")
        for least in (1, 2)
    )
    assert one == pytest.approx(0.85 * two)


# NVLS' pipeline of chunks, against its kernel played stage by stage and NCCL's rules for chunks.


def played(loops: int, took: list[float], pace: float) -> float:
    """When the last loop leaves the last stage: one enters a stage as it leaves that before, a pace apart."""
    left = [-pace] * len(took)
    for _ in range(loops):
        for stage, each in enumerate(took):
            left[stage] = max(left[stage] + pace, (left[stage - 1] if stage else 0) + each)
    return left[-1]


@given(st.integers(1, 200), st.sampled_from([1, 2, 4]), st.sampled_from(CURVES[:3]))
def test_filling_is_what_stages_take_beyond_the_loops(loops: int, hosts: int, collective: str) -> None:
    stages, levels = (3, hosts.bit_length() - 1) if collective == "all_reduce" else (2, 0)
    way: Algorithm = "nvls_tree" if levels else "nvls"
    fabric = replace(H100, hosts=hosts, world_size=8 * hosts)
    size = loops * nccl.loop_bytes(fabric, 2**40, way)
    loop = nccl.loop_bytes(fabric, size, way)
    switch, pace = (nccl.bytes_per_us(fabric, collective, each, "Simple") for each in ("nvls", way))
    took = [loop / switch] * stages + [loop / 384e3] * 2 * levels
    filling_us = played(size // loop, took, loop / pace) - size / pace
    method = Method(algorithm=way, protocol="Simple")
    assert nccl.filling_us(fabric, collective, size, method) == pytest.approx(filling_us)


CHUNKS = ((1, 16), (2, 16), (7, 16), (8, 32), (63, 32), (64, 64), (1023, 64), (1024, 128), (8192, 128))
IN_TREES = ((2, 8192, 128), (2, 31, 64), (2, 5, 32), (4, 8192, 64))


@pytest.mark.parametrize(("hosts", "mib", "chunk_kib"), [*((1, *row) for row in CHUNKS), *IN_TREES])
def test_chunks_of_eight_h100_are_nccls(hosts: int, mib: int, chunk_kib: int) -> None:
    """16 channels of 8 heads: 128 chunks at once, halved below 64, 8 and 2 loops (calcCollChunking)."""
    fabric = replace(H100, hosts=hosts, world_size=8 * hosts)
    loop = nccl.loop_bytes(fabric, mib * MIB, "nvls" if hosts == 1 else "nvls_tree")
    assert loop == 128 * chunk_kib * 1024


# What links give: constants are medians of machines that nothing is tested on, and what they do to times.


@pytest.mark.parametrize("level", range(len(nccl.RING_OVER_NVLINK)))
def test_a_ring_over_nvlink_is_the_median_of_three_other_machines(level: int) -> None:
    """What is left of NCCL's bandwidth once its latency is off the measured time."""
    size = nccl.RING_FROM << level
    shares = []
    for machine in others.NVLINK_MACHINES:
        fabric, ranks = machine.fabric, machine.fabric.world_size
        wire_us = 2 * (ranks - 1) / ranks * size / fabric.intra.bytes_per_s * 1e6
        latency = nccl.latency_us(fabric, "all_reduce", size, "ring", "Simple")
        shares.append(wire_us / (machine.time_us[size // MIB] - latency))
    assert nccl.RING_OVER_NVLINK[level] == round(median(shares), 2)
    assert all(each == pytest.approx(nccl.RING_OVER_NVLINK[level], rel=0.2) for each in shares)


def test_through_host_memory_is_the_median_of_other_machines_and_they_lie_far_apart() -> None:
    older, newer = (
        [each.bus / GB for each in others.THROUGH_HOST if (each.slot >= PCIE_5_FROM_BYTES_PER_S) == is_newer]
        for is_newer in (False, True)
    )
    assert round(median(older)) * GB == THROUGH_HOST_BYTES_PER_S
    assert (min(older), max(older), min(newer), max(newer)) == (1.4, 14.9, 28.0, 35.0)
    assert f"{min(older)} to {max(older)} GB/s" == stated.MEASURED_THROUGH_HOST
    ratios = [THROUGH_HOST_BYTES_PER_S / GB / each for each in older]
    assert (round(min(ratios), 2), round(max(ratios), 1)) == stated.THROUGH_HOST


def test_from_gpu_to_gpu_nccls_figure_holds_below_switches_and_not_across_sockets() -> None:
    """Four machines have 0.84 to 1.08 of what NCCL counts; eight GPUs on two sockets have half."""
    *holding, across = (each.bus / each.slot for each in others.PEER_TO_PEER)
    assert (round(min(holding), 2), round(max(holding), 2)) == (0.84, 1.08)
    assert across < 0.5
    for each in others.PEER_TO_PEER:
        fabric = box(4, "pcie", each.slot, "ampere", 1)
        assert as_delivered(fabric, RING, 2**28) == fabric
        assert stated.PEER_TO_PEER[0] <= each.slot / each.bus
    assert stated.PEER_TO_PEER == (0.9, PCIE_4 / THROUGH_HOST_BYTES_PER_S)


def test_the_range_over_links_comes_from_those_machines() -> None:
    """Measured over computed; none of the systems that are predicted went into it."""
    ratios = [
        point.duration_ns / collective_ns(machine.fabric, "all_reduce", point.num_bytes)
        for machine in others.NVLINK_MACHINES
        for point in machine.curve
    ]
    assert (math.floor(min(ratios) * 10) / 10, math.ceil(max(ratios) * 10) / 10) == stated.OVER_LINKS


@given(fabrics(), st.integers(0, 2**36), st.sampled_from(["ring", "tree"]), st.sampled_from(PROTOCOLS))
def test_a_path_reaches_no_more_than_it_carries_and_as_much_whatever_the_hosts(
    fabric: Fabric, size: int, algorithm: Algorithm, protocol: Protocol
) -> None:
    assert fabric.inter is not None
    fabric = replace(fabric, inter=replace(fabric.inter, reported_ns=None))
    method = Method(algorithm=algorithm, protocol=protocol)
    reached, (kind, rate) = as_delivered(fabric, method, size), (fabric.intra.kind, fabric.intra.bytes_per_s)
    alone = replace(fabric, hosts=1, world_size=fabric.ranks_per_host, inter=None)
    assert reached.intra == as_delivered(alone, method, size).intra
    assert 0 < reached.intra.bytes_per_s <= rate
    assert replace(reached, intra=fabric.intra) == fabric
    if kind == "shm":
        assert reached.intra.bytes_per_s == through_host(rate)
    elif kind not in NVLINKS or (algorithm, protocol) != ("ring", "Simple"):
        assert reached == fabric


@given(st.floats(1e8, 1e11), st.none() | st.floats(0.1, 1), st.integers(0, 2**36))
def test_what_is_staged_before_a_nic_is_no_faster_than_through_host_memory(
    net: float, share: float | None, size: int
) -> None:
    """And of the rest of the network nothing is taken; without staging nothing is."""
    staged = None if share is None else net * share
    inter = Hop(kind="net", bytes_per_s=net)
    direct = replace(box(1, "pcie", 12e9, "ampere", 1), world_size=4, hosts=4, inter=inter)
    fabric = replace(direct, inter=replace(inter, staged_bytes_per_s=staged))
    reached = as_delivered(fabric, RING, size).inter
    assert reached.bytes_per_s == (staged or net)
    assert choose(fabric, "all_reduce", size) == choose(direct, "all_reduce", size)
    assert collective_ns(fabric, "all_reduce", size) >= collective_ns(direct, "all_reduce", size)
    least, greatest = stated.uncertainty(fabric)
    if reached.bytes_per_s == net:
        assert (least, greatest) == stated.OVER_LINKS
    else:  # never faster than the network, by what else is known of it
        assert least == pytest.approx(
            max(stated.THROUGH_HOST[0], stated.OVER_LINKS[0] * reached.bytes_per_s / net)
        )
        assert greatest == stated.THROUGH_HOST[1]
