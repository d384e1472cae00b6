"""Rings from host to host where not every pair of NICs will do: Graces of their own, and rails apart."""

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.topology.job_shares import ring_shares
from sim.clusters.topology.link_figures import port, tcp_port
from sim.clusters.topology.presets import dgx_h100, ethernet_10g, nvl72, pcie_box, preset
from sim.clusters.topology.rings import Rings, rings_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link
from tests.effort import IS_WHOLE, tries


def whole(rings: Rings, ranks: int) -> None:
    """Every ring passes every rank once, over links that follow one another."""
    assert rings.channels
    for ring in range(rings.channels):
        assert len(set(rings.order(ring))) == ranks
        for step in rings.steps(ring):
            assert (step.links[0][0], step.links[-1][1]) == (step.a, step.b)
            assert all(before[1] == after[0] for before, after in pairwise(step.links))


@given(st.sets(st.integers(0, 71), min_size=2, max_size=8))
@settings(max_examples=tries(25), deadline=None)
def test_any_gpus_of_two_racks_are_joined(gpus: set[int]) -> None:
    """A Grace reaches two GPUs alone: in by the NIC of one pair and out by that of another."""
    ranks = [f"host{host}.gpu{gpu}" for host in (0, 1) for gpu in sorted(gpus)]
    whole(rings_of(nvl72(2), ranks), len(ranks))


def test_gpus_on_graces_of_their_own_use_all_of_their_nics() -> None:
    """Two GPUs, each with two NICs of 400 Gbit/s on its Grace behind PCIe of 48 GB/s."""
    rings = rings_of(nvl72(2), [f"host{host}.gpu{gpu}" for host in (0, 1) for gpu in (0, 2)])
    assert ring_shares(rings)[0].bytes_per_s == pytest.approx(4 * 48e9)


def rails(hosts: int, *, width: float = 50e9, odd: float = 1.0) -> Cluster:
    """DGX H100 on eight switches that nothing joins; odd NICs of odd hosts have ``odd`` of the width."""
    template = dgx_h100().templates[0]
    return Cluster(
        name="rails",
        templates=(template,),
        hosts=(Hosts(template=template.name, count=hosts),),
        switches=tuple(f"s{rail}" for rail in range(8)),
        links=tuple(
            Link(
                a=f"host{host}.nic{rail}",
                b=f"s{rail}",
                kind="net",
                bytes_per_s=width * (odd if host % 2 and rail % 2 else 1),
            )
            for host in range(hosts)
            for rail in range(8)
        ),
    )


@pytest.mark.parametrize("hosts", [2, 3, 4, 5])
def test_rails_that_nothing_joins_serve_any_number_of_hosts(hosts: int) -> None:
    """An odd number cannot go forth and back by turns: it leaves by the NIC that it came in by."""
    rings = rings_of(rails(hosts))
    whole(rings, 8 * hosts)
    shares = ring_shares(rings)[0]
    assert shares.bytes_per_s == pytest.approx(8 * 48e9)  # PCIe, as with rails that spines join
    for ring in range(rings.channels):
        assert all(rings.between(ring, place) for place in range(hosts))


@pytest.mark.parametrize("odd", [0.5, 0.9])
def test_rails_serve_hosts_of_two_kinds(odd: float) -> None:
    whole(rings_of(rails(4, odd=odd)), 32)


def test_hosts_that_share_some_rails_meet_on_these() -> None:
    """GPUs 0 and 1 on one host, 1 and 2 on the other: the nearest NIC is another for each."""
    ranks = ["host0.gpu0", "host0.gpu1", "host1.gpu1", "host1.gpu2"]
    rings = rings_of(rails(2), ranks)
    whole(rings, len(ranks))
    assert {rings.local(ring, 0).gate for ring in range(rings.channels)} == {("nic1", "nic1")}


def one_host(gpus: int, links: list[Link], *, switch: bool = False) -> Cluster:
    parts = [Device(name=f"gpu{number}", kind="gpu") for number in range(gpus)]
    if switch:
        parts.append(Device(name="switch", kind="nvswitch"))
    template = HostTemplate(name="t", generation="hopper", devices=tuple(parts), links=tuple(links))
    return Cluster(name="c", templates=(template,), hosts=(Hosts(template="t", count=1),))


