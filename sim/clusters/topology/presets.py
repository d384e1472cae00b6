"""Ready-made clusters. Bandwidths by ``link_figures``; the shape of each by the source in its docstring."""

from inspect import Parameter, signature
from typing import Any

from sim.clusters.topology.ethernet import (
    ethernet_10g,
    ethernet_25g,
    ethernet_100g,
    hgx_ethernet,
    pcie_box,
    pcie_hosts,
)
from sim.clusters.topology.hosts import board, cluster_of, devices, numbered, switched
from sim.clusters.topology.link_figures import C2C_GB200, C2C_GH200, NVLINK, SOCKETS, pcie, port
from sim.errors import InputError
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster, HostTemplate, Link, Network


def dgx_v100(hosts: int = 1, *, hosts_per_leaf: int = 24) -> Cluster:
    """DGX-1 with V100 (and AWS p3.16xlarge, with one Ethernet port in place of these NICs).

    8 V100 with six NVLinks each, in a hybrid cube mesh (NVIDIA DGX-1 with V100 whitepaper, WP-08437-002,
    figure 4); two Broadwells with two PCIe gen 3 switches each, below each of which are two GPUs and one NIC
    of 100 Gbit/s. Of a switch's ports half go down to hosts.
    """
    gpus, nics, tops = numbered("gpu", 8), numbered("nic", 4), numbered("pcie", 4)
    links = [Link(a="cpu0", b="cpu1", kind="qpi", bytes_per_s=SOCKETS["broadwell"])]
    links += [
        Link(a=f"gpu{a}", b=f"gpu{b}", kind="nvlink", bytes_per_s=NVLINK["volta"], count=count)
        for pairs, count in ((_TWICE, 2), (_ONCE, 1))
        for a, b in pairs
    ]
    for number, top in enumerate(tops):
        links.append(Link(a=f"cpu{number // 2}", b=top, kind="pcie", bytes_per_s=pcie(3)))
        below = (*gpus[2 * number : 2 * number + 2], nics[number])
        links += [Link(a=top, b=device, kind="pcie", bytes_per_s=pcie(3)) for device in below]
    template = HostTemplate(
        name="dgx_v100",
        generation="volta",
        devices=devices(gpu=gpus, cpu=("cpu0", "cpu1"), pcie_switch=tops, nic=nics),
        links=tuple(links),
        cpu="intel",
    )
    network = Network(bytes_per_s=port(100), hosts_per_leaf=hosts_per_leaf, rails=4)
    return cluster_of(template, hosts, network, "WP-08437-002; NCCL src/graph/topo.h")


# NVLinks of a DGX-1 with V100: pairs with two, and with one
_TWICE = ((0, 3), (3, 2), (2, 1), (0, 4), (1, 5), (4, 7), (7, 6), (6, 5))
_ONCE = ((0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7))


def dgx_a100(hosts: int = 1, *, hosts_per_leaf: int = 20, oversubscription: float = 1.0) -> Cluster:
    """DGX A100 in a rail-optimised fat tree.

    8 A100, each with 12 NVLinks to the NVSwitches and a NIC of 200 Gbit/s, as ``board`` has them. Rails of
    HDR switches with 40 ports, 20 of them down to the 20 hosts of a scalable unit (NVIDIA DGX SuperPOD:
    Scalable Infrastructure for AI Leadership, DGX A100, RA-09950-001, November 2020).
    """
    network = Network(
        bytes_per_s=port(200), hosts_per_leaf=hosts_per_leaf, rails=8, oversubscription=oversubscription
    )
    return cluster_of(board("dgx_a100", "ampere"), hosts, network, "RA-09950-001; NCCL src/graph/topo.h")


def dgx_h100(hosts: int = 1, *, hosts_per_leaf: int = 32, oversubscription: float = 1.0) -> Cluster:
    """DGX H100 in a rail-optimised fat tree.

    8 H100, each with 18 NVLinks to NVSwitches that reduce in flight and a NIC of 400 Gbit/s, as ``board`` has
    them; rails of NDR switches with 64 ports, 32 of them down to the 32 hosts of a scalable unit (NVIDIA DGX
    SuperPOD Reference Architecture, DGX H100, RA-11333-001, September 2023).
    """
    network = Network(
        bytes_per_s=port(400), hosts_per_leaf=hosts_per_leaf, rails=8, oversubscription=oversubscription
    )
    return cluster_of(board("dgx_h100", "hopper"), hosts, network, "RA-11333-001; NCCL src/graph/topo.h")


