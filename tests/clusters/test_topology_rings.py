"""Rings through whole clusters: against the whole graph, link by link."""

import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.topology.job_shares import ring_shares
from sim.clusters.topology.link_figures import pcie, port, tcp_port
from sim.clusters.topology.network import wiring_of
from sim.clusters.topology.presets import (
    PRESETS,
    dgx_a100,
    dgx_h100,
    gh200_slingshot,
    nvl72,
    pcie_hosts,
    preset,
)
from sim.clusters.topology.rings import Rings, rings_of
from sim.clusters.topology.shares import max_min_shares
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link, Network
from tests.cluster_strategies import NEEDED
from tests.clusters.whole_graph import cluster_graph
from tests.effort import tries


def some_clusters(hosts: int) -> list[Cluster]:
    return [
        dgx_a100(hosts, hosts_per_leaf=2, oversubscription=4.0),
        dgx_h100(hosts, hosts_per_leaf=2, oversubscription=3.0),
        gh200_slingshot(hosts, hosts_per_leaf=1),
        preset("p4de", hosts=hosts),
        pcie_hosts(hosts, 4, gbit_per_s=25),
        mixed(hosts),
    ]


def mixed(hosts: int) -> Cluster:
    """Hosts of two kinds by turns."""
    kinds = [made.templates[0] for made in (dgx_h100(), preset("p4de"))]
    return Cluster(
        name="mixed",
        templates=tuple(kinds),
        hosts=tuple(Hosts(template=kinds[number % 2].name, count=1) for number in range(hosts)),
        network=Network(bytes_per_s=20e9, hosts_per_leaf=2, rails=2, spines=2, oversubscription=2.0),
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Cluster, list[list[str]]]:
    """A cluster and one or two jobs on different GPUs of it, in any order."""
    cluster = draw(st.sampled_from(some_clusters(draw(st.integers(1, 5)))))
    gpus = draw(st.permutations(list(cluster.all_gpus())))
    first = draw(st.integers(1, min(10, len(gpus))))
    second = draw(st.integers(first, min(first + 10, len(gpus))))
    return cluster, [list(part) for part in (gpus[:first], gpus[first:second]) if part]


def crossings(rings: Rings) -> list[dict[tuple[str, str], float]]:
    """How often each ring crosses each link, step by step through every host."""
    return [
        dict(Counter(link for step in rings.steps(ring) for link in step.links))
        for ring in range(rings.channels)
    ]


@given(jobs())
@settings(max_examples=tries(60), deadline=None)
def test_a_ring_passes_every_rank_once_over_links_that_there_are(
    case: tuple[Cluster, list[list[str]]],
) -> None:
    cluster, (ranks, *_) = case
    graph, rings = cluster_graph(cluster), rings_of(cluster, ranks)
    assert (rings.channels == 0) == (len(ranks) == 1)
    for ring in range(rings.channels):
        order = list(rings.order(ring))
        assert sorted(order) == sorted(ranks)
        steps = list(rings.steps(ring))
        assert [(step.a, step.b) for step in steps] == list(pairwise([*order, order[0]]))
        for step in steps:
            assert (step.links[0][0], step.links[-1][1]) == (step.a, step.b)
            assert all(before[1] == after[0] for before, after in pairwise(step.links))
            assert all(graph.has_edge(*link) for link in step.links)


@given(jobs())
@settings(max_examples=tries(60), deadline=None)
def test_shares_by_kinds_of_host_are_those_of_the_whole_graph(case: tuple[Cluster, list[list[str]]]) -> None:
    cluster, parts = case
    graph = cluster_graph(cluster)
    together = [rings_of(cluster, ranks) for ranks in parts]
    flows = [dict(sum(map(Counter, crossings(rings)), Counter())) for rings in together]
    capacity = {(a, b): edge["bytes_per_s"] for a, b, edge in graph.edges(data=True)}
    rates = max_min_shares(flows, capacity)
    for rings, job, rate in zip(together, ring_shares(*together), rates, strict=True):
        assert job.rings == pytest.approx((rate,) * rings.channels)


@given(jobs())
@settings(max_examples=tries(40), deadline=None)
def test_another_job_beside_never_helps(case: tuple[Cluster, list[list[str]]]) -> None:
    cluster, parts = case
    together = [rings_of(cluster, ranks) for ranks in parts]
    for job, shared in zip(together, ring_shares(*together), strict=True):
        # The least ring of a job can only lose: max-min shares never lift it where a flow is added.
        alone = ring_shares(job)[0]
        assert min(shared.rings, default=0.0) <= min(alone.rings, default=0.0) * (1 + 1e-9)


