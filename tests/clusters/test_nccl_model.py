"""NCCL's cost model: theory's limits, its own tables, schedules stepped through, and what links give."""

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
    hardware_of,
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
    REPORTED_NS,
    RING,
    RING_FROM,
    RING_OVER_NVLINK,
    Method,
    as_delivered,
    as_stepped,
    bytes_per_us,
    choose,
    collective_ns,
    filling_bytes,
    filling_us,
    latency_us,
    loop_bytes,
    methods,
    nvls_speed,
    time_ns,
)
from sim.clusters.nccl_tables import BASE_US, PROTOCOLS, STEP_US, Algorithm, Protocol
from sim.errors import InputError
from sim.nouns.cluster import NVLINKS
from sim.nouns.hardware import CURVES
from tests.clusters import measured_paths as others
from tests.clusters.published_fabrics import (
    GB,
    GH200_NVLINK,
    MIB,
    PCIE_4,
    PCIE_5,
    alps,
    box,
    dgx_a100,
    nccl_time_ns,
    p4de,
)

SWITCHED = replace(box(8, "nvswitch", 370_800_000_000, "hopper", 16), nvls=True)


def filling_ns(fabric: Fabric, size: int) -> int:
    """What the pipeline of an all-reduce takes to fill."""
    method = choose(fabric, "all_reduce", size)
    if method is None:
        return 0
    return round(filling_us(as_delivered(fabric, method, size), "all_reduce", size, method) * 1000)


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    hosts, local = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    kinds: list[Kind] = ["nvlink", "nvswitch", "pcie", "shm", "qpi"]
    kind = draw(st.sampled_from(kinds))
    generation = draw(st.sampled_from(["volta", "turing", "ampere", "hopper", "blackwell"]))
    extra = st.none() | st.integers(0, 200_000)
    return Fabric(
        world_size=hosts * local,
        hosts=hosts,
        ranks_per_host=local,
        generation=generation,
        intra=Hop(kind=kind, bytes_per_s=draw(st.floats(1e8, 1e12)), latency_ns=draw(extra)),
        inter=Hop(
            kind="net",
            bytes_per_s=draw(st.floats(1e7, 1e12)),
            latency_ns=draw(extra),
            reported_ns=draw(extra),
        ),
        channels=draw(st.integers(1, 64)),
        nvls=kind == "nvswitch" and generation in ("hopper", "blackwell") and draw(st.booleans()),
        cpu=draw(st.sampled_from(["intel", "amd", "arm"])),
        protocols=draw(st.sampled_from([("LL", "LL128", "Simple"), ("LL", "Simple"), ("Simple",)])),
    )


@given(fabrics(), st.sampled_from(CURVES), st.integers(0, 2**34), st.integers(0, 2**34))
def test_time_rises_with_bytes_by_every_method_and_by_nccls_choice(
    fabric: Fabric, collective: str, one: int, two: int
) -> None:
    low, high = min(one, two), max(one, two)
    for method in methods(fabric, collective):
        assert time_ns(fabric, collective, low, method) <= time_ns(fabric, collective, high, method)
    small, large = (choose(fabric, collective, size) for size in (low, high))
    if small is not None and large is not None:
        least = nccl_time_ns(fabric, collective, low, small)
        assert least <= nccl_time_ns(fabric, collective, high, large)


@given(fabrics(), st.sampled_from(CURVES), st.integers(0, 2**34))
def test_the_choice_is_the_least_of_nccls_own_times(fabric: Fabric, collective: str, num_bytes: int) -> None:
    chosen = choose(fabric, collective, num_bytes)
    taken = collective_ns(fabric, collective, num_bytes)
    assert isinstance(taken, int)
    assert (chosen is None) == (fabric.world_size == 1)
    if chosen is None:
        assert taken == 0
        return
    times = [nccl_time_ns(fabric, collective, num_bytes, method) for method in methods(fabric, collective)]
    assert nccl_time_ns(fabric, collective, num_bytes, chosen) == min(times)
    counted = nccl_time_ns(as_stepped(fabric), collective, num_bytes, chosen)
    assert taken == time_ns(fabric, collective, num_bytes, chosen) >= counted


@given(fabrics(), st.sampled_from(CURVES), st.integers(1, 2**34))
def test_a_faster_wire_is_never_slower(fabric: Fabric, collective: str, num_bytes: int) -> None:
    assert fabric.inter is not None
    faster = replace(
        fabric,
        intra=replace(fabric.intra, bytes_per_s=2 * fabric.intra.bytes_per_s),
        inter=replace(fabric.inter, bytes_per_s=2 * fabric.inter.bytes_per_s),
    )
    for method in methods(fabric, collective):
        before, after = (time_ns(each, collective, num_bytes, method) for each in (fabric, faster))
        assert after <= before


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
    ranks, local = fabric.world_size, fabric.ranks_per_host
    bandwidth = fabric.intra.bytes_per_s if fabric.hosts == 1 else bus(fabric)
    part = num_bytes / ranks / bandwidth * 1e6
    number = PROTOCOLS.index("Simple")
    arrived = [0.0] * ranks
    for _ in range(steps):
        following = list(arrived)
        for rank in range(ranks):
            across = fabric.hosts > 1 and (rank + 1) % local == 0
            hop = STEP_US["net" if across else "nvlink"]["ring"][number]
            if fabric.hosts > 1 and not across:
                hop = max(hop, 3.0)
            following[(rank + 1) % ranks] = arrived[rank] + hop + part
        arrived = following
    return max(arrived)


