"""One rank's file: its steps, what its device was busy with, and who it is."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sim.importer.kineto.autograd import find_accumulations
from sim.importer.kineto.events import ACCUMULATE, NODE, TraceEvents, read_events
from sim.importer.kineto.interference import Kernel, find_interference
from sim.importer.kineto.kernel_names import is_communication, is_computation
from sim.importer.kineto.refusals import decline
from sim.importer.kineto.seen import SeenRank, SeenStep
from sim.importer.kineto.traced_collectives import find_collectives, unseen_calls
from sim.importer.kineto.traced_devices import decline_unread_device, device_of, doubts, text_of
from sim.importer.kineto.traced_steps import find_steps
from sim.importer.wording import plain
from sim.metrics.intervals import Interval, union
from sim.nouns.devices import backend_of
from sim.nouns.imported import Progress

_MOST_RANKS = 1 << 24


def read_rank(path: Path, progress: Progress) -> SeenRank:
    """Read one trace; what is not needed of it is gone when this returns.

    Raises:
        InputError: not a trace, or one without whole training steps.
        NotModelledError: a trace of something else than data parallelism by DDP.
    """
    trace = read_events(path, progress)
    info = trace.header.get("distributedInfo")
    facts: dict[str, Any] = info if isinstance(info, dict) else {}
    said = text_of(facts.get("backend"))
    backend = None if said is None else backend_of(said, "cuda" if trace.gpu else "cpu")
    decline_unread_device(trace, backend)
    collectives = find_collectives(trace)
    steps = find_steps(trace, collectives)
    decline(trace, steps)
    communication = _busy(trace, is_communication)
    return SeenRank(
        source=str(path),
        rank=_count(facts.get("rank"), 0),
        world_size=_count(facts.get("world_size"), 1),
        backend=backend,
        device=(device_of(trace) or "GPU") if trace.gpu else "CPU",
        on_gpu=bool(trace.gpu),
        host=text_of(trace.header.get("host_name")),
        steps=steps,
        computation=_busy(trace, is_computation),
        communication=communication,
        all_reduces=tuple(
            union(
                (one.start_ns, one.end_ns)
                for one, _ in collectives
                if one.kind == "all_reduce" and one.timed and trace.gpu
            )
        ),
        interference=find_interference(_kernels(trace, steps), communication),
        is_marked=any(one.name.startswith("ProfilerStep#") for one in trace.operators),
        is_compiled=any(one.name == NODE + "CompiledFunctionBackward" for one in trace.operators),
        unseen_calls=unseen_calls(trace),
        calls_alone=len(find_accumulations(trace)) - sum(one.name == ACCUMULATE for one in trace.operators),
        base_ns=base if type(base := trace.header.get("baseTimeNanoseconds")) is int else 0,
        doubts=doubts(trace),
        long_calls=tuple((start, end, plain(name, 60)) for start, end, name in trace.long_calls),
        dropped=tuple(f"{count} {what}" for what, count in trace.dropped.items()),
        header={
            key: text
            for key, text in (("backend", backend), ("nccl_version", text_of(facts.get("nccl_version"))))
            if text
        },
    )


def _busy(trace: TraceEvents, belongs: Callable[[str], bool]) -> tuple[Interval, ...]:
    """When the device ran work whose name ``belongs`` accepts, over the whole trace."""
    names = set(filter(belongs, {span.name for span in trace.gpu}))
    return tuple(union((span.start_ns, span.end_ns) for span in trace.gpu if span.name in names))


def _kernels(trace: TraceEvents, steps: Sequence[SeenStep]) -> list[list[Kernel]]:
    """By step, the kernels of the stream that computes most, in order."""
    computing = [span for span in trace.gpu if is_computation(span.name)]
    busy: Counter[int] = Counter()
    for span in computing:
        busy[span.stream] += span.end_ns - span.start_ns
    lane = busy.most_common(1)[0][0] if busy else None
    ordered = sorted((span for span in computing if span.stream == lane), key=lambda span: span.start_ns)
    starts = [span.start_ns for span in ordered]
    return [
        [
            Kernel(span.name, span.start_ns, span.end_ns)
            for span in ordered[bisect_left(starts, step.start_ns) : bisect_left(starts, step.end_ns)]
        ]
        for step in steps
    ]


def _count(value: Any, least: int) -> int | None:
    return value if type(value) is int and least <= value < _MOST_RANKS else None
