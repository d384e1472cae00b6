"""Kineto traces made from a known truth: a small data-parallel job on several ranks, in several dialects.

A rank's CPU launches ahead of its device. Its compute stream runs forward, a kernel a gradient, copies and
the optimizer; an all-reduce begins on a rank when that rank comes to it and ends on all ranks together. A
step may have several micro-batches, and the CPU may begin the next one before the device has ended.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sim.importer.imported import KINDS, Imported, ImportOptions
from sim.importer.kineto import trace_import

CPU_NS, NODE = 2_000, "autograd::engine::evaluate_function: "  # between two launches; around an operator
_COMPUTE, _COMMUNICATION, _SIDE = 7, 20, 24
_THREAD, _AUTOGRAD = 100, 101


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a version of torch and its profiler writes it."""

    kernel: str = "kernel"
    operator: str = "cpu_op"
    runtime: str = "cuda_runtime"
    dims: str | None = "Input Dims"
    wrappers: bool = True
    steps: bool = True
    bare_list: bool = False
    decimals: bool = True
    zipped: bool = False
    nccl: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    arguments_on: str = "record_param_comms"  # or "kernel", or "nccl:all_reduce" (dims only)
    names_forward: bool = False  # DistributedDataParallel.forward


@dataclass(frozen=True, kw_only=True)
class Job:
    """What happened; times in ns, by step and rank where they differ. Gradients in hook order."""

    shapes: tuple[tuple[int, ...], ...]
    buckets: tuple[int, ...]  # how many gradients each holds
    gradient_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    forward_ns: tuple[tuple[int, ...], ...]  # by step, by rank
    optimizer_ns: int = 50_000
    copy_in_ns: int = 0  # a gradient; 0: gradient_as_bucket_view
    copy_out_ns: int = 0  # a bucket
    clip_ns: int = 0  # clips gradients before the optimizer, on autograd's thread; 0: not
    offsets_ns: tuple[int, ...] = (0,)
    loss_elements: int = 0  # all-reduced between backward and the optimizer; 0: not
    micro_batches: int = 1
    synchronises: str = "last"  # of the micro-batches; or "each", or "none": no DDP
    runs_ahead: bool = False  # the CPU waits for the device after no step
    transfer_factors: tuple[float, ...] = ()  # by step; empty: all alike
    stalls_ns: tuple[int, ...] = ()  # by step: the host sits in hipFree amid its backward; empty: never
    prefetch_ns: int = 0  # the next batch's copy, by a stream of its own, first of all in a step; 0: none

    @property
    def ranks(self) -> int:
        return len(self.offsets_ns)


@dataclass(kw_only=True)
class TrueStep:
    """One step of one rank, by true time."""

    start_ns: int = 0
    backward_start_ns: int = 0
    backward_end_ns: int = 0
    sync_end_ns: int = 0
    end_ns: int = 0
    ready_ns: list[int] = field(default_factory=list)  # copied, from the start of backward, in hook order
    arrived_ns: list[int] = field(default_factory=list)  # by bucket
    queued: list[bool] = field(default_factory=list)  # by bucket: its channel was busy
    ended_ns: list[int] = field(default_factory=list)


