"""One rank's file: its steps, what its device was busy with, who it is, and what is refused."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from sim.errors import InputError, NotModelledError
from sim.importer.imported import Progress, plain
from sim.importer.kineto.collectives import SeenCollective, find_collectives, unseen_calls
from sim.importer.kineto.events import (
    NODE,
    Spans,
    TraceEvents,
    between,
    busiest,
    is_communication,
    is_computation,
    read_events,
)
from sim.importer.kineto.slowdowns import Slowdown, find_interference
from sim.importer.kineto.steps import SeenStep, find_accumulations, find_steps
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.nouns.devices import backend_of

# ---- the rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """One rank: its complete steps, what its device was busy with, and which rank it is.

    ``overlap``, ``all_reduce_overlap``: of communication, and of all-reduces (``overlap_ratio``).
    ``is_marked``: steps have the profiler's own numbers. ``is_compiled``: torch.compile made some of its
    backward. ``base_ns``: the instant from which all times count. ``calls_alone``: how many AccumulateGrads
    the trace shows only as a call of the autograd engine. ``doubts``: sentences on work of a device that the
    trace may not show. ``unseen_calls``: calls of collectives without a kernel that is known to communicate.
    ``long_calls``: start, end and name of calls of the runtime that held the host.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str
    on_gpu: bool
    host: str | None
    steps: tuple[SeenStep, ...]
    overlap: float | None
    all_reduce_overlap: float | None
    interference: Slowdown | None = None
    is_marked: bool = True
    is_compiled: bool = False
    unseen_calls: int = 0
    calls_alone: int = 0
    doubts: tuple[str, ...] = ()
    base_ns: int = 0
    long_calls: tuple[tuple[int, int, str], ...] = ()
    dropped: tuple[str, ...] = ()
    nccl_version: str | None = None


def read_rank(path: Path, progress: Progress) -> SeenRank:
    """Read one trace; what is not needed of it is gone when this returns.

    Raises:
        InputError: not a trace, or one without whole training steps.
        NotModelledError: a trace of something else than data parallelism by DDP.
    """
    trace = read_events(path, progress)
    on_gpu = len(trace.gpu) > 0
    backend = trace.backend and backend_of(trace.backend, "cuda" if on_gpu else "cpu")
    decline_unread_device(trace, backend)
    collectives = find_collectives(trace)
    steps = find_steps(trace, collectives)
    decline(trace, steps)
    communication = _busy(trace, is_communication)
    computation = _busy(trace, is_computation)
    timed = (one for one, _ in collectives if one.kind == "all_reduce" and one.timed and on_gpu)
    all_reduces = union((one.start_ns, one.end_ns) for one in timed)
    _, calls_alone = find_accumulations(trace)
    return SeenRank(
        source=str(path),
        rank=trace.rank,
        world_size=trace.world_size,
        backend=backend,
        device=(trace.device or "GPU") if on_gpu else "CPU",
        on_gpu=on_gpu,
        host=trace.host,
        steps=steps,
        overlap=overlap_ratio(computation, communication),
        all_reduce_overlap=overlap_ratio(computation, all_reduces),
        interference=find_interference(_kernels(trace, steps), communication),
        is_marked="step" in trace.kinds,
        is_compiled=NODE + "CompiledFunctionBackward" in trace.names,
        unseen_calls=unseen_calls(trace),
        calls_alone=calls_alone,
        base_ns=trace.base_ns,
        doubts=doubts(trace),
        long_calls=tuple((start, end, plain(name, 60)) for start, end, name in trace.long_calls),
        dropped=tuple(f"{count} {what}" for what, count in trace.dropped.items()),
        nccl_version=trace.nccl_version,
    )


def overlap_ratio(computation: Sequence[Interval], communication: Sequence[Interval]) -> float | None:
    """Share of the time of communication kernels in which computation kernels run, as
    HolisticTraceAnalysis defines it; None without communication.
    """
    busy = length(communication)
    return intersection_length(computation, communication) / busy if busy else None


