"""Fabrics from clusters: against what published figures say of the same machines."""

from dataclasses import replace

import pytest

from sim.costs.nccl.fabric import Fabric
from sim.costs.nccl.from_cluster import fabric_of
from sim.costs.nccl.hardware import hardware_of
from sim.costs.topology.presets import dgx_a100, dgx_h100, gh200_slingshot, nvl72, p4de, pcie_box, pcie_hosts
from sim.errors import InputError, NotModelledError
from sim.nouns.cluster import Cluster
from tests.costs import published_fabrics as published


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
def test_the_graph_leads_to_the_published_figures(cluster: Cluster, expected: Fabric) -> None:
    """The fabrics that were written by hand from data sheets come out of the graph by itself.

    But for the sockets' vendor, which one host does not need, and Slingshot's further switches.
    """
    fabric = fabric_of(cluster)
    inter = fabric.inter
    if inter is not None and expected.inter is not None and cluster.network and cluster.network.spines == 1:
        inter = replace(inter, latency_ns=expected.inter.latency_ns)
    assert replace(fabric, cpu=expected.cpu, inter=inter) == expected


def test_two_gpus_below_a_switch_share_its_way_to_host_memory() -> None:
    """Without peer-to-peer both send up at once: half of PCIe 3.0 x16 each."""
    cluster = pcie_hosts(8, 4, gbit_per_s=100, protocol="rdma", generation="volta", gpus_per_switch=2)
    expected = published.hkbu(12 * published.GB)
    fabric = fabric_of(cluster)
    assert fabric.intra == expected.intra
    assert fabric.inter is not None
    assert fabric.inter.bytes_per_s == pytest.approx(expected.intra.bytes_per_s)
    assert (fabric.channels, fabric.protocols) == (expected.channels, expected.protocols)


def test_switches_beyond_the_first_are_added_to_the_latency() -> None:
    """Four hosts a switch: two of eight steps go over three switches, 350 ns for each after the first."""
    inter = fabric_of(gh200_slingshot(8)).inter
    assert inter is not None
    assert inter.latency_ns == 2 * 2 * 350 // 8
    inter = fabric_of(gh200_slingshot(4)).inter
    assert inter is not None
    assert inter.latency_ns is None


@pytest.mark.parametrize(
    ("cluster", "kind", "protocols", "nvls"),
    [
        (dgx_h100(2), "nvswitch", ("LL", "LL128", "Simple"), True),
        (nvl72(), "nvswitch", ("LL", "LL128", "Simple"), True),
        (pcie_box(4), "pcie", ("LL", "Simple"), False),
        (pcie_box(4, sockets=2), "qpi", ("LL", "Simple"), False),
        (pcie_hosts(2, 4, gbit_per_s=25), "shm", ("LL", "Simple"), False),
    ],
    ids=["dgx_h100", "nvl72", "pcie", "two sockets", "ethernet"],
)
def test_what_lies_between_gpus_has_nccls_name(
    cluster: Cluster, kind: str, protocols: tuple[str, ...], nvls: bool
) -> None:
    fabric = fabric_of(cluster)
    assert (fabric.intra.kind, fabric.protocols, fabric.nvls) == (kind, protocols, nvls)


def test_a_job_beside_takes_its_share() -> None:
    cluster = pcie_hosts(4, 1, gbit_per_s=10, hosts_per_leaf=2, oversubscription=2.0)
    ranks, others = ["host0.gpu0", "host2.gpu0"], ["host1.gpu0", "host3.gpu0"]
    alone, shared = fabric_of(cluster, ranks).inter, fabric_of(cluster, ranks, beside=[others]).inter
    assert alone is not None
    assert shared is not None
    assert shared.bytes_per_s == pytest.approx(alone.bytes_per_s / 2)


def test_a_curve_comes_out_for_any_placement() -> None:
    cluster = dgx_h100(4)
    spread = hardware_of(
        fabric_of(cluster, [f"host{host}.gpu{gpu}" for host in range(4) for gpu in (0, 1)]), "s"
    )
    packed = hardware_of(fabric_of(cluster, [f"host0.gpu{gpu}" for gpu in range(8)]), "p")
    assert spread.world_size == packed.world_size == 8
    assert spread.all_reduce[-1].duration_ns > packed.all_reduce[-1].duration_ns


def test_one_rank_and_uneven_hosts() -> None:
    assert fabric_of(dgx_h100(2), ["host1.gpu0"]).world_size == 1
    with pytest.raises(NotModelledError, match="placement: hosts with 1 to 2 ranks are not modelled"):
        fabric_of(dgx_h100(2), ["host0.gpu0", "host1.gpu0", "host1.gpu1"])
    with pytest.raises(InputError, match=r"ranks\.0: 'host7\.gpu0' is not legal"):
        fabric_of(dgx_h100(2), ["host7.gpu0"])
