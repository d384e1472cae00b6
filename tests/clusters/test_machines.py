"""Fabrics from clusters, as published figures say of the same machines; what links between hosts leave a job;
and hardware taken to other links."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.fabric import Fabric, fabric_of, job_of
from sim.clusters.links import hardware_on, stretched_ns
from sim.clusters.machines import PRESETS, boxed_cluster, preset, shaped_bytes_per_s, tcp_port
from sim.costs.service_time import service_ns
from sim.errors import InputError, SimError
from sim.nouns.cluster import Cluster, Hosts, Network
from sim.nouns.collective import bus_factor
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from tests.cluster_strategies import (
    NEEDED,
    clusters,
    dgx_a100,
    dgx_h100,
    gh200_slingshot,
    nvl72,
    p4de,
    pcie_box,
    pcie_hosts,
    placements,
)
from tests.clusters import published_fabrics as published
from tests.effort import tries

GBIT = 10**9
MEASURED = Path(__file__).parents[2] / "traces" / "hardware"
CLUSTERS = [
    dgx_a100(4, hosts_per_leaf=2, oversubscription=4.0, rails=1),
    p4de(3, hosts_per_leaf=1),
    gh200_slingshot(5, hosts_per_leaf=2),
    pcie_hosts(4, 4, gbit_per_s=25, hosts_per_leaf=1, oversubscription=3.0),
]
rates = st.integers(1_000_000, 400 * GBIT)


def first(hosts: int, gpus: int) -> list[str]:
    """The first GPUs of each host."""
    return [f"host{host}.gpu{gpu}" for host in range(hosts) for gpu in range(gpus)]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (dgx_a100(), published.dgx_a100(8)),
        (p4de(2), published.p4de(2)),
        (gh200_slingshot(4), published.alps(4)),
        (gh200_slingshot(8), published.alps(8)),
    ],
    ids=["dgx_a100", "p4de", "alps 16", "alps 32"],
)
def test_the_rows_lead_to_the_published_figures(cluster: Cluster, expected: Fabric) -> None:
    """The fabrics that were written by hand from data sheets come out of the rows by themselves.

    But for the sockets' vendor, which one host does not need, and Slingshot's further switches.
    """
    fabric = fabric_of(cluster)
    inter = fabric.inter
    if inter is not None and expected.inter is not None:
        inter = replace(inter, latency_ns=expected.inter.latency_ns)
    assert replace(fabric, cpu=expected.cpu, inter=inter) == expected


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_made_by_name(name: str) -> None:
    made = fabric_of(preset(name, **NEEDED.get(name, {})))
    assert made.intra.latency_ns is None
    with pytest.raises(InputError, match=f"racks: is not a setting of preset '{name}'"):
        preset(name, racks=1)


APART = replace(pcie_box(2), hosts=(replace(pcie_box(2).hosts[0], count=2),))
TWO_LEAVES = pcie_hosts(8, 1, gbit_per_s=10, protocol="rdma", hosts_per_leaf=4, oversubscription=4.0)
NET, LINK, WHOLE = "inter.bytes_per_s", "intra.bytes_per_s", ("LL", "LL128", "Simple")
# One, two and five GPUs of three hosts; A100 beside H100; four hosts on one switch, one of them at a tenth.
UNEVEN = ["host0.gpu0", "host1.gpu0", "host1.gpu1", *(f"host2.gpu{number}" for number in range(5))]
_TWO_KINDS = (dgx_a100().kinds[0], dgx_h100().kinds[0])
_TWO_OF_EACH = tuple(Hosts(kind=kind.name, count=2) for kind in _TWO_KINDS)
MIXED = Cluster(name="both", kinds=_TWO_KINDS, hosts=_TWO_OF_EACH, network=dgx_a100(4).network)
_EVEN = pcie_hosts(4, 1, gbit_per_s=10, protocol="rdma")
_ONE, _TWO = (replace(_EVEN.hosts[0], count=count) for count in (1, 2))
ONE_SLOW = replace(_EVEN, hosts=(_TWO, replace(_ONE, port_bytes_per_s=0.125e9), _ONE))


@pytest.mark.parametrize(
    ("cluster", "ranks", "told"),
    [
        (dgx_a100(2), None, {NET: 8 * 24e9, "channels": 8}),  # PCIe 4.0, less than a port
        (dgx_a100(2), first(2, 1), {NET: 24e9, "channels": 1}),  # two NICs beside one slot
        (dgx_h100(2), None, {NET: 8 * 48e9, "channels": 8}),
        (p4de(2), None, {NET: 4 * 12e9, "channels": 4}),
        (p4de(2), first(2, 2), {NET: 12e9, "channels": 1}),  # below one switch with one NIC
        (preset("p5", hosts=2), None, {NET: 8 * 48e9, "channels": 8}),
        (gh200_slingshot(2), None, {NET: 4 * 24e9, "channels": 4}),
        (nvl72(2), None, {NET: 18 * 40.1e9, "channels": 16}),  # a ring passes NVLinks of all but two GPUs
        (nvl72(2), first(2, 1), {NET: 2 * 48e9, "channels": 4}),  # two NICs on its Grace
        (preset("hgx_ethernet", hosts=2, gbit_per_s=25), None, {NET: tcp_port(25), "channels": 1, "nics": 1}),
        (pcie_hosts(2, 4, gbit_per_s=10), None, {NET: tcp_port(10), "channels": 1}),
        # from socket to socket
        (pcie_hosts(2, 4, gbit_per_s=100, protocol="rdma"), None, {NET: 10e9, "channels": 1}),
        # Of three GPUs one sends to its NIC over another: PXN, which NCCL trusts with LL128 from Hopper on.
        (dgx_h100(2), first(2, 3), {"protocols": WHOLE, NET: 3 * 48e9, "channels": 6, "nics": 3}),
        (dgx_a100(2), first(2, 3), {"protocols": ("LL", "Simple")}),
        (dgx_a100(2), first(2, 4), {"protocols": WHOLE}),
        # Half of the ranks a socket each take their data from its memory: 204.8 GB/s for all.
        (pcie_box(280, sockets=2, peer_to_peer=False), None, {LINK: 204.8e9 / 140}),
        # Four hosts a switch: two of eight steps go over three, 350 ns for each after the first.
        (gh200_slingshot(8), None, {"inter.latency_ns": 2 * 2 * 350 // 8}),
        (gh200_slingshot(4), None, {"inter.latency_ns": None}),
        (p4de(2), None, {"inter.latency_ns": None, "inter.reported_ns": 75_000}),
        (preset("p5", hosts=2), None, {"inter.latency_ns": None, "inter.reported_ns": 75_000}),
        (dgx_h100(2), ["host1.gpu0"], {"world_size": 1}),
        # The fewest channels and the least bandwidths of all hosts count: one GPU goes over PCIe alone.
        (dgx_h100(3), UNEVEN, {"world_size": 8, "hosts": 3, "least_ranks": 1, "ranks_per_host": 5}),
        (dgx_h100(3), UNEVEN, {"mean_ranks": 8 / 3, "channels": 2, "nvls": False, NET: 48e9}),
        (dgx_h100(3), first(3, 2), {"fewest_ranks": None}),
        # A100's NVLink, its generation, and no LL128 between two generations
        (MIXED, None, {LINK: 12 * 20e9, "generation": "ampere", "nvls": False, "cpu": "amd", NET: 8 * 24e9}),
        (MIXED, None, {"protocols": ("LL", "Simple")}),
        (dgx_h100(4), None, {"protocols": WHOLE}),
        (ONE_SLOW, None, {NET: 0.125e9}),
        # A ring in order of hosts leaves a leaf once; in the worst order every step does.
        (TWO_LEAVES, None, {NET: 1.25e9}),
        (TWO_LEAVES, [f"host{host}.gpu0" for host in (0, 4, 1, 5, 2, 6, 3, 7)], {NET: 1.25e9 / 4}),
        (APART, ["host1.gpu0", "host1.gpu1"], {"world_size": 2}),
        (ONE_SLOW, ["host0.gpu0", "host1.gpu0", "host3.gpu0"], {NET: 1.25e9}),
    ],
)  # fmt: skip
def test_what_a_job_gets(cluster: Cluster, ranks: list[str] | None, told: dict[str, Any]) -> None:
    fabric = fabric_of(cluster, ranks)
    found = {name: attrgetter(name)(fabric) for name in told}
    near = {name: pytest.approx(one) for name, one in told.items() if isinstance(one, float)}
    assert found == told | near


@given(clusters())
@settings(max_examples=tries(100))
def test_any_legal_cluster_has_figures_or_a_word_why_not(cluster: Cluster) -> None:
    said = ""
    try:
        hardware = sim.cluster_hardware(cluster)
        assert all((point.duration_ns > 0) == (hardware.world_size > 1) for point in hardware.all_reduce)
    except SimError as error:
        said = str(error)
    assert "\n" not in said


SLOW = Network(bytes_per_s=1, hosts_per_leaf=1, oversubscription=4)
JOINED = replace(APART, network=Network(bytes_per_s=1e9, hosts_per_leaf=2))
BOXES = boxed_cluster([GBIT] * 2), boxed_cluster([GBIT] * 4, GBIT)
# A setting of a preset that is not legal.
SETTINGS = [
    *(("hgx_ethernet", "generation", "volta"), ("hgx_ethernet", "mtu", 10), ("pcie_box", "sockets", 3)),
    *(
        ("pcie_hosts", "gbit_per_s", 10**400),
        ("pcie_hosts", "gbit_per_s", 1e7),
        ("pcie_hosts", "pcie_gen", 6),
    ),
    *(("pcie_hosts", "protocol", 3), ("dgx_a100", "oversubscription", "much"), ("dgx_a100", "hosts", 0)),
]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (partial(fabric_of, APART), "network: null is not legal with ranks on several hosts"),
        (partial(fabric_of, JOINED), "kinds: 'pcie_x2' has no nics, and ranks are on other hosts too"),
        (
            partial(fabric_of, replace(pcie_hosts(2, 2, gbit_per_s=10), network=SLOW)),
            r"bytes_per_s: 0\.25 is not legal; give a number >= 1",
        ),
        (partial(fabric_of, dgx_h100(1_000_000)), "world_size: 8000000 is not legal; .* at most 1000000"),
        (partial(fabric_of, dgx_h100(2), ["host7.gpu0"]), r"ranks\.0: 'host7\.gpu0' is not legal"),
        (partial(pcie_hosts, 2, 1), "gbit_per_s: missing"),
        *(
            (partial(preset, name, **{**NEEDED.get(name, {}), field: wrong}), f"{field}: .* is not legal")
            for name, field, wrong in SETTINGS
        ),
        (
            lambda: hardware_on(with_point(1, 9, {}), *BOXES),
            "placement: 4 GPUs are not legal; hardware 'h' has world_size=2, so give 2",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_tcp_takes_its_headers_off() -> None:
    assert tcp_port(10) == pytest.approx(1.25e9 * 1448 / 1538)
    assert tcp_port(10, mtu=9000) == pytest.approx(1.25e9 * 8948 / 9038)


# What the links between hosts leave a job's rings.


@given(placements(CLUSTERS, least=2))
@settings(max_examples=tries(50), deadline=None)
def test_no_uplink_carries_more_than_it_can(case: tuple[Cluster, list[str]]) -> None:
    """By hand, with one rail: each step from leaf to leaf takes all of the rings of two uplinks."""
    cluster, placed = case
    job = job_of(cluster, placed)
    assert cluster.network is not None
    if len(job.gpus) == 1:
        return
    per_leaf, hosts = cluster.network.hosts_per_leaf, list(job.gpus)
    leaves = [host // per_leaf for host in hosts]
    leaving = [a for a, b in zip(leaves, [*leaves[1:], leaves[0]], strict=True) if a != b]
    assert job.spine_steps == len(leaving)
    ports = max(kind.nics for kind in cluster.kinds) * per_leaf
    uplinks = ports * cluster.network.bytes_per_s / cluster.network.oversubscription
    assert all(leaving.count(leaf) * job.bytes_per_s <= uplinks * (1 + 1e-9) for leaf in leaving)
    assert job.bytes_per_s <= job.rings * cluster.network.bytes_per_s * (1 + 1e-9)


# Hardware on other links: the wire's part of each time is stretched.


def with_point(num_bytes: int, duration_ns: int, spread: dict[str, Any]) -> Hardware:
    """Two ranks whose curve is one point."""
    point = CurvePoint(num_bytes=num_bytes, duration_ns=duration_ns)
    return Hardware(name="h", world_size=2, all_reduce=(point,), spread=spread)


@given(st.lists(st.integers(0, 10**12), min_size=4, max_size=4), st.integers(0, 10**10), rates, rates)
def test_what_is_known_of_the_scatter_is_stretched_as_the_times_are(
    times_ns: list[int], size: int, here: int, there: int
) -> None:
    """Both ends of a range stay around the time, and each is what it would be of a curve of its own."""
    least, middle, tenth, most = sorted(times_ns)
    known = {"count": 9, "quantile": "median", "min_ns": least, "p90_ns": tenth, "max_ns": most}
    hardware = with_point(size, middle, {"all_reduce": {str(size): known, "9": {}}, "launch_cost_ns": known})
    boxes = [boxed_cluster([rate] * 2) for rate in (here, there)]
    moved = hardware_on(hardware, *boxes)
    after = moved.spread["all_reduce"][str(size)]
    assert after["min_ns"] <= moved.all_reduce[0].duration_ns <= after["p90_ns"] <= after["max_ns"]
    for field in ("min_ns", "p90_ns", "max_ns"):
        alone = hardware_on(with_point(size, known[field], {}), *boxes)
        assert after[field] == alone.all_reduce[0].duration_ns
    assert (after["count"], after["quantile"]) == (9, "median")
    assert moved.spread["launch_cost_ns"] == known
    assert hardware.spread["all_reduce"][str(size)] == known


@given(
    st.integers(0, 10**12),
    st.sampled_from(CURVES),
    st.integers(0, 10**12),
    st.integers(1, 10**5),
    st.floats(1, 1e13),
    st.floats(1, 1e13),
)
def test_no_time_is_below_nothing_and_more_bandwidth_is_never_slower(
    service_ns: int, collective: str, num_bytes: int, world_size: int, measured: float, now: float
) -> None:
    wire = num_bytes * bus_factor(collective, world_size)
    made = stretched_ns(service_ns, wire, measured, now)
    assert made >= 0
    assert (made - service_ns) * (measured - now) >= 0
    assert stretched_ns(service_ns, wire, measured, measured) == service_ns
    if world_size == 1 or num_bytes == 0:
        assert made == service_ns


@given(st.integers(1, 10**9), st.integers(2, 64), st.integers(0, 10**9), rates, rates)
def test_there_and_back_again(num_bytes: int, count: int, latency_ns: int, here: int, there: int) -> None:
    """Of a curve that the graph can be true of, which is one with the whole wire in it."""
    boxes = [boxed_cluster([rate] * count) for rate in (here, there)]
    wire_ns = num_bytes * bus_factor("all_reduce", count) * 1e9 / shaped_bytes_per_s(here)
    point = CurvePoint(num_bytes=num_bytes, duration_ns=latency_ns + round(wire_ns) + 1)
    hardware = Hardware(name="h", world_size=count, all_reduce=(point,))
    moved = hardware_on(hardware, *boxes)
    wire_there_ns = num_bytes * bus_factor("all_reduce", count) * 1e9 / shaped_bytes_per_s(there)
    assert moved.all_reduce[0].duration_ns == pytest.approx(latency_ns + wire_there_ns, rel=1e-9, abs=2)
    back = hardware_on(moved, *reversed(boxes))
    assert back.all_reduce[0].duration_ns == pytest.approx(point.duration_ns, rel=1e-9, abs=2)


@pytest.mark.parametrize(
    ("known", "rate", "measured", "slower"),
    [
        ("box-2x4gbit", 4, "box-4gbit-1gbit", [4 * GBIT, GBIT]),
        ("box-2x4gbit", 4, "box-2x1gbit", [GBIT, GBIT]),
        ("box-2x2gbit", 2, "box-2x1gbit", [GBIT, GBIT]),
    ],
)
def test_a_slower_port_is_foretold(known: str, rate: int, measured: str, slower: list[int]) -> None:
    """Real ranks: from the curve of equal ports to that of a slower one, within 5 % from 512 KiB up.

    Below, a shaped port lets a burst through at once, which is no link's bandwidth.
    """
    before = sim.load_hardware(MEASURED / f"{known}.json")
    told = hardware_on(before, boxed_cluster([rate * GBIT] * 2), boxed_cluster(slower))
    curve = sim.load_hardware(MEASURED / f"{measured}.json").all_reduce
    large = [point for point in curve if point.num_bytes >= 512 << 10]
    assert len(large) >= 8
    for point in large:
        assert service_ns(told.all_reduce, point.num_bytes) == pytest.approx(point.duration_ns, rel=0.05)


@pytest.mark.parametrize(
    ("measured", "hosts", "rate"), [("2x1", 2, 1), ("2x2", 2, 2), ("2x4", 2, 4), ("4x1", 4, 1)]
)
def test_a_shaped_port_carries_what_the_kernel_counts(measured: str, hosts: int, rate: int) -> None:
    """The bus bandwidth of the longest all-reduce that real ranks made, within 1.5 %."""
    longest = sim.load_hardware(MEASURED / f"box-{measured}gbit.json").all_reduce[-1]
    graph = job_of(boxed_cluster([rate * GBIT] * hosts)).bytes_per_s
    assert graph == pytest.approx(shaped_bytes_per_s(rate * GBIT))
    busbw = longest.num_bytes * 1e9 / longest.duration_ns * 2 * (hosts - 1) / hosts
    assert busbw == pytest.approx(graph, rel=0.015)