def test_links_of_many_widths_take_seconds() -> None:
    """A mesh of GPUs, no two links alike: what is found is at least a third of the narrowest cut."""
    gpus = 12 if IS_WHOLE else 7
    draw = random.Random(3)
    widths = {(a, b): draw.uniform(1e9, 5e10) for b in range(gpus) for a in range(b)}
    links = [Link(a=f"gpu{a}", b=f"gpu{b}", kind="nvlink", bytes_per_s=w) for (a, b), w in widths.items()]
    start = time.process_time()
    share = ring_shares(rings_of(one_host(gpus, links)))[0].bytes_per_s
    assert time.process_time() - start < 20
    cut = min(sum(w for pair, w in widths.items() if gpu in pair) for gpu in range(gpus))
    assert cut / 3 < share <= cut


def test_a_search_is_kept() -> None:
    cluster = preset("p5", hosts=2)
    assert rings_of(cluster).host_rings[0].forth is rings_of(cluster).host_rings[0].forth


@pytest.mark.slow
def test_576_links_of_their_own_width_take_seconds() -> None:
    draw = random.Random(3)
    links = [
        Link(a=f"gpu{gpu}", b="switch", kind="nvlink", bytes_per_s=draw.uniform(1e9, 9e11))
        for gpu in range(576)
    ]
    start = time.process_time()
    share = ring_shares(rings_of(one_host(576, links, switch=True)))[0].bytes_per_s
    assert share == pytest.approx(min(link.bytes_per_s for link in links), rel=0.01)
    assert time.process_time() - start < 20


def test_a_memory_that_every_step_crosses_is_no_bar() -> None:
    gpus = 280 if IS_WHOLE else 60
    rings = rings_of(pcie_box(gpus, sockets=2, peer_to_peer=False))
    whole(rings, gpus)
    # Half of the ranks a socket each take their data from its memory: 204.8 GB/s for all.
    assert ring_shares(rings)[0].bytes_per_s == pytest.approx(204.8e9 / (gpus / 2))


def test_hosts_that_all_differ_are_searched_by_what_is_plugged_in() -> None:
    """A thousand hosts with a width each: the narrowest holds the ring."""
    template = preset("ethernet_10g", hosts=2).templates[0]
    hosts = 1000
    cluster = Cluster(
        name="star",
        templates=(template,),
        hosts=(Hosts(template=template.name, count=hosts),),
        switches=("s",),
        links=tuple(
            Link(a=f"host{host}.nic0", b="s", kind="net", bytes_per_s=1e8 * (1 + host))
            for host in range(hosts)
        ),
    )
    start = time.process_time()
    rings = rings_of(cluster)
    assert len(rings.host_rings) == 1
    assert ring_shares(rings)[0].bytes_per_s == pytest.approx(1e8)
    assert time.process_time() - start < 10


def test_more_ranks_than_a_job_has_are_refused_at_once() -> None:
    start = time.process_time()
    with pytest.raises(InputError, match="world_size: 8000000 ranks are not legal; give 1000000 at most"):
        rings_of(preset("dgx_h100", hosts=1_000_000))
    assert time.process_time() - start < 5


@pytest.mark.slow
def test_a_million_ranks_take_a_minute_at_most() -> None:
    start = time.process_time()
    share = ring_shares(rings_of(ethernet_10g(1_000_000)))[0]
    assert share.bytes_per_s == pytest.approx(tcp_port(10))
    assert time.process_time() - start < 60


def test_what_no_port_carries_is_refused() -> None:
    for wrong in (10**400, 1e7, float("nan")):
        with pytest.raises(InputError, match="gbit_per_s: more than 1000000 is not legal"):
            port(wrong)


def test_many_gpus_are_not_all_named() -> None:
    loose = one_host(20, [])
    with pytest.raises(InputError, match=r"no ring joins gpu0, .*gpu7 and 12 more of template 't'"):
        sim.cluster_hardware(loose)
    with pytest.raises(InputError, match="cluster: int is not legal; give a Cluster"):
        sim.cluster_hardware(3)  # type: ignore[arg-type]
