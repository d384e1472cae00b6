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

CPU_NS = 2_000  # between two launches
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
    named_copies: bool = True
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

    def __init__(self, rank: int, job: Job, dialect: Dialect, begin_ns: int, first: int) -> None:
        self.rank, self.job, self.dialect = rank, job, dialect
        self.cpu = begin_ns
        self.free = {_COMPUTE: 0, _COMMUNICATION: 0, _SIDE: 0}
        self.events: list[str] = []
        self.correlation = 100_000 + 10_000 * first
        self.buckets: list[tuple[int, int]] = []  # correlation, when the compute stream came to it
        self.came: list[int] = []
        self.sent: list[dict[str, Any]] = []
        self.steps: list[TrueStep] = []
        self.true = TrueStep()
        self.window = 0

    def event(self, category: str, name: str, start: int, end: int, thread: int, **arguments: Any) -> None:
        head = json.dumps({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread})[:-1]
        shown = [self.time(start + self.job.offsets_ns[self.rank]), self.time(end - start)]
        rest = json.dumps(arguments)
        self.events.append(f'{head}, "ts": {shown[0]}, "dur": {shown[1]}, "args": {rest}}}')

    def time(self, time_ns: int) -> str:
        whole, rest = divmod(time_ns, 1000)
        if self.dialect.decimals:
            return f"{whole}.{rest:03d}"
        assert rest == 0, "a trace of whole microseconds"
        return str(whole)

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

    def kernel(self, name: str, duration: int, thread: int = _AUTOGRAD, after: int = 0) -> tuple[int, int]:
        at, correlation = self.launch(thread)
        start = max(self.free[_COMPUTE], at + CPU_NS, after)
        self.free[_COMPUTE] = start + duration
        self.event(
            self.dialect.kernel,
            name,
            start,
            start + duration,
            _COMPUTE,
            stream=_COMPUTE,
            correlation=correlation,
        )
        return start, start + duration

    def begin(self) -> None:
        """A step, with what runs beside its first forward."""
        self.window = self.tick()
        self.true = TrueStep()
        if self.job.prefetch_ns:
            began = self.tick()
            at, correlation = self.launch(_THREAD)
            self.operator("aten::_to_copy", began, self.tick(), _THREAD)
            start = max(self.free[_SIDE], at + CPU_NS)
            self.free[_SIDE] = start + self.job.prefetch_ns
            name, facts = "Memcpy HtoD (Pinned -> Device)", {"stream": _SIDE, "correlation": correlation}
            self.event("gpu_memcpy", name, start, self.free[_SIDE], _SIDE, **facts)
            self.true.start_ns = start if start >= self.free[_COMPUTE] else 0

    def forward(self, number: int) -> None:
        if self.dialect.names_forward:
            self.operator("DistributedDataParallel.forward", self.tick(), self.cpu + 3 * CPU_NS, _THREAD)
        self.operator("aten::linear", self.tick(), self.cpu + 1_000, _THREAD)
        begin, _ = self.kernel("gemm", self.job.forward_ns[number][self.rank], _THREAD)
        self.true.start_ns = min(self.true.start_ns or begin, begin)

    def backward(self, synchronises: bool) -> None:
        """All kernels of backward, and the launches of the all-reduces; they run later."""
        self.buckets, self.sent, self.came = [], [], []
        true = self.true
        true.ready_ns, true.arrived_ns, true.queued, true.ended_ns = [], [], [], []
        place = 0
        for bucket, count in enumerate(self.job.buckets):
            for inside in range(count):
                self.gradient(place, bucket if inside == count - 1 and synchronises else None, synchronises)
                place += 1
        self.true.backward_end_ns = self.free[_COMPUTE]

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
            self.operator("autograd::engine::evaluate_function: " + name, began, self.tick())
        self.operator(name, began, self.cpu)
        outer = self.tick()
        inner = self.tick()
        shown: dict[str, Any] = {}
        if self.dialect.dims:
            shown = {self.dialect.dims: [list(job.shapes[place])], "Input type": ["float"]}
        self.operator("torch::autograd::AccumulateGrad", inner, self.tick(), **shown)
        if job.copy_in_ns and synchronises:
            copy = self.tick()
            _, end = self.kernel("copy_kernel", job.copy_in_ns)
            if self.dialect.named_copies:
                self.operator("torch::distributed::reducer::mul_out", copy, self.tick())
        self.true.ready_ns.append(end - self.true.backward_start_ns)
        if closes is not None:
            self.send(closes)
        if self.dialect.wrappers:
            self.operator(
                "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", outer, self.tick()
            )

    def send(self, bucket: int) -> None:
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
        self.buckets.append((correlation, max(self.free[_COMPUTE], at + CPU_NS)))
        self.came.append(max(self.free[_COMPUTE], at))
        self.sent.append(facts if self.dialect.arguments_on == "kernel" else {})

    def arrive(self, bucket: int) -> int:
        """When this rank comes to an all-reduce."""
        arrived = max(self.buckets[bucket][1], self.free[_COMMUNICATION])
        self.true.arrived_ns.append(arrived)
        self.true.queued.append(self.came[bucket] < self.free[_COMMUNICATION])
        return arrived

    def end(self, bucket: int, end: int) -> None:
        self.free[_COMMUNICATION] = end
        self.true.ended_ns.append(end)
        self.event(
            self.dialect.kernel,
            self.dialect.nccl,
            self.true.arrived_ns[bucket],
            end,
            _COMMUNICATION,
            stream=_COMMUNICATION,
            correlation=self.buckets[bucket][0],
            **self.sent[bucket],
        )

    def copy_out(self) -> None:
        """What ends a backward."""
        self.true.sync_end_ns = max([self.true.backward_end_ns, *self.true.ended_ns])
        if self.job.copy_out_ns:
            for ended in self.true.ended_ns:
                copy = self.tick()
                _, self.true.sync_end_ns = self.kernel("copy_out", self.job.copy_out_ns, after=ended)
                if self.dialect.named_copies:
                    name = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
                    self.operator(name, copy, self.tick())

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
            self.free[_COMMUNICATION] = start + 20_000
            self.event(
                self.dialect.kernel,
                self.dialect.nccl,
                start,
                start + 20_000,
                _COMMUNICATION,
                stream=_COMMUNICATION,
                correlation=correlation,
                **(facts if self.dialect.arguments_on == "kernel" else {}),
            )
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
    job: Job, dialect: Dialect, begin_ns: int = 1_780_000_000 * 10**9, first: int = 0
) -> tuple[list[str], list[list[TrueStep]]]:
    """Each rank's trace as text, and its true steps, numbered from ``first``."""
    ranks = [_Rank(rank, job, dialect, begin_ns, first) for rank in range(job.ranks)]
    for number in range(len(job.forward_ns)):
        for rank in ranks:
            rank.begin()
        for micro_batch in range(1, job.micro_batches + 1):
            is_last = micro_batch == job.micro_batches
            _micro_batch(
                ranks, number, job.synchronises == "each" or (is_last and job.synchronises == "last")
            )
        for rank in ranks:
            rank.finish(first + number)
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
