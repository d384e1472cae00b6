"""Ready-made hosts of PCIe GPUs, and hosts on Ethernet: 10, 25 or 100 GbE.

Without GPUDirect RDMA, which TCP never has, data goes through host memory on its way to a NIC. On slots of
PCIe 3 and 4 that carries 4 GB/s a GPU, the median of machines from 1.4 to 14.9 (``sim.clusters.nccl.paths``);
over TCP at 100 Gbit/s 4 to 6 were seen (NVIDIA/nccl#450, four hosts of eight V100). What sockets cost a
processor beyond that, at 32 Gbit/s over 40 % of the line (NVIDIA/nccl#209), is not modelled, nor is anything
on PCIe 5: measure the link there.
"""

from dataclasses import replace
from typing import Literal

from sim.clusters.topology.hosts import board, cluster_of, plain, with_ethernet
from sim.clusters.topology.link_figures import port, tcp_port
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Generation, Network


def pcie_box(
    gpus: int = 4,
    *,
    generation: Generation = "ampere",
    pcie_gen: int = 4,
    sockets: int = 1,
    socket_link: str = "milan",
    peer_to_peer: bool = True,
    gpus_per_switch: int | None = None,
) -> Cluster:
    """One host whose GPUs are on PCIe x16, on one or two sockets, directly or below PCIe switches.

    Without ``peer_to_peer`` data goes through host memory (NCCL's SHM transport). Bandwidths by
    ``sim.clusters.topology.link_figures``; ``socket_link`` is one of its ``SOCKETS``.
    """
    template = plain(
        gpus,
        generation,
        pcie_gen,
        sockets,
        socket_link,
        peer_to_peer=peer_to_peer,
        nic=False,
        gpus_per_switch=gpus_per_switch,
    )
    return cluster_of(template, 1, None, "NCCL src/graph/topo.h and topo.cc")


def pcie_hosts(
    hosts: int,
    gpus: int,
    *,
    gbit_per_s: float,
    protocol: Literal["tcp", "rdma"] = "tcp",
    mtu: int = 1500,
    generation: Generation = "ampere",
    pcie_gen: int = 3,
    sockets: int = 2,
    socket_link: str = "skylake",
    peer_to_peer: bool = False,
    gpu_direct: bool = False,
    gpus_per_switch: int | None = None,
    hosts_per_leaf: int | None = None,
    oversubscription: float = 1.0,
) -> Cluster:
    """Hosts of PCIe GPUs with one network port each, such as 10, 25 or 100 GbE, on one switch by default.

    ``protocol`` tcp takes Ethernet's and TCP's headers off the line rate (``tcp_port``), rdma nothing.
    ``gpu_direct`` says that NICs read from GPUs, for which NCCL's log has GDRDMA: by default it does so where
    GPU and NIC are below one PCIe switch (NCCL_NET_GDR_LEVEL PXB, ncclTopoCheckGdr of src/graph/paths.cc),
    and on GeForce never. Without it data goes through host memory.
    """
    if protocol not in ("tcp", "rdma"):
        raise InputError(f"protocol: {protocol!r} is not legal; give one of tcp, rdma")
    template = plain(
        gpus,
        generation,
        pcie_gen,
        sockets,
        socket_link,
        peer_to_peer=peer_to_peer,
        nic=True,
        gpu_direct=gpu_direct,
        gpus_per_switch=gpus_per_switch,
    )
    network = Network(
        bytes_per_s=tcp_port(gbit_per_s, mtu) if protocol == "tcp" else port(gbit_per_s),
        hosts_per_leaf=hosts_per_leaf or max(1, hosts),
        oversubscription=oversubscription,
    )
    source = "NCCL src/graph/topo.h; IEEE 802.3; RFC 791, 9293, 7323"
    return replace(cluster_of(template, hosts, network, source), name="pcie_hosts")


def ethernet_10g(hosts: int, gpus: int = 1, *, mtu: int = 1500, hosts_per_leaf: int | None = None) -> Cluster:
    """``pcie_hosts`` with 10 GbE and TCP, 10 Gbit/s by IEEE 802.3ae."""
    made = pcie_hosts(hosts, gpus, gbit_per_s=10, mtu=mtu, hosts_per_leaf=hosts_per_leaf)
    return replace(made, name="ethernet_10g")


def ethernet_25g(hosts: int, gpus: int = 1, *, mtu: int = 1500, hosts_per_leaf: int | None = None) -> Cluster:
    """``pcie_hosts`` with 25 GbE and TCP, 25 Gbit/s by IEEE 802.3by."""
    made = pcie_hosts(hosts, gpus, gbit_per_s=25, mtu=mtu, hosts_per_leaf=hosts_per_leaf)
    return replace(made, name="ethernet_25g")


def ethernet_100g(
    hosts: int, gpus: int = 1, *, mtu: int = 1500, hosts_per_leaf: int | None = None
) -> Cluster:
    """``pcie_hosts`` with 100 GbE and TCP, 100 Gbit/s by IEEE 802.3bj, through host memory."""
    made = pcie_hosts(hosts, gpus, gbit_per_s=100, mtu=mtu, hosts_per_leaf=hosts_per_leaf)
    return replace(made, name="ethernet_100g")


def hgx_ethernet(
    hosts: int,
    *,
    gbit_per_s: float,
    generation: Generation = "hopper",
    mtu: int = 1500,
    hosts_per_leaf: int | None = None,
    oversubscription: float = 1.0,
) -> Cluster:
    """Eight A100 or H100 on NVSwitches as in a DGX (``board``), and one Ethernet port a host, over TCP.

    The port is on the first socket, and data goes through host memory. What that takes on PCIe 5 is not known
    and not modelled, so that A100 (PCIe 4) come out slower than H100.
    """
    template = with_ethernet(board(f"hgx_{generation}", generation), 4 if generation == "ampere" else 5)
    network = Network(
        bytes_per_s=tcp_port(gbit_per_s, mtu),
        hosts_per_leaf=hosts_per_leaf or max(1, hosts),
        oversubscription=oversubscription,
    )
    return cluster_of(template, hosts, network, "NCCL src/graph/topo.h; IEEE 802.3; RFC 791, 9293, 7323")
