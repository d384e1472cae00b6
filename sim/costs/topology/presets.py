"""Ready-made clusters. Bandwidths by ``links``; the shape of each by the source in its docstring."""

from inspect import Parameter, signature
from typing import Any, Literal

from sim.costs.topology.hosts import devices, numbered, plain, switched
from sim.costs.topology.links import C2C_GB200, C2C_GH200, NVLINK, pcie, port, tcp_port
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Generation, Hosts, HostTemplate, Link, Network


def dgx_a100(hosts: int = 1, *, hosts_per_leaf: int = 20, oversubscription: float = 1.0) -> Cluster:
    """DGX A100 in a rail-optimised fat tree.

    8 A100, each with 12 NVLinks to the NVSwitches; two sockets (Rome), with two PCIe gen 4 switches each,
    below each of which are two GPUs and two NICs of 200 Gbit/s (NVIDIA DGX A100 System User Guide). Rails of
    HDR switches with 40 ports, 20 of them down (NVIDIA DGX SuperPOD Reference Architecture, A100).
    """
    template = switched("dgx_a100", "ampere", nvlinks=12, sockets="rome", pcie_gen=4, gpus_per_switch=2)
    network = Network(
        bytes_per_s=port(200), hosts_per_leaf=hosts_per_leaf, rails=8, oversubscription=oversubscription
    )
    return _cluster(template, hosts, network, "NVIDIA DGX A100 System User Guide; NCCL src/graph/topo.h")


def dgx_h100(hosts: int = 1, *, hosts_per_leaf: int = 32, oversubscription: float = 1.0) -> Cluster:
    """DGX H100 in a rail-optimised fat tree.

    8 H100, each with 18 NVLinks to NVSwitches that reduce in flight; each GPU with one NIC of 400 Gbit/s
    below a PCIe gen 5 switch of their own, four such on each of two sockets (Sapphire Rapids); rails of NDR
    switches with 64 ports, 32 of them down, to 32 hosts (NVIDIA DGX H100 System User Guide; DGX SuperPOD
    Reference Architecture, H100).
    """
    template = switched(
        "dgx_h100", "hopper", nvlinks=18, sockets="sapphire_rapids", pcie_gen=5, gpus_per_switch=1, nvls=True
    )
    network = Network(
        bytes_per_s=port(400), hosts_per_leaf=hosts_per_leaf, rails=8, oversubscription=oversubscription
    )
    return _cluster(template, hosts, network, "NVIDIA DGX H100 System User Guide; NCCL src/graph/topo.h")


def p4de(hosts: int = 1) -> Cluster:
    """AWS p4de.24xlarge (and p4d) with four EFA ports of 100 Gbit/s.

    8 A100 as in DGX A100; two sockets (Cascade Lake) with two PCIe gen 3 switches each, below each of which
    are two GPUs and one NIC (aws-ofi-nccl topology/p4de-24xl-topo.xml); a port tells NCCL of 75 us, and its
    plugin refuses LL128 over send and receive (aws-ofi-nccl src/platform-aws.c). The network between hosts is
    taken as one without a bottleneck.
    """
    template = switched(
        "p4de", "ampere", nvlinks=12, sockets="skylake", pcie_gen=3, gpus_per_switch=2, nics_per_switch=1
    )
    network = Network(bytes_per_s=port(100), hosts_per_leaf=max(1, hosts), latency_ns=75_000, ll128=False)
    return _cluster(template, hosts, network, "aws-ofi-nccl p4de-24xl-topo.xml; NCCL src/graph/topo.h")


def gh200_slingshot(hosts: int = 1, *, hosts_per_leaf: int = 4) -> Cluster:
    """Four GH200 a host, each with its own Slingshot-11 port of 200 Gbit/s.

    Every two GPUs are joined by six NVLinks, and so are the Graces by links of their own, which rings do not
    need (Fusco et al., Understanding Data Movement in Tightly Coupled Heterogeneous Systems: A Case Study
    with the Grace Hopper Superchip, 2024). A NIC is on its Grace, PCIe gen 4 x16 (HPE Slingshot 200Gb NIC
    data sheet). A switch has 64 ports, 16 of them to NICs and 48 to other switches, and takes 350 ns (De
    Sensi et al., An In-Depth Analysis of the Slingshot Interconnect, SC20). The dragonfly is taken as a fat
    tree: with adaptive routing, the 48 ports together are the way to everything beyond the switch.
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
    )
    return _cluster(
        template, hosts, network, "De Sensi et al., SC20; Fusco et al. 2024; NCCL src/graph/topo.h"
    )


def nvl72(hosts: int = 1, *, hosts_per_leaf: int = 32, oversubscription: float = 1.0) -> Cluster:
    """GB200 NVL72: 72 GPUs on one NVLink switch system, which counts as one host.

    Each GPU has 18 NVLinks, to switches that reduce in flight (taken as one); two GPUs share a Grace; each
    GPU has a NIC of 400 Gbit/s, PCIe gen 5 x16 on its Grace (NVIDIA GB200 NVL72 data sheet; DGX SuperPOD
    Reference Architecture, GB200). NICs of the same number in all racks are one rail.
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
    return _cluster(template, hosts, network, "NVIDIA GB200 NVL72 data sheet; NCCL src/graph/topo.h")


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
    """One host whose GPUs are on PCIe x16, straight on one or two sockets or so many below a PCIe switch.

    Without ``peer_to_peer`` data goes through host memory (NCCL's SHM transport). Bandwidths by
    ``sim.costs.topology.links``; ``socket_link`` is one of its ``SOCKETS``.
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
    return _cluster(template, 1, None, "NCCL src/graph/topo.h and topo.cc")


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
    return _cluster(template, hosts, network, "NCCL src/graph/topo.h; IEEE 802.3; RFC 791, 9293, 7323")


PRESETS = {
    "dgx_a100": dgx_a100,
    "dgx_h100": dgx_h100,
    "p4de": p4de,
    "gh200_slingshot": gh200_slingshot,
    "nvl72": nvl72,
    "pcie_box": pcie_box,
    "pcie_hosts": pcie_hosts,
}


def preset(name: str, **settings: Any) -> Cluster:
    """A ready-made cluster by name. Raises ``InputError`` for a name or a setting that it does not know."""
    if name not in PRESETS:
        raise InputError(f"preset: {name!r} is not legal; give one of {', '.join(PRESETS)}")
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
    """Raise ``InputError`` unless a setting's value is of its kind; the nouns check what it may be."""
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


def _cluster(template: HostTemplate, hosts: int, network: Network | None, source: str) -> Cluster:
    return Cluster(
        name=template.name,
        templates=(template,),
        hosts=(Hosts(template=template.name, count=hosts),),
        network=network,
        provenance={"source": source},
    )
