"""Ready-made clusters: kinds of hosts as rows of numbers, from what published sources say of links.

NVLink, PCIe and the links between sockets are those that NCCL itself counts with, in bytes/s in each
direction, which is what a kernel gets of them: NCCL src/graph/topo.h and kvDictPciGen of src/graph/topo.cc,
commit 069a3d4 (2026). Network ports are their line rate. The shape of each machine is by the sources beside
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import Parameter, signature
from itertools import islice
from typing import Any, Literal, get_args

from sim.errors import InputError
from sim.nouns.checks import at_least, one_of
from sim.nouns.cluster import (
    MAX_HOSTS,
    Cluster,
    CpuVendor,
    Generation,
    HostKind,
    Hosts,
    Network,
    Step,
    StepKind,
    split_name,
)

NVLINK = {
    "volta": 20e9,  # SM70_NVLINK_BW
    "turing": 20e9,  # the same, by compute capability (ncclTopoNVLinkBw)
    "ampere": 20e9,  # SM80_NVLINK_BW
    "hopper": 20.6e9,  # SM90_NVLINK_BW
    "blackwell": 40.1e9,  # SM100_NVLINK_BW
}
PCIE_LANE = {  # 6, 12 and 24 Gbit/s a lane of what it carries
    3: 0.75e9,  # 8 GT/s
    4: 1.5e9,  # 16 GT/s
    5: 3e9,  # 32 GT/s
}
SOCKETS = {
    "broadwell": 6e9,  # BDW_QPI_BW
    "skylake": 10e9,  # SKL_QPI_BW: Skylake and Cascade Lake
    "sapphire_rapids": 22e9,  # SRP_QPI_BW
    "emerald_rapids": 40e9,  # ERP_QPI_BW
    "rome": 16e9,  # AMD_ZEN12_BW
    "milan": 24e9,  # AMD_ZEN34_BW: Milan and Genoa
    "turin": 32e9,  # AMD_ZEN5_BW
}
# Grace to Hopper, NVIDIA Grace Hopper Superchip Architecture whitepaper (2022): 900 GB/s in both directions.
C2C_GH200 = 450e9
# Grace to two Blackwells, NVIDIA GB200 NVL72 data sheet: 900 GB/s in both directions, for both GPUs.
C2C_GB200 = 225e9
# Eight channels of DDR4-3200 a socket, at 8 bytes a transfer (JEDEC JESD79-4): what host memory can move.
HOST_MEMORY = 204.8e9
MOST_BOXED = 64  # hosts of a box
_MOST_GBIT_PER_S = 1_000_000
_TOPO_H = "NCCL src/graph/topo.h"
_TCP = "IEEE 802.3; RFC 791, 9293, 7323"


def pcie(generation: int, lanes: int = 16) -> float:
    """Bytes/s of a PCIe link, such as ``pcie(4)`` for generation 4 with 16 lanes."""
    if generation not in PCIE_LANE:
        raise InputError(f"pcie_gen: {generation!r} is not legal; give one of 3, 4, 5")
    return PCIE_LANE[generation] * lanes


def port(gbit_per_s: float) -> float:
    """Bytes/s of a network port of so many Gbit/s, at most a million."""
    if not gbit_per_s <= _MOST_GBIT_PER_S:
        raise InputError(f"gbit_per_s: more than {_MOST_GBIT_PER_S} is not legal; give Gbit/s of a port")
    return gbit_per_s * 1e9 / 8


def tcp_port(gbit_per_s: float, mtu: int = 1500) -> float:
    """Bytes/s of data that TCP gets through an Ethernet port.

    A frame has 38 bytes beside its ``mtu`` (preamble 8, header 14, checksum 4, gap 12: IEEE 802.3), and
    within it 52 are headers (IPv4 20, TCP 20 and 12 of time stamps: RFC 791, 9293, 7323).
    """
    if not 576 <= mtu <= 9216:
        raise InputError(f"mtu: {mtu!r} is not legal; give bytes, 576 to 9216")
    return port(gbit_per_s) * (mtu - 52) / (mtu + 38)


def shaped_bytes_per_s(rate_bits: int) -> float:
    """Bytes/s of data that TCP gets through a port of a box, shaped by tbf to ``rate_bits``.

    tbf counts frames as the kernel hands them over, with their Ethernet header of 14 bytes and without what
    only a wire adds (qdisc_pkt_len_init, Linux net/core/dev.c). Of the 1500 bytes within, 52 are headers.
    """
    return rate_bits / 8 * (1500 - 52) / (1500 + 14)


def _kind(
    name: str,
    generation: Generation,
    gpus: int,
    between: float | tuple[Step, ...],
    nics: int,
    parts: int,
    slots: tuple[float, float],
    cpu: CpuVendor,
    *,
    nvls: bool = False,
) -> HostKind:
    """A kind of host; ``between`` GPUs on NVSwitches lie bytes/s, ``slots`` are a GPU's and a NIC's."""
    steps = between if isinstance(between, tuple) else (Step(kind="nvswitch", bytes_per_s=between),)
    return HostKind(
        name=name,
        generation=generation,
        gpus=gpus,
        between_gpus=steps,
        nics=nics,
        parts=parts,
        gpu_slot_bytes_per_s=slots[0],
        nic_slot_bytes_per_s=slots[1],
        nvls=nvls,
        cpu=cpu,
    )


def _fat_tree(gbit_per_s: float, hosts_per_leaf: int = MAX_HOSTS, **more: Any) -> Network:
    """Leaf switches of so many hosts; by default one for all, which holds nothing up."""
    return Network(bytes_per_s=port(gbit_per_s), hosts_per_leaf=hosts_per_leaf, **more)


# Rings through 2 to 8 V100 of a DGX-1, in GB/s: as many as fit side by side in its mesh, GPUs in order. The
# first five or six have no ring over NVLink alone.
_MESH = tuple(
    Step(kind="qpi" if gpus in (5, 6) else "nvlink", bytes_per_s=rate * 1e9, rings=rings)
    for gpus, rate, rings in (
        (2, 20, 1), (3, 40, 2), (4, 80, 4), (5, 12, 2), (6, 45, 9), (7, 80, 4), (8, 120, 18)
    )
)  # fmt: skip
# Six of 18 NVLinks to each of three others; the Graces have links of their own, which rings do not need.
_ALL_TO_ALL = tuple(Step(kind="nvlink", bytes_per_s=6 * peers * NVLINK["hopper"]) for peers in (1, 2, 3))
_A100, _H100, _B200 = 12 * NVLINK["ampere"], 18 * NVLINK["hopper"], 18 * NVLINK["blackwell"]
# Whole machines with their networks. Any field of the network is a setting, and how many hosts there are.
MACHINES: dict[str, tuple[HostKind, Network, str]] = {
    # DGX A100 in a rail-optimised fat tree: a NIC of 200 Gbit/s a GPU; two GPUs and two NICs below each PCIe
    # switch, as NCCL saw one (NVIDIA/nccl issue 1505). Rails of HDR switches with 40 ports, 20 of them down
    # to the 20 hosts of a scalable unit (NVIDIA DGX SuperPOD: Scalable Infrastructure for AI Leadership, DGX
    # A100, RA-09950-001, November 2020).
    "dgx_a100": (
        _kind("dgx_a100", "ampere", 8, _A100, 8, 4, (pcie(4), pcie(4)), "amd"),
        _fat_tree(200, 20, rails=8),
        "RA-09950-001",
    ),
    # DGX H100: NVSwitches that reduce in flight, a NIC of 400 Gbit/s a GPU, four on each of two Xeon 8480C
    # (NVIDIA DGX H100 User Guide, table 6; DGX BasePOD Reference Architecture, core components); rails of NDR
    # switches with 64 ports, 32 of them down to the 32 hosts of a scalable unit (NVIDIA DGX SuperPOD
    # Reference Architecture, DGX H100, RA-11333-001, September 2023).
    "dgx_h100": (
        _kind("dgx_h100", "hopper", 8, _H100, 8, 8, (pcie(5), pcie(5)), "intel", nvls=True),
        _fat_tree(400, 32, rails=8),
        "RA-11333-001",
    ),
    # DGX-1 with V100 (and AWS p3.16xlarge, with one Ethernet port in place of these NICs): six NVLinks a GPU
    # in a hybrid cube mesh (NVIDIA DGX-1 with V100 whitepaper, WP-08437-002, figure 4); two Broadwells with
    # two PCIe gen 3 switches each, below each of which are two GPUs and one NIC of 100 Gbit/s. Of a switch's
    # ports half go down to hosts.
    "dgx_v100": (
        _kind("dgx_v100", "volta", 8, _MESH, 4, 4, (pcie(3), pcie(3)), "intel"),
        _fat_tree(100, 24, rails=4),
        "WP-08437-002",
    ),
    # AWS p4de.24xlarge (and p4d): as DGX A100; two sockets (Cascade Lake) with two PCIe gen 3 switches each,
    # below each of which are two GPUs and one EFA port of 100 Gbit/s (aws/aws-ofi-nccl
    # topology/p4de-24xl-topo.xml, commit f8e0ad92). A port reports a latency of 75 us, with which NCCL's cost
    # model chooses (src/platform-aws.cpp, commit 01666ece). Since bytes of a message may arrive out of order,
    # the plugin allows the protocol Simple only (there, platform_config_endpoint; "not safe (P4d/P4e)" in
    # commit 008a28b4). The network between hosts is taken to have no bottleneck: AWS says nothing of it.
    "p4de": (
        _kind("p4de", "ampere", 8, _A100, 4, 4, (pcie(3), pcie(3)), "intel"),
        _fat_tree(100, latency_ns=75_000, ll=False, ll128=False),
        "aws-ofi-nccl p4de-24xl-topo.xml",
    ),
    # AWS p5.48xlarge: 8 H100, each with four EFA ports of 100 Gbit/s, 3,200 in all. All on one socket (Genoa)
    # over PCIe switches of their own, gen 5 x16 to the GPU and gen 4 x8 to each port (aws/aws-ofi-nccl
    # topology/p5.48xl-topo.xml, commit 79565c0e). The plugin makes one NIC of a GPU's ports and reports a
    # latency of 75 us (src/platform-aws.cpp, commit 01666ece). No bottleneck between hosts, as above.
    "p5": (
        _kind("p5", "hopper", 8, _H100, 8, 8, (pcie(5), 4 * pcie(4, lanes=8)), "amd", nvls=True),
        _fat_tree(400, latency_ns=75_000),
        "aws-ofi-nccl p5.48xl-topo.xml",
    ),
    # Four GH200 a host, each with its own Slingshot-11 port of 200 Gbit/s (the quad GH200 node of Alps: Fusco
    # et al., arXiv:2408.11556). A NIC is on its Grace; PCIe gen 4 x16 is assumed, which carries 200 Gbit/s. A
    # switch has 64 ports, 16 of them to NICs and 31 and 17 to other switches, and takes 350 ns (De Sensi et
    # al., SC20, arXiv:2008.08886). The dragonfly is taken as a fat tree: with adaptive routing, the 48 ports
    # together are the way to everything beyond the switch. NCCL before 2.27 has no LL128 to a NIC behind a
    # Grace; ll128 lets it (NCCL_LL128_C2C).
    "gh200_slingshot": (
        _kind("gh200x4", "hopper", 4, _ALL_TO_ALL, 4, 4, (C2C_GH200, pcie(4)), "arm"),
        _fat_tree(200, 4, oversubscription=16 / 48, switch_latency_ns=350, ll128=False),
        "De Sensi et al., SC20; Fusco et al. 2024",
    ),
    # GB200 NVL72: 72 GPUs on one NVLink switch system, which counts as one host. Each GPU has 18 NVLinks, to
    # switches that reduce in flight (taken as one); two GPUs share a Grace; each GPU has a NIC of 400 Gbit/s
    # (NVIDIA DGX SuperPOD Reference Architecture, DGX GB200, key components: 18 trays of four GPUs, NDR), for
    # which PCIe gen 5 x16 on its Grace is assumed. That NICs of the same number in all racks are one rail, of
    # switches with 64 ports, is assumed too.
    "nvl72": (
        _kind("nvl72", "blackwell", 72, _B200, 72, 36, (C2C_GB200, pcie(5)), "arm", nvls=True),
        _fat_tree(400, 32, rails=72),
        "NVIDIA GB200 NVL72 data sheet",
    ),
}


def _cluster(kind: HostKind, hosts: int, network: Network | None, source: str, name: str = "") -> Cluster:
    return Cluster(
        name=name or kind.name,
        kinds=(kind,),
        hosts=(Hosts(kind=kind.name, count=hosts),),
        network=network,
        provenance={"source": source},
    )


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

    Without ``peer_to_peer`` data goes through host memory (NCCL's SHM transport). ``socket_link`` is one of
    ``SOCKETS``.
    """
    kind = _on_pcie(gpus, generation, pcie_gen, sockets, socket_link, peer_to_peer, gpus_per_switch)
    return _cluster(kind, 1, None, f"{_TOPO_H} and topo.cc")


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
    hosts_per_leaf: int = MAX_HOSTS,
    oversubscription: float = 1.0,
) -> Cluster:
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
    one_of("protocol", protocol, ("tcp", "rdma"))
    kind = _on_pcie(gpus, generation, pcie_gen, sockets, socket_link, peer_to_peer, gpus_per_switch)
    slot = pcie(pcie_gen)
    kind = replace(kind, nics=1, gpu_slot_bytes_per_s=slot, nic_slot_bytes_per_s=slot, staged=not gpu_direct)
    network = Network(
        bytes_per_s=tcp_port(gbit_per_s, mtu) if protocol == "tcp" else port(gbit_per_s),
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=oversubscription,
    )
    return _cluster(kind, hosts, network, f"{_TOPO_H}; {_TCP}", "pcie_hosts")


