"""Fabrics from clusters: against what published figures say of the same machines."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

import sim
from sim.clusters.fabric import Fabric, fabric_of
from sim.clusters.machines import PRESETS, preset, tcp_port
from sim.errors import InputError, SimError
from sim.nouns.cluster import Cluster, Hosts, Network
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
)
from tests.clusters import published_fabrics as published
from tests.effort import tries


def between(cluster: Cluster, ranks: list[str] | None = None) -> float:
    """Bytes/s that a job's rings get between hosts."""
    inter = fabric_of(cluster, ranks).inter
    assert inter is not None
    return inter.bytes_per_s


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


@pytest.mark.parametrize(
    ("cluster", "gpus", "rate", "channels"),
    [
        (dgx_a100(2), 8, 8 * 24e9, 8),  # PCIe 4.0, less than a port
        (dgx_a100(2), 1, 24e9, 1),  # two NICs beside one slot
        (dgx_h100(2), 8, 8 * 48e9, 8),
        (dgx_h100(2), 3, 3 * 48e9, 6),
        (p4de(2), 8, 4 * 12e9, 4),
        (p4de(2), 2, 12e9, 1),  # below one switch with one NIC
        (preset("p5", hosts=2), 8, 8 * 48e9, 8),
        (gh200_slingshot(2), 4, 4 * 24e9, 4),
        (nvl72(2), 72, 18 * 40.1e9, 16),  # each ring passes the NVLinks of all but two GPUs
        (nvl72(2), 1, 2 * 48e9, 4),  # two NICs on its Grace
        (preset("hgx_ethernet", hosts=2, gbit_per_s=25), 8, tcp_port(25), 1),
        (pcie_hosts(2, 4, gbit_per_s=10), 4, tcp_port(10), 1),
        (pcie_hosts(2, 4, gbit_per_s=100, protocol="rdma"), 4, 10e9, 1),  # from socket to socket
    ],
)  # fmt: skip
def test_what_goes_between_hosts(cluster: Cluster, gpus: int, rate: float, channels: int) -> None:
    fabric = fabric_of(cluster, first(2, gpus))
    assert between(cluster, first(2, gpus)) == pytest.approx(rate)
    assert fabric.channels == channels


def test_ll128_over_another_gpu_is_for_hopper() -> None:
    """Of three GPUs one sends to its NIC over another: PXN, which NCCL trusts from Hopper on."""
    for cluster, has in ((dgx_h100(2), True), (dgx_a100(2), False)):
        assert ("LL128" in fabric_of(cluster, first(2, 3)).protocols) is has
        assert "LL128" in fabric_of(cluster, first(2, 4)).protocols


def test_a_memory_that_every_step_crosses_holds_many_gpus_up() -> None:
    """Half of the ranks a socket each take their data from its memory: 204.8 GB/s for all."""
    crowded = pcie_box(280, sockets=2, peer_to_peer=False)
    assert fabric_of(crowded).intra.bytes_per_s == pytest.approx(204.8e9 / 140)


