"""Files as a job on 2 hosts of 8 GPUs writes them, made without a GPU: recordings, a link's log, a trace.

What stands in them follows torch's sources: each rank has the device ``cuda:LOCAL_RANK`` and the process
group's backend as the script named it (not at all: torch takes NCCL for CUDA); stamps are CUDA events, whose
times are a float of ms in steps of some 0.5 us, so that gradients of one kernel are ready at one time;
``started_at_ns`` is the host's clock when it asked for the work, ahead of the GPU. Collectives run one after
another on NCCL's stream, from their last launch on.
"""

import json
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

from sim.nouns.recording import (
    RecordedBackward,
    RecordedBucket,
    RecordedLayout,
    RecordedParameter,
    RecordedStep,
    RecordingHeader,
)
from sim.nouns.workload import Buffer
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.link_texts import Line, today

US, MS, MIB = 1_000, 1_000_000, 1 << 20
HOSTS, GPUS = 2, 8
RANKS = HOSTS * GPUS
WARMUP = 11
WIDTH, BLOCKS = 512, 8


@cache
def shapes() -> dict[str, tuple[int, ...]]:
    """A GPT of 100 parameters in the order of ``named_parameters``, 161 MiB, and one that some never use."""
    found: dict[str, tuple[int, ...]] = {"wte.weight": (32768, WIDTH), "wpe.weight": (1024, WIDTH)}
    for block in range(BLOCKS):
        for name, rows, columns in (("qkv", 3, 1), ("proj", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            found[f"h.{block}.{name}.weight"] = (rows * WIDTH, columns * WIDTH)
            found[f"h.{block}.{name}.bias"] = (rows * WIDTH,)
        for name in ("ln1", "ln2"):
            found |= {f"h.{block}.{name}.{part}": (WIDTH,) for part in ("weight", "bias")}
    return found | {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,), "unused": (WIDTH,)}


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """What a job does; ``never`` holds parameters that get no gradient, ``skipped`` steps that GradScaler
    left out, ``buffers`` the bytes that DDP broadcasts before each forward."""

    backend: str = "nccl"
    level: str = "full"
    micro_batches: int = 1
    compiled: bool = False
    never: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()
    buffers: int = 0
    autocast: bool = False
    measures_plain: bool = True
    steps: int = 40
    environment: tuple[tuple[str, str], ...] = ()
    all_reduce_ns: tuple[int, float] = (60 * US, 25e9)  # of no bytes, and bytes a second

    @property
    def names(self) -> list[str]:
        """Of parameters; ``unused`` is one of them only in jobs with such."""
        return [name for name in shapes() if name != "unused" or self.never]

    def sent_ns(self, num_bytes: int) -> int:
        """How long an all-reduce lasts once all ranks have come."""
        latency, rate = self.all_reduce_ns
        return latency + round(num_bytes / rate * 1e9)


KINDS: dict[str, GpuJob] = {
    "plain": GpuJob(),
    "unnamed": GpuJob(backend="undefined"),
    "mixed": GpuJob(backend="cpu:gloo,cuda:nccl"),
    "amp": GpuJob(autocast=True, skipped=(1, 2, 14)),
    "compiled": GpuJob(compiled=True),
    "accumulating": GpuJob(micro_batches=4, measures_plain=False),
    "unused": GpuJob(never=("unused",), measures_plain=False),
    "buffers": GpuJob(buffers=2 * MIB),
    "light": GpuJob(level="light"),
    "serialised": GpuJob(environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)),
}


def event_ns(time: float) -> int:
    """A time between two CUDA events: whole halves of a us, from a float of ms."""
    return round(struct.unpack("f", struct.pack("f", round(time / 500) * 500 / MS))[0] * MS)


@cache
def num_bytes(name: str) -> int:
    """Of a parameter, and so of its gradient: both are float32 under autocast too."""
    return 4 * prod(shapes()[name])


def hook_order(job: GpuJob) -> list[int]:
    """The last layer first; of a module the bias before the weight, which one kernel may make ready."""
    used = [index for index, name in enumerate(job.names) if name not in job.never]
    return sorted(used, key=lambda index: (job.names[index].startswith("w"), -index))


@cache
def layout(job: GpuJob) -> tuple[tuple[int, ...], ...]:
    """DDP's default buckets by torch's own rule: rebuilt by firing, or, with unused parameters, never."""
    order = hook_order(job)
    if job.never:
        order = list(range(len(job.names)))
    tensors = [torch.empty(shapes()[job.names[index]], device="meta") for index in order]
    limits = [MIB, 25 * MIB] if not job.never else [25 * MIB]
    cut, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), order)
    return tuple(tuple(bucket) for bucket in (reversed(cut) if job.never else cut))


