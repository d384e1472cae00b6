"""Traces that were built and then changed: what steps are, which ranks are missing, and what is declined."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError, NotModelledError, SimError
from sim.importer.imported import ImportOptions
from sim.importer.kineto.events import SPAN, Spans
from sim.importer.kineto.steps import FEWEST_KERNELS, find_interference
from sim.nouns.measurement import Record
from tests.effort import tries
from tests.importer.built_traces import NODE, Dialect, Job, Traced, build, read_kineto
from tests.importer.test_kineto_built import imported

JOB = Job(
    shapes=((100, 100), (100,), (200, 100), (200,), (300, 200), (300,)),
    buckets=(2, 2, 2),
    gradient_ns=(300_000,) * 6,
    transfer_ns=(400_000, 500_000, 600_000),
    forward_ns=((1_000_000, 1_700_000),) * 4,
    copy_in_ns=5_000,
    copy_out_ns=10_000,
    offsets_ns=(0, 3_000_000_000),
)
ALONE = replace(JOB, offsets_ns=(0,), copy_in_ns=0, copy_out_ns=0, synchronises="none")
_Events = list[dict[str, Any]]


def events(job: Job = JOB, dialect: Dialect | None = None) -> _Events:
    """The trace of the first rank, to be changed; its times are exact as floats."""
    text = build(job, dialect or Dialect(arguments_on="kernel"), begin_ns=10**12)[0][0]
    found: _Events = json.loads(text)["traceEvents"]
    return found


def read(trace: _Events, folder: Path, **header: Any) -> Traced:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": trace, **header}))
    return read_kineto([path], ImportOptions(world_size=2))


def without(trace: _Events, *words: str) -> _Events:
    """The events whose name and category begin with none of these words."""
    return [one for one in trace if not (one["name"].startswith(words) or one["cat"] in words)]


@pytest.mark.parametrize(("micro_batches", "steps"), [(1, True), (2, True), (4, True), (2, False)])
def test_micro_batches_on_one_gpu_are_not_one_backward(micro_batches: int, steps: bool) -> None:
    found, truth = imported(replace(ALONE, micro_batches=micro_batches), Dialect(steps=steps))
    assert [gradient.shape for gradient in found.workload.gradients[::-1]] == list(JOB.shapes)
    assert found.workload.backward_ns == 1_800_000
    assert found.workload.forward_ns == truth[0][0].backward_start_ns - truth[0][0].start_ns
    assert found.workload.optimizer_ns < 100_000


def cpu_alone(shapes: Sequence[Sequence[int]]) -> _Events:
    """Steps of one thread of the CPU, which runs forward and backward."""
    lines, now = _Events(), 10**12

    def event(name: str, length: int, category: str = "cpu_op", **arguments: object) -> None:
        head = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "args": arguments}
        lines.append(head | {"ts": now // 1000, "dur": length // 1000})

    for number in range(3):
        began = now
        event("aten::linear", 200_000)
        now += 200_000
        for shape in shapes:
            event("autograd::engine::evaluate_function: AddmmBackward0", 90_000)
            now += 100_000
            event("torch::autograd::AccumulateGrad", 4_000, **{"Input Dims": [list(shape)]})
            now += 10_000
        event("Optimizer.step#SGD.step", 50_000, "user_annotation")
        now += 60_000
        length, now = now - began, began
        event(f"ProfilerStep#{number}", length - 1_000, "user_annotation")
        now += length
    return lines


@pytest.mark.parametrize("shapes", [[(8, 8), (8,), (8, 8), (8,)], [(4, 4)] * 4, [(3, 2), (3,)]])
def test_layers_alike_on_the_cpu_are_no_micro_batches(shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    workload = read(cpu_alone(shapes), tmp_path).workload
    assert [gradient.shape for gradient in workload.gradients[::-1]] == shapes
    assert workload.backward_ns == 110_000 * len(shapes) - 6_000


@pytest.mark.parametrize("during", ["aten::linear", "torch::autograd::AccumulateGrad", "Optimizer.step"])
def test_the_end_of_a_step_before_the_trace_is_no_steps_own(during: str, tmp_path: Path) -> None:
    """The device still reduces for a step that the trace does not have, while it shows the next one."""
    trace = events(replace(JOB, offsets_ns=(0,)))
    begin = min(one["ts"] for one in trace if one["name"] == "ProfilerStep#1")
    at = min(one["ts"] for one in trace if one["ts"] > begin and one["name"].startswith(during))
    earlier = [one for one in trace if one["ts"] < begin and one["name"].startswith("nccl")]
    assert len(earlier) == 3
    moved = [one | {"ts": round(at + 1 + place, 3), "dur": 0.9} for place, one in enumerate(earlier)]
    found = read([*(one for one in trace if one["ts"] >= begin), *moved], tmp_path)
    assert not any("other collectives" in line for line in found.found)
    assert [row["num_elements"] for row in found.buckets] == [10_100, 20_200, 60_300]


@pytest.mark.parametrize("late_ns", [0, 1, 500, 1_000])
def test_a_copy_out_may_seem_to_begin_before_its_collective_ends(late_ns: int, tmp_path: Path) -> None:
    """Streams' times have a resolution: a nanosecond is no wait of 0.6 ms."""
    trace = events(replace(JOB, offsets_ns=(0,)))
    for event in trace:
        if event["name"].startswith("nccl"):
            event["dur"] = round(event["dur"] + late_ns / 1000, 3)
    assert {row["copy_out_ns"] for row in read(trace, tmp_path).steps} == {30_000}