def _busy(trace: TraceEvents, belongs: Callable[[str], bool]) -> list[Interval]:
    """When the device ran work whose name ``belongs`` accepts, over the whole trace."""
    spans = trace.running(belongs)
    return union(zip(spans["start"].tolist(), spans["end"].tolist(), strict=True))


def _kernels(trace: TraceEvents, steps: Sequence[SeenStep]) -> list[Spans]:
    """By step, the kernels of the stream that computes most, in order."""
    computing = trace.running(is_computation)
    computing = computing[computing["lane"] == busiest(computing)]
    return [between(computing, step.start_ns, step.end_ns) for step in steps]


# ---- whether the trace shows the device that computed

# Annotations of NCCL, RCCL and other device libraries ("nccl:all_reduce"). gloo, MPI and oneCCL ("ccl") run
# on CPUs and are not among them.
_DEVICE_LIBRARY = re.compile(r"([a-z]ccl|cncl):")
_OF_DEVICES = re.compile(r"[a-z]ccl|cncl")
_DEVICES = re.compile(r"(hpu|xpu|npu|mtia|gcu|musa|tpu|xla|neuron|mlu|privateuse\w*?)_", re.IGNORECASE)
# Events of unknown categories, or launches, that suffice to suspect a device: a step has as many kernels.
_MANY = 100
_MOST_NAMED = 3