def bus(fabric: Fabric) -> float:
    assert fabric.inter is not None
    return min(fabric.intra.bytes_per_s, fabric.inter.bytes_per_s)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("num_bytes", [0, 2**20, 2**26])
def test_a_ring_in_one_host_is_its_schedule(ranks: int, num_bytes: int) -> None:
    fabric = box(ranks, "nvlink", 200e9, "ampere", 12)
    base = BASE_US["ring"][2]
    for collective, steps in (("all_reduce", 2 * (ranks - 1)), ("all_gather", ranks - 1)):
        stepped = base + lockstep_ring(fabric, num_bytes, steps)
        assert nccl_time_ns(fabric, collective, num_bytes, RING) == pytest.approx(stepped * 1000, abs=1)


@pytest.mark.parametrize(("hosts", "local"), [(2, 4), (3, 3), (4, 2), (8, 4)])
def test_a_ring_across_hosts_crosses_two_more_hops_than_nccl_counts_at_most(hosts: int, local: int) -> None:
    """Of 2(n-1) hops in a row 2 hosts - 1 or 2 hosts go between hosts; NCCL counts 2 (hosts - 1)."""
    fabric = replace(alps(2), hosts=hosts, ranks_per_host=local, world_size=hosts * local)
    counted = latency_us(fabric, "all_reduce", 0, "ring", "Simple")
    stepped = BASE_US["ring"][2] + lockstep_ring(fabric, 0, 2 * (hosts * local - 1))
    net, link = STEP_US["net"]["ring"][2], STEP_US["nvlink"]["ring"][2]
    assert counted <= stepped + 1e-9
    assert stepped <= counted + 2 * (net - link) + 1e-9


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
    counted = latency_us(fabric, "all_reduce", 0, "tree", "Simple")
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
    assert fabric.inter is not None
    ideal = fabric.inter.bytes_per_s / 1e6 / counted
    assert bytes_per_us(fabric, "all_reduce", "tree", "Simple") == pytest.approx(0.92 * ideal)


def test_a_tree_meets_nccls_factors_at_powers_of_two() -> None:
    """treeCorrectionFactor, Simple: 0.5 at 256 KiB, 0.7 at 16 MiB, 0.9 at 256 MiB, none from 512 MiB on."""
    tree, fabric = Method(algorithm="tree", protocol="Simple"), p4de(2)
    full = bytes_per_us(fabric, "all_reduce", "tree", "Simple")
    latency = latency_us(fabric, "all_reduce", 0, "tree", "Simple")
    for size, factor in ((2**18, 0.5), (2**24, 0.7), (2**28, 0.9), (2**29, 1.0), (2**31, 1.0)):
        expected = (latency + size / (full * factor)) * 1000
        assert nccl_time_ns(fabric, "all_reduce", size, tree) == pytest.approx(expected, abs=1)


def algorithms(fabric: Fabric, collective: str = "all_reduce") -> set[str]:
    return {method.algorithm for method in methods(fabric, collective)}


def test_what_may_be_chosen() -> None:
    assert algorithms(dgx_a100(8)) == {"ring", "tree"}
    assert algorithms(dgx_a100(8), "broadcast") == {"ring"}
    assert algorithms(SWITCHED) == {"ring", "tree", "nvls"}
    two = replace(SWITCHED, hosts=2, world_size=16, inter=Hop(kind="net", bytes_per_s=400e9))
    assert algorithms(two) == {"ring", "tree", "nvls_tree"}
    assert "LL128" not in {
        method.protocol for method in methods(box(4, "pcie", GB, "ampere", 1), "broadcast")
    }
    with pytest.raises(InputError, match="'all_to_all' is not legal"):
        methods(dgx_a100(8), "all_to_all")


@pytest.mark.parametrize(("fabric", "least", "most"), [(SWITCHED, 460, 480), (dgx_a100(8), 230, 250)])
def test_large_messages_reach_what_is_known_of_dgx(fabric: Fabric, least: float, most: float) -> None:
    """nccl-tests' busbw of 8 H100 and 8 A100 in GB/s (docs.alayanew.com, NCCL-tests in practice, 2026)."""
    size = 2**33
    assert least <= size / collective_ns(fabric, "all_reduce", size) * 14 / 8 <= most


