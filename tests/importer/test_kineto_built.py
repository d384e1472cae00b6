"""What a trace was built from comes back, to the nanosecond, in every dialect."""

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim import simulate, summarize
from sim.importer.imported import ImportOptions
from sim.importer.kineto.trace_import import Buckets, match_buckets
from sim.nouns.assignment import bucket_bytes
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import initial_buckets, rebuilt_buckets
from sim.units import median_ns
from tests.effort import tries
from tests.handmade import handmade
from tests.importer.built_traces import Dialect, Job, Traced, TrueStep, build, read_kineto, write

NCCL_NAMES = (
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)",
    "void ncclSymkDevKernel_AllReduce_AGxLL_R(ncclSymkDevWorkArgs)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*) [clone .kd]",
    "mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "void allreduce7<float>(float*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, unsigned long)",
)

DIALECTS = st.builds(
    Dialect,
    kernel=st.sampled_from(["kernel", "Kernel"]),
    operator=st.sampled_from(["cpu_op", "Operator"]),
    runtime=st.sampled_from(["cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime"]),
    dims=st.sampled_from(["Input Dims", "Input dims", None]),
    wrappers=st.booleans(),
    steps=st.booleans(),
    decimals=st.booleans(),
    zipped=st.booleans(),
    nccl=st.sampled_from(NCCL_NAMES),
    arguments_on=st.sampled_from(["record_param_comms", "kernel", "nccl:all_reduce"]),
    names_forward=st.booleans(),
)