def test_switches_beyond_the_first_are_added_to_the_latency() -> None:
    """Four hosts a switch: two of eight steps go over three switches, 350 ns for each after the first."""
    latencies = [inter.latency_ns for hosts in (8, 4) if (inter := fabric_of(gh200_slingshot(hosts)).inter)]
    assert latencies == [2 * 2 * 350 // 8, None]
    for name in ("p4de", "p5"):
        inter = fabric_of(preset(name, hosts=2)).inter
        assert inter is not None
        assert (inter.latency_ns, inter.reported_ns) == (None, 75_000)


def test_one_rank_sends_nothing_and_ranks_are_gpus() -> None:
    assert fabric_of(dgx_h100(2), ["host1.gpu0"]).world_size == 1
    with pytest.raises(InputError, match=r"ranks\.0: 'host7\.gpu0' is not legal"):
        fabric_of(dgx_h100(2), ["host7.gpu0"])


def test_hosts_with_different_numbers_of_ranks() -> None:
    """As NCCL has it: the fewest channels and the least bandwidths of all hosts count for all."""
    cluster = dgx_h100(3)
    ranks = ["host0.gpu0", "host1.gpu0", "host1.gpu1", *(f"host2.gpu{n}" for n in range(5))]
    uneven = fabric_of(cluster, ranks)
    assert (uneven.world_size, uneven.hosts) == (8, 3)
    assert (uneven.least_ranks, uneven.ranks_per_host) == (1, 5)
    assert uneven.mean_ranks == pytest.approx(8 / 3)
    assert uneven.channels <= 2  # one GPU has one NIC near it, and goes over PCIe alone
    assert not uneven.nvls
    assert fabric_of(cluster, first(3, 2)).fewest_ranks is None
    assert between(cluster, ranks) < between(cluster, first(3, 2))


def a100_and_h100() -> Cluster:
    """Two hosts of each kind."""
    kinds = [dgx_a100().kinds[0], dgx_h100().kinds[0]]
    return Cluster(
        name="both",
        kinds=tuple(kinds),
        hosts=tuple(Hosts(kind=kind.name, count=2) for kind in kinds),
        network=dgx_a100(4).network,
    )


@given(clusters())
@settings(max_examples=tries(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_legal_cluster_has_figures_or_a_word_why_not(cluster: Cluster) -> None:
    try:
        hardware = sim.cluster_hardware(cluster)
    except SimError as error:
        said = str(error)
    else:
        assert all((point.duration_ns > 0) == (hardware.world_size > 1) for point in hardware.all_reduce)
        said = "figures"
    assert said
    assert "\n" not in said


def test_of_two_kinds_of_host_the_slower_counts() -> None:
    """A100 beside H100: A100's NVLink, its generation, and no LL128 between two generations."""
    both, old, new = (fabric_of(cluster) for cluster in (a100_and_h100(), dgx_a100(4), dgx_h100(4)))
    assert both.intra == old.intra
    assert both.intra.bytes_per_s < new.intra.bytes_per_s
    assert (both.generation, both.nvls, both.cpu) == ("ampere", False, "amd")
    assert both.protocols == ("LL", "Simple")
    assert old.protocols == new.protocols == ("LL", "LL128", "Simple")
    assert between(a100_and_h100()) == pytest.approx(8 * 24e9)


def test_a_host_with_a_slower_port_holds_the_ring() -> None:
    """Four hosts on one switch, one of them at a tenth: the ring goes at that."""
    even = pcie_hosts(4, 1, gbit_per_s=10, protocol="rdma")
    (group,) = even.hosts
    slow = replace(group, count=1, port_bytes_per_s=0.125e9)
    cluster = replace(even, hosts=(replace(group, count=2), slow, replace(group, count=1)))
    assert between(cluster) == pytest.approx(0.125e9)
    assert between(cluster, ["host0.gpu0", "host1.gpu0", "host3.gpu0"]) == pytest.approx(1.25e9)


def test_what_cannot_be_computed_is_refused() -> None:
    box = pcie_box(2)
    apart = replace(box, hosts=(replace(box.hosts[0], count=2),))
    with pytest.raises(InputError, match="network: null is not legal with ranks on several hosts"):
        fabric_of(apart)
    with pytest.raises(InputError, match="kinds: 'pcie_x2' has no nics, and ranks are on other hosts too"):
        fabric_of(replace(apart, network=Network(bytes_per_s=1e9, hosts_per_leaf=2)))
    assert fabric_of(apart, ["host1.gpu0", "host1.gpu1"]).world_size == 2
    slow = Network(bytes_per_s=1, hosts_per_leaf=1, oversubscription=4)
    with pytest.raises(InputError, match=r"bytes_per_s: 0\.25 is not legal; give a number >= 1"):
        fabric_of(replace(pcie_hosts(2, 2, gbit_per_s=10), network=slow))
    with pytest.raises(
        InputError, match="world_size: 8000000 is not legal; give an integer >= 1, at most 1000000"
    ):
        fabric_of(dgx_h100(1_000_000))
    for name, field, wrong in (
        ("hgx_ethernet", "generation", "volta"),
        ("hgx_ethernet", "mtu", 10),
        ("pcie_hosts", "gbit_per_s", 10**400),
        ("pcie_hosts", "gbit_per_s", 1e7),
        ("pcie_hosts", "protocol", 3),
        ("pcie_hosts", "pcie_gen", 6),
        ("pcie_box", "sockets", 3),
        ("dgx_a100", "oversubscription", "much"),
        ("dgx_a100", "hosts", 0),
    ):
        with pytest.raises(InputError, match=f"{field}: .* is not legal"):
            preset(name, **{**NEEDED.get(name, {}), field: wrong})
    with pytest.raises(InputError, match="gbit_per_s: missing"):
        preset("pcie_hosts", hosts=2, gpus=1)


@pytest.mark.slow
def test_a_million_ranks_are_counted() -> None:
    assert between(pcie_hosts(1_000_000, 1, gbit_per_s=10)) == pytest.approx(tcp_port(10))


def test_tcp_takes_its_headers_off() -> None:
    assert tcp_port(10) == pytest.approx(1.25e9 * 1448 / 1538)
    assert tcp_port(10, mtu=9000) == pytest.approx(1.25e9 * 8948 / 9038)