class _Rank:
    """One rank's clock, streams and events."""

    def __init__(self, rank: int, job: Job, dialect: Dialect, begin_ns: int) -> None:
        self.rank, self.job, self.dialect, self.cpu = rank, job, dialect, begin_ns
        self.free = {_COMPUTE: 0, _COMMUNICATION: 0, _SIDE: 0}
        self.events: list[str] = []
        self.correlation = 100_000
        self.sent: list[tuple[int, int, int, dict[str, Any]]] = []  # by bucket; ``send`` says what
        self.steps: list[TrueStep] = []
        self.true, self.window = TrueStep(), 0

    def event(self, category: str, name: str, start: int, end: int, thread: int, **arguments: Any) -> None:
        head = json.dumps({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread})[:-1]
        shown = [self.time(start + self.job.offsets_ns[self.rank]), self.time(end - start)]
        rest = json.dumps(arguments)
        self.events.append(f'{head}, "ts": {shown[0]}, "dur": {shown[1]}, "args": {rest}}}')

    def time(self, time_ns: int) -> str:
        whole, rest = divmod(time_ns, 1000)
        assert self.dialect.decimals or rest == 0, "a trace of whole microseconds"
        return f"{whole}.{rest:03d}" if self.dialect.decimals else str(whole)

    def tick(self) -> int:
        self.cpu += CPU_NS
        return self.cpu

    def operator(self, name: str, start: int, end: int, thread: int = _AUTOGRAD, **arguments: Any) -> None:
        self.event(self.dialect.operator, name, start, end, thread, **arguments)

    def launch(self, thread: int) -> tuple[int, int]:
        """A launch by the CPU: its time and its correlation."""
        self.correlation += 1
        at = self.tick()
        call = "cudaLaunchKernel"
        self.event(self.dialect.runtime, call, at, at + 1_000, thread, correlation=self.correlation)
        return at, self.correlation

    def ran(self, name: str, stream: int, start: int, end: int, correlation: int, **facts: Any) -> None:
        """What the device ran."""
        self.free[stream] = end
        category = "gpu_memcpy" if stream == _SIDE else self.dialect.kernel
        self.event(category, name, start, end, stream, stream=stream, correlation=correlation, **facts)

    def kernel(self, name: str, duration: int, thread: int = _AUTOGRAD, after: int = 0) -> tuple[int, int]:
        at, correlation = self.launch(thread)
        start = max(self.free[_COMPUTE], at + CPU_NS, after)
        self.ran(name, _COMPUTE, start, start + duration, correlation)
        return start, start + duration

    def begin(self) -> None:
        """A step, with what runs beside its first forward."""
        self.window, self.true = self.tick(), TrueStep()
        if self.job.prefetch_ns:
            began = self.tick()
            at, correlation = self.launch(_THREAD)
            self.operator("aten::_to_copy", began, self.tick(), _THREAD)
            start = max(self.free[_SIDE], at + CPU_NS)
            name = "Memcpy HtoD (Pinned -> Device)"
            self.ran(name, _SIDE, start, start + self.job.prefetch_ns, correlation)
            self.true.start_ns = start if start >= self.free[_COMPUTE] else 0

    def forward(self, number: int) -> None:
        if self.dialect.names_forward:
            self.operator("DistributedDataParallel.forward", self.tick(), self.cpu + 3 * CPU_NS, _THREAD)
        self.operator("aten::linear", self.tick(), self.cpu + 1_000, _THREAD)
        begin, _ = self.kernel("gemm", self.job.forward_ns[number][self.rank], _THREAD)
        self.true.start_ns = min(self.true.start_ns or begin, begin)

    def backward(self, synchronises: bool) -> None:
        """All kernels of backward, and the launches of the all-reduces; they run later."""
        true, self.sent = self.true, []
        true.ready_ns, true.arrived_ns, true.queued, true.ended_ns = [], [], [], []
        place = 0
        for bucket, count in enumerate(self.job.buckets):
            for inside in range(count):
                self.gradient(place, bucket if inside == count - 1 and synchronises else None, synchronises)
                place += 1
        true.backward_end_ns = self.free[_COMPUTE]

    def gradient(self, place: int, closes: int | None, synchronises: bool) -> None:
        job = self.job
        if place == 1 and job.stalls_ns and (stall := job.stalls_ns[len(self.steps)]):
            at = self.tick()
            self.cpu += stall
            self.event(self.dialect.runtime, "hipFree", at, self.cpu, _AUTOGRAD)
        began = self.tick()
        start, end = self.kernel("volta_sgemm_backward", job.gradient_ns[place])
        if place == 0:
            self.true.backward_start_ns = start
        name = f"AddmmBackward{place % 2}"
        if self.dialect.wrappers:
            self.operator(NODE + name, began, self.tick())
        self.operator(name, began, self.cpu)
        outer, inner = self.tick(), self.tick()
        shown: dict[str, Any] = {}
        if self.dialect.dims:
            shown = {self.dialect.dims: [list(job.shapes[place])], "Input type": ["float"]}
        self.operator("torch::autograd::AccumulateGrad", inner, self.tick(), **shown)
        if job.copy_in_ns and synchronises:
            copy = self.tick()
            _, end = self.kernel("copy_kernel", job.copy_in_ns)
            self.operator("torch::distributed::reducer::mul_out", copy, self.tick())
        self.true.ready_ns.append(end - self.true.backward_start_ns)
        if closes is not None:
            self.send(closes)
        if self.dialect.wrappers:
            self.operator(NODE + "torch::autograd::AccumulateGrad", outer, self.tick())

    def send(self, bucket: int) -> None:
        """Keeps the correlation, when the stream may begin, when the rank came to it, and its arguments."""
        first = sum(self.job.buckets[:bucket])
        elements = sum(map(prod, self.job.shapes[first : first + self.job.buckets[bucket]]))
        begin = self.tick()
        at, correlation = self.launch(_AUTOGRAD)
        facts = {"In msg nelems": elements, "dtype": "Float", "Collective name": "allreduce"}
        if self.dialect.arguments_on == "record_param_comms":
            self.operator("record_param_comms", begin, self.tick(), **facts)
        elif self.dialect.arguments_on == "nccl:all_reduce":
            shown = {self.dialect.dims or "Input Dims": [[elements]], "Input type": ["float"]}
            self.operator("nccl:all_reduce", begin, self.tick(), **shown)
        computed, facts = self.free[_COMPUTE], facts if self.dialect.arguments_on == "kernel" else {}
        self.sent.append((correlation, max(computed, at + CPU_NS), max(computed, at), facts))

    def arrive(self, bucket: int) -> int:
        """When this rank comes to an all-reduce."""
        _, earliest, came, _ = self.sent[bucket]
        self.true.arrived_ns.append(max(earliest, self.free[_COMMUNICATION]))
        self.true.queued.append(came < self.free[_COMMUNICATION])
        return self.true.arrived_ns[-1]

    def end(self, bucket: int, end: int) -> None:
        self.true.ended_ns.append(end)
        correlation, _, _, facts = self.sent[bucket]
        start = self.true.arrived_ns[bucket]
        self.ran(self.dialect.nccl, _COMMUNICATION, start, end, correlation, **facts)

    def copy_out(self) -> None:
        """What ends a backward."""
        self.true.sync_end_ns = max([self.true.backward_end_ns, *self.true.ended_ns])
        for ended in self.true.ended_ns if self.job.copy_out_ns else ():
            copy = self.tick()
            _, self.true.sync_end_ns = self.kernel("copy_out", self.job.copy_out_ns, after=ended)
            self.operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", copy, self.tick())

    def finish(self, number: int) -> None:
        """A loss's all-reduce, the optimizer."""
        if self.job.clip_ns:
            self.kernel("norm_kernel", self.job.clip_ns, after=self.true.sync_end_ns)
        if self.job.loss_elements:
            facts = {"In msg nelems": self.job.loss_elements, "dtype": "Float"}
            begin = self.tick()
            at, correlation = self.launch(_THREAD)
            self.operator("record_param_comms", begin, self.tick(), _THREAD, **facts)
            start = max(self.free[_COMMUNICATION], self.true.sync_end_ns, at)
            facts = facts if self.dialect.arguments_on == "kernel" else {}
            self.ran(self.dialect.nccl, _COMMUNICATION, start, start + 20_000, correlation, **facts)
        began = self.tick()
        self.kernel("adam", self.job.optimizer_ns, _THREAD, after=self.true.sync_end_ns)
        self.event("user_annotation", "Optimizer.step#SGD.step", began, self.tick(), _THREAD)
        if self.dialect.steps:
            self.event("user_annotation", f"ProfilerStep#{number}", self.window, self.tick(), _THREAD)
        self.steps.append(self.true)
        if not self.job.runs_ahead:
            self.cpu = max(self.cpu, *self.free.values()) + CPU_NS

    def text(self) -> str:
        events = "[" + ",\n".join(self.events) + "]"
        if self.dialect.bare_list:
            return events
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.job.ranks}
        return (
            f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(info)}, "deviceProperties": '
            f'[{{"id": 0, "name": "A GPU"}}], "traceEvents": {events}, "traceName": "t"}}'
        )