@pytest.mark.parametrize("lost", ["the beginning", "the device's forward"])
def test_a_step_without_its_forward_is_dropped(lost: str, tmp_path: Path) -> None:
    """The trace begins in the midst of its backward, or has not what the device did before it."""
    job = replace(JOB, forward_ns=JOB.forward_ns[:2], offsets_ns=(0,))
    trace = events(job, Dialect(steps=lost != "the beginning"))
    third = [one["ts"] for one in trace if one["name"] == "torch::autograd::AccumulateGrad"][2]
    first = min(one["ts"] for one in trace if one["name"].startswith("nccl"))

    def is_lost(event: dict[str, Any]) -> bool:
        begins = event["ts"] <= third + 1
        return begins if lost == "the beginning" else event["cat"] == "kernel" and event["ts"] < first

    found = read([one for one in trace if not is_lost(one)], tmp_path)
    (row,) = found.steps
    assert (row["number"], row["forward_ns"]) == (1, 1_000_000)
    assert any("1 steps without their forward in the trace" in line for line in found.dropped)


def test_a_compiled_backward_that_sends_its_gradients_itself_gives_no_workload(tmp_path: Path) -> None:
    """They are accumulated after the last all-reduce: what each one's ready time is nothing tells."""
    trace = events(replace(ALONE, buckets=(1,) * 6, transfer_ns=(100_000,) * 6, synchronises="last"))
    for step in [one for one in trace if one["name"].startswith("ProfilerStep")]:
        inside = [one for one in trace if step["ts"] <= one["ts"] < step["ts"] + step["dur"]]
        optimizer = next(one for one in inside if one["name"].startswith("Optimizer"))
        moved = [one for one in inside if one["name"] == "torch::autograd::AccumulateGrad"]
        for place, one in enumerate(moved):
            one |= {"ts": round(optimizer["ts"] - 1 + place * 0.01, 3), "dur": 0.005}
    found = read(without(trace, NODE + "torch::autograd::AccumulateGrad"), tmp_path)
    assert len(found.buckets) == 6
    assert found.workload is None
    assert any("compiled backward" in line for line in found.missing)


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_steps_that_differ_manifold_the_quiet_ones_are_taken(ranks: int) -> None:
    """Be they the minority; the others are named."""
    job = replace(JOB, forward_ns=((1_000_000,) * ranks,) * 5, offsets_ns=(0, 3_000_000)[:ranks])
    quiet, _ = imported(replace(job, forward_ns=job.forward_ns[:3]), Dialect())
    found, _ = imported(replace(job, stalls_ns=(0, 0, 90_000_000, 95_000_000, 96_000_000)), Dialect())
    assert found.workload.backward_ns == quiet.workload.backward_ns
    assert [row["number"] for row in found.steps] == [0, 1]
    assert not quiet.doubtful
    assert [line for line in found.doubtful if "3 steps of 5 left out" in line] == list(found.doubtful) != []
    for record in found.measurements:
        assert (len(record.iterations), record.dropped_warmup) == (2, 3)
    assert all(row.backward_ns == quiet.workload.backward_ns for row in found.ranks)


