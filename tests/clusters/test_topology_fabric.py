"""Fabrics from clusters: against what published figures say of the same machines."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from sim.clusters.nccl.computed_hardware import hardware_of
from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.from_cluster import fabric_of
from sim.clusters.topology.presets import (
    PRESETS,
    dgx_a100,
    dgx_h100,
    gh200_slingshot,
    nvl72,
    p4de,
    pcie_box,
    pcie_hosts,
    preset,
)
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Hosts, Link
from tests.cluster_strategies import NEEDED, placements
from tests.clusters import published_fabrics as published
from tests.effort import tries


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (dgx_a100(), published.dgx_a100(8)),
        (p4de(2), replace(published.p4de(2), protocols=("Simple",))),
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


def test_one_rank_sends_nothing_and_ranks_are_gpus() -> None:
    assert fabric_of(dgx_h100(2), ["host1.gpu0"]).world_size == 1
    with pytest.raises(InputError, match=r"ranks\.0: 'host7\.gpu0' is not legal"):
        fabric_of(dgx_h100(2), ["host7.gpu0"])


def test_hosts_with_different_numbers_of_ranks() -> None:
    """As NCCL has it: the fewest channels and the least bandwidths of all hosts count for all."""
    cluster = dgx_h100(3)
    uneven = fabric_of(
        cluster, ["host0.gpu0", "host1.gpu0", "host1.gpu1", *(f"host2.gpu{n}" for n in range(5))]
    )
    assert (uneven.world_size, uneven.hosts) == (8, 3)
    assert (uneven.least_ranks, uneven.ranks_per_host) == (1, 5)
    assert uneven.mean_ranks == pytest.approx(8 / 3)
    assert uneven.channels <= 2  # one GPU has one NIC near it, and goes over PCIe alone
    assert not uneven.nvls
    even = fabric_of(cluster, [f"host{host}.gpu{gpu}" for host in range(3) for gpu in range(2)])
    assert even.fewest_ranks is None
    assert uneven.inter is not None
    assert even.inter is not None
    assert uneven.inter.bytes_per_s < even.inter.bytes_per_s


def a100_and_h100() -> Cluster:
    """Two hosts of each kind."""
    kinds = [dgx_a100().templates[0], dgx_h100().templates[0]]
    return Cluster(
        name="both",
        templates=tuple(kinds),
        hosts=tuple(Hosts(template=kind.name, count=2) for kind in kinds),
        network=dgx_a100(4).network,
    )


@given(placements([dgx_h100(4), p4de(3), pcie_hosts(4, 4, gbit_per_s=25), a100_and_h100()]))
@settings(max_examples=tries(40), deadline=None)
def test_any_placement_has_a_curve(case: tuple[Cluster, list[str]]) -> None:
    """Any ranks have times, and one rank has nothing to do."""
    cluster, ranks = case
    fabric = fabric_of(cluster, ranks)
    hardware = hardware_of(fabric, "any", [1 << power for power in range(10, 31, 4)])
    times = [point.duration_ns for point in hardware.all_reduce]
    assert all((time == 0) == (len(ranks) == 1) for time in times)
    assert times[0] <= times[-1]
    counts = Counter(name.split(".")[0] for name in ranks)
    assert (fabric.hosts, fabric.ranks_per_host) == (len(counts), max(counts.values()))
    assert fabric.least_ranks == min(counts.values())


def test_of_two_kinds_of_host_the_slower_counts() -> None:
    """A100 beside H100: A100's NVLink, its generation, and no LL128 between two generations."""
    both, old, new = (fabric_of(cluster) for cluster in (a100_and_h100(), dgx_a100(4), dgx_h100(4)))
    assert both.intra == old.intra
    assert both.intra.bytes_per_s < new.intra.bytes_per_s
    assert (both.generation, both.nvls, both.cpu) == ("ampere", False, "amd")
    assert both.protocols == ("LL", "Simple")
    assert old.protocols == new.protocols == ("LL", "LL128", "Simple")


def test_a_host_with_a_slower_port_holds_the_ring() -> None:
    """Four hosts on one switch of one's own, one of them at a tenth: the ring goes at that."""
    template = pcie_hosts(1, 1, gbit_per_s=10).templates[0]
    speeds = [1.25e9, 1.25e9, 0.125e9, 1.25e9]
    cluster = Cluster(
        name="slow",
        templates=(template,),
        hosts=(Hosts(template=template.name, count=4),),
        switches=("tor",),
        links=tuple(
            Link(a=f"host{host}.nic0", b="tor", kind="net", bytes_per_s=speed)
            for host, speed in enumerate(speeds)
        ),
    )
    inter = fabric_of(cluster).inter
    assert inter is not None
    assert inter.bytes_per_s == pytest.approx(0.125e9)
    without = fabric_of(cluster, ["host0.gpu0", "host1.gpu0", "host3.gpu0"]).inter
    assert without is not None
    assert without.bytes_per_s == pytest.approx(1.25e9)


def test_a_job_on_the_same_host_takes_its_share_of_it() -> None:
    """Two GPUs each behind one PCIe switch: half of the way up to memory is the neighbour's."""
    cluster = pcie_hosts(2, 4, gbit_per_s=100, protocol="rdma", gpus_per_switch=4, sockets=1)
    ranks = [f"host{host}.gpu{gpu}" for host in range(2) for gpu in (0, 1)]
    others = [f"host{host}.gpu{gpu}" for host in range(2) for gpu in (2, 3)]
    alone, beside = fabric_of(cluster, ranks), fabric_of(cluster, ranks, beside=[others])
    assert beside.intra.bytes_per_s < alone.intra.bytes_per_s
    one_host = fabric_of(cluster, ranks, beside=[["host1.gpu2", "host1.gpu3"]])
    assert one_host.intra.bytes_per_s == pytest.approx(alone.intra.bytes_per_s / 2)
    elsewhere = fabric_of(cluster, ranks[:2], beside=[["host1.gpu2", "host1.gpu3"]])
    assert elsewhere.intra == fabric_of(cluster, ranks[:2]).intra


def test_gpus_on_nvswitches_do_not_slow_each_other() -> None:
    """Each has its own links to the switches: four and four run as fast as four alone."""
    cluster = dgx_a100()
    halves = [[f"host0.gpu{gpu}" for gpu in part] for part in (range(4), range(4, 8))]
    assert fabric_of(cluster, halves[0], beside=[halves[1]]).intra == fabric_of(cluster, halves[0]).intra


@pytest.mark.parametrize("name", PRESETS)
def test_latencies_of_presets_are_only_what_nccls_table_has_not(name: str) -> None:
    """Links within hosts add none; between hosts what the port tells, and switches beyond the first."""
    fabric = fabric_of(preset(name, **NEEDED.get(name, {})))
    assert fabric.intra.latency_ns is None
    if fabric.inter is not None:
        assert fabric.inter.latency_ns is None
    if name in ("p4de", "p5"):
        inter = fabric_of(preset(name, hosts=2)).inter
        assert inter is not None
        assert (inter.latency_ns, inter.reported_ns) == (None, 75_000)