@st.composite
def built(draw: st.DrawFn) -> tuple[Job, Dialect]:
    """A job of one to three ranks, and how its traces are written."""
    dialect = draw(DIALECTS)
    unit = 1 if dialect.decimals else 1_000
    times = st.integers(1, 400_000).map(lambda ns: ns // unit * unit + unit)
    offset = st.integers(-(10**12), 10**12).map(lambda ns: ns // unit * unit)
    buckets = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    ranks = draw(st.integers(1, 3)) if dialect.steps else 1

    def several(kind: st.SearchStrategy[Any], count: int) -> tuple[Any, ...]:
        return tuple(draw(st.lists(kind, min_size=count, max_size=count)))

    job = Job(
        shapes=several(st.lists(st.integers(2, 60), min_size=1, max_size=3).map(tuple), sum(buckets)),
        buckets=buckets,
        gradient_ns=several(times, sum(buckets)),
        transfer_ns=several(times, len(buckets)),
        forward_ns=tuple(several(times, ranks) for _ in range(draw(st.integers(1, 3)))),
        optimizer_ns=draw(times),
        copy_in_ns=draw(st.just(0) | times) if dialect.wrappers else 0,
        copy_out_ns=draw(st.just(0) | times) if dialect.wrappers else 0,
        offsets_ns=several(offset, ranks),
        micro_batches=draw(st.integers(1, 3)),
        synchronises=draw(st.sampled_from(["last", "each"] if dialect.dims else ["last"])),
        runs_ahead=draw(st.booleans()),
        prefetch_ns=draw(st.just(0) | times),
        clip_ns=draw(st.just(0) | times),
        # Without the engine's calls only a single element tells the loss of all ranks from a bucket.
        loss_elements=draw(st.sampled_from([0, 1, 10] if dialect.wrappers else [0, 1])),
    )
    return job, dialect


def imported(job: Job, dialect: Dialect, ranks: int | None = None) -> tuple[Traced, list[list[TrueStep]]]:
    """The traces of all ranks, or of the first ``ranks``, as they are read; and the truth of all."""
    texts, truth = build(job, dialect)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(texts[:ranks], Path(folder), dialect)
        return read_kineto(paths, ImportOptions(world_size=job.ranks)), truth


def came_last(truth: Sequence[Sequence[TrueStep]], step: int, bucket: int) -> list[int]:
    """The rank that came last to a bucket; none where a rank's channel was busy, or two came together."""
    arrived = [rank[step].arrived_ns[bucket] for rank in truth]
    is_told = not any(rank[step].queued[bucket] for rank in truth) and arrived.count(max(arrived)) == 1
    return [arrived.index(max(arrived))] if is_told else []


@settings(max_examples=tries(150), deadline=None)
@given(built())
def test_what_was_built_comes_back(case: tuple[Job, Dialect]) -> None:
    """Steps, ready times, transfers, clocks, who came last, and the record of when each bucket ran; a loss is
    no bucket, and clipping no copy."""
    job, dialect = case
    found, truth = imported(job, dialect)
    lasted = ([step.backward_end_ns - step.backward_start_ns for step in steps] for steps in truth)
    backwards = [*map(median_ns, lasted)]
    backward = max(backwards)
    steps = truth[backwards.index(backward)]
    assert any("1 other collectives" in line for line in found.found) == (job.loss_elements > 0)
    for row, step in zip(found.steps, steps, strict=True):
        assert row["forward_ns"] == step.backward_start_ns - step.start_ns
        assert row["backward_ns"] == step.backward_end_ns - step.backward_start_ns
        assert row["sync_end_ns"] == step.sync_end_ns - step.backward_start_ns
        assert step.end_ns == 0 or row["step_ns"] == step.end_ns - step.start_ns
    workload, left = found.workload, iter(job.shapes)
    assert workload.total_bytes == 4 * sum(map(prod, job.shapes))
    assert [row["num_elements"] for row in found.buckets] == [
        sum(prod(next(left)) for _ in range(count)) for count in job.buckets
    ]
    if dialect.dims is not None:
        gradients = [workload.gradients[index] for index in workload.order()]
        assert [one.shape for one in gradients] == list(job.shapes)
        ready = [
            min(backward, median_ns(times)) for times in zip(*(step.ready_ns for step in steps), strict=True)
        ]
        assert [one.ready_ns for one in gradients] == list(accumulate(ready, max))
    for bucket, row in enumerate(found.buckets):
        arrived = [[rank[step].arrived_ns[bucket] for rank in truth] for step in range(len(steps))]
        assert row["transfer_ns"] == [job.transfer_ns[bucket]] * len(steps)
        assert row["waited_for_last_ns"] == [max(times) - min(times) for times in arrived]
    last = [
        rank
        for step in range(len(steps))
        for bucket in range(len(job.buckets))
        for rank in came_last(truth, step, bucket)
    ]
    for rank, row in enumerate(found.ranks):
        told = (job.offsets_ns[rank] - job.offsets_ns[0], 0, last.count(rank) if last else None)
        seen = (row.clock_offset_ns, row.clock_scatter_ns, row.came_last)
        assert (row.rank, *seen) == (rank, *(told if job.ranks > 1 else (None, None, None)))
    assert bool(found.measurements) == (job.ranks > 1)
    for measurement in found.measurements:
        for place, (iteration, step) in enumerate(zip(measurement.iterations, steps, strict=True)):
            begin = step.backward_start_ns
            for bucket, seen in enumerate(iteration.buckets):
                arrived = max(rank[place].arrived_ns[bucket] for rank in truth)
                assert seen.start_ns == max(0, arrived - begin)
                assert seen.end_ns == step.ended_ns[bucket] - begin
            assert iteration.backward_end_ns <= iteration.sync_end_ns <= iteration.step_ns


def test_a_rank_played_from_its_own_parts_takes_as_long_as_it_did() -> None:
    """Ranks alike, buckets of sizes apart, no copies: to the nanosecond."""
    job = Job(
        shapes=((256, 256), (256,), (128, 256), (128,), (64, 128)),
        buckets=(1, 2, 2),
        gradient_ns=(80_000, 20_000, 150_000, 30_000, 60_000),
        transfer_ns=(300_000, 120_000, 90_000),
        forward_ns=((400_000, 400_000),) * 4,
        offsets_ns=(0, -12_345),
    )
    found, truth = imported(job, Dialect())
    assert found.workload is not None
    assert found.measurements[0].asked is not None
    report = summarize(simulate(found.workload, found.hardware[0], found.measurements[0].asked))
    step = truth[0][0]
    assert report.sync_end_ns == step.sync_end_ns - step.backward_start_ns


def test_a_step_unlike_the_others_is_left_out_on_all_ranks() -> None:
    """Rank 1's second step lost a kernel of an all-reduce: the profiler's buffer was full."""
    job = Job(
        shapes=((8, 8), (8,), (8, 4)),
        buckets=(1, 2),
        gradient_ns=(40_000, 20_000, 30_000),
        transfer_ns=(30_000, 20_000),
        forward_ns=((50_000, 60_000),) * 4,
        offsets_ns=(0, 5_000),
    )
    texts, _ = build(job, Dialect())
    lines = texts[1].splitlines()
    del lines[[place for place, line in enumerate(lines) if "ncclDevKernel" in line][2]]
    with tempfile.TemporaryDirectory() as folder:
        found = read_kineto(write([texts[0], "\n".join(lines)], Path(folder), Dialect()), ImportOptions())
    (line,) = found.dropped
    assert "rank1" in line
    assert "steps 1 whose gradients or all-reduces are not those of most (3 gradients in 2 all-red" in line
    assert found.buckets[0]["transfer_ns"] == [30_000] * 3
    assert found.ranks[1].clock_offset_ns == 5_000
    assert {row["number"] for row in found.steps} == {0, 2, 3}


# Buckets told by their sizes, against DDP's rules (A1 to A2) on random models.


@st.composite
def models(
    draw: st.DrawFn,
    dtypes: tuple[str, ...],
    least_bytes: int = 1,
    most_bytes: int = 10**6,
    *,
    powers: bool = False,
) -> Workload:
    """A model whose gradients become ready in any order; some may stay unused.

    ``powers``: each size is a power of 2 of its own, so that no two sets of gradients have one sum.
    """
    count = draw(st.integers(1, 25))
    times = draw(st.permutations(range(count)))
    unused = draw(st.sets(st.integers(0, count - 1), max_size=2)) if count > 2 else set()
    exponents = draw(st.permutations(range(count)))
    sizes = st.integers(least_bytes, most_bytes)
    return handmade(
        [None if index in unused else times[index] for index in range(count)],
        [1 << exponents[index] if powers else draw(sizes) for index in range(count)],
        name="model",
        dtypes=[draw(st.sampled_from(dtypes)) for _ in range(count)],
        sparse=[index for index in range(count) if draw(st.integers(0, 9)) == 0],
        backward_ns=count,
    )


LIMITS = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=4)


def matched(sizes: Sequence[int], model: Workload) -> Buckets:
    """The buckets of these sizes."""
    found = match_buckets(sizes, model.gradients, model.order())
    assert found is not None
    return found


def as_tuples(buckets: list[list[int]]) -> Buckets:
    return tuple(map(tuple, buckets))


@settings(max_examples=tries(120), deadline=None)
@given(models(("float32", "bfloat16", "float64"), powers=True), LIMITS, st.booleans())
def test_every_walk_of_ddp_comes_back(model: Workload, limits: list[int], is_rebuilt: bool) -> None:
    """A2.3 and A2.4 over several dtypes, where no two buckets can have one size; a byte more fits nowhere."""
    buckets = as_tuples((rebuilt_buckets if is_rebuilt else initial_buckets)(model, limits))
    sizes = list(bucket_bytes(model, buckets))
    found = matched(sizes, model)
    assert [sorted(bucket) for bucket in found] == [sorted(bucket) for bucket in buckets]
    sizes[len(sizes) // 2] += 1
    assert match_buckets(sizes, model.gradients, model.order()) is None


@settings(max_examples=tries(120), deadline=None)
@given(models(("float32", "bfloat16"), least_bytes=0, most_bytes=3), st.lists(st.integers(0, 6), min_size=1))
def test_where_sizes_leave_a_choice_the_answer_is_a_legal_one(model: Workload, limits: list[int]) -> None:
    """Empty tensors and equal sums: whatever comes back has these sizes, every index once, one dtype each."""
    sizes = bucket_bytes(model, as_tuples(rebuilt_buckets(model, limits)))
    found = matched(sizes, model)
    assert bucket_bytes(model, found) == sizes
    assert sorted(index for bucket in found for index in bucket) == list(range(len(model.gradients)))
    assert all(len({model.gradients[index].key for index in bucket}) == 1 for bucket in found)


def test_modules_that_are_wrapped_apart() -> None:
    """A bucket of one inside a bucket of another, as in DLRM, which travel as half."""
    elements = [7, 50, 112, 300, 20, 400]
    plain = handmade(range(9, 3, -1), [4 * n for n in elements], name="m", backward_ns=10)
    each = zip(plain.gradients, elements, strict=True)
    gradients = tuple(replace(one, wire_bytes=2 * n) for one, n in each)
    sizes = [2 * n for n in (420, 112, 357)]
    assert matched(sizes, replace(plain, gradients=gradients)) == ((5, 4), (2,), (3, 1, 0))


def test_many_equal_gradients_of_many_dtypes_end_in_time() -> None:
    """The search branches at every bucket here; it gives up rather than hang."""
    dtypes = ("float32", "int32", "float64", "int64", "complex64", "float16", "bfloat16", "int8")
    order = list(range(160))
    random.Random(7).shuffle(order)
    model = handmade(order, dtypes=[dtypes[i % 8] for i in range(160)])
    start = time.process_time()
    assert match_buckets([16] * 79 + [15, 1], model.gradients, model.order()) is None
    assert time.process_time() - start < 10