def test_two_jobs_on_one_uplink_share_it() -> None:
    """Two hosts a leaf, uplinks of half a leaf's ports: one job alone fills its NIC, two get half each."""
    cluster = pcie_hosts(4, 1, gbit_per_s=100, protocol="rdma", hosts_per_leaf=2, oversubscription=2.0)
    one = rings_of(cluster, ["host0.gpu0", "host2.gpu0"])
    other = rings_of(cluster, ["host1.gpu0", "host3.gpu0"])
    assert ring_shares(one)[0].bytes_per_s == min(port(100), pcie(3))
    assert [job.bytes_per_s for job in ring_shares(one, other)] == pytest.approx([port(100) / 2] * 2)


def test_oversubscription_counts_only_what_crosses_the_spine() -> None:
    """A ring in order of hosts leaves a leaf once; in the worst order every step does."""
    cluster = pcie_hosts(8, 1, gbit_per_s=10, hosts_per_leaf=4, oversubscription=4.0)
    in_order = rings_of(cluster)
    crossed = rings_of(cluster, [f"host{host}.gpu0" for host in (0, 4, 1, 5, 2, 6, 3, 7)])
    assert ring_shares(in_order)[0].bytes_per_s == pytest.approx(tcp_port(10))
    assert ring_shares(crossed)[0].bytes_per_s == pytest.approx(tcp_port(10) / 4)


def test_rings_stay_on_their_rails() -> None:
    """DGX H100, one leaf group: with hosts in pairs no step between hosts crosses a spine."""
    rings = rings_of(dgx_h100(4))
    assert rings.channels == 8
    for ring in range(rings.channels):
        assert not any("spine" in end for step in rings.steps(ring) for link in step.links for end in link)


def test_a_hundred_thousand_gpus_take_seconds() -> None:
    start = time.process_time()
    rings = rings_of(dgx_h100(12_500))
    share = ring_shares(rings)[0]
    assert rings.world_size == 100_000
    assert share.bytes_per_s == pytest.approx(
        8 * pcie(5)
    )  # PCIe gen 5 is NCCL's 48 GB/s, below the port's 50
    assert time.process_time() - start < 10


def test_one_rank_sends_nothing() -> None:
    rings = rings_of(dgx_h100(2), ["host1.gpu3"])
    assert (rings.world_size, rings.channels) == (1, 0)
    assert ring_shares(rings)[0].bytes_per_s == 0
    assert [
        job.bytes_per_s > 0 for job in ring_shares(rings, rings_of(dgx_h100(2), ["host0.gpu0", "host0.gpu1"]))
    ] == [
        False,
        True,
    ]


def test_two_jobs_on_one_gpu_are_refused() -> None:
    rings = rings_of(dgx_h100(1))
    with pytest.raises(InputError, match=r"jobs: host0\.gpu0 holds ranks of two jobs"):
        ring_shares(rings, rings)


PAIR = HostTemplate(
    name="pair",
    generation="ampere",
    devices=(
        Device(name="gpu0", kind="gpu"),
        Device(name="gpu1", kind="gpu"),
        Device(name="nic0", kind="nic"),
    ),
    links=(
        Link(a="gpu0", b="nic0", kind="pcie", bytes_per_s=1e9),
        Link(a="gpu1", b="nic0", kind="pcie", bytes_per_s=1e9),
    ),
)


def test_what_no_way_joins_is_refused() -> None:
    apart = Cluster(name="apart", templates=(PAIR,), hosts=(Hosts(template="pair", count=2),))
    with pytest.raises(InputError, match="links: no ring joins gpu0, gpu1 of template 'pair'"):
        rings_of(apart, ["host0.gpu0", "host0.gpu1"])  # a NIC passes nothing on
    with pytest.raises(InputError, match="hosts: host0 has no NIC in the network"):
        rings_of(apart, ["host0.gpu0", "host1.gpu0"])
    islands = Cluster(
        name="islands",
        templates=(PAIR,),
        hosts=(Hosts(template="pair", count=2),),
        switches=("one", "two"),
        links=(
            Link(a="host0.nic0", b="one", kind="net", bytes_per_s=1e9),
            Link(a="host1.nic0", b="two", kind="net", bytes_per_s=1e9),
        ),
    )
    with pytest.raises(InputError, match=r"links: no way from 'host0\.nic0' to 'host1\.nic0'"):
        ring_shares(rings_of(islands, ["host0.gpu0", "host1.gpu0"]))


def test_a_cycle_of_no_latency_is_no_trouble() -> None:
    """Three switches in a circle without latency: the way with the fewest links, and no endless search."""
    ends = [("one", "two"), ("two", "three"), ("three", "one")]
    circle = Cluster(
        name="circle",
        templates=(PAIR,),
        hosts=(Hosts(template="pair", count=2),),
        switches=("one", "two", "three"),
        links=(
            *(Link(a=a, b=b, kind="net", bytes_per_s=0.25e9) for a, b in ends),
            Link(a="host0.nic0", b="one", kind="net", bytes_per_s=1e9),
            Link(a="host1.nic0", b="three", kind="net", bytes_per_s=1e9),
        ),
    )
    rings = rings_of(circle, ["host0.gpu0", "host1.gpu0"])
    names = [link for step in rings.steps(0) for link in step.links if "one" in link and "three" in link]
    assert names == [("one", "three"), ("three", "one")]
    assert ring_shares(rings)[0].bytes_per_s == 0.25e9