@cache
def kernels(job: GpuJob) -> tuple[tuple[tuple[int, ...], int], ...]:
    """What each stretch of backward, a module or a cut of torch.compile, makes ready; how long it takes."""
    return tuple(_kernels(job))


def _kernels(job: GpuJob) -> Iterator[tuple[tuple[int, ...], int]]:
    order, ahead = hook_order(job), 2.0 if job.autocast else 1.0
    group: list[int] = []
    for index, following in zip(order, [*order[1:], None], strict=True):
        group.append(index)
        here = job.names[index].rsplit(".", 1)[0]
        ends = following is None or job.names[following].rsplit(".", 1)[0] != here
        if job.compiled:
            ends = following is None or sum(num_bytes(job.names[one]) for one in group) >= 25 * MIB
        if ends:
            size = sum(num_bytes(job.names[one]) for one in group)
            yield tuple(group), round((40 * US + size / 1.6e12 * 1e9 * 128) / ahead)
            group = []


def header(job: GpuJob, rank: int) -> RecordingHeader:
    """The first line of a rank's file."""
    device = f"cuda:{rank % GPUS}"
    return RecordingHeader(
        rank=rank,
        world_size=RANKS,
        level="light" if job.level == "light" else "full",
        every=1,
        torch="2.13.0+cu130",
        backend=job.backend,
        device=device,
        clock="cuda events",
        module="GPT",
        comm_hook=None,
        ddp={
            "bucket_bytes_cap": 25 * MIB,
            "find_unused_parameters": bool(job.never),
            "static_graph": False,
            "gradient_as_bucket_view": False,
            "broadcast_buffers": True,
            "rebuilt_buckets": None if job.never else [list(bucket) for bucket in layout(job)],
            "gloo_num_threads": 0,
            "torch_distributed_debug": None,
        },
        parameters=tuple(
            RecordedParameter(
                name=name, shape=shapes()[name], dtype="float32", num_bytes=num_bytes(name), device=device
            )
            for name in job.names
        ),
        environment=dict(job.environment),
        buffers=(Buffer(num_bytes=job.buffers, dtype="float32"),) if job.buffers else (),
        provenance={
            "source": "sim.record",
            "torch": "2.13.0+cu130",
            "device": device,
            "device_name": "NVIDIA H100 80GB HBM3",
            "cuda": "13.0",
        },
    )


def _backwards(
    job: GpuJob, synchronised: bool, paces: Sequence[float], begin_ns: int
) -> list[RecordedBackward]:
    """One forward and backward on all ranks, ``begin_ns`` after the start of the step."""
    names = job.names
    broadcast = 40 * US + round(job.buffers / 25e9 * 1e9) if job.buffers else 5 * US
    buckets = layout(job) if synchronised else ()
    ready, ends, lane = [], [], []
    for pace in paces:
        now, times = 400.0 * US, {}  # the loss
        for group, duration in kernels(job):
            now += duration * pace
            for index in group:
                if synchronised:  # DDP copies each gradient into its bucket
                    now += 3 * US + num_bytes(names[index]) / 1.2e12 * 1e9
                times[index] = now
        ready.append(times)
        lane.append(now + 60 * US)
        ends.append(lane[-1])
    rows: list[list[RecordedBucket]] = [[] for _ in paces]
    free = 0.0
    for place, bucket in enumerate(buckets):
        used = [index for index in bucket if index in ready[0]]
        size = sum(num_bytes(names[index]) for index in bucket)
        # one that is unused is ready when the graph has been walked, before backward begins
        at = [max((times[index] for index in used), default=0.0) + 5 * US for times in ready]
        at = [max(one, row[-1].launch_ns if row else 0) for one, row in zip(at, rows, strict=True)]
        launched = [one + 12 * US for one in at]
        free = max(free, *launched) + job.sent_ns(size)
        for row, one, launch in zip(rows, at, launched, strict=True):
            row.append(
                RecordedBucket(
                    index=place,
                    num_bytes=size,
                    ready_ns=event_ns(one),
                    launch_ns=event_ns(launch),
                    end_ns=event_ns(free),
                )
            )
    if buckets:
        copied = sum(row.num_bytes for row in rows[0]) / 1.2e12 * 1e9 / len(buckets)
        ends = [max(one, free) + copied + 30 * US for one in lane]
    forward = (18 if job.autocast else 36) * MS / (1.5 if job.compiled else 1)
    return [
        RecordedBackward(
            synchronised=synchronised,
            forwards=1,
            started_ns=event_ns(begin_ns),
            forward_start_ns=event_ns(begin_ns + broadcast),
            forward_end_ns=event_ns(begin_ns + broadcast + forward * pace),
            backward_ns=event_ns(end),
            sync_end_ns=event_ns(sync),
            ready_ns=tuple(event_ns(times[index]) if index in times else None for index in range(len(names))),
            buckets=tuple(row) if job.level == "full" else (),
        )
        for pace, end, sync, times, row in zip(paces, lane, ends, ready, rows, strict=True)
    ]


