"""What ranks are told to do, as nouns and as the file that they read."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sim.errors import InputError
from sim.formats.documents import json_text, parse_body, parse_json
from sim.formats.files import read_bytes, write_atomically
from sim.nouns.assignment import DDP_POLICIES, Assignment
from sim.nouns.checks import Checked, Count, Legal, Positive, check
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Mode
from sim.nouns.workload import Workload
from sim.units import MIB

JOB = "job.json"
_CUDA_WARMUP = 12  # iterations 2 to 11 wait for the host there, because DDP's logger reads its events (A4.3)
_SLOW_START_S = 600.0  # a model may load weights or compile before its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier(Checked):
    """Where tensors lie and what sums them up: gloo or NCCL between ranks, or a link that one rank emulates.

    ``backend`` None is gloo on the CPU, NCCL on GPUs. ``emulated`` is the machine whose all-reduce curve and
    channels it has.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    backend: Literal["gloo", "nccl"] | None = None
    emulated: Hardware | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.backend == "nccl" and self.device == "cpu":
            raise InputError("backend: nccl is not legal on the CPU; give gloo, or cuda as the device")
        if self.emulated is not None and self.emulated.world_size == 1:
            raise InputError("hardware: world_size 1 has no link to emulate; give the machine that is meant")

    @property
    def name(self) -> str:
        """What a Measurement calls its backend."""
        return "emulated" if self.emulated is not None else "nccl" if self.uses_nccl else "gloo"

    @property
    def uses_nccl(self) -> bool:
        """Beside an emulated link too, for the buffers that DDP broadcasts."""
        return self.device == "cuda" and self.backend != "gloo"

    @property
    def groups(self) -> str:
        """The backends of the process group; objects and the common start travel over gloo, on the host."""
        return "cpu:gloo,cuda:nccl" if self.uses_nccl else "gloo"


GLOO_ON_HOST = Carrier()


