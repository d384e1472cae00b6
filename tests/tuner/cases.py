"""What the tuner's tests share: an oracle that tries every partition, and cases, random and realistic."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import numpy as np
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.problem import Problem
from tests.handmade import handmade, wired
from tests.oracle.stepper import copy, service
from tests.strategies import REAL, TINY, Scale, hardwares, workloads

MS = 1_000_000
MIB = 1 << 20
# Between tiny, where rounding decides, and real: hundreds of ns, where a half of one seldom does.
MIDDLE = Scale(work_ns=300, num_bytes=100, service_ns=300, launch_ns=60, rates=(1e8, 3e8, 7e8, 3e9, 1e10))

Buckets = tuple[tuple[int, ...], ...]
Case = tuple[Workload, Hardware]


# An oracle of our own: it knows the contract's rules and nothing of sim.tuner.


def cuttings(run: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to cut a run into contiguous pieces: 2 ** (len - 1)."""
    for mask in range(1 << (len(run) - 1)):
        pieces = [[run[0]]]
        for place, index in enumerate(run[1:]):
            if mask >> place & 1:
                pieces.append([index])
            else:
                pieces[-1].append(index)
        yield [tuple(piece) for piece in pieces]


def oracle_runs(workload: Workload) -> list[list[int]]:
    """Gradients in ready order, by dtype and device; a sparse one for itself."""
    runs: dict[object, list[int]] = {}
    for index in ready_places(workload):
        gradient = workload.gradients[index]
        key = index if gradient.sparse else (gradient.dtype, gradient.device)
        runs.setdefault(key, []).append(index)
    return list(runs.values())


def ready_places(workload: Workload) -> dict[int, int]:
    """The place of each gradient in ready order; ties by descending index."""
    order = workload.ready_order
    if order is None:
        ready = [one.ready_ns for one in workload.gradients]
        order = tuple(sorted(range(len(ready)), key=lambda index: (ready[index], -index)))
    return {index: place for place, index in enumerate(order)}


def contiguous_partitions(workload: Workload) -> Iterator[Buckets]:
    """All partitions contiguous in ready order within each dtype and device, launched in the order in
    which buckets become ready."""
    place = ready_places(workload)
    for pieces in product(*map(cuttings, oracle_runs(workload))):
        buckets = [bucket for run in pieces for bucket in run]
        yield tuple(sorted(buckets, key=lambda bucket: max(place[index] for index in bucket)))


def simulated(workload: Workload, hardware: Hardware, buckets: Buckets) -> int:
    """``sync_end_ns`` of these buckets by the analytic engine."""
    return sim.simulate(workload, hardware, Assignment(bucket_indices=buckets), engine="analytic").sync_end_ns


def brute_force(workload: Workload, hardware: Hardware) -> int:
    """Least ``sync_end_ns`` over all contiguous partitions, each simulated."""
    return min(simulated(workload, hardware, buckets) for buckets in contiguous_partitions(workload))


def one_channel_optimum(workload: Workload, hardware: Hardware) -> int:
    """The same minimum for one run, one FIFO channel and nothing stretched or blocked, from the contract's
    words alone: every cut tried, nothing pruned."""
    (run,) = oracle_runs(workload)
    copied = [0 if workload.gradients[i].sparse else workload.gradients[i].on_wire for i in run]
    wire = [workload.gradients[i].on_wire for i in run]
    into = None if "copy_in" in workload.ready_includes else hardware.copy_in_bytes_per_s
    ready, lane = [], 0
    for index, num_bytes in zip(run, copied, strict=True):
        lane += copy(num_bytes, into)
        ready.append((workload.gradients[index].ready_ns or 0) + lane)

    @cache
    def costs(start: int, stop: int) -> tuple[int, int]:
        return (
            service(hardware.all_reduce, sum(wire[start:stop]), hardware.world_size),
            sum(copy(size, hardware.copy_out_bytes_per_s) for size in copied[start:stop]),
        )

    def best(start: int, launched: int, ended: int, available: int) -> int:
        if start == len(run):
            return available
        found = []
        for stop in range(start + 1, len(run) + 1):
            serve, back = costs(start, stop)
            launch = max(launched, ready[stop - 1]) + hardware.launch_cost_ns
            end = max(launch, ended) + serve
            found.append(best(stop, launch, end, max(available, end) + back))
        return min(found)

    return best(0, 0, 0, workload.backward_ns + lane)


def is_contiguous(workload: Workload, buckets: Buckets) -> bool:
    """Whether these are all gradients, each bucket a stretch of one run, launched in ready order."""
    place = ready_places(workload)
    runs = {tuple(run) for run in oracle_runs(workload)}
    put_together: dict[object, list[int]] = {}
    for bucket in buckets:
        gradient = workload.gradients[bucket[0]]
        key = bucket[0] if gradient.sparse else (gradient.dtype, gradient.device)
        put_together.setdefault(key, []).extend(bucket)
    lasts = [max(place[index] for index in bucket) for bucket in buckets]
    return lasts == sorted(lasts) and {tuple(run) for run in put_together.values()} == runs


def compiled_minimum(problem: Problem) -> int:
    """Least ``sync_end_ns`` over all contiguous partitions by the compiled step, which tries thousands in a
    moment."""
    return int(problem.score_all(np.flatnonzero(~problem.run_ends)).min())


# Random cases.

SCALES = st.sampled_from([TINY, MIDDLE, REAL])


