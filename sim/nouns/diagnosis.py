"""What a machine has, and which steps of the loop it can therefore make."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What the installed torch can do.

    ``distributed``, ``gloo``, ``nccl`` and ``mpi`` are whether torch was built with them, ``nccl_version``
    and ``cuda`` their versions. ``bucket_cap_mb_list`` (from 2.11) and ``batched_grad_copy`` (from 2.12) are
    keywords of DistributedDataParallel, ``missing_for_injection`` what free ``bucket_indices`` lack (empty:
    possible). ``sleep_late_median_ns`` and ``sleep_late_p90_ns`` are by how much short sleeps of the paced
    replay end late.
    """

    version: str
    distributed: bool
    gloo: bool
    nccl: bool
    mpi: bool
    nccl_version: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    bucket_cap_mb_list: bool
    batched_grad_copy: bool
    missing_for_injection: tuple[str, ...]
    sleep_late_median_ns: int
    sleep_late_p90_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A machine as far as bucketsim depends on it.

    ``versions`` holds every package looked for, None where it is missing. ``torch`` is None where
    ``torch_obstacle`` says why. ``cores`` counts physical cores (None: unknown), ``threads`` the logical ones
    that this process may use, ``load`` those that wanted to run in the last minute (None: unknown).
    ``box_obstacle`` says why no cluster in a box can be made; None: one was. ``chromium`` is the browser that
    the tests drive, looked for only where playwright is installed.
    """

    platform: str
    versions: dict[str, str | None]
    torch: TorchFacts | None
    torch_obstacle: str | None
    cpu: str
    cores: int | None
    threads: int
    load: float | None
    root: bool
    iproute2: bool
    box_obstacle: str | None
    nvidia_driver: bool
    chromium: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """One step of the loop: whether it is possible, and what to run, or what to install or run instead.

    ``reason`` is why not; None where it is possible.
    """

    name: str
    reason: str | None
    run: str

    @property
    def possible(self) -> bool:
        """Whether this machine can make the step."""
        return self.reason is None