def emulated_channels(hardware: Hardware) -> int:
    """Of its emulated link: one where channels share a wire, so that one message waits for the other."""
    return hardware.comm_channels if hardware.channel_slowdown == 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment to replay, under a name.

    ``assignment`` None is stock DDP without any switch; its buckets are then read back, not checked.
    """

    name: str
    assignment: Assignment | None = None

    @property
    def is_injected(self) -> bool:
        """Whether the Reducer is given the buckets: no keyword of stock DDP alone reaches them."""
        assignment = self.assignment
        if assignment is None or assignment.policy not in DDP_POLICIES:
            return False
        return not assignment.by_keywords or "environment" in assignment.requires

    @property
    def is_traced(self) -> bool:
        """Whether it has a second lane, in which a communication hook notes each bucket's times.

        Not with a hook of its own, as DDP takes one, nor where unused buckets are left out (A3.14), for
        which none is called.
        """
        if self.assignment is None:
            return True
        skips = self.assignment.ddp_kwargs.get("skip_all_reduce_unused_params")
        return self.assignment.settings.get("comm_hook") is None and not skips

    @property
    def manner(self) -> dict[str, Any]:
        """How its steps go: ``accumulation_steps`` and ``set_to_none``."""
        settings = {} if self.assignment is None else self.assignment.settings
        return {
            "accumulation_steps": int(settings.get("accumulation_steps", 1)),
            "set_to_none": settings.get("set_to_none", True),
        }

    @property
    def adds(self) -> bool:
        """Whether some backward finds gradients that are there already, and adds to them; A7.4."""
        return self.manner["accumulation_steps"] > 1 or not self.manner["set_to_none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """The user's own model: a factory that returns ``(model, batch)``.

    ``dtype`` casts model and batch as ``bucketsim record --dtype`` does.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob(Checked):
    """Candidates in turns: paced, by the schedule of ``workload``, or in ``model``, which computes.

    ``workload`` is what a model's parameters must match; None: nothing is known of them. ``probed`` adds the
    noop lane and a traced lane for each candidate that can have one; paced replays always have them.
    ``is_ab``: it compares the second candidate with the first.
    """

    candidates: tuple[Candidate, ...]
    workload: Workload | None
    model: UserModel | None = None
    carrier: Carrier = GLOO_ON_HOST
    rounds: Positive = 10
    seed: int = 0
    probed: bool = True
    is_ab: bool = False
    task: Literal["replay"] = "replay"

    @property
    def warmup(self) -> int:
        """Rounds that are run first and dropped; the last one has rebuilt buckets, new ones then (A2.6)."""
        if self.carrier.device == "cuda":
            return _CUDA_WARMUP
        used = (one.assignment.ddp_kwargs for one in self.candidates if one.assignment is not None)
        return 3 if any(kwargs.get("static_graph") for kwargs in used) else 2

    @property
    def mode(self) -> Mode:
        """What computes."""
        return "paced" if self.model is None else "model"

    @property
    def quiet_s(self) -> float | None:
        """How long the ranks may take to their first steps; None: as long as ranks may usually be quiet."""
        return None if self.model is None else _SLOW_START_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationJob(Checked):
    """Measure a machine: in each of ``rounds`` every curve at its sizes, then what else costs time.

    ``rounds`` 0 measures all-reduces of ``sizes`` (bytes) alone; of a link that is emulated copies of the
    tensors of ``workload`` and launches are measured, and nothing else. What stands for a size is the mean
    without the slowest third of its rounds. All-reduces whose figure is not known to 3 % then are measured
    on, for ``budget_s`` at most. ``small_repeats`` is how often the smallest messages are sent in a round.
    ``computes``: the machine's slow-downs are what matrix products on each rank and all-reduces take from
    each other, as when real models train there; on the CPU alone.
    """

    sizes: tuple[int, ...] = ()
    carrier: Carrier = GLOO_ON_HOST
    workload: Workload | None = None
    rounds: Count = 0
    budget_s: float = 0.0
    small_repeats: int = 30
    copy_repeats: int = 12
    computes: bool = False
    quiet_s: float | None = None
    task: Literal["calibrate"] = "calibrate"

    def __post_init__(self) -> None:
        check(self)
        if self.computes and self.carrier.device != "cpu":
            why = "how much kernels and collectives slow each other down depends on the job's kernels"
            raise InputError(f"mode: model is not legal on GPUs: {why}; record the job, or take the CPU")

    @property
    def pair_sizes(self) -> list[int]:
        """Those of two at once, bytes."""
        most = self.sizes[-1]
        return [size for size in (4 * MIB, 8 * MIB, 16 * MIB) if size <= most] or [most]

    def repeats_of(self, size: int) -> int:
        """Repeats of a message of ``size`` bytes in a round: small ones have more, as they scatter most."""
        return max(1, min(self.small_repeats, 64 * MIB // max(size, 1)))


def sizes_to(largest: int) -> tuple[int, ...]:
    """4 KiB to ``largest`` in powers of two, bytes."""
    Legal(least=4096).take("largest", largest)
    return tuple(1 << power for power in range(12, largest.bit_length()))


Job = ReplayJob | CalibrationJob
_JOBS: dict[str, type[Any]] = {"replay": ReplayJob, "calibrate": CalibrationJob}


def write_job(directory: Path, job: Job, world_size: int) -> Path:
    """Write the job file of ``world_size`` ranks, which may each find it elsewhere; returns its path."""
    write_atomically(directory / JOB, json_text({"world_size": world_size, **asdict(job)}))
    return directory / JOB


def read_job(path: Path) -> tuple[Any, int]:
    """The job in a file, one of ``Job``, and the number of its ranks. Raises ``InputError``."""
    give = "give the directory of bucketsim validate or calibrate --prepare"
    if not path.is_file():
        raise InputError(f"{path.parent}: no {JOB} in it; {give}")
    body = parse_json(read_bytes(path), str(path))
    if not isinstance(body, dict) or "world_size" not in body or body.get("task") not in _JOBS:
        raise InputError(f"{path}: no job; {give}")
    world_size = body.pop("world_size")
    return parse_body(body, _JOBS[body["task"]], str(path)), world_size


def commands(job_file: Path) -> tuple[str, str]:
    """How to run a prepared job: by torchrun (on each host) and by srun.

    Where ranks need a GPU each SLURM has to give them, all of a host's to each of its ranks: over GPUs that
    ranks cannot see NCCL takes another way than in training.
    """
    job, world_size = read_job(job_file)
    worker = f"-m sim.validator.worker {shlex.quote(str(job_file))}"
    gpus = " --nodes HOSTS --ntasks-per-node RANKS_PER_HOST --gpus-per-node RANKS_PER_HOST"
    return (
        "torchrun --nnodes HOSTS --nproc-per-node RANKS_PER_HOST --node-rank K --master-addr HOST0 "
        f"--master-port 29500 {worker}",
        f"srun --ntasks {world_size}{gpus if job.carrier.device == 'cuda' else ''} python {worker}",
    )