def test_spines_are_shared_by_the_rails_that_take_them() -> None:
    """Two spines: NICs of even and odd number part; one spine takes them all together."""
    template = dgx_h100().templates[0]
    rates = []
    for spines in (1, 2):
        network = Network(bytes_per_s=50e9, hosts_per_leaf=1, rails=1, spines=spines, oversubscription=2.0)
        cluster = Cluster(
            name="c", templates=(template,), hosts=(Hosts(template="dgx_h100", count=2),), network=network
        )
        rates.append(ring_shares(rings_of(cluster))[0].bytes_per_s)
    assert rates == pytest.approx([200e9, 200e9])
    spines = [link[1] for nics in ((0, 1), (1, 0)) for link in _path(cluster, *nics) if "spine" in link[1]]
    assert spines == ["spine0", "spine1"]  # the sender's NIC decides


def _path(cluster: Cluster, a: int, b: int) -> tuple[tuple[str, str], ...]:
    return wiring_of(cluster).path(f"host0.nic{a}", f"host1.nic{b}")


def test_a_slower_kind_of_host_holds_the_ring() -> None:
    """DGX H100 and p4de by turns: four rings of PCIe 3.0 x16, whichever comes first."""
    share = ring_shares(rings_of(mixed(2)))[0]
    backwards = ring_shares(rings_of(mixed(2), list(mixed(2).all_gpus())[::-1]))[0]
    assert share.bytes_per_s == pytest.approx(backwards.bytes_per_s)
    assert share.rings == pytest.approx((12e9,) * 4)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_made_by_name(name: str) -> None:
    cluster = preset(name, **NEEDED.get(name, {}))
    assert ring_shares(rings_of(cluster))[0].bytes_per_s > 0
    with pytest.raises(InputError, match=f"racks: is not a setting of preset '{name}'"):
        preset(name, racks=1)
    with pytest.raises(InputError, match="preset: 'dgx' is not legal; give one of dgx_a100, "):
        preset("dgx")


def test_presets_carry_what_data_sheets_say_by_nccls_count() -> None:
    """A100 600 GB/s, H100 900, B200 1,800 in both directions; NCCL counts 80, 82.4 and 80 % of it."""
    sheets = {dgx_a100: 600, dgx_h100: 900, nvl72: 1800}
    counted = [
        ring_shares(rings_of(make()))[0].bytes_per_s / (sheet / 2 * 1e9) for make, sheet in sheets.items()
    ]
    assert counted == pytest.approx([20 / 25, 20.6 / 25, 40.1 / 50])
    assert ring_shares(rings_of(gh200_slingshot()))[0].bytes_per_s == pytest.approx(18 * 20.6e9)


@pytest.mark.slow  # of parts of two racks: test_topology_gates; of both, whole: test_nccl_paths
def test_two_racks_of_nvl72_are_joined() -> None:
    rings = rings_of(nvl72(2))
    assert rings.world_size == 144
    assert 700e9 < ring_shares(rings)[0].bytes_per_s < 72 * 48e9


def test_ethernet_between_strong_hosts_is_the_bottleneck() -> None:
    """HGX H100 over 25 GbE goes at the port; p5 at its PCIe switches' 48 GB/s a GPU."""
    rings = rings_of(preset("hgx_ethernet", hosts=4, gbit_per_s=25))
    assert (rings.world_size, rings.channels) == (32, 1)
    assert ring_shares(rings)[0].bytes_per_s == pytest.approx(tcp_port(25))
    assert ring_shares(rings_of(preset("p5", hosts=2)))[0].bytes_per_s == pytest.approx(8 * 4 * pcie(4, 8))
    assert ring_shares(rings_of(preset("ethernet_10g", hosts=4)))[0].bytes_per_s == pytest.approx(
        tcp_port(10)
    )
    with pytest.raises(InputError, match="generation: 'volta' is not legal; give ampere or hopper"):
        preset("hgx_ethernet", hosts=2, gbit_per_s=25, generation="volta")


def test_tcp_takes_its_headers_off() -> None:
    assert tcp_port(10) == pytest.approx(1.25e9 * 1448 / 1538)
    assert tcp_port(10, mtu=9000) == pytest.approx(1.25e9 * 8948 / 9038)
    for wrong in (lambda: tcp_port(10, mtu=10), lambda: pcie(6), lambda: pcie(4, 3)):
        with pytest.raises(InputError, match="is not legal; give"):
            wrong()
