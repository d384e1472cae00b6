"""What a collective puts on links: nothing is lost, and no more than the links carry."""

import time
from collections import Counter, defaultdict

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.nccl.by_algorithm import cluster_hardware
from sim.clusters.nccl.from_cluster import fabric_of
from sim.clusters.topology import loads as loads_module
from sim.clusters.topology.job_shares import job_bandwidths, ring_shares
from sim.clusters.topology.loads import link_loads
from sim.clusters.topology.presets import dgx_a100, dgx_h100, gh200_slingshot, p4de, pcie_box, pcie_hosts
from sim.clusters.topology.rings import rings_of
from sim.clusters.topology.traffic import TRAFFIC
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.link_load import LinkLoad
from tests.cluster_strategies import placements
from tests.clusters.whole_graph import cluster_graph, every_load
from tests.effort import tries

CLUSTERS = [
    dgx_a100(4, hosts_per_leaf=2, oversubscription=4.0),
    dgx_h100(3),
    p4de(2),
    gh200_slingshot(5, hosts_per_leaf=2),
    pcie_hosts(4, 4, gbit_per_s=25),
    pcie_box(4, sockets=2),
]


def through(loads: tuple[LinkLoad, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes out of and into every part, per byte of the message."""
    out: dict[str, float] = defaultdict(float)
    into: dict[str, float] = defaultdict(float)
    for load in loads:
        out[load.a] += load.share
        into[load.b] += load.share
    return out, into


@given(placements(CLUSTERS), st.sampled_from(list(TRAFFIC)))
@settings(max_examples=tries(50), deadline=None)
def test_what_comes_in_goes_out(case: tuple[Cluster, list[str]], algorithm: str) -> None:
    """Every part sends as many bytes as it receives: rings pass on, trees send down what came up."""
    cluster, ranks = case
    loads = every_load(cluster, ranks, algorithm)
    graph = cluster_graph(cluster)
    assert (loads == ()) == (len(ranks) == 1)
    for load in loads:
        assert load.bytes_per_s == graph.edges[load.a, load.b]["bytes_per_s"]
    assert all(graph.edges[load.a, load.b]["kind"] == "net" for load in link_loads(cluster, ranks, algorithm))
    out, into = through(loads)
    assert dict(out) == pytest.approx(dict(into))


@given(placements(CLUSTERS))
@settings(max_examples=tries(25), deadline=None)
def test_a_ring_sends_its_bytes_at_each_rank(case: tuple[Cluster, list[str]]) -> None:
    """2 (n - 1) / n out of every rank, which is the least that an all-reduce can do."""
    cluster, ranks = case
    count = len(ranks)
    out, _ = through(every_load(cluster, ranks))
    for rank in ranks if count > 1 else ():
        assert out[rank] == pytest.approx(2 * (count - 1) / count)


@given(placements(CLUSTERS))
@settings(max_examples=tries(25), deadline=None)
def test_both_trees_send_each_byte_up_and_down_each_edge(case: tuple[Cluster, list[str]]) -> None:
    """n - 1 edges a tree, each crossed up and down once: 2 (n - 1) bytes over all ends of edges."""
    cluster, ranks = case
    rings = rings_of(cluster, ranks)
    hosts = len(rings.hosts)
    net = [load for load in link_loads(cluster, ranks, "tree") if "nic" in load.a]
    assert sum(load.share for load in net) == pytest.approx(2 * (hosts - 1) if len(ranks) > 1 else 0)


@given(placements(CLUSTERS))
@settings(max_examples=tries(25), deadline=None)
def test_at_the_bus_bandwidth_one_link_is_full_and_none_is_over(case: tuple[Cluster, list[str]]) -> None:
    cluster, ranks = case
    for algorithm in TRAFFIC:
        (bus,) = job_bandwidths(cluster, [ranks], algorithm)
        message = bus * len(ranks) / (2 * (len(ranks) - 1)) if len(ranks) > 1 else 0.0
        used = [load.share * message / load.bytes_per_s for load in every_load(cluster, ranks, algorithm)]
        assert max(used, default=1.0) == pytest.approx(1)
    fabric = fabric_of(cluster, ranks)
    if fabric.inter is not None:
        assert fabric.inter.bytes_per_s == pytest.approx(ring_shares(rings_of(cluster, ranks))[0].bytes_per_s)


@pytest.mark.parametrize(("hosts", "factor"), [(2, 2.0), (4, 1.0), (8, 1.0), (16, 1.0)])
def test_a_trees_network_bandwidth_is_what_nccl_counts(hosts: int, factor: float) -> None:
    """The message's rate is half of the NICs' bandwidth, and all of it between two hosts (ncclTopoTuneModel:
    ratio 0.5, and bwIntra in place of bwInter with two hosts)."""
    net = link_loads(dgx_h100(hosts), None, "tree")
    assert 1 / max(load.s_per_byte for load in net) == pytest.approx(factor * 8 * 50e9 / 2)


@given(placements(CLUSTERS), st.sampled_from(list(TRAFFIC)))
@settings(max_examples=tries(30), deadline=None)
def test_no_curve_is_quicker_than_the_busiest_link(case: tuple[Cluster, list[str]], algorithm: str) -> None:
    """NCCL's own figures for trees may be some per cent above what the graph's links carry, others not."""
    cluster, ranks = case
    assume(len(ranks) > 1)
    hardware = cluster_hardware(cluster, ranks, algorithm=algorithm, sizes=[2**33])
    busiest = max(load.s_per_byte for load in every_load(cluster, ranks, algorithm))
    slack = 0.7 if algorithm == "tree" else 1 - 1e-6
    assert hardware.all_reduce[0].duration_ns >= busiest * 2**33 * 1e9 * slack


@pytest.mark.parametrize("algorithm", TRAFFIC)
@pytest.mark.parametrize("hosts", [70, pytest.param(12_500, marks=pytest.mark.slow)])
def test_links_alike_are_one_with_a_count(algorithm: str, hosts: int) -> None:
    """Beyond 64 hosts: the same bytes in all as by name, at a hundred thousand GPUs in seconds."""
    start = time.process_time()
    loads = link_loads(dgx_h100(hosts), None, algorithm)
    assert time.process_time() - start < 30
    assert len(loads) < 80
    ports = [load for load in loads if "nic" in load.a]
    steps = 2 * (8 * hosts - 1) / (8 * hosts) * hosts if algorithm == "ring" else 2 * (hosts - 1)
    assert sum(load.share * load.count for load in ports) == pytest.approx(steps)
    small = link_loads(dgx_h100(4), None, algorithm)
    assert {load.count for load in small} == {1}
    assert len({(load.a, load.b) for load in small}) == len(small)


@pytest.mark.parametrize("algorithm", TRAFFIC)
def test_counts_are_those_of_the_named_links(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without names: as many links of each load."""
    cluster = dgx_h100(6, hosts_per_leaf=2, oversubscription=2.0)
    named = link_loads(cluster, None, algorithm)
    monkeypatch.setattr(loads_module, "NAMED_HOSTS", 1)
    counted = link_loads(cluster, None, algorithm)
    assert len(counted) < len(named)
    one, other = Counter(), Counter()
    for load in named:
        one[load.bytes_per_s, round(load.share, 9)] += 1
    for load in counted:
        other[load.bytes_per_s, round(load.share, 9)] += load.count
    assert one == other


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


def test_two_jobs_by_trees_share_an_uplink() -> None:
    """One edge of each tree crosses it: half each, and with it the whole message's rate."""
    cluster = pcie_hosts(4, 1, gbit_per_s=10, protocol="rdma", hosts_per_leaf=2, oversubscription=2.0)
    jobs = [["host0.gpu0", "host2.gpu0"], ["host1.gpu0", "host3.gpu0"]]
    alone = [job_bandwidths(cluster, [job], "tree")[0] for job in jobs]
    assert alone == pytest.approx([1.25e9] * 2)
    assert job_bandwidths(cluster, jobs, "tree") == pytest.approx([1.25e9 / 2] * 2)


def test_a_third_job_elsewhere_takes_nothing() -> None:
    cluster = pcie_hosts(6, 1, gbit_per_s=10, hosts_per_leaf=3, oversubscription=3.0)
    crossing = [["host0.gpu0", "host3.gpu0"], ["host1.gpu0", "host4.gpu0"]]
    alone, *_ = job_bandwidths(cluster, crossing[:1])
    assert job_bandwidths(cluster, [*crossing, ["host2.gpu0"]]) == pytest.approx([alone / 2, alone / 2, 0])


def test_a_name_that_is_no_algorithm() -> None:
    for ask in (
        lambda: sim.link_loads(dgx_h100(), None, "star"),
        lambda: job_bandwidths(dgx_h100(), [], "star"),
    ):
        with pytest.raises(InputError, match="algorithm: 'star' is not legal; give one of ring, tree"):
            ask()