@cache
def steps(job: GpuJob) -> list[list[RecordedStep]]:
    """By rank, its steps; rank 11 computes 2 % slower than the others, and is last to most collectives."""
    noise = random.Random(0)
    made: list[list[RecordedStep]] = [[] for _ in range(RANKS)]
    for number in range(1, job.steps + 1):
        kinds = [False] * (job.measures_plain and number % 2) + [False] * (job.micro_batches - 1) + [True]
        paces = [noise.uniform(0.998, 1.002) * (1.02 if rank == 11 else 1.0) for rank in range(RANKS)]
        backwards: list[list[RecordedBackward]] = [[] for _ in range(RANKS)]
        begin = 0
        for kind in kinds:
            found = _backwards(job, kind, paces, begin)
            for rank, one in enumerate(found):
                backwards[rank].append(one)
            begin = max(one.forward_end_ns + one.sync_end_ns for one in found) + 200 * US
        for rank in range(RANKS):
            last, skips = backwards[rank][-1], number in job.skipped
            optimizer = 0 if skips else event_ns(5 * MS)
            made[rank].append(
                RecordedStep(
                    step=number,
                    # host 1's clock is 3 s ahead, and each host asks for work some ms before it runs
                    started_at_ns=10**18 + 3 * 10**9 * (rank // GPUS) + number * 10**8 + rank * 7 * MS,
                    step_ns=last.forward_end_ns + last.sync_end_ns + optimizer,
                    optimizer_ns=None if skips else optimizer,
                    backwards=tuple(backwards[rank]),
                    compiled=job.compiled,
                )
            )
    return made


def write_recording(folder: Path, job: GpuJob) -> Path:
    """Each rank's file, as ``sim.record`` writes it."""
    folder.mkdir(parents=True)
    fired = tuple(hook_order(job))
    logged = job.level == "full" or not job.never  # DDP's log has rebuilt buckets alone
    placed = RecordedLayout(step=2, bucket_indices=layout(job), fired=fired)
    for rank, own in enumerate(steps(replace(job, backend="nccl", environment=()))):
        rows = [
            {"kind": "recording", "schema_version": 1, **asdict(header(job, rank))},
            *([{"kind": "buckets", **asdict(placed)}] if logged else []),
            *({"kind": "step", **asdict(one)} for one in own),
            {"kind": "end", "failed": False},
        ]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / f"rank-{rank}.jsonl").write_text(text)
    return folder


def write_link(path: Path, job: GpuJob) -> Path:
    """What ``all_reduce_perf -b 8 -e 1G -f 2`` prints of the link under ``mpirun`` on 16 GPUs."""
    sizes = [8 << power for power in range(28)]
    lines = [Line(num_bytes=size, in_us=us, out_us=us) for size in sizes for us in (job.sent_ns(size) / US,)]
    path.write_text("\n".join(today(lines, RANKS)) + "\n")
    return path


def write_traces(folder: Path, backend: str = "nccl") -> list[Path]:
    """torch.profiler's traces of two ranks of a small job."""
    folder.mkdir(parents=True)
    job = Job(
        shapes=((1000, 1000), (1000,), (2000, 1000), (2000,), (3000, 2000), (3000,)),
        buckets=(2, 2, 2),
        gradient_ns=(3_000_000,) * 6,
        transfer_ns=(4_000_000, 5_000_000, 6_000_000),
        forward_ns=((10_000_000, 17_000_000),) * 4,
        offsets_ns=(0, 3_000_000_000),
    )
    texts, _ = build(job, Dialect())
    paths = [folder / f"rank{rank}.pt.trace.json" for rank in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text.replace('"backend": "nccl"', f'"backend": {json.dumps(backend)}'))
    return paths