def p4de(hosts: int = 1) -> Cluster:
    """AWS p4de.24xlarge (and p4d) with four EFA ports of 100 Gbit/s.

    8 A100 as in DGX A100; two sockets (Cascade Lake) with two PCIe gen 3 switches each, below each of which
    are two GPUs and one NIC (aws/aws-ofi-nccl topology/p4de-24xl-topo.xml, commit f8e0ad92). A port reports
    a latency of 75 us, with which NCCL's cost model chooses (src/platform-aws.cpp, commit 01666ece). Since
    bytes of a message may arrive out of order, the plugin allows the protocol Simple only (there,
    platform_config_endpoint; "not safe (P4d/P4e)" in commit 008a28b4).
    The network between hosts is taken as one without a bottleneck: AWS says nothing of it.
    """
    template = switched(
        "p4de", "ampere", nvlinks=12, sockets="skylake", pcie_gen=3, gpus_per_switch=2, nics_per_switch=1
    )
    network = Network(
        bytes_per_s=port(100), hosts_per_leaf=max(1, hosts), latency_ns=75_000, ll=False, ll128=False
    )
    return cluster_of(template, hosts, network, "aws-ofi-nccl p4de-24xl-topo.xml; NCCL src/graph/topo.h")


def p5(hosts: int = 1) -> Cluster:
    """AWS p5.48xlarge: 8 H100, each with four EFA ports of 100 Gbit/s, 3,200 in all.

    All on one socket (Genoa) over PCIe switches of their own, gen 4 x16 up, gen 5 x16 to the GPU and gen 4 x8
    to each port (aws/aws-ofi-nccl topology/p5.48xl-topo.xml, commit 79565c0e). The plugin makes one NIC of a
    GPU's ports and reports a latency of 75 us, with which NCCL's cost model chooses (src/platform-aws.cpp,
    commit 01666ece). The network between hosts is taken as one without a bottleneck: AWS says nothing of it.
    """
    gpus, nics, tops = numbered("gpu", 8), numbered("nic", 8), numbered("pcie", 8)
    links = [Link(a="cpu0", b=top, kind="pcie", bytes_per_s=pcie(4)) for top in tops]
    for gpu, nic, top in zip(gpus, nics, tops, strict=True):
        links.append(Link(a=gpu, b="nvswitch", kind="nvlink", bytes_per_s=NVLINK["hopper"], count=18))
        links.append(Link(a=top, b=gpu, kind="pcie", bytes_per_s=pcie(5)))
        links.append(Link(a=top, b=nic, kind="pcie", bytes_per_s=pcie(4, lanes=8), count=4))
    template = HostTemplate(
        name="p5",
        generation="hopper",
        devices=devices(gpu=gpus, nvswitch=("nvswitch",), cpu=("cpu0",), pcie_switch=tops, nic=nics),
        links=tuple(links),
        nvls=True,
        cpu="amd",
    )
    network = Network(bytes_per_s=port(400), hosts_per_leaf=max(1, hosts), latency_ns=75_000)
    return cluster_of(template, hosts, network, "aws-ofi-nccl p5.48xl-topo.xml; NCCL src/graph/topo.h")


def gh200_slingshot(hosts: int = 1, *, hosts_per_leaf: int = 4, ll128: bool = False) -> Cluster:
    """Four GH200 a host, each with its own Slingshot-11 port of 200 Gbit/s.

    The 18 NVLinks of a GPU go to the three others, six to each; the Graces have links of their own, which
    rings do not need (the quad GH200 node of Alps: Fusco et al., arXiv:2408.11556). A NIC is on its Grace;
    PCIe gen 4 x16 is assumed, which carries 200 Gbit/s. A switch has 64 ports, 16 of them to NICs and 31 and
    17 to other switches, and takes 350 ns (De Sensi et al., SC20, arXiv:2008.08886). The dragonfly is taken
    as a fat tree: with adaptive routing, the 48 ports together are the way to everything beyond the switch.
    NCCL before 2.27 has no LL128 to a NIC behind a Grace; ``ll128`` lets it (NCCL_LL128_C2C).
    """
    gpus, cpus, nics = numbered("gpu", 4), numbered("cpu", 4), numbered("nic", 4)
    six = NVLINK["hopper"]
    links = [
        Link(a=a, b=b, kind="nvlink", bytes_per_s=six, count=6)
        for place, a in enumerate(gpus)
        for b in gpus[place + 1 :]
    ]
    for gpu, cpu, nic in zip(gpus, cpus, nics, strict=True):
        links.append(Link(a=gpu, b=cpu, kind="c2c", bytes_per_s=C2C_GH200))
        links.append(Link(a=cpu, b=nic, kind="pcie", bytes_per_s=pcie(4)))
    template = HostTemplate(
        name="gh200x4",
        generation="hopper",
        devices=devices(gpu=gpus, cpu=cpus, nic=nics),
        links=tuple(links),
        cpu="arm",
    )
    network = Network(
        bytes_per_s=port(200),
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=16 / 48,
        switch_latency_ns=350,
        ll128=ll128,
    )
    return cluster_of(
        template, hosts, network, "De Sensi et al., SC20; Fusco et al. 2024; NCCL src/graph/topo.h"
    )


