"""A machine as NCCL's cost model sees it: two kinds of hop, and how many ranks and channels there are."""

from dataclasses import dataclass
from typing import Literal, get_args

from sim.errors import InputError
from sim.nouns.checks import at_least, one_of, rate
from sim.nouns.cluster import CpuVendor, Generation
from sim.nouns.hardware import MAX_RANKS

Kind = Literal["nvlink", "nvswitch", "pcie", "shm", "qpi", "net"]
Protocol = Literal["LL", "LL128", "Simple"]
NVLINKS = ("nvlink", "nvswitch")
MOST_CHANNELS = 64  # MAXCHANNELS, src/include/nccl_device/core.h and device.h of NCCL


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One kind of step between neighbours in a ring.

    ``bytes_per_s`` is the bus bandwidth that a ring over all channels gets through it, as NCCL's search would
    count it (src/graph/topo.h): within a host what one GPU sends and at the same time receives, between hosts
    what all the NICs of a host send together. ``latency_ns`` is what one step takes beyond NCCL's table, to
    which the links and switches of its kind already belong; null adds nothing. ``reported_ns`` is the latency
    of a step that a network plugin tells NCCL (``ncclNetProperties_t.latency``), set so that NCCL chooses
    well (NVIDIA/nccl#625): it counts for the choice, and ``paths`` says how long a step takes. ``staged_by``,
    for hosts without GPUDirect RDMA: bytes/s of the slots of GPUs that reach NICs through host memory.
    """

    kind: Kind
    bytes_per_s: float
    latency_ns: int | None = None
    reported_ns: int | None = None
    staged_by: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(Kind))
        rate("bytes_per_s", self.bytes_per_s)
        at_least("latency_ns", self.latency_ns, 0)
        at_least("reported_ns", self.reported_ns, 0)
        for number, slot in enumerate(self.staged_by):
            rate(f"staged_by.{number}", slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Ranks on hosts, with hops within (``intra``) and between them (``inter``).

    A host has ``fewest_ranks`` to ``ranks_per_host`` of them (None: each has ``ranks_per_host``). ``intra``
    counts only where a host has two ranks or more, ``inter`` only with two hosts or more. ``channels`` are
    those that NCCL's search finds (it doubles them afterwards). ``nvls`` and ``sharp`` say whether NVSwitches
    and network switches reduce in flight. ``protocols`` are those that may be used: LL128 needs writes of 128
    bytes that stay whole, which PCIe and some networks do not give.
    """

    world_size: int
    hosts: int
    ranks_per_host: int
    generation: Generation
    intra: Hop
    inter: Hop | None
    channels: int
    nvls: bool = False
    sharp: bool = False
    cpu: CpuVendor = "intel"
    protocols: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
    fewest_ranks: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("world_size", MAX_RANKS), ("channels", MOST_CHANNELS)):
            at_least(name, getattr(self, name), 1)
            if getattr(self, name) > most:
                raise InputError(f"{name}: {getattr(self, name)} is not legal; give an integer 1 to {most}")
        at_least("hosts", self.hosts, 1)
        at_least("ranks_per_host", self.ranks_per_host, 1)
        self._check_ranks()
        one_of("generation", self.generation, get_args(Generation))
        one_of("cpu", self.cpu, get_args(CpuVendor))
        for number, protocol in enumerate(self.protocols):
            one_of(f"protocols.{number}", protocol, get_args(Protocol))
        if "Simple" not in self.protocols:
            raise InputError(
                f"protocols: {list(self.protocols)} is not legal; Simple is always there, so list it"
            )
        if self.intra.kind == "net":
            raise InputError("intra.kind: 'net' is not legal; it is what lies between hosts")
        if self.hosts > 1 and self.inter is None:
            raise InputError(f"inter: null is not legal with {self.hosts} hosts; give the hop between them")
        if self.inter is not None and self.inter.kind != "net":
            raise InputError(f"inter.kind: {self.inter.kind!r} is not legal; between hosts it is 'net'")
        if self.sharp and self.hosts == 1:
            raise InputError("sharp: true is not legal with one host; it reduces in the network between them")
        if self.nvls and (self.intra.kind != "nvswitch" or self.generation in ("volta", "turing", "ampere")):
            raise InputError(
                f"nvls: true is not legal with {self.intra.kind} of {self.generation}; it takes an nvswitch "
                "of hopper or later"
            )

    def _check_ranks(self) -> None:
        at_least("fewest_ranks", self.fewest_ranks, 1)
        least, most, others = self.least_ranks, self.ranks_per_host, self.hosts - 1
        if least > most:
            raise InputError(f"fewest_ranks: {least} is not legal; give an integer 1 to {most}")
        # One host at least has the most ranks, one the fewest.
        if not others * least + most <= self.world_size <= least + others * most:
            raise InputError(
                f"ranks_per_host: {least} to {most} on each of {self.hosts} hosts are not the world_size of "
                f"{self.world_size}; say in fewest_ranks where a host has fewer"
            )

    @property
    def least_ranks(self) -> int:
        """Ranks of the host with the fewest."""
        return self.ranks_per_host if self.fewest_ranks is None else self.fewest_ranks

    @property
    def mean_ranks(self) -> float:
        """Ranks of a host on average: NCCL's ``ppn``."""
        return self.world_size / self.hosts