def decline_unread_device(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace whose computation ran on a device whose kernels are not in it, or cannot be read.

    In such a job the CPU only launches kernels. Read as training on a CPU, every time would be wrong.

    Raises:
        NotModelledError: no kernel of a GPU, and events of another device, or many of an unknown category.
        InputError: no kernel of a GPU, and collectives or launches of one.
    """
    if len(trace.running(is_computation)):
        return
    names = sorted({found[1].lower() for what in trace.unread if (found := _DEVICES.match(what))})
    if names or trace.unread.total() >= _MANY:
        of = f"of a device that is not read ({', '.join(names)})" if names else "perhaps of another device"
        raise NotModelledError(
            f"{trace.source}: no kernel of a GPU, and {unread_words(trace.unread)}, {of}: the CPU's times of "
            f"such a job are those of launches; traces of NVIDIA's and AMD's GPUs and of CPUs are read"
        )
    collectives = Counter(
        found[1]
        for number in trace.operators["name"]
        if (found := _DEVICE_LIBRARY.match(trace.names[number]))
    )
    why = ""
    if collectives:
        why = ", ".join(f"{count} collectives of {name}" for name, count in collectives.most_common(2))
    elif backend is not None and _OF_DEVICES.fullmatch(backend):
        why = f"the job's backend is {backend}"
    elif trace.launched >= _MANY:
        why = f"{trace.launched} launches of work for a device"
    if why:
        raise InputError(
            f"{trace.source}: {why}, and no kernel of a GPU: the trace does not show what the device did, "
            f"and the CPU's times are those of launches; profile with ProfilerActivity.CUDA as well"
        )


def unread_words(unread: Counter[str]) -> str:
    """How many events are of categories that are not read, and which most."""
    shown = ", ".join(f"{plain(what, 40)} {count}" for what, count in unread.most_common(_MOST_NAMED))
    more = ", ..." if len(unread) > _MOST_NAMED else ""
    return f"{unread.total()} events of categories that are not read ({shown}{more})"


def doubts(trace: TraceEvents) -> tuple[str, ...]:
    """Signs that a device did work which is not in the figures, a sentence each."""
    said = []
    if trace.unread:
        said.append(f"{unread_words(trace.unread)}: if a device's, what it did is in no figure here")
    if not len(trace.gpu) and trace.device is not None:
        said.append(
            f"the trace lists {trace.device!r} and nothing that ran on it: taken for training on the CPU; "
            f"if it was not, profile with ProfilerActivity.CUDA as well"
        )
    return tuple(said)


# ---- other ways to train, or no training

_FSDP = re.compile(r"FullyShardedDataParallel|FSDP::|fsdp", re.IGNORECASE)
_PARTS = ("all_gather", "reduce_scatter")
_STATISTICS = "SyncBatchNorm"
# All-reduces of activations are taken to be a metric's if a step has fewer of them, or if their elements are
# a smaller share of the elements that all-reduces of gradients have.
_FEWEST_ACTIVATIONS = 4
_SHARE = 0.05


def decline(trace: TraceEvents, steps: tuple[SeenStep, ...]) -> None:
    """Raise ``NotModelledError`` where gradients were not reduced as replicated data parallelism does."""
    sharded = next(filter(_FSDP.match, trace.operator_names), None)
    if sharded is not None:
        raise NotModelledError(
            f"{trace.source}: {sharded!r} in it: trained by FSDP, which gathers parameters and scatters "
            f"gradients; its traces are not read; record or estimate the model without it, and "
            f"`bucketsim simulate --policy fully_shard` predicts FSDP2's step"
        )
    step = steps[len(steps) // 2]
    if step.other_backwards:
        raise NotModelledError(
            f"{trace.source}: step {step.number} has {step.micro_batches} backwards of different gradients, "
            f"or with an optimizer's step between them: several models in turn (a GAN), which is not "
            f"modelled; if each is a step of one model, call prof.step() after it"
        )
    counts = [Counter(one.kind for one in each.collectives if one.role != "before") for each in steps]
    # The median over the steps: a single one may hold collectives that belong to no step.
    kinds = Counter({kind: median_low([each[kind] for each in counts]) for kind in set().union(*counts)})
    if all(kinds[kind] >= 2 for kind in _PARTS) and not step.reductions:
        raise NotModelledError(
            f"{trace.source}: {kinds['all_gather']} all-gathers, {kinds['reduce_scatter']} reduce-scatters "
            f"a step and no all-reduce of gradients: sharded (FSDP, ZeRO-3), which is not modelled"
        )
    points = kinds["send"] + kinds["recv"] + kinds["send_recv"]
    if points:
        raise NotModelledError(
            f"{trace.source}: {points} sends and receives a step: pipeline parallelism, which is not modelled"
        )
    _decline_tensor_parallel(trace, steps)
    if kinds["reduce_scatter"] and not step.reductions:
        raise NotModelledError(
            f"{trace.source}: gradients are reduce-scattered, {kinds['reduce_scatter']} times a step: a "
            f"sharded optimizer; `bucketsim simulate --policy zero2` predicts DeepSpeed's from a workload"
        )


def _decline_tensor_parallel(trace: TraceEvents, steps: Sequence[SeenStep]) -> None:
    """Raise ``NotModelledError`` if all-reduces of activations run before the last gradient is ready.

    Those after it are metrics. SyncBatchNorm's are statistics, and few or small ones are let pass, too.
    """
    others = [_activations(step) for step in steps]
    count = median_low([len(each) for each in others])
    if count < _FEWEST_ACTIVATIONS or any(_STATISTICS in name for name in trace.operator_names):
        return
    sizes = [one.num_elements for each in others for one in each]
    gradients = [one.num_elements for step in steps for one in step.reductions]
    told = gradients and None not in sizes and None not in gradients
    if told and sum(size or 0 for size in sizes) < _SHARE * sum(size or 0 for size in gradients):
        return
    raise NotModelledError(
        f"{trace.source}: {count} all-reduces a step in forward or within backward's operators, not of "
        f"gradients: tensor parallelism, which is not modelled"
    )


def _activations(step: SeenStep) -> list[SeenCollective]:
    last = step.gradients[-1].hooked_at_ns
    return [
        one
        for one in step.collectives
        if one.kind == "all_reduce" and one.role == "other" and one.launched_ns < last
    ]
