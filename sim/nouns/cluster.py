"""The machine as a description: hosts by template, what links their parts, and the network between them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sim.errors import InputError
from sim.nouns.checks import at_least, one_of

DeviceKind = Literal["gpu", "nic", "nvswitch", "pcie_switch", "cpu", "memory"]
LinkKind = Literal["nvlink", "pcie", "c2c", "qpi", "memory", "net"]
Generation = Literal["volta", "turing", "ampere", "hopper", "blackwell"]
CpuVendor = Literal["intel", "amd", "arm"]

MAX_HOSTS = 1_000_000
MAX_GPUS = 576  # in one host: the largest NVLink domain announced
_MOST_DIGITS = 9  # of the number of a host
MAX_COUNT = 65_536  # links side by side, spines, rails


def _short(value: object) -> str:
    """A value for a message; of a very long one the beginning."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:60]}… ({len(written)} characters)"


def _is_number(value: float, least: float, most: float) -> bool:
    """Whether it is a finite number in [least, most]; integers are compared before they become floats."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _text(field_name: str, value: str) -> None:
    if not isinstance(value, str):
        raise InputError(f"{field_name}: {value!r} is not legal; give text")


def _rate(field_name: str, value: float) -> None:
    if not _is_number(value, 1, sys.float_info.max):
        raise InputError(
            f"{field_name}: {_short(value)} is not legal; give bytes/s >= 1, and leave out a link that is "
            f"down"
        )


def _count(field_name: str, value: int, most: int) -> None:
    at_least(field_name, value, 1)
    if value > most:
        raise InputError(f"{field_name}: {value} is not legal; give an integer 1 to {most}")


def _unique(field_name: str, names: Sequence[str], key: str = "") -> set[str]:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise InputError(f"{field_name}.{number}{key}: {name!r} occurs twice; each may occur once")
        seen.add(name)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A part of a host. ``memory`` is host memory, ``cpu`` a socket with its root complex."""

    name: str
    kind: DeviceKind

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(DeviceKind))
        _text("name", self.name)
        if not self.name or "." in self.name:
            raise InputError(f"name: {self.name!r} is not legal; give a device a name without dots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``count`` equal links side by side between ``a`` and ``b``.

    Each carries ``bytes_per_s`` in each direction at once. ``latency_ns`` is what it takes one way beyond the
    cost model's own table, in which are ordinary links of every kind and one switch.
    """

    a: str
    b: str
    kind: LinkKind
    bytes_per_s: float
    latency_ns: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(LinkKind))
        _rate("bytes_per_s", self.bytes_per_s)
        at_least("latency_ns", self.latency_ns, 0)
        _count("count", self.count, MAX_COUNT)
        if self.a == self.b:
            raise InputError(f"b: {self.b!r} is not legal; a link joins two different parts")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTemplate:
    """One kind of host.

    ``generation`` is that of its GPUs, ``cpu`` who made its sockets. Without ``peer_to_peer`` what has no
    NVLink goes through host memory; without ``gpu_direct`` so does all that goes to and comes from a NIC.
    ``nvls`` says that its NVSwitches reduce in flight.
    """

    name: str
    generation: Generation
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    peer_to_peer: bool = True
    gpu_direct: bool = True
    nvls: bool = False
    cpu: CpuVendor = "intel"

    def __post_init__(self) -> None:
        one_of("generation", self.generation, get_args(Generation))
        one_of("cpu", self.cpu, get_args(CpuVendor))
        names = [device.name for device in self.devices]
        known = _unique("devices", names, ".name")
        for number, link in enumerate(self.links):
            for end in ("a", "b"):
                if getattr(link, end) not in known:
                    raise InputError(
                        f"links.{number}.{end}: {getattr(link, end)!r} is not legal; give a device of "
                        f"template {self.name!r}: {', '.join(names)}"
                    )
        gpus = len(self.of_kind("gpu"))
        if not 1 <= gpus <= MAX_GPUS:
            raise InputError(f"devices: template {self.name!r} has {gpus or 'no'} gpu; give 1 to {MAX_GPUS}")
        if not (self.peer_to_peer and self.gpu_direct) and not self.of_kind("memory"):
            raise InputError(
                f"devices: template {self.name!r} has no memory; without peer_to_peer or gpu_direct data "
                f"goes through host memory, so give one"
            )

    def of_kind(self, kind: DeviceKind) -> tuple[str, ...]:
        """Names of its devices of one kind, in their order."""
        return tuple(device.name for device in self.devices if device.kind == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """``count`` hosts of one template; hosts are numbered on through the groups: ``host0``, ``host1``, …"""

    template: str
    count: int

    def __post_init__(self) -> None:
        _count("count", self.count, MAX_HOSTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A fat tree of two tiers, which every NIC is plugged into.

    NIC ``k`` of a host hangs on rail ``k % rails``; ``hosts_per_leaf`` hosts share the leaf switch of each
    rail (``rails`` 1: one leaf for all NICs of a host). A port carries ``bytes_per_s`` each way. What the
    hosts of a leaf can send over ``oversubscription`` is what it has towards the ``spines`` together, in
    equal parts. A sender's NIC ``k`` always takes spine ``k % spines``; 1 spine stands for all of them under
    adaptive routing. ``latency_ns`` is the one-way latency that the NIC's driver tells NCCL (None: it tells
    none); ``switch_latency_ns`` that of one switch. ``sharp`` says that its switches reduce in flight,
    ``ll`` and ``ll128`` that NCCL's protocols of these names may go through it.
    """

    bytes_per_s: float
    hosts_per_leaf: int
    rails: int = 1
    spines: int = 1
    oversubscription: float = 1.0
    latency_ns: int | None = None
    switch_latency_ns: int = 0
    sharp: bool = False
    ll128: bool = True
    ll: bool = True

    def __post_init__(self) -> None:
        _rate("bytes_per_s", self.bytes_per_s)
        _count("hosts_per_leaf", self.hosts_per_leaf, MAX_HOSTS)
        _count("rails", self.rails, MAX_COUNT)
        _count("spines", self.spines, MAX_COUNT)
        at_least("latency_ns", self.latency_ns, 0)
        at_least("switch_latency_ns", self.switch_latency_ns, 0)
        for name in ("sharp", "ll128", "ll"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}: {_short(getattr(self, name))} is not legal; give true or false")
        if not _is_number(self.oversubscription, 1e-3, 1e6):
            raise InputError(
                f"oversubscription: {_short(self.oversubscription)} is not legal; give what leaves can take "
                f"in over what they can pass up, 0.001 to 1e6 (1: full bisection)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts, the network between them, and where the ranks are.

    The network is either regular (``network``) or one's own: ``switches`` by name and ``links`` between them
    and NICs (``host3.nic0``). ``placement`` holds the GPU of each rank (``host3.gpu0``); None: all GPUs, host
    by host.
    """

    name: str
    templates: tuple[HostTemplate, ...]
    hosts: tuple[Hosts, ...]
    network: Network | None = None
    switches: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    placement: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [template.name for template in self.templates]
        _unique("templates", names, ".name")
        if not self.hosts:
            raise InputError("hosts: an empty list is not legal; give at least one group")
        for number, group in enumerate(self.hosts):
            one_of(f"hosts.{number}.template", group.template, tuple(names))
        if self.host_count > MAX_HOSTS:
            raise InputError(f"hosts: {self.host_count} hosts are not legal; give at most {MAX_HOSTS}")
        self._check_own_network()
        if self.placement is not None:
            check_ranks(self, self.placement, "placement")

    def _check_own_network(self) -> None:
        if self.network is not None and (self.switches or self.links):
            raise InputError("network: give it or switches and links of your own, not both")
        switches = _unique("switches", self.switches)
        for number, switch in enumerate(self.switches):
            if not switch or "." in switch:
                raise InputError(
                    f"switches.{number}: {switch!r} is not legal; give a switch a name without dots"
                )
        nics = {
            f"host{host}.{nic}"
            for host, template in enumerate(self.owners() if self.links else ())
            for nic in template.of_kind("nic")
        }
        for number, link in enumerate(self.links):
            for end in (link.a, link.b):
                if end not in switches and end not in nics:
                    raise InputError(
                        f"links.{number}: {end!r} is not legal; give a switch of 'switches' or a NIC, such "
                        f"as host0.nic0"
                    )

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return sum(group.count for group in self.hosts)

    @property
    def gpu_count(self) -> int:
        """How many GPUs there are."""
        gpus = {template.name: len(template.of_kind("gpu")) for template in self.templates}
        return sum(group.count * gpus[group.template] for group in self.hosts)

    def owners(self) -> list[HostTemplate]:
        """The template of every host, in order."""
        by_name = {template.name: template for template in self.templates}
        return [by_name[group.template] for group in self.hosts for _ in range(group.count)]

    def all_gpus(self) -> Iterator[str]:
        """Every GPU by its full name, host by host."""
        for host, template in enumerate(self.owners()):
            for gpu in template.of_kind("gpu"):
                yield f"host{host}.{gpu}"


def split_name(name: str) -> tuple[int, str]:
    """Number of the host and the device of a full name such as ``host3.gpu0``. Raises ``InputError``."""
    host, dot, device = name.partition(".")
    number = host.removeprefix("host")
    is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    if not dot or not host.startswith("host") or not is_number:
        raise InputError(f"{_short(name)} is not legal; give a host's part such as host0.gpu0")
    return int(number), device


def check_ranks(cluster: Cluster, ranks: Sequence[str], field_name: str) -> None:
    """Raise ``InputError`` unless ``ranks`` are different GPUs of ``cluster``, one at least."""
    if isinstance(ranks, str) or not isinstance(ranks, Sequence):
        raise InputError(f"{field_name}: {_short(ranks)} is not legal; give a list such as ['host0.gpu0']")
    if not ranks:
        raise InputError(f"{field_name}: an empty list is not legal; give the GPU of each rank")
    gpus = {template.name: template.of_kind("gpu") for template in cluster.templates}
    owners = cluster.owners()
    seen: set[tuple[int, str]] = set()
    for rank, name in enumerate(ranks):
        _text(f"{field_name}.{rank}", name)
        try:
            host, device = split_name(name)
        except InputError as error:
            raise InputError(f"{field_name}.{rank}: {error}") from None
        if host >= len(owners):
            raise InputError(
                f"{field_name}.{rank}: {_short(name)} is not legal; {cluster.name!r} has host0 to "
                f"host{len(owners) - 1}"
            )
        template = owners[host].name
        if device not in gpus[template]:
            raise InputError(
                f"{field_name}.{rank}: {name!r} is not legal; the GPUs of template {template!r} are "
                f"{', '.join(gpus[template])}"
            )
        if (host, device) in seen:
            raise InputError(f"{field_name}.{rank}: {name!r} occurs twice; each GPU holds one rank")
        seen.add((host, device))
