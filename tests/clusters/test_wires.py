"""What collectives put on the links between hosts, and max-min fair shares by their definition."""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.links import (
    Wires,
    hardware_beside,
    hardware_on,
    job_bandwidths,
    job_of,
    link_loads,
    max_min_shares,
    stretched_ns,
    wire_bytes,
)
from sim.clusters.machines import boxed_cluster, pcie_hosts, preset, shaped_bytes_per_s
from sim.costs.service_time import all_reduce_ns
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from tests.cluster_strategies import dgx_a100, dgx_h100, gh200_slingshot, p4de, placements
from tests.effort import tries
from tests.strategies import hardwares

Case = tuple[list[dict[str, float]], dict[str, float]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    links = [f"l{number}" for number in range(draw(st.integers(1, 5)))]
    capacity = {link: float(draw(st.integers(0, 12))) for link in links}
    flow = st.dictionaries(st.sampled_from(links), st.sampled_from([1.0, 1.0, 2.0, 3.0]), min_size=1)
    return draw(st.lists(flow, min_size=1, max_size=6)), capacity


@given(cases())
@settings(max_examples=tries(400))
def test_no_link_is_over_and_every_flow_has_its_bottleneck(case: Case) -> None:
    """The definition: a full link on which no other flow has a higher rate."""
    flows, capacity = case
    rates = max_min_shares(flows, capacity)
    used = {
        link: sum(flow.get(link, 0.0) * rate for flow, rate in zip(flows, rates, strict=True))
        for link in capacity
    }
    assert all(used[link] <= total * (1 + 1e-9) + 1e-9 for link, total in capacity.items())
    for flow, rate in zip(flows, rates, strict=True):
        assert any(
            used[link] >= capacity[link] * (1 - 1e-9)
            and all(
                rate >= other * (1 - 1e-9) for one, other in zip(flows, rates, strict=True) if link in one
            )
            for link in flow
        )


@given(cases())
@settings(max_examples=tries(100))
def test_small_steps_in_turn_lead_to_the_same(case: Case) -> None:
    """Each flow in turn takes a drop more of its links while all of them have it."""
    flows, capacity = case
    drop, left, rates = 1 / 64, dict(capacity), [0.0] * len(flows)
    moved = True
    while moved:
        moved = False
        for number, flow in enumerate(flows):
            if all(left[link] >= times * drop for link, times in flow.items()):
                for link, times in flow.items():
                    left[link] -= times * drop
                rates[number] += drop
                moved = True
    # A drop in turn is unfair by a drop a flow on each link; what is unfair on one moves on to the next.
    tolerance = drop * 3 * len(flows) * (len(capacity) + 1)
    assert max_min_shares(flows, capacity) == pytest.approx(rates, abs=tolerance)


@given(cases(), st.floats(0.01, 1e12))
def test_shares_scale_with_capacity(case: Case, factor: float) -> None:
    flows, capacity = case
    scaled = max_min_shares(flows, {link: total * factor for link, total in capacity.items()})
    assert scaled == pytest.approx([rate * factor for rate in max_min_shares(flows, capacity)])


def test_three_flows_by_hand() -> None:
    """A long flow and two short ones on links of 1 and 2: the long one is held by the first."""
    flows = [{"a": 1, "b": 1}, {"a": 1}, {"b": 1}]
    assert max_min_shares(flows, {"a": 1.0, "b": 2.0}) == pytest.approx([0.5, 0.5, 1.5])


def test_a_ring_that_passes_twice_takes_twice() -> None:
    assert max_min_shares([{"up": 2}, {"up": 1}], {"up": 3.0}) == pytest.approx([1.0, 1.0])


def test_nothing_to_cross_and_nothing_to_have() -> None:
    assert max_min_shares([], {}) == []
    assert max_min_shares([{}], {"a": 1.0}) == [math.inf]
    assert max_min_shares([{"a": 1}, {"b": 1}], {"a": 0.0, "b": 5.0}) == [0.0, 5.0]


CLUSTERS = [
    dgx_a100(4, hosts_per_leaf=2, oversubscription=4.0),
    dgx_h100(3),
    p4de(2),
    gh200_slingshot(5, hosts_per_leaf=2),
    pcie_hosts(4, 4, gbit_per_s=25),
]


@given(placements(CLUSTERS))
@settings(max_examples=tries(50), deadline=None)
def test_what_comes_in_goes_out(case: tuple[Cluster, list[str]]) -> None:
    """Switches pass on what they get; hosts send as much as they receive, over ways that are joined."""
    cluster, ranks = case
    loads = link_loads(cluster, ranks)
    hosts = {rank.split(".")[0] for rank in ranks}
    assert (loads == ()) == (len(hosts) == 1)
    balance: dict[str, float] = defaultdict(float)
    for load in loads:
        balance[load.a.split(".nic")[0]] += load.share
        balance[load.b.split(".nic")[0]] -= load.share
    assert list(balance.values()) == pytest.approx([0.0] * len(balance))
    assert {end for end in balance if end.startswith("host")} == (hosts if len(hosts) > 1 else set())
    # A ring leaves every host with all of its bytes.
    out = sum(load.share for load in loads if load.a.startswith("host"))
    count = len(ranks)
    assert out == pytest.approx(2 * (count - 1) / count * len(hosts) if len(hosts) > 1 else 0)


@given(placements(CLUSTERS, least=2))
@settings(max_examples=tries(25), deadline=None)
def test_at_the_bus_bandwidth_no_link_is_over(case: tuple[Cluster, list[str]]) -> None:
    cluster, ranks = case
    wires = Wires(cluster)
    (bus,) = job_bandwidths(cluster, [ranks])
    message = bus * len(ranks) / (2 * (len(ranks) - 1))
    used = [load.share * message / load.bytes_per_s for load in link_loads(cluster, ranks)]
    own = bus / job_of(cluster, wires, ranks).bytes_per_s
    assert max([*used, own]) == pytest.approx(1)


def test_rings_stay_on_their_rails() -> None:
    """DGX H100, one group of leaves: no step between hosts crosses the spine; in two each ring does."""
    assert not any("spine" in (load.a, load.b) for load in link_loads(dgx_h100(4)))
    apart = link_loads(dgx_h100(4, hosts_per_leaf=2, oversubscription=4.0))
    assert {load.bytes_per_s for load in apart if "spine" in (load.a, load.b)} == {2 * 50e9 / 4}


def test_oversubscription_counts_only_what_crosses_the_spine() -> None:
    """A ring in order of hosts leaves a leaf once; in the worst order every step does."""
    cluster = pcie_hosts(8, 1, gbit_per_s=10, protocol="rdma", hosts_per_leaf=4, oversubscription=4.0)
    in_order = [f"host{host}.gpu0" for host in range(8)]
    crossed = [f"host{host}.gpu0" for host in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert job_bandwidths(cluster, [in_order]) == pytest.approx([1.25e9])
    assert job_bandwidths(cluster, [crossed]) == pytest.approx([1.25e9 / 4])


@given(st.integers(1, 6), st.integers(1, 6), st.floats(1, 8))
@settings(max_examples=tries(30), deadline=None)
def test_jobs_of_different_sizes_on_one_uplink(one: int, other: int, oversubscription: float) -> None:
    """Two jobs with hosts on both sides of one uplink: each ring crosses it once each way, and gets half."""
    hosts = one + other
    cluster = pcie_hosts(
        2 * hosts, 1, gbit_per_s=10, protocol="rdma", hosts_per_leaf=hosts, oversubscription=oversubscription
    )
    sides = range(0, 2 * hosts, hosts)
    first = [f"host{side + number}.gpu0" for side in sides for number in range(one)]
    second = [f"host{side + one + number}.gpu0" for side in sides for number in range(other)]
    port, uplink = 1.25e9, hosts * 1.25e9 / oversubscription
    assert job_bandwidths(cluster, [first]) == pytest.approx([min(port, uplink)])
    assert job_bandwidths(cluster, [first, second]) == pytest.approx([min(port, uplink / 2)] * 2)


def test_a_third_job_elsewhere_takes_nothing() -> None:
    cluster = pcie_hosts(6, 1, gbit_per_s=10, hosts_per_leaf=3, oversubscription=3.0)
    crossing = [["host0.gpu0", "host3.gpu0"], ["host1.gpu0", "host4.gpu0"]]
    alone, *_ = job_bandwidths(cluster, crossing[:1])
    assert job_bandwidths(cluster, [*crossing, ["host2.gpu0"]]) == pytest.approx([alone / 2, alone / 2, 0])


def test_jobs_on_one_host_share_its_ports_and_nothing_else() -> None:
    """Of an A100 host every job has NICs of its own; one NIC is shared."""
    halves = [
        [f"host{host}.gpu{gpu}" for host in range(2) for gpu in part] for part in (range(4), range(4, 8))
    ]
    assert job_bandwidths(dgx_a100(2), halves) == pytest.approx([4 * 24e9] * 2)
    ethernet = preset("hgx_ethernet", hosts=2, gbit_per_s=10)
    (alone,) = job_bandwidths(ethernet, halves[:1])
    assert job_bandwidths(ethernet, halves) == pytest.approx([alone / 2] * 2)
    with pytest.raises(InputError, match=r"jobs: host0\.gpu0 holds ranks of two jobs"):
        job_bandwidths(ethernet, [halves[0], halves[0]])


def test_of_switches_joined_by_a_narrow_uplink_the_uplink_is_busiest() -> None:
    cluster = dgx_h100(4, hosts_per_leaf=2, oversubscription=4.0)
    busiest = link_loads(replace(cluster, placement=tuple(cluster.all_gpus())))[0]
    assert "spine" in (busiest.a, busiest.b)


# A job's collectives beside those of others, and on other links: the wire's part is stretched.


GBIT = 10**9
MEASURED = Path(__file__).parents[2] / "traces" / "hardware"

rates = st.integers(1_000_000, 400 * GBIT)


def across(number: int, jobs: int) -> list[str]:
    """One host on either side of the uplink of a box with ``2 * jobs`` hosts."""
    return [f"host{number}.gpu0", f"host{number + jobs}.gpu0"]


def ranks(count: int) -> list[str]:
    return [f"host{host}.gpu0" for host in range(count)]


def with_point(num_bytes: int, duration_ns: int, spread: dict[str, Any]) -> Hardware:
    """Two ranks whose curve is one point."""
    point = CurvePoint(num_bytes=num_bytes, duration_ns=duration_ns)
    return Hardware(name="h", world_size=2, all_reduce=(point,), spread=spread)


def two_ranks(hardware: Hardware) -> Hardware:
    return replace(hardware, world_size=2)


@given(hardwares(dressed=True).map(two_ranks), st.integers(2, 6), rates)
@settings(max_examples=tries(60))
def test_each_of_n_equal_jobs_gets_one_nth(hardware: Hardware, jobs: int, rate: int) -> None:
    """A ring of two sends each byte of an all-reduce once, of a reduce-scatter half of them."""
    box = boxed_cluster([rate] * (2 * jobs), rate)
    everyone = [across(number, jobs) for number in range(jobs)]
    assert job_bandwidths(box, everyone) == pytest.approx([shaped_bytes_per_s(rate) / jobs] * jobs)
    made = hardware_beside(hardware, box, everyone[0], everyone[1:])
    for name in CURVES:
        before, after = getattr(hardware, name), getattr(made, name)
        assert (before is None) == (after is None)
        for one, other in zip(before or (), after or (), strict=True):
            half = 2 if name in ("reduce_scatter", "all_gather") else 1
            wire = min(
                one.duration_ns, Fraction(one.num_bytes * 10**9, half) / Fraction(shaped_bytes_per_s(rate))
            )
            assert (
                abs(other.duration_ns - one.duration_ns - wire * (jobs - 1)) <= 1 + 1e-9 * other.duration_ns
            )
    assert replace(made, name="", provenance={}, **dict.fromkeys(CURVES, None)) == replace(  # type: ignore[arg-type]
        hardware,
        name="",
        provenance={},
        **dict.fromkeys(CURVES, None),  # type: ignore[arg-type]
    )


@given(st.lists(st.integers(0, 10**12), min_size=4, max_size=4), st.integers(0, 10**10), rates, rates)
def test_what_is_known_of_the_scatter_is_stretched_as_the_times_are(
    times_ns: list[int], size: int, here: int, there: int
) -> None:
    """Both ends of a range stay around the time, and each is what it would be of a curve of its own."""
    least, middle, tenth, most = sorted(times_ns)
    known = {"count": 9, "quantile": "median", "min_ns": least, "p90_ns": tenth, "max_ns": most}
    hardware = with_point(size, middle, {"all_reduce": {str(size): known, "9": {}}, "launch_cost_ns": known})
    boxes = [boxed_cluster([rate] * 2) for rate in (here, there)]
    moved = hardware_on(hardware, boxes[0], ranks(2), boxes[1], ranks(2))
    after = moved.spread["all_reduce"][str(size)]
    assert after["min_ns"] <= moved.all_reduce[0].duration_ns <= after["p90_ns"] <= after["max_ns"]
    for field in ("min_ns", "p90_ns", "max_ns"):
        alone = hardware_on(with_point(size, known[field], {}), boxes[0], ranks(2), boxes[1], ranks(2))
        assert after[field] == alone.all_reduce[0].duration_ns
    assert (after["count"], after["quantile"]) == (9, "median")
    assert moved.spread["launch_cost_ns"] == known
    assert hardware.spread["all_reduce"][str(size)] == known


@given(hardwares(dressed=True).map(two_ranks), rates, rates)
def test_a_link_that_is_not_shared_changes_nothing(hardware: Hardware, rate: int, uplink: int) -> None:
    """Two jobs of two hosts each, each on its own switch."""
    box = boxed_cluster([rate] * 4, uplink)
    made = hardware_beside(hardware, box, ranks(4)[:2], [ranks(4)[2:]])
    assert [getattr(made, name) for name in CURVES] == [getattr(hardware, name) for name in CURVES]


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
    made = stretched_ns(service_ns, collective, num_bytes, world_size, measured, now)
    assert made >= 0
    assert (made - service_ns) * (measured - now) >= 0
    assert stretched_ns(service_ns, collective, num_bytes, world_size, measured, measured) == service_ns
    if world_size == 1 or num_bytes == 0:
        assert made == service_ns


@given(st.integers(1, 10**9), st.integers(2, 64), st.integers(0, 10**9), rates, rates)
def test_there_and_back_again(num_bytes: int, count: int, latency_ns: int, here: int, there: int) -> None:
    """Of a curve that the graph can be true of, which is one with the whole wire in it."""
    boxes = [boxed_cluster([rate] * count) for rate in (here, there)]
    wire_ns = wire_bytes("all_reduce", num_bytes, count) * 1e9 / shaped_bytes_per_s(here)
    point = CurvePoint(num_bytes=num_bytes, duration_ns=latency_ns + round(wire_ns) + 1)
    hardware = Hardware(name="h", world_size=count, all_reduce=(point,))
    moved = hardware_on(hardware, boxes[0], ranks(count), boxes[1], ranks(count))
    wire_there_ns = wire_bytes("all_reduce", num_bytes, count) * 1e9 / shaped_bytes_per_s(there)
    assert moved.all_reduce[0].duration_ns == pytest.approx(latency_ns + wire_there_ns, rel=1e-9, abs=2)
    back = hardware_on(moved, boxes[1], ranks(count), boxes[0], ranks(count))
    assert back.all_reduce[0].duration_ns == pytest.approx(point.duration_ns, rel=1e-9, abs=2)


@pytest.mark.parametrize(
    ("known", "rates_bits", "measured", "slowest_bits"),
    [
        ("box-2x4gbit", [4 * GBIT, 4 * GBIT], "box-4gbit-1gbit", [4 * GBIT, GBIT]),
        ("box-2x4gbit", [4 * GBIT, 4 * GBIT], "box-2x1gbit", [GBIT, GBIT]),
        ("box-2x2gbit", [2 * GBIT, 2 * GBIT], "box-2x1gbit", [GBIT, GBIT]),
    ],
)
def test_a_slower_port_is_foretold(
    known: str, rates_bits: list[int], measured: str, slowest_bits: list[int]
) -> None:
    """Real ranks: from the curve of equal ports to that of a slower one, within 5 % from 512 KiB up.

    Below, a shaped port lets a burst through at once, which is no link's bandwidth.
    """
    before = sim.load_hardware(MEASURED / f"{known}.json")
    told = hardware_on(before, boxed_cluster(rates_bits), ranks(2), boxed_cluster(slowest_bits), ranks(2))
    large = [
        point
        for point in sim.load_hardware(MEASURED / f"{measured}.json").all_reduce
        if point.num_bytes >= 512 << 10
    ]
    assert len(large) >= 8
    for point in large:
        assert all_reduce_ns(told, point.num_bytes) == pytest.approx(point.duration_ns, rel=0.05)


@pytest.mark.parametrize(
    ("measured", "hosts", "rate"),
    [("box-2x1gbit", 2, 1), ("box-2x2gbit", 2, 2), ("box-2x4gbit", 2, 4), ("box-4x1gbit", 4, 1)],
)
def test_a_shaped_port_carries_what_the_kernel_counts(measured: str, hosts: int, rate: int) -> None:
    """The bus bandwidth of the longest all-reduce that real ranks made, within 1.5 %."""
    hardware = sim.load_hardware(MEASURED / f"{measured}.json")
    (graph,) = job_bandwidths(boxed_cluster([rate * GBIT] * hosts), [ranks(hosts)])
    assert graph == pytest.approx(shaped_bytes_per_s(rate * GBIT))
    longest = hardware.all_reduce[-1]
    busbw = longest.num_bytes * 1e9 / longest.duration_ns * 2 * (hosts - 1) / hosts
    assert busbw == pytest.approx(graph, rel=0.015)


def test_hardware_computed_beside_others_is_computed_hardware_beside_others() -> None:
    """By NCCL's cost model with a share of the links, or from its figures alone: above 256 KiB within 1 %.

    The network is the slowest step, by trees too, which go at twice its bandwidth through two hosts.
    """
    cluster = sim.cluster(
        "pcie_hosts", hosts=4, gpus=2, gbit_per_s=10.0, hosts_per_leaf=2, oversubscription=2.0
    )
    ours, theirs = ([f"host{host}.gpu{gpu}" for host in job for gpu in (0, 1)] for job in ((0, 2), (1, 3)))
    told = hardware_beside(sim.cluster_hardware(cluster, ours), cluster, ours, [theirs])
    computed = sim.cluster_hardware(cluster, ours, beside=[theirs])
    large = [point for point in computed.all_reduce if point.num_bytes >= 256 << 10]
    assert len(large) > 8
    for point in large:
        assert all_reduce_ns(told, point.num_bytes) == pytest.approx(point.duration_ns, rel=0.01)


HARDWARE = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=1, duration_ns=9),))


@pytest.mark.parametrize(
    ("job", "beside", "said"),
    [
        (["host0.gpu0"], [], "ranks: 1 GPUs are not legal; hardware 'h' has world_size=2, so give 2"),
        (["host0.gpu0", "host9.gpu0"], [], "ranks.1: 'host9.gpu0' is not legal"),
        (
            ["host0.gpu0", "host1.gpu0"],
            [["host1.gpu0", "host2.gpu0"]],
            "jobs: host1.gpu0 holds ranks of two jobs; each GPU holds one rank",
        ),
        (["host0.gpu0", "host1.gpu0"], [["host2.gpu1"]], "'host2.gpu1' is not legal"),
        (["host0.gpu0", "host1.gpu0"], [[]], "an empty list is not legal"),
    ],
)
def test_what_it_refuses(job: list[str], beside: list[list[str]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        hardware_beside(HARDWARE, boxed_cluster([GBIT] * 4, GBIT), job, beside)