def test_no_two_steps_alike_are_refused() -> None:
    forward = tuple((time,) for time in (1_000_000, 20_000_000, 90_000_000))
    with pytest.raises(InputError, match="no two steps in it take about as long"):
        imported(replace(JOB, offsets_ns=(0,), forward_ns=forward), Dialect())


# Several ranks: who is missing, which group reduces, whose clock is whose, which steps belong together.


def ranks(folder: Path, change: Callable[[int, dict[str, Any]], None], **dialect: Any) -> Traced:
    """The traces of both ranks, each changed."""
    paths = []
    for rank, text in enumerate(build(JOB, Dialect(**dialect))[0]):
        trace = json.loads(text, parse_float=str)
        change(rank, trace)
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(trace))
    return read_kineto(paths, ImportOptions())


@pytest.mark.parametrize("said", ["nccl", "undefined", "cpu:gloo,cuda:nccl"])
def test_the_backend_is_the_one_of_gpus_however_the_group_was_made(tmp_path: Path, said: str) -> None:
    found = ranks(tmp_path, lambda rank, trace: trace["distributedInfo"].update(backend=said))
    assert found.workload is not None
    for made in (found.workload, *found.hardware):
        assert (made.provenance["device_type"], made.provenance["backend"]) == ("cuda", "nccl")
    assert {one.backend for one in found.measurements} == {"nccl"}


def test_where_ranks_are_missing_there_are_bounds_and_no_last_comer(tmp_path: Path) -> None:
    found = ranks(tmp_path, lambda rank, trace: trace["distributedInfo"].update(world_size=8))
    assert any("WARNING: 2 of 8 ranks" in line for line in found.assumed)
    assert [(row.came_last, row.waited_ns) for row in found.ranks] == [(None, None)] * 2
    (hardware,) = found.hardware
    times = [point.duration_ns for point in hardware.all_reduce]
    assert times == sorted(times)
    assert hardware.world_size == 8
    assert hardware.provenance["curve"] == "ranks are missing: an upper bound"


@pytest.mark.parametrize("size", [2, 1])
def test_the_world_is_the_group_that_reduces(size: int, tmp_path: Path) -> None:
    """A group has no more traces than ranks; clocks count from their traces' bases."""

    def change(rank: int, trace: dict[str, Any]) -> None:
        trace["distributedInfo"]["world_size"] = 16
        trace["baseTimeNanoseconds"] = 7_000_000_000 * rank
        for event in trace["traceEvents"]:
            if event["name"] == "record_param_comms":
                event["args"]["Group size"] = size

    if size == 1:
        with pytest.raises(InputError, match="reduced over 1 ranks, and there are 2 traces"):
            ranks(tmp_path, change)
        return
    found = ranks(tmp_path, change)
    assert found.hardware[0].world_size == 2
    assert any("2 of the job's 16 ranks" in line for line in found.found)
    assert found.ranks[1].clock_offset_ns == 10_000_000_000