def test_nvls_has_32_heads_at_most_and_a_speed_that_links_carry_or_none() -> None:
    """Through a GPU's links goes what it sends to each head: (heads + 1) times the speed."""
    links = 18 * 40.1e9
    for ranks, speed in ((4, 90.0), (8, 80.0), (16, 40.0), (72, 20.0)):
        fabric = replace(box(ranks, "nvswitch", links, "blackwell", 32), nvls=True)
        assert nvls_speed(fabric) == speed
        assert (min(ranks, 32) + 1) * speed * 1e9 <= links
        assert ("nvls" in algorithms(fabric, "all_gather")) == (ranks <= 32)
    slow = replace(box(72, "nvswitch", links / 2, "blackwell", 32), nvls=True)
    assert nvls_speed(slow) == 0
    assert algorithms(slow) == {"ring", "tree"}


@pytest.mark.parametrize(
    ("ranks", "size", "published", "above"),
    [(8, 2**30, 830, 0.0), (72, 2**33, 847, 0.08), (72, 2**30, 724, 0.17)],
)
def test_nvls_on_blackwell_against_what_was_published(
    ranks: int, size: int, published: float, above: float
) -> None:
    """Bus bandwidth in GB/s: "830+" on 8 B200 (NVIDIA/nccl#1807, of which size is not said), up to 847 and
    724 on 72 GB200 (coreweave/nccl-tests, pull request 43), of which small messages reach less than is
    computed."""
    fabric = replace(box(ranks, "nvswitch", 18 * 40.1e9, "blackwell", 32), nvls=True)
    bus = 2 * (ranks - 1) / ranks * size / collective_ns(fabric, "all_reduce", size)
    assert 0.96 * published <= bus <= (1 + above) * published


def test_what_a_plugin_reports_counts_for_the_choice_alone() -> None:
    """75 us a step make NCCL choose trees for longer; a step then takes 20 beyond NCCL's table."""
    told = p4de(4)
    silent = replace(told, inter=replace(told.inter, reported_ns=None))
    method = Method(algorithm="tree", protocol="Simple")
    sizes = [2**power for power in range(10, 30)]
    trees = [sum(choose(each, "all_reduce", size) == method for size in sizes) for each in (told, silent)]
    assert trees[0] > trees[1]
    levels, both = 2, 2  # up and down, with a flush each
    beyond = time_ns(told, "all_reduce", 8, method) - time_ns(silent, "all_reduce", 8, method)
    assert beyond == pytest.approx(2 * levels * both * REPORTED_NS, abs=1)
    quick = replace(told, inter=replace(told.inter, reported_ns=1_000))
    beyond = time_ns(quick, "all_reduce", 8, method) - time_ns(silent, "all_reduce", 8, method)
    assert beyond == pytest.approx(2 * levels * both * 1_000, abs=1)


@given(fabrics(), st.integers(0, 2**32))
def test_computed_hardware_says_so(fabric: Fabric, size: int) -> None:
    hardware = hardware_of(fabric, "computed", (size, size, 2**20))
    assert "nothing of it is measured" in hardware.provenance["source"]
    assert hardware.provenance["fabric"]["world_size"] == hardware.world_size == fabric.world_size
    assert [point.num_bytes for point in hardware.all_reduce] == sorted({2**20, size})
    low, high = uncertainty(fabric)
    for point in hardware.all_reduce:
        assert point.duration_ns == collective_ns(fabric, "all_reduce", point.num_bytes)
        if point.duration_ns:
            known = hardware.spread["all_reduce"][str(point.num_bytes)]
            filling = filling_ns(fabric, point.num_bytes)  # NVLS may not have to fill at all
            assert known["min_ns"] == round((point.duration_ns - filling) * low)
            assert known["max_ns"] == round(high * point.duration_ns)
            assert "count" not in known


# Hosts with different numbers of ranks, by the rules of NCCL's ncclTopoTuneModel (src/graph/tuning.cc).


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


# NVLS' pipeline of chunks, against its kernel played stage by stage and NCCL's rules for chunks.

H100 = replace(box(8, "nvswitch", GH200_NVLINK, "hopper", 16), nvls=True)


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


CHUNKS = ((1, 16), (2, 16), (7, 16), (8, 32), (63, 32), (64, 64), (1023, 64), (1024, 128), (8192, 128))
IN_TREES = ((2, 8192, 128), (2, 31, 64), (2, 5, 32), (4, 8192, 64))


@pytest.mark.parametrize(("hosts", "mib", "chunk_kib"), [*((1, *row) for row in CHUNKS), *IN_TREES])
def test_chunks_of_eight_h100_are_nccls(hosts: int, mib: int, chunk_kib: int) -> None:
    """16 channels of 8 heads: 128 chunks at once, halved below 64, 8 and 2 loops (calcCollChunking)."""
    fabric = replace(H100, hosts=hosts, world_size=8 * hosts, inter=Hop(kind="net", bytes_per_s=384e9))
    loop = loop_bytes(fabric, mib * MIB, "nvls" if hosts == 1 else "nvls_tree")
    assert loop == 128 * chunk_kib * 1024


# What links give: constants are medians of machines that nothing is tested on, and what they do to times.

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
