"""Several jobs on one cluster: what each is, and what became of each beside the others."""

from dataclasses import dataclass, field
from typing import Any

from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: its ``ranks``, the GPU of each, and what it is alone. All its ranks are alike."""

    name: str
    ranks: tuple[str, ...]
    workload: Workload
    hardware: Hardware
    assignment: Assignment

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("name: an empty text is not legal; give each job a name of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLink:
    """A link, in one direction, that several jobs cross and that is full when all run, to the cost of one.

    ``shares_bytes_per_s`` is what each of ``jobs`` gets of its ``bytes_per_s`` then.
    """

    a: str
    b: str
    bytes_per_s: float
    jobs: tuple[str, ...]
    shares_bytes_per_s: tuple[float, ...]

    @property
    def sentence(self) -> str:
        """What happens there, in words."""
        scale, unit = (1e9, "GB/s") if self.bytes_per_s >= 1e9 else (1e6, "MB/s")
        whole = f"{format_number(self.bytes_per_s / scale)} {unit}"
        shares = [format_number(share / scale) for share in self.shares_bytes_per_s]
        each = f"{shares[0]} of {whole} each" if len(set(shares)) == 1 else f"{' + '.join(shares)} of {whole}"
        return f"{', '.join(self.jobs[:-1])} and {self.jobs[-1]} share {self.a} -> {self.b}: {each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedJob:
    """One job beside the others; times in ns.

    ``step_ns`` are its steps after the warm-up, in order, as long as all jobs ran; ``mean``, percentiles and
    ``mean_exposed_comm_ns`` are of those (exposed as in a Report). ``alone_…`` is the same step with nothing
    else on the links, ``always_beside_step_ns`` one through all of which the rings of all other jobs run.
    ``slowdown`` is the mean step over the step alone.
    """

    name: str
    ranks: tuple[str, ...]
    alone_step_ns: int
    alone_exposed_comm_ns: int
    mean_step_ns: int
    p5_step_ns: int
    median_step_ns: int
    p95_step_ns: int
    mean_exposed_comm_ns: int
    always_beside_step_ns: int
    slowdown: float
    step_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the jobs' mean steps are where they start so much later; in ns, in the order of the jobs."""

    offsets_ns: tuple[int, ...]
    mean_step_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsReport:
    """What each job's steps are while all run; ``steps`` is how many each played at least.

    ``starts`` are other starts that were played, this one first; none where only this one was.
    """

    cluster: str
    jobs: tuple[PlayedJob, ...]
    shared_links: tuple[SharedLink, ...]
    steps: int
    warmup: int
    offsets_ns: tuple[int, ...]
    starts: tuple[Start, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