def test_files_of_one_rank_or_of_several_jobs_are_errors(tmp_path: Path) -> None:
    texts, _ = build(JOB, Dialect())
    other = replace(JOB, shapes=((9, 9), (9,)) * 3)
    first, second = (tmp_path / name for name in ("a.json", "b.json"))
    first.write_text(texts[0])
    for text, why in (
        (texts[0], "one file of each rank"),
        (texts[1].replace('"world_size": 2', '"world_size": 4'), "give the traces of one job"),
        (build(JOB, Dialect(bare_list=True))[0][1], "do not say of which rank"),
        (build(JOB, Dialect(steps=False))[0][1], r"steps without numbers.* call profiler\.step\(\)"),
        (build(other, Dialect())[0][1], r"b.json: step 0: its all-reduces .* are not those of .*a.json"),
        (texts[1].replace("ProfilerStep#", "ProfilerStep#10"), "shares no step"),
    ):
        second.write_text(text)
        with pytest.raises(InputError, match=why):
            read_kineto([first, second], ImportOptions())
    with pytest.raises(InputError, match="over 2 ranks, but --world-size says 8"):
        read_kineto([first], ImportOptions(world_size=8))


# What is no replicated data parallelism is declined, and what only looks like it is not.


def added(trace: _Events, name: str, count: int, inside: str, **arguments: Any) -> _Events:
    """With kernels of a name in every step, launched within operators of another name on its thread."""
    hosts, more = [event for event in trace if event["name"].startswith(inside)], _Events()
    assert hosts
    for number in range(count):
        for place, host in enumerate(hosts):
            launch = {"correlation": 10**6 + number * 1000 + place}
            at = host["ts"] + host["dur"] * (number + 1) / (count + 2)
            one = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": host["tid"]}
            more.append(one | {"ts": round(at, 3), "dur": 0.001, "args": launch})
            facts = {"stream": 30, **launch, **arguments}
            one = {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{name}(ncclDevKernelArgs)", "tid": 30}
            more.append(one | {"ts": round(at + 1, 3), "dur": 5, "args": facts})
    return [*trace, *more]


STEP, GRAD, SEND, REDUCE = "ProfilerStep", "AddmmBackward", {"Collective name": "send"}, "AllReduce_Sum_f32"
TENSOR = "6 all-reduces a step .* tensor parallelism"


@pytest.mark.parametrize(
    ("reduces", "kernels", "why"),
    [
        (False, [("AllGather", 2, STEP, {}), ("ReduceScatter", 2, STEP, {})], "2 all-gathers and 2 reduce-s"),
        (False, [("ReduceScatter", 1, "AddmmBackward1", {})], "zero2"),
        (True, [("SendRecv", 3, STEP, SEND)], "3 sends and receives"),
        (True, [(REDUCE, 1, GRAD, {})], TENSOR),
        (True, [(REDUCE, 1, GRAD, {"In msg nelems": 65_536})], TENSOR),
    ],
)
def test_other_ways_to_train_are_told_by_what_they_send(
    reduces: bool, kernels: list[tuple[str, int, str, dict[str, Any]]], why: str, tmp_path: Path
) -> None:
    trace = [event for event in events() if reduces or "AllReduce" not in event["name"]]
    for name, count, inside, facts in kernels:
        trace = added(trace, name, count, inside, **facts)
    with pytest.raises(NotModelledError, match=why):
        read(trace, tmp_path)


@pytest.mark.parametrize("name", ["FullyShardedDataParallel.forward", "FSDP::pre_backward", "fsdp::copy_in"])
def test_fsdp_is_told_by_its_names(name: str, tmp_path: Path) -> None:
    one = {"ph": "X", "cat": "cpu_op", "name": name, "tid": 100, "pid": 1, "ts": 10**9, "dur": 1}
    with pytest.raises(NotModelledError, match="sharded training"):
        read([*events(), one], tmp_path)


def test_what_only_looks_like_another_way_to_train_is_read(tmp_path: Path) -> None:
    """All-to-alls run as send and receive; SyncBatchNorm all-reduces in nodes, told by size or name."""
    found = read(added(events(), "SendRecv", 2, STEP, **{"Collective name": "all_to_allv"}), tmp_path)
    assert any("2 other collectives a step (all_to_all)" in line for line in found.found)
    for wrappers in (True, False):
        trace = events(dialect=Dialect(arguments_on="kernel", wrappers=wrappers))
        assert len(read(added(trace, REDUCE, 1, GRAD, **{"In msg nelems": 64}), tmp_path).buckets) == 3
    trace = added(events(), REDUCE, 1, GRAD)
    for event in trace:
        event["name"] = event["name"].replace("AddmmBackward0", "SyncBatchNormBackward")
    assert len(read(trace, tmp_path).buckets) == 3


def test_several_models_in_turn_are_declined(tmp_path: Path) -> None:
    """A GAN: an optimizer's step lies between two backwards of one of the profiler's steps."""
    trace = events(replace(JOB, micro_batches=2, synchronises="each"))
    assert len(read(trace, tmp_path).buckets) == 3
    forwards = [event for event in trace if event["name"] == "aten::linear"]
    name = {"name": "Optimizer.step#Adam.step", "cat": "user_annotation"}
    trace += [one | name | {"ts": one["ts"] - 0.5, "dur": 0.1} for one in forwards[1::2]]
    with pytest.raises(NotModelledError, match=r"step 2 has 2 backwards .* several models in turn"):
        read(trace, tmp_path)


@pytest.mark.parametrize(
    ("lost", "why", "error"),
    [
        (("torch::auto", "autograd", GRAD), "backward is not in it: inference", NotModelledError),
        (("torch::auto", NODE + "torch"), "accumulates no gradient", NotModelledError),
        (("cpu_op", "user_annotation", "cuda_runtime"), r"ProfilerActivity\.CPU", InputError),
        (("Optimizer", STEP), r"where a step begins; call profiler\.step\(\) each iteration", InputError),
        (
            ("kernel",),
            r"launches, or events of categories that are not read, and no kernel of a GPU",
            InputError,
        ),
    ],
)
def test_what_is_no_trace_of_training_is_refused(
    lost: tuple[str, ...], why: str, error: type[SimError], tmp_path: Path
) -> None:
    trace = events(replace(JOB, forward_ns=JOB.forward_ns * 4))
    with pytest.raises(error, match=why):
        read(without(trace, *lost), tmp_path)


@pytest.mark.parametrize("backend", ["nccl", "hccl", "xccl"])
def test_a_gpus_collectives_without_its_kernels_are_no_cpus(backend: str, tmp_path: Path) -> None:
    kept = without(events(dialect=Dialect()), "kernel", "cuda_runtime")
    assert read(kept, tmp_path).workload is not None  # nothing in it tells of a device
    info = {"backend": backend, "rank": 0, "world_size": 2}
    with pytest.raises(InputError, match=rf"backend is {backend}, and no kernel .* ProfilerActivity\.CUDA"):
        read(kept, tmp_path, distributedInfo=info)
    named = without(events(dialect=Dialect(arguments_on="nccl:all_reduce")), "kernel", "cuda_runtime")
    for event in named:
        event["name"] = event["name"].replace("nccl:", f"{backend}:")
    with pytest.raises(InputError, match=f"12 collectives of {backend}, and no kernel of a GPU"):
        read(named, tmp_path)


@pytest.mark.parametrize("category", ["hpu_op", "MTIA_CCP_Events", "privateuse1_op", "strange\n", None])
def test_many_events_of_an_unknown_category_are_no_cpu(category: str | None, tmp_path: Path) -> None:
    """As of a vendor's own profiler, which may write no category at all."""
    one = {"ph": "X", "name": "MatMul", "tid": 5, "pid": 9, "ts": 10**9, "dur": 5, "args": {}}
    one |= {} if category is None else {"cat": category}
    trace = cpu_alone([(8, 8), (8,)])
    assert read(trace + [one] * 99, tmp_path).workload is not None
    with pytest.raises(InputError, match="100 launches, or events of categories that are not read"):
        read(trace + [one] * 100, tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(({"ts": time}, f"ts: {time!r} is not legal") for time in ("soon", None, True)),
        *(({"ts": time}, "give a time in microseconds") for time in (10**30, "1e999999999", "9" * 5000)),
        ({"dur": [1]}, r"dur: \[1\] is not legal"),
        ({"args": 7}, r"got `int` - at `\$\[\d+\]\.args`"),
        ({"name": 7}, r"got `int` - at `\$\[\d+\]\.name`"),
    ],
)
def test_an_event_that_is_not_legal_is_named(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    trace = events()
    next(event for event in trace if event["cat"] == "kernel").update(change)
    with pytest.raises(InputError, match=why) as error:
        read(trace, tmp_path)
    assert "trace.json: traceEvents " in str(error.value)
    assert len(str(error.value)) < 300


# What collectives cost computation, from kernels that one step ran beside one and another step alone; and
# what a rank alone tells of a transfer.


def beside(
    alone_ns: list[int], slowdown: float, steps: int, share: float, seed: int
) -> tuple[list[Spans], list[tuple[int, int]]]:
    """Steps of the same kernels; some stretches of each run beside a collective, another stretch in each."""
    chance = random.Random(seed)
    played, busy = [], []
    for number in range(steps):
        now, lane = number * 100_000_000, []
        for place, alone in enumerate(alone_ns):
            is_beside = chance.random() < share
            duration = round(alone * slowdown) if is_beside else alone
            lane.append((now, now + duration, now, 0, place, 0, 0))
            busy += [(now, now + duration)] if is_beside else []
            now += duration + 100  # a gap, so that a neighbour's collective is clear of it
        played.append(np.array(lane, SPAN))
    return played, busy


@settings(deadline=None, max_examples=tries(50))
@given(
    slowdown=st.floats(0.9, 3.0),
    steps=st.integers(4, 8),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 2**32),
)
def test_the_slowdown_that_was_built_in_is_found(slowdown, steps, share, seed):
    alone = [random.Random(seed).randrange(10_000, 200_000) for _ in range(80)]
    found = find_interference(*beside(alone, slowdown, steps, share, seed))
    assert found[0] == pytest.approx(max(1.0, slowdown), rel=1e-3)  # nothing speeds up


