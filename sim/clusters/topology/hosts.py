"""Hosts in the two shapes that most have: GPUs on NVSwitches, and GPUs on PCIe alone."""

from dataclasses import replace
from typing import cast

from sim.clusters.topology.link_figures import HOST_MEMORY, NVLINK, SOCKETS, pcie
from sim.errors import InputError
from sim.nouns.checks import one_of
from sim.nouns.cluster import (
    Cluster,
    CpuVendor,
    Device,
    DeviceKind,
    Generation,
    Hosts,
    HostTemplate,
    Link,
    Network,
)


def numbered(kind: str, count: int) -> tuple[str, ...]:
    """Names such as gpu0, gpu1, …"""
    return tuple(f"{kind}{number}" for number in range(count))


def devices(**kinds: tuple[str, ...]) -> tuple[Device, ...]:
    """Devices by kind and name, in that order."""
    return tuple(
        Device(name=name, kind=cast(DeviceKind, kind)) for kind, names in kinds.items() for name in names
    )


def switched(
    name: str,
    generation: Generation,
    *,
    nvlinks: int,
    sockets: str,
    pcie_gen: int,
    gpus_per_switch: int,
    nics_per_switch: int | None = None,
    nvls: bool = False,
) -> HostTemplate:
    """Eight GPUs on NVSwitches (taken as one), two sockets, PCIe switches with GPUs and NICs."""
    nics_each = nics_per_switch or gpus_per_switch
    switches = 8 // gpus_per_switch
    gpus, nics, tops = numbered("gpu", 8), numbered("nic", switches * nics_each), numbered("pcie", switches)
    wide = pcie(pcie_gen)
    links = [Link(a="cpu0", b="cpu1", kind="qpi", bytes_per_s=SOCKETS[sockets])]
    for number, top in enumerate(tops):
        below = gpus[number * gpus_per_switch :][:gpus_per_switch] + nics[number * nics_each :][:nics_each]
        links.append(Link(a=f"cpu{number * 2 // switches}", b=top, kind="pcie", bytes_per_s=wide))
        links += [Link(a=top, b=device, kind="pcie", bytes_per_s=wide) for device in below]
    links += [
        Link(a=gpu, b="nvswitch", kind="nvlink", bytes_per_s=NVLINK[generation], count=nvlinks)
        for gpu in gpus
    ]
    return HostTemplate(
        name=name,
        generation=generation,
        devices=devices(gpu=gpus, nvswitch=("nvswitch",), cpu=("cpu0", "cpu1"), pcie_switch=tops, nic=nics),
        links=tuple(links),
        nvls=nvls,
        cpu=_vendor(sockets),
    )


def board(name: str, generation: Generation) -> HostTemplate:
    """The eight A100 or H100 of a DGX or HGX with its sockets, PCIe switches and NICs.

    DGX A100: two GPUs and two NICs below each PCIe switch, as NCCL saw one (NVIDIA/nccl issue 1505). DGX
    H100: every GPU with a NIC of its own, four on each of two Xeon 8480C (NVIDIA DGX H100 User Guide, table
    6; DGX BasePOD Reference Architecture, core components).
    """
    if generation == "ampere":
        return switched(name, "ampere", nvlinks=12, sockets="rome", pcie_gen=4, gpus_per_switch=2)
    if generation == "hopper":
        sockets = "sapphire_rapids"
        return switched(name, "hopper", nvlinks=18, sockets=sockets, pcie_gen=5, gpus_per_switch=1, nvls=True)
    raise InputError(f"generation: {generation!r} is not legal; give ampere or hopper")


def with_ethernet(template: HostTemplate, pcie_gen: int) -> HostTemplate:
    """The host with one Ethernet port on its first socket in place of its NICs; data goes through memory."""
    nics = set(template.of_kind("nic"))
    kept = tuple(device for device in template.devices if device.kind != "nic")
    cpus = template.of_kind("cpu")
    memories = numbered("memory", len(cpus))
    links = [link for link in template.links if not {link.a, link.b} & nics]
    links += [
        Link(a=cpu, b=memory, kind="memory", bytes_per_s=HOST_MEMORY)
        for cpu, memory in zip(cpus, memories, strict=True)
    ]
    links.append(Link(a=cpus[0], b="nic0", kind="pcie", bytes_per_s=pcie(pcie_gen)))
    return replace(
        template,
        devices=(*kept, *devices(memory=memories, nic=("nic0",))),
        links=tuple(links),
        gpu_direct=False,
    )


def cluster_of(template: HostTemplate, hosts: int, network: Network | None, source: str) -> Cluster:
    """So many hosts of one template."""
    return Cluster(
        name=template.name,
        templates=(template,),
        hosts=(Hosts(template=template.name, count=hosts),),
        network=network,
        provenance={"source": source},
    )


def plain(
    gpus: int,
    generation: Generation,
    pcie_gen: int,
    sockets: int,
    socket_link: str,
    *,
    peer_to_peer: bool,
    nic: bool,
    gpu_direct: bool = True,
    gpus_per_switch: int | None = None,
) -> HostTemplate:
    """GPUs in equal parts on sockets, below switches or not, memory on every socket, a NIC on the first."""
    if sockets not in (1, 2):
        raise InputError(f"sockets: {sockets!r} is not legal; give 1 or 2")
    one_of("socket_link", socket_link, SOCKETS)
    if gpus < 1:
        raise InputError(f"gpus: {gpus!r} is not legal; give an integer >= 1")
    names, cpus, memories = numbered("gpu", gpus), numbered("cpu", sockets), numbered("memory", sockets)
    each = 1 if gpus_per_switch is None else gpus_per_switch
    if not 1 <= each <= gpus or gpus % each:
        raise InputError(
            f"gpus_per_switch: {each!r} is not legal; give a divisor of the {gpus} gpus, or null"
        )
    tops = numbered("pcie", gpus // each) if gpus_per_switch else names
    links = [
        Link(a=top, b=cpus[number * sockets // len(tops)], kind="pcie", bytes_per_s=pcie(pcie_gen))
        for number, top in enumerate(tops)
    ]
    if gpus_per_switch:
        links += [
            Link(a=name, b=tops[number // each], kind="pcie", bytes_per_s=pcie(pcie_gen))
            for number, name in enumerate(names)
        ]
    links += [
        Link(a=cpu, b=memory, kind="memory", bytes_per_s=HOST_MEMORY)
        for cpu, memory in zip(cpus, memories, strict=True)
    ]
    if sockets == 2:
        links.append(Link(a="cpu0", b="cpu1", kind="qpi", bytes_per_s=SOCKETS[socket_link]))
    if nic:
        links.append(Link(a="cpu0", b="nic0", kind="pcie", bytes_per_s=pcie(pcie_gen)))
    return HostTemplate(
        name=f"pcie_x{gpus}",
        generation=generation,
        devices=devices(
            gpu=names,
            pcie_switch=tops if gpus_per_switch else (),
            cpu=cpus,
            memory=memories,
            nic=("nic0",) if nic else (),
        ),
        links=tuple(links),
        peer_to_peer=peer_to_peer,
        gpu_direct=gpu_direct,
        cpu=_vendor(socket_link),
    )


def _vendor(sockets: str) -> CpuVendor:
    return "amd" if sockets in ("rome", "milan", "turin") else "intel"