def _on_pcie(
    gpus: int,
    generation: Generation,
    pcie_gen: int,
    sockets: int,
    socket_link: str,
    peer_to_peer: bool,
    gpus_per_switch: int | None,
) -> HostKind:
    """GPUs in equal parts on sockets, below switches or not.

    A ring crosses from socket to socket once each way, and up from a switch once. Without ``peer_to_peer``
    every GPU below a switch sends up at once, and the memory of a socket takes what its GPUs receive.
    """
    if sockets not in (1, 2):
        raise InputError(f"sockets: {sockets!r} is not legal; give 1 or 2")
    one_of("socket_link", socket_link, SOCKETS)
    if gpus < 1:
        raise InputError(f"gpus: {gpus!r} is not legal; give an integer >= 1")
    each = 1 if gpus_per_switch is None else gpus_per_switch
    if not 1 <= each <= gpus or gpus % each:
        raise InputError(
            f"gpus_per_switch: {each!r} is not legal; give a divisor of the {gpus} gpus, or null"
        )
    on_first = -(-gpus // each // sockets) * each  # GPUs of the first socket
    steps = []
    for count in range(2, gpus + 1):
        slowest, is_across = pcie(pcie_gen), count > on_first
        if not peer_to_peer:
            slowest = min(slowest / min(count, each), HOST_MEMORY / min(count, on_first))
        if is_across:
            slowest = min(slowest, SOCKETS[socket_link])
        kind: StepKind = "shm" if not peer_to_peer else "qpi" if is_across else "pcie"
        steps.append(Step(kind=kind, bytes_per_s=slowest))
    return HostKind(
        name=f"pcie_x{gpus}",
        gpus=gpus,
        generation=generation,
        between_gpus=tuple(steps),
        ll128=False,
        cpu="amd" if socket_link in ("rome", "milan", "turin") else "intel",
    )


def hgx_ethernet(
    hosts: int,
    *,
    gbit_per_s: float,
    generation: Generation = "hopper",
    mtu: int = 1500,
    hosts_per_leaf: int = MAX_HOSTS,
    oversubscription: float = 1.0,
) -> Cluster:
    """Eight A100 or H100 on NVSwitches as in a DGX, and one Ethernet port a host, over TCP.

    The port is on the first socket, and data goes through host memory. What that takes on PCIe 5 is not known
    and not modelled, so that A100 (PCIe 4) come out slower than H100.
    """
    one_of("generation", generation, ("ampere", "hopper"))
    board, *_ = MACHINES["dgx_a100" if generation == "ampere" else "dgx_h100"]
    kind = replace(board, name=f"hgx_{generation}", nics=1, parts=1, staged=True, ll128=False)
    network = Network(
        bytes_per_s=tcp_port(gbit_per_s, mtu),
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=oversubscription,
    )
    return _cluster(kind, hosts, network, f"{_TOPO_H}; {_TCP}")


BUILT = {made.__name__: made for made in (pcie_box, pcie_hosts, hgx_ethernet)}
PRESETS = (*MACHINES, *BUILT)


def check_preset(name: str) -> None:
    """Raise ``InputError`` unless there is such a preset."""
    one_of("preset", name, PRESETS)


def preset(name: str, hosts: int | None = None, **settings: Any) -> Cluster:
    """A ready-made cluster, such as ``cluster("dgx_h100", hosts=4)``.

    Raises ``InputError`` for a name or a setting that is not known, and says which are.
    """
    check_preset(name)
    if hosts is not None:
        settings = {"hosts": hosts, **settings}
    make: Any = BUILT.get(name)
    legal: dict[str, Any] = {"hosts": int, **dict.fromkeys(_NETWORK)}
    if make:
        legal = {key: one.annotation for key, one in signature(make).parameters.items()}
    for setting, value in settings.items():
        if setting not in legal:
            raise InputError(
                f"{setting}: is not a setting of preset {name!r}; give one of {', '.join(legal)}"
            )
        if make or setting == "hosts":  # a network checks itself
            _check_type(name, setting, value, legal[setting])
    if make:
        for setting, parameter in signature(make).parameters.items():
            if parameter.default is Parameter.empty and setting not in settings:
                raise InputError(f"{setting}: missing; preset {name!r} needs it")
        made: Cluster = make(**settings)
        return made
    kind, network, source = MACHINES[name]
    count = settings.pop("hosts", 1)
    return _cluster(kind, count, replace(network, **settings), f"{source}; {_TOPO_H}")


_NETWORK = tuple(field.name for field in fields(Network))
_TYPES = {int: "an integer", bool: "true or false", float: "a number", str: "text"}


def _check_type(name: str, setting: str, value: object, annotation: Any) -> None:
    """Raise ``InputError`` unless a setting's value is of its type; who takes it checks the range."""
    legal = {kind: words for kind, words in _TYPES.items() if kind in (annotation, *get_args(annotation))}
    legal = legal or {str: _TYPES[str]}  # of several words
    if type(value) not in (*legal, *((int,) if float in legal else ())) and value is not None:
        raise InputError(
            f"{setting}: {value!r} is not legal for preset {name!r}; give {' or '.join(legal.values())}"
        )


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
    at_least("hosts", hosts, 1)
    at_least("world_size", world_size, 1)
    if isinstance(machine, Cluster):
        if settings:
            raise InputError(
                f"{next(iter(settings))}: is not legal with a cluster; change the cluster itself"
            )
        cluster = machine
    else:
        if "hosts" in settings:
            raise InputError("hosts: is no setting here; give numbers of hosts as hosts")
        if hosts is None and world_size is None:
            return preset(machine, **settings)
        cluster = preset(machine, **settings, **({} if machine == "pcie_box" else {"hosts": 1}))
    if len(cluster.hosts) == 1 and cluster.placement is None and cluster.network is not None:
        count, gpus = hosts, cluster.kinds[0].gpus
        if world_size is not None:
            count = -(-world_size // gpus)
        if count is not None and count > MAX_HOSTS:
            asked, most = ("hosts", MAX_HOSTS) if world_size is None else ("world_size", MAX_HOSTS * gpus)
            raise InputError(f"{asked}: {hosts or world_size} is not legal; give at most {most}")
        if count is not None:
            cluster = replace(cluster, hosts=(replace(cluster.hosts[0], count=count),))
    elif hosts is not None:
        return _first_hosts(cluster, hosts)
    if world_size is None or (cluster.placement is None and world_size == cluster.gpu_count):
        return cluster
    placed = tuple(islice(cluster.placement or cluster.all_gpus(), world_size))
    if world_size > len(placed):
        raise InputError(
            f"world_size: {world_size} is not legal; {cluster.name!r} has {len(placed)} GPUs for it"
        )
    return replace(cluster, placement=placed)


def _first_hosts(cluster: Cluster, count: int) -> Cluster:
    """``cluster`` with only the ranks on its first ``count`` hosts that have ranks."""
    placed = cluster.placement or tuple(cluster.all_gpus())
    owners = list(dict.fromkeys(split_name(rank)[0] for rank in placed))
    if count > len(owners):
        raise InputError(
            f"hosts: {count} is not legal; {cluster.name!r} has ranks on {len(owners)}, and only one group "
            "of hosts on a network, without a placement, can be had in other numbers"
        )
    kept = set(owners[:count])
    return replace(cluster, placement=tuple(rank for rank in placed if split_name(rank)[0] in kept))


def boxed_cluster(rates_bits: Sequence[int], uplink_bits: int | None = None) -> Cluster:
    """The box of these rates as a cluster: ``host0``, ``host1``, …, each with one rank on its ``gpu0``.

    ``sim.validator.launch`` builds such boxes of network namespaces. Each host's port has its rate, in bit/s
    as tc is told, in both directions. With ``uplink_bits`` the first half of the hosts is on one switch and
    the rest on another, with an uplink of that rate each way; without, all are on one.

    Raises:
        InputError: hosts that are not 2 to 64, an odd number of them with an uplink, a rate below 1 kbit/s.
    """
    if not 2 <= len(rates_bits) <= MOST_BOXED or (uplink_bits and len(rates_bits) % 2):
        raise InputError(
            f"box: {len(rates_bits)} hosts are not legal; give 2 to {MOST_BOXED}, an even number with uplink"
        )
    for rate in (*rates_bits, *(() if uplink_bits is None else (uplink_bits,))):
        if type(rate) is not int or rate < 1000:
            raise InputError(f"box: a rate of {rate!r} is not legal; give an integer of bit/s, 1000 at least")
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