@pytest.mark.parametrize(
    ("kernels", "each_ns", "change"),
    [
        (FEWEST_KERNELS - 1, 50_000, ""),
        (100, 2_000, ""),
        (100, 50_000, "names"),
        (100, 50_000, "half beside"),
    ],
)
def test_few_short_or_other_kernels_tell_nothing(kernels: int, each_ns: int, change: str) -> None:
    steps, busy = beside([each_ns] * kernels, 1.5, 6, 0.5, 1)
    steps[1]["name"] += change == "names"
    busy = [(start + 10_000 * (change == "half beside"), end) for start, end in busy]
    assert find_interference(steps, busy) is None


@pytest.mark.parametrize("factors", [(1.0, 1.3, 1.2, 1.25, 1.3), (0.8, 1.0, 1.1, 1.0, 1.05)])
def test_one_rank_shows_what_queues_after_backward_without_its_least_step(factors: tuple[float, ...]) -> None:
    """What was sent behind another, after backward, waited for nobody: its median counts, not its best."""
    job = Job(
        shapes=(*((1024, 1024), (1024,)) * 6, (4096, 1024)),
        buckets=(2, 2, 2, 2, 2, 2, 1),
        gradient_ns=(400_000, 100_000) * 6 + (300_000,),
        transfer_ns=(600_000,) * 6 + (2_400_000,),
        forward_ns=((1_500_000,) * 4,) * 5,
        offsets_ns=(0, 3_000_000, -2_000_000, 500_000),
        transfer_factors=factors,
    )
    found, _ = imported(job, Dialect(), ranks=1)
    assert found.workload is not None
    largest = found.hardware[0].all_reduce[-1]
    assert largest.duration_ns == pytest.approx(2_400_000 * sorted(factors)[2], rel=1e-3)
    read = Record(
        name="as run", workload=found.workload, hardware=found.hardware[0], measurements=found.measurements
    )
    (row,) = sim.agreement(read).rows
    measured = row.measured_sync_end_ns - row.predicted.backward_end_ns
    least = sum(job.transfer_ns) * min(factors) - (row.predicted.backward_end_ns - 500_000)
    assert abs(row.predicted.exposed_comm_ns - measured) < 0.3 * abs(least - measured)