def build(
    job: Job, dialect: Dialect, begin_ns: int = 1_780_000_000 * 10**9
) -> tuple[list[str], list[list[TrueStep]]]:
    """Each rank's trace as text, and its true steps."""
    ranks = [_Rank(rank, job, dialect, begin_ns) for rank in range(job.ranks)]
    for number in range(len(job.forward_ns)):
        for rank in ranks:
            rank.begin()
        for micro_batch in range(1, job.micro_batches + 1):
            is_last = micro_batch == job.micro_batches
            reduces = job.synchronises == "each" or (is_last and job.synchronises == "last")
            _micro_batch(ranks, number, reduces)
        for rank in ranks:
            rank.finish(number)
    for rank in ranks:
        for before, after in zip(rank.steps, rank.steps[1:], strict=False):
            before.end_ns = after.start_ns
    return [rank.text() for rank in ranks], [rank.steps for rank in ranks]


def _micro_batch(ranks: Sequence[_Rank], number: int, synchronises: bool) -> None:
    for rank in ranks:
        rank.forward(number)
        rank.backward(synchronises)
    job = ranks[0].job
    factor = job.transfer_factors[number] if job.transfer_factors else 1.0
    for bucket, transfer in enumerate(job.transfer_ns if synchronises else ()):
        end = max([rank.arrive(bucket) for rank in ranks]) + round(factor * transfer)
        for rank in ranks:
            rank.end(bucket, end)
    for rank in ranks:
        rank.copy_out()