@st.composite
def one_run(draw: st.DrawFn, max_gradients: int) -> Case:
    """A case of the exact search: one dtype and device, one FIFO channel, launches beside the compute
    lane; copies in and out, any curve, ties, empty gradients, ``wire_bytes``."""
    scale = draw(SCALES)
    workload = draw(
        workloads(scale, max_gradients=max_gradients, dtypes=("float32",), devices=(None,), sparse=False)
    )
    machine = draw(hardwares(scale, stretches=False))
    if draw(st.booleans()):  # launches that take longer than what they launch
        machine = replace(machine, launch_cost_ns=draw(st.integers(0, 2 * scale.service_ns)))
    return workload, replace(machine, comm_channels=1, launch_blocks_compute=False)


def tiny(
    ready: list[int], sizes: list[int], curve: dict[int, int], backward_ns: int, **machine: object
) -> Case:
    """Gradients by their ready times and sizes; ``curve`` from bytes to ns."""
    workload = handmade(ready, sizes, name="tiny", backward_ns=backward_ns)
    return workload, wired(curve, **machine)


@st.composite
def anything(draw: st.DrawFn, max_gradients: int) -> Case:
    """Any case the nouns allow: channels, slow-downs, blocking launches, dtypes, sparse gradients."""
    scale = draw(SCALES)
    return draw(workloads(scale, max_gradients=max_gradients)), draw(hardwares(scale))


# Realistic cases.


def resnet50_layers() -> list[tuple[str, tuple[int, ...], float]]:
    """ResNet-50's 161 parameters in ``module.parameters()`` order: name, shape, forward multiply-adds."""
    layers: list[tuple[str, tuple[int, ...], float]] = []

    def conv(name: str, inputs: int, outputs: int, kernel: int, side: int) -> None:
        layers.append(
            (f"{name}.weight", (outputs, inputs, kernel, kernel), inputs * outputs * (kernel * side) ** 2)
        )
        layers.append((f"{name}.bn.weight", (outputs,), outputs * side**2))
        layers.append((f"{name}.bn.bias", (outputs,), 0.0))

    conv("stem", 3, 64, 7, 112)
    inputs, side = 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            into = side
            if stage and not block:
                side //= 2
            name = f"layer{stage + 1}.{block}"
            conv(f"{name}.conv1", inputs, width, 1, into)
            conv(f"{name}.conv2", width, width, 3, side)
            conv(f"{name}.conv3", width, 4 * width, 1, side)
            if not block:
                conv(f"{name}.downsample", inputs, 4 * width, 1, side)
            inputs = 4 * width
    layers.append(("fc.weight", (1000, 2048), 1000 * 2048))
    layers.append(("fc.bias", (1000,), 0.0))
    return layers


def from_layers(
    name: str, layers: Sequence[tuple[str, tuple[int, ...], float]], backward_ns: int, dtype: str = "float32"
) -> Workload:
    """Backward runs through the layers from the last to the first, each for as long as its share of work."""
    floor = 0.1 * sum(work for _, _, work in layers) / len(layers)  # a kernel costs something even when small
    total = sum(work + floor for _, _, work in layers)
    ready, done = [0] * len(layers), 0.0
    for index in reversed(range(len(layers))):
        done += layers[index][2] + floor
        ready[index] = min(backward_ns, round(backward_ns * done / total))
    return handmade(
        ready,
        name=name,
        names=[layer for layer, _, _ in layers],
        shapes=[shape for _, shape, _ in layers],
        dtypes=dtype,
        forward_ns=backward_ns // 2,
        backward_ns=backward_ns,
        optimizer_ns=3 * MS,
    )


def resnet50(backward_ms: float = 100) -> Workload:
    return from_layers("resnet50", resnet50_layers(), round(backward_ms * MS))


def transformer(blocks: int, width: int = 768, vocabulary: int = 50257, backward_ms: float = 100) -> Workload:
    """A GPT: 12 parameters a block, two embeddings first, a last norm."""
    layers: list[tuple[str, tuple[int, ...], float]] = [
        ("wte", (vocabulary, width), float(vocabulary * width)),
        ("wpe", (1024, width), 0.0),
    ]
    for block in range(blocks):
        for part, *shape in (
            *(("ln1", width), ("qkv", 3 * width, width), ("proj", width, width)),
            *(("ln2", width), ("fc", 4 * width, width), ("out", width, 4 * width)),
        ):
            work = float(math.prod(shape)) if len(shape) > 1 else 0.0
            layers.append((f"h{block}.{part}.weight", tuple(shape), work))
            layers.append((f"h{block}.{part}.bias", (shape[0],), 0.0))
    layers.append(("ln.weight", (width,), 0.0))
    layers.append(("ln.bias", (width,), 0.0))
    return from_layers(f"gpt{blocks}", layers, round(backward_ms * MS))


def large(count: int, seed: int = 0) -> Workload:
    """So many gradients of 4 bytes to 4 MB in a second of backward."""
    random = Random(seed)
    ready = sorted(random.randrange(10**9) for _ in range(count))
    sizes = [4 * round(10 ** random.uniform(0, 6)) for _ in range(count)]
    return handmade(ready[::-1], sizes, name="large", backward_ns=10**9 + 10**6)


def link(gbit_per_s: float, latency_us: float = 50.0, world_size: int = 2, **further: object) -> Hardware:
    """A machine with an affine curve: latency plus bytes over what the wire carries."""
    per_byte = 8 / gbit_per_s * 2 * (world_size - 1) / world_size  # ns
    sizes = [0, 1 << 10, 1 << 15, MIB, 32 * MIB, 512 * MIB]
    times = {size: round(latency_us * 1000 + per_byte * size) for size in sizes}
    return wired(times, name=f"{gbit_per_s:g} Gbit/s", world_size=world_size, **further)
