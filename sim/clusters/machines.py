"""Ready-made clusters: whole machines by name, and hosts that are told by a few settings.

``machines.toml`` has the rows of whole machines, each with its source, and says where the rates of NVLink
and PCIe are from.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from sim.errors import InputError
from sim.formats.documents import parse_body
from sim.nouns.checks import Checked, Legal
from sim.nouns.cluster import (
    MAX_HOSTS,
    Cluster,
    Generation,
    HostCount,
    HostKind,
    Hosts,
    Network,
    PerHost,
    Step,
    StepKind,
    split_name,
)

# Any field of a machine's network is a setting, and how many hosts there are.
MACHINES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PCIE_X16 = {3: 12e9, 4: 24e9, 5: 48e9}  # kvDictPciGen: 6, 12 and 24 Gbit/s a lane of 8, 16 and 32 GT/s
SocketLink = Literal["broadwell", "skylake", "sapphire_rapids", "emerald_rapids", "rome", "milan", "turin"]
SOCKETS: dict[SocketLink, float] = {
    "broadwell": 6e9,  # BDW_QPI_BW
    "skylake": 10e9,  # SKL_QPI_BW: Skylake and Cascade Lake
    "sapphire_rapids": 22e9,  # SRP_QPI_BW
    "emerald_rapids": 40e9,  # ERP_QPI_BW
    "rome": 16e9,  # AMD_ZEN12_BW
    "milan": 24e9,  # AMD_ZEN34_BW: Milan and Genoa
    "turin": 32e9,  # AMD_ZEN5_BW
}
# Eight channels of DDR4-3200 a socket, at 8 bytes a transfer (JEDEC JESD79-4): what host memory can move.
HOST_MEMORY = 204.8e9
_TOPO_H = "NCCL src/graph/topo.h"
_TCP = "IEEE 802.3; RFC 791, 9293, 7323"

Gbit = Annotated[float, Legal(kind=float, is_open=True, most=1_000_000)]
Mtu = Annotated[int, Legal(least=576, most=9216)]
Factor = Annotated[float, Legal(kind=float, least=1e-3, most=1e6)]


def tcp_port(gbit_per_s: float, mtu: int = 1500) -> float:
    """Bytes/s of data that TCP gets through an Ethernet port.

    A frame has 38 bytes beside its ``mtu`` (preamble 8, header 14, checksum 4, gap 12: IEEE 802.3), and
    within it 52 are headers (IPv4 20, TCP 20 and 12 of time stamps: RFC 791, 9293, 7323).
    """
    return gbit_per_s * 1e9 / 8 * (mtu - 52) / (mtu + 38)


def shaped_bytes_per_s(rate_bits: int) -> float:
    """Bytes/s of data that TCP gets through a port of a box, shaped by tbf to ``rate_bits``.

    tbf counts frames as the kernel hands them over, with their Ethernet header of 14 bytes and without what
    only a wire adds (qdisc_pkt_len_init, Linux net/core/dev.c). Of the 1500 bytes within, 52 are headers.
    """
    return rate_bits / 8 * (1500 - 52) / (1500 + 14)


@dataclass(frozen=True, kw_only=True)
class PcieBox(Checked):
    """One host whose GPUs are on PCIe x16, on one or two sockets.

    Without ``peer_to_peer`` data goes through host memory (NCCL's SHM transport). ``socket_link`` is what
    joins the sockets.
    """

    gpus: PerHost = 4
    generation: Generation = "ampere"
    pcie_gen: Literal[3, 4, 5] = 4
    sockets: Literal[1, 2] = 1
    socket_link: SocketLink = "milan"
    peer_to_peer: bool = True

    def kind(self) -> HostKind:
        """GPUs in equal parts on sockets.

        A ring crosses from socket to socket once each way. Without ``peer_to_peer`` the memory of a socket
        takes what its GPUs receive.
        """
        on_first = -(-self.gpus // self.sockets)  # GPUs of the first socket
        steps = []
        for count in range(2, self.gpus + 1):
            slowest, is_across = PCIE_X16[self.pcie_gen], count > on_first
            if not self.peer_to_peer:
                slowest = min(slowest, HOST_MEMORY / min(count, on_first))
            if is_across:
                slowest = min(slowest, SOCKETS[self.socket_link])
            kind: StepKind = "shm" if not self.peer_to_peer else "qpi" if is_across else "pcie"
            steps.append(Step(kind=kind, bytes_per_s=slowest))
        return HostKind(
            name=f"pcie_x{self.gpus}",
            gpus=self.gpus,
            generation=self.generation,
            between_gpus=tuple(steps),
            ll128=False,
            cpu="amd" if self.socket_link in ("rome", "milan", "turin") else "intel",
        )

    def cluster(self) -> Cluster:
        """The host alone."""
        return _cluster(self.kind(), 1, None, f"{_TOPO_H} and topo.cc")


@dataclass(frozen=True, kw_only=True)
class PcieHosts(PcieBox):
    """Hosts of PCIe GPUs with one network port each, such as 10, 25 or 100 GbE, on one switch by default.

    ``protocol`` tcp takes Ethernet's and TCP's headers off the line rate (``tcp_port``), rdma nothing.
    ``gpu_direct`` says that NICs read from GPUs, for which NCCL's log has GDRDMA: by default it does so where
    GPU and NIC are below one PCIe switch (NCCL_NET_GDR_LEVEL PXB, ncclTopoCheckGdr of src/graph/paths.cc),
    and on GeForce never. Without it data goes through host memory: on slots of PCIe 3 and 4 that carries
    4 GB/s a GPU, the median of machines from 1.4 to 14.9 (``sim.clusters.nccl_model``); over TCP at
    100 Gbit/s 4 to 6 were seen (NVIDIA/nccl#450, four hosts of eight V100). What sockets cost a processor
    beyond that, at 32 Gbit/s over 40 % of the line (NVIDIA/nccl#209), is not modelled, nor is anything on
    PCIe 5: measure the link there.
    """

    hosts: HostCount
    gpus: PerHost
    gbit_per_s: Gbit
    protocol: Literal["tcp", "rdma"] = "tcp"
    mtu: Mtu = 1500
    pcie_gen: Literal[3, 4, 5] = 3
    sockets: Literal[1, 2] = 2
    socket_link: SocketLink = "skylake"
    peer_to_peer: bool = False
    gpu_direct: bool = False
    hosts_per_leaf: HostCount = MAX_HOSTS
    oversubscription: Factor = 1.0

    def cluster(self) -> Cluster:
        """All hosts, and their switches."""
        slot = PCIE_X16[self.pcie_gen]
        kind = replace(
            self.kind(),
            nics=1,
            gpu_slot_bytes_per_s=slot,
            nic_slot_bytes_per_s=slot,
            staged=not self.gpu_direct,
        )
        is_tcp = self.protocol == "tcp"
        port = tcp_port(self.gbit_per_s, self.mtu) if is_tcp else self.gbit_per_s * 1e9 / 8
        return _on_ethernet(self, kind, port, "pcie_hosts")


@dataclass(frozen=True, kw_only=True)
class HgxEthernet(Checked):
    """Eight A100 or H100 on NVSwitches as in a DGX, and one Ethernet port a host, over TCP.

    The port is on the first socket, and data goes through host memory. What that takes on PCIe 5 is not known
    and not modelled, so that A100 (PCIe 4) come out slower than H100.
    """

    hosts: HostCount
    gbit_per_s: Gbit
    generation: Literal["ampere", "hopper"] = "hopper"
    mtu: Mtu = 1500
    hosts_per_leaf: HostCount = MAX_HOSTS
    oversubscription: Factor = 1.0

    def cluster(self) -> Cluster:
        """All hosts, and their switches."""
        board = preset("dgx_a100" if self.generation == "ampere" else "dgx_h100").kinds[0]
        kind = replace(board, name=f"hgx_{self.generation}", nics=1, parts=1, staged=True, ll128=False)
        return _on_ethernet(self, kind, tcp_port(self.gbit_per_s, self.mtu))


def _cluster(kind: HostKind, hosts: int, network: Network | None, source: str, name: str = "") -> Cluster:
    return Cluster(
        name=name or kind.name,
        kinds=(kind,),
        hosts=(Hosts(kind=kind.name, count=hosts),),
        network=network,
        provenance={"source": source},
    )


def _on_ethernet(made: PcieHosts | HgxEthernet, kind: HostKind, port: float, name: str = "") -> Cluster:
    network = Network(
        bytes_per_s=port, hosts_per_leaf=made.hosts_per_leaf, oversubscription=made.oversubscription
    )
    return _cluster(kind, made.hosts, network, f"{_TOPO_H}; {_TCP}", name)


BUILT: dict[str, type[PcieBox | HgxEthernet]] = {
    "pcie_box": PcieBox,
    "pcie_hosts": PcieHosts,
    "hgx_ethernet": HgxEthernet,
}
PRESETS = (*MACHINES, *BUILT)


def check_preset(name: str) -> None:
    """Raise ``InputError`` unless there is such a preset."""
    Legal(words=PRESETS).take("preset", name)


def preset(name: str, hosts: int | None = None, **settings: Any) -> Cluster:
    """A ready-made cluster, such as ``cluster("dgx_h100", hosts=4)``.

    Raises ``InputError`` for a name or a setting that is not known, and says which are.
    """
    check_preset(name)
    if hosts is not None:
        settings = {"hosts": hosts, **settings}
    made = BUILT.get(name)
    legal = [one.name for one in fields(made)] if made else ["hosts", *(one.name for one in fields(Network))]
    for setting in settings:
        if setting not in legal:
            raise InputError(
                f"{setting}: is not a setting of preset {name!r}; give one of {', '.join(legal)}"
            )
    where = f"preset {name!r}"
    if made:
        return parse_body(settings, made, where).cluster()
    row = MACHINES[name]
    count = Legal(least=1, most=MAX_HOSTS).take("hosts", settings.pop("hosts", 1))
    network = parse_body({**row["network"], **settings}, Network, where)
    return _cluster(parse_body(row["kind"], HostKind, where), count, network, f"{row['source']}; {_TOPO_H}")


def sized(
    machine: str | Cluster,
    settings: Mapping[str, Any],
    hosts: int | None = None,
    world_size: int | None = None,
) -> Cluster:
    """The preset with these settings, or the cluster, with so many hosts or ranks; neither: with its own.

    Ranks fill host after host. One group of hosts on a network, without a placement, gets as many hosts as it
    needs; otherwise ranks are on the first of those that it has.

    Raises:
        InputError: a name or a setting that is not known, or a size that cannot be had.
    """
    if isinstance(machine, Cluster):
        for setting in settings:
            raise InputError(f"{setting}: is not legal with a cluster; change the cluster itself")
        cluster = machine
    else:
        is_sized = hosts is not None or world_size is not None
        one = {"hosts": 1} if is_sized and machine != "pcie_box" else {}
        cluster = preset(machine, **{**one, **settings})
    if len(cluster.hosts) == 1 and cluster.placement is None and cluster.network is not None:
        count = hosts if world_size is None else -(-world_size // cluster.kinds[0].gpus)
        if count is not None:
            Legal(least=1, most=MAX_HOSTS).take("hosts" if count or hosts == 0 else "world_size", count)
            cluster = replace(cluster, hosts=(replace(cluster.hosts[0], count=count),))
        hosts = None
    if hosts is not None:
        placed = cluster.placement or tuple(cluster.all_gpus())
        owners = list(dict.fromkeys(split_name(rank)[0] for rank in placed))
        Legal(least=1, most=len(owners)).take(f"hosts of {cluster.name!r}", hosts)
        kept = set(owners[:hosts])
        cluster = replace(cluster, placement=tuple(rank for rank in placed if split_name(rank)[0] in kept))
    if world_size is None or (cluster.placement is None and world_size == cluster.gpu_count):
        return cluster
    most = cluster.gpu_count if cluster.placement is None else len(cluster.placement)
    Legal(least=1, most=most).take(f"world_size of {cluster.name!r}", world_size)
    return replace(cluster, placement=tuple(islice(cluster.placement or cluster.all_gpus(), world_size)))


def boxed_cluster(rates_bits: Sequence[int], uplink_bits: int | None = None) -> Cluster:
    """The box of these rates as a cluster: ``host0``, ``host1``, …, each with one rank on its ``gpu0``.

    ``sim.validator.launch`` builds such boxes of network namespaces. Each host's port has its rate, in bit/s
    as tc is told, in both directions. With ``uplink_bits`` the first half of the hosts is on one switch and
    the rest on another, with an uplink of that rate each way; without, all are on one.
    """
    # No GPU is in it: gloo's collectives are measured, never computed from this.
    kind = HostKind(
        name="namespace",
        gpus=1,
        generation="ampere",
        nics=1,
        gpu_slot_bytes_per_s=HOST_MEMORY,
        nic_slot_bytes_per_s=HOST_MEMORY,
        ll128=False,
    )
    ports = [shaped_bytes_per_s(rate) for rate in rates_bits]
    network = Network(bytes_per_s=max(ports), hosts_per_leaf=MAX_HOSTS)
    if uplink_bits is not None:
        half = len(ports) // 2
        # An uplink as wide as its ports together holds nothing up.
        wide = max(1.0, half * max(ports) / shaped_bytes_per_s(uplink_bits))
        network = replace(network, hosts_per_leaf=half, oversubscription=wide)
    return Cluster(
        name=f"box of {len(ports)} hosts",
        kinds=(kind,),
        hosts=tuple(Hosts(kind=kind.name, count=1, port_bytes_per_s=each) for each in ports),
        network=network,
        provenance={"source": f"tc-tbf; {_TCP}"},
    )
