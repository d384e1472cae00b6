"""The machine as numbers: kinds of hosts, how many of each there are, and the network between them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sim.errors import InputError
from sim.nouns.checks import Checked, Count, Legal, Rate, check, no_duplicates, shown

StepKind = Literal["nvlink", "nvswitch", "pcie", "shm", "qpi"]
Generation = Literal["volta", "turing", "ampere", "hopper", "blackwell"]
CpuVendor = Literal["intel", "amd", "arm"]

NVLINKS = ("nvlink", "nvswitch")
MAX_HOSTS = 1_000_000
MAX_GPUS = 576  # in one host: the largest NVLink domain announced
MAX_RINGS = 64  # MAXCHANNELS of NCCL (src/include/device.h)
_MOST_RAILS = 65_536
PerHost = Annotated[int, Legal(least=1, most=MAX_GPUS)]
HostCount = Annotated[int, Legal(least=1, most=MAX_HOSTS)]
_FULL_NAME = re.compile(r"host(0|[1-9]\d{0,8})\.gpu(0|[1-9]\d{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Checked):
    """A ring's step from GPU to GPU within a host, where it is worst and where it is slowest.

    ``kind`` is NCCL's: ``nvlink`` (from GPU to GPU), ``nvswitch``, ``pcie``, ``qpi`` (from socket to socket)
    or ``shm`` (through host memory). ``bytes_per_s`` is what a GPU sends and at once receives by all
    ``rings`` together; nccl-tests on one host calls it the bus bandwidth.
    """

    kind: StepKind
    bytes_per_s: Rate
    rings: Annotated[int, Legal(least=1, most=MAX_RINGS)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """One kind of host: ``gpus`` of one ``generation``, ``gpu0``, ``gpu1``, …, and ``nics``.

    ``between_gpus`` are the steps of rings through 2, 3, … of its GPUs, the first ones; the last of them
    counts for all larger numbers. GPUs and NICs lie in so many equal ``parts``, in order, each below a PCIe
    switch of its own or on its own Grace; ``gpu_slot_bytes_per_s`` and ``nic_slot_bytes_per_s`` are what one
    GPU and one NIC exchange with that each way. ``staged`` says that what goes to a NIC goes through host
    memory (no GPUDirect RDMA), ``nvls`` that NVSwitches reduce in flight, ``ll128`` that writes of 128 bytes
    stay whole on their way to a NIC: over one PCIe switch, or over C2C. ``cpu`` is who made its sockets.
    """

    name: str
    gpus: PerHost
    generation: Generation
    between_gpus: tuple[Step, ...] = ()
    nics: Annotated[int, Legal(most=MAX_GPUS)] = 0
    parts: PerHost = 1
    gpu_slot_bytes_per_s: Rate | None = None
    nic_slot_bytes_per_s: Rate | None = None
    staged: bool = False
    nvls: bool = False
    ll128: bool = True
    cpu: CpuVendor = "intel"

    def __post_init__(self) -> None:
        check(self)
        gpus, nics, parts, steps = self.gpus, self.nics, self.parts, len(self.between_gpus)
        slots = ("gpu_slot_bytes_per_s", "nic_slot_bytes_per_s")
        slotless = next((name for name in slots if nics and getattr(self, name) is None), "")
        is_old = self.generation in ("volta", "turing", "ampere")
        for is_wrong, what, legal in (
            (gpus % parts or nics % parts, f"parts: {parts}", f"; it divides {gpus} gpus and {nics} nics"),
            (slotless, f"{slotless}: null", f" with {nics} nics; give bytes/s"),
            (self.nvls and is_old, "nvls: true", f" with {self.generation}; it takes hopper or later"),
            (gpus > 1 and not steps, "between_gpus: an empty list", f" with {gpus} gpus; give their steps"),
            (steps >= max(gpus, 1), f"between_gpus: a list of {steps}", f"; give {gpus - 1} steps at most"),
        ):
            if is_wrong:
                raise InputError(f"{what} is not legal{legal}")

    def step(self, gpus: int) -> Step:
        """Of a ring through so many of its GPUs, two at least."""
        return self.between_gpus[min(gpus - 2, len(self.between_gpus) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts(Checked):
    """``count`` hosts of one kind; hosts are numbered on through the groups: ``host0``, ``host1``, …

    ``port_bytes_per_s`` is what each of their ports carries, where that is not what the network says.
    """

    kind: str
    count: HostCount
    port_bytes_per_s: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Checked):
    """A fat tree of two tiers, which every NIC is plugged into.

    NIC ``k`` of a host hangs on rail ``k % rails``; ``hosts_per_leaf`` hosts share the leaf switch of each
    rail (``rails`` 1: one leaf for all NICs of a host). A port carries ``bytes_per_s`` each way. What the
    hosts of a leaf can send over ``oversubscription`` (1: full bisection) is what it has towards the spine,
    which stands for all spine switches under adaptive routing. ``latency_ns`` is the one-way latency that the
    NIC's driver tells NCCL (None: it tells none); ``switch_latency_ns`` that of one switch. ``ll``
    and ``ll128`` say that NCCL's protocols of these names may go through it.
    """

    bytes_per_s: Rate
    hosts_per_leaf: HostCount
    rails: Annotated[int, Legal(least=1, most=_MOST_RAILS)] = 1
    oversubscription: Annotated[float, Legal(kind=float, least=1e-3, most=1e6)] = 1.0
    latency_ns: Count | None = None
    switch_latency_ns: Count = 0
    ll128: bool = True
    ll: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts, the network between them, and where the ranks are.

    ``placement`` holds the GPU of each rank (``host3.gpu0``); None: all GPUs, host by host.
    """

    KIND: ClassVar[str] = "cluster"
    name: str
    kinds: tuple[HostKind, ...]
    hosts: tuple[Hosts, ...]
    network: Network | None = None
    placement: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.kinds]
        no_duplicates("kinds: name", names)
        if not self.hosts:
            raise InputError("hosts: an empty list is not legal; give at least one group")
        for number, group in enumerate(self.hosts):
            Legal(words=tuple(names)).take(f"hosts.{number}.kind", group.kind)
        if self.host_count > MAX_HOSTS:
            raise InputError(f"hosts: {self.host_count} hosts are not legal; give at most {MAX_HOSTS}")
        if self.placement is not None:
            check_ranks(self, self.placement, "placement")

    @property
    def host_count(self) -> int:
        """How many hosts there are."""
        return sum(group.count for group in self.hosts)

    @property
    def gpu_count(self) -> int:
        """How many GPUs there are."""
        gpus = {kind.name: kind.gpus for kind in self.kinds}
        return sum(group.count * gpus[group.kind] for group in self.hosts)

    def owners(self) -> list[HostKind]:
        """The kind of every host, in order."""
        by_name = {kind.name: kind for kind in self.kinds}
        return [by_name[group.kind] for group in self.hosts for _ in range(group.count)]

    def all_gpus(self) -> Iterator[str]:
        """Every GPU by its full name, host by host."""
        for host, kind in enumerate(self.owners()):
            for gpu in range(kind.gpus):
                yield f"host{host}.gpu{gpu}"


def split_name(name: str) -> tuple[int, int]:
    """Numbers of the host and of the GPU of a full name such as ``host3.gpu0``. Raises ``InputError``."""
    found = _FULL_NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(f"{shown(name)} is not legal; give a GPU such as host0.gpu0")
    return int(found[1]), int(found[2])


def check_ranks(cluster: Cluster, ranks: Sequence[str], field_name: str) -> None:
    """Raise ``InputError`` unless ``ranks`` are different GPUs of ``cluster``, one at least."""
    if not ranks:
        raise InputError(f"{field_name}: an empty list is not legal; give the GPU of each rank")
    kinds = cluster.owners()
    for rank, name in enumerate(ranks):
        try:
            host, gpu = split_name(name)
        except InputError as error:
            raise InputError(f"{field_name}.{rank}: {error}") from None
        legal = "" if host < len(kinds) else f"{cluster.name!r} has host0 to host{len(kinds) - 1}"
        if not legal and gpu >= kinds[host].gpus:
            legal = f"kind {kinds[host].name!r} has gpu0 to gpu{kinds[host].gpus - 1}"
        if legal:
            raise InputError(f"{field_name}.{rank}: {name!r} is not legal; {legal}")
    no_duplicates(field_name, ranks)