def nvl72(hosts: int = 1, *, hosts_per_leaf: int = 32, oversubscription: float = 1.0) -> Cluster:
    """GB200 NVL72: 72 GPUs on one NVLink switch system, which counts as one host.

    Each GPU has 18 NVLinks, to switches that reduce in flight (taken as one); two GPUs share a Grace; each
    GPU has a NIC of 400 Gbit/s (NVIDIA DGX SuperPOD Reference Architecture, DGX GB200, key components: 18
    trays of four GPUs, NDR), for which PCIe gen 5 x16 on its Grace is assumed. That NICs of the same number
    in all racks are one rail, of switches with 64 ports, is assumed too.
    """
    gpus, cpus, nics = numbered("gpu", 72), numbered("cpu", 36), numbered("nic", 72)
    links = [
        Link(a=gpu, b="nvswitch", kind="nvlink", bytes_per_s=NVLINK["blackwell"], count=18) for gpu in gpus
    ]
    links += [Link(a=gpus[n], b=cpus[n // 2], kind="c2c", bytes_per_s=C2C_GB200) for n in range(72)]
    links += [Link(a=cpus[n // 2], b=nics[n], kind="pcie", bytes_per_s=pcie(5)) for n in range(72)]
    template = HostTemplate(
        name="nvl72",
        generation="blackwell",
        devices=devices(gpu=gpus, nvswitch=("nvswitch",), cpu=cpus, nic=nics),
        links=tuple(links),
        nvls=True,
        cpu="arm",
    )
    network = Network(
        bytes_per_s=port(400), hosts_per_leaf=hosts_per_leaf, rails=72, oversubscription=oversubscription
    )
    return cluster_of(template, hosts, network, "NVIDIA GB200 NVL72 data sheet; NCCL src/graph/topo.h")


PRESETS = {
    "dgx_a100": dgx_a100,
    "dgx_h100": dgx_h100,
    "dgx_v100": dgx_v100,
    "p4de": p4de,
    "p5": p5,
    "gh200_slingshot": gh200_slingshot,
    "nvl72": nvl72,
    "pcie_box": pcie_box,
    "pcie_hosts": pcie_hosts,
    "ethernet_10g": ethernet_10g,
    "ethernet_25g": ethernet_25g,
    "ethernet_100g": ethernet_100g,
    "hgx_ethernet": hgx_ethernet,
}


def preset(name: str, **settings: Any) -> Cluster:
    """A ready-made cluster, such as ``cluster("dgx_h100", hosts=4)``.

    Raises ``InputError`` for a name or a setting that is not known, and says which are.
    """
    one_of("preset", name, tuple(PRESETS))
    make: Any = PRESETS[name]
    legal = signature(make).parameters
    for setting in settings:
        if setting not in legal:
            raise InputError(
                f"{setting}: is not a setting of preset {name!r}; give one of {', '.join(legal)}"
            )
    for setting, parameter in legal.items():
        if parameter.default is Parameter.empty and setting not in settings:
            raise InputError(f"{setting}: missing; preset {name!r} needs it")
    for setting, value in settings.items():
        _check_type(name, setting, value, legal[setting].default)
    made = make(**settings)
    assert isinstance(made, Cluster)
    return made


def _check_type(name: str, setting: str, value: object, default: object) -> None:
    """Raise ``InputError`` unless a setting's value has its type; the nouns check the range."""
    counts = ("hosts", "gpus", "hosts_per_leaf", "gpus_per_switch", "mtu", "sockets", "pcie_gen")
    if setting in counts:
        legal, kind = isinstance(value, int) and not isinstance(value, bool) and value >= 1, "an integer >= 1"
    elif isinstance(default, bool):
        legal, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        legal, kind = isinstance(value, str), "text"
    else:
        legal, kind = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    if not legal:
        raise InputError(f"{setting}: {value!r} is not legal for preset {name!r}; give {kind}")