def write(texts: Sequence[str], folder: Path, dialect: Dialect) -> list[Path]:
    """The traces as files."""
    paths = []
    for rank, text in enumerate(texts):
        path = folder / f"rank{rank}.json{'.gz' if dialect.zipped else ''}"
        path.write_bytes(gzip.compress(text.encode(), 1) if dialect.zipped else text.encode())
        paths.append(path)
    return paths


# What is read, with the figures of each step and bucket that tests hold against the known truth.


@dataclass(frozen=True)
class Traced:
    """An import of traces; its sentences by kind, and what it was made of."""

    imported: Imported
    seen: trace_import.Job

    def __getattr__(self, name: str) -> Any:
        return self.imported.said(name) if name in KINDS else getattr(self.imported, name)

    @property
    def steps(self) -> list[dict[str, int]]:
        """A row a step, in ns."""
        return [
            {
                "number": step.number,
                "step_ns": step.end_ns - step.start_ns,
                "forward_ns": step.backward_start_ns - step.start_ns,
                "backward_ns": step.backward_ns,
                "sync_end_ns": step.sync_end_ns - step.backward_start_ns,
                "copy_in_ns": step.copy_in_ns,
                "copy_out_ns": step.copy_out_ns,
            }
            for step in self.seen.steps
        ]

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """A row a bucket; what it took and what was waited in it in ns, by step."""
        clocks = self.seen.clocks
        return [
            {
                "num_elements": one.num_elements,
                "dtype": one.dtype,
                "num_bytes": one.num_bytes,
                "transfer_ns": clocks.transfers[:, place].tolist(),
                "waited_for_last_ns": np.ptp(clocks.starts[:, :, place], axis=1).tolist(),
            }
            for place, one in enumerate(self.seen.steps[0].reductions)
        ]

    @property
    def overlaps(self) -> dict[int, float | None]:
        """By rank, of computation and all communication."""
        return {one.trace.rank or 0: one.overlap for one in self.seen.ranks}


def read_kineto(paths: Sequence[Path], options: ImportOptions) -> Traced:
    """As the reader of that name."""
    seen = trace_import.see(paths, options)
    return Traced(trace_import.import_of(seen), seen)
