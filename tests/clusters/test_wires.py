"""What the links between hosts leave a job's rings, and hardware taken to other links."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.fabric import job_of
from sim.clusters.links import hardware_on, stretched_ns
from sim.clusters.machines import boxed_cluster, shaped_bytes_per_s
from sim.costs.service_time import all_reduce_ns
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.collective import bus_factor
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from tests.cluster_strategies import dgx_a100, gh200_slingshot, p4de, pcie_hosts, placements
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


def ranks(count: int) -> list[str]:
    return [f"host{host}.gpu0" for host in range(count)]


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


def test_oversubscription_counts_only_what_crosses_the_spine() -> None:
    """A ring in order of hosts leaves a leaf once; in the worst order every step does."""
    cluster = pcie_hosts(8, 1, gbit_per_s=10, protocol="rdma", hosts_per_leaf=4, oversubscription=4.0)
    crossed = [f"host{host}.gpu0" for host in (0, 4, 1, 5, 2, 6, 3, 7)]
    for placed, rate, steps in ((ranks(8), 1.25e9, 2), (crossed, 1.25e9 / 4, 8)):
        job = job_of(cluster, placed)
        assert (job.bytes_per_s, job.spine_steps) == (pytest.approx(rate), steps)


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
        assert all_reduce_ns(told, point.num_bytes) == pytest.approx(point.duration_ns, rel=0.05)


@pytest.mark.parametrize(
    ("measured", "hosts", "rate"), [("2x1", 2, 1), ("2x2", 2, 2), ("2x4", 2, 4), ("4x1", 4, 1)]
)
def test_a_shaped_port_carries_what_the_kernel_counts(measured: str, hosts: int, rate: int) -> None:
    """The bus bandwidth of the longest all-reduce that real ranks made, within 1.5 %."""
    longest = sim.load_hardware(MEASURED / f"box-{measured}gbit.json").all_reduce[-1]
    graph = job_of(boxed_cluster([rate * GBIT] * hosts), ranks(hosts)).bytes_per_s
    assert graph == pytest.approx(shaped_bytes_per_s(rate * GBIT))
    busbw = longest.num_bytes * 1e9 / longest.duration_ns * 2 * (hosts - 1) / hosts
    assert busbw == pytest.approx(graph, rel=0.015)


def test_ranks_are_as_many_as_the_hardwares() -> None:
    words = "placement: 4 GPUs are not legal; hardware 'h' has world_size=2, so give 2"
    with pytest.raises(InputError, match=words):
        hardware_on(with_point(1, 9, {}), boxed_cluster([GBIT] * 2), boxed_cluster([GBIT] * 4, GBIT))
