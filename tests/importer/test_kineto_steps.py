"""Steps that are not one forward and one backward after another: micro-batches, a CPU ahead, cut traces."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.errors import InputError
from sim.importer.imported import ImportOptions, no_progress
from sim.importer.kineto.ranks import read_rank
from tests.importer.built_traces import Dialect, Job, build, write
from tests.importer.test_kineto_built import imported
from tests.importer.traced import Traced, read_kineto

STEP = Job(
    shapes=((100, 100), (100,), (200, 100), (200,), (300, 200), (300,)),
    buckets=(2, 2, 2),
    gradient_ns=(300_000,) * 6,
    transfer_ns=(400_000, 500_000, 600_000),
    forward_ns=((1_000_000, 1_020_000),) * 4,
    copy_in_ns=5_000,
    copy_out_ns=10_000,
    offsets_ns=(0, 3_000_000_000),
)
ALONE = replace(STEP, offsets_ns=(0,), copy_in_ns=0, copy_out_ns=0, synchronises="none")


@pytest.mark.parametrize(("micro_batches", "steps"), [(1, True), (2, True), (4, True), (2, False)])
def test_micro_batches_on_one_gpu_are_not_one_backward(micro_batches: int, steps: bool) -> None:
    found, truth = imported(replace(ALONE, micro_batches=micro_batches), Dialect(steps=steps))
    assert found.workload is not None
    assert [gradient.shape for gradient in found.workload.gradients[::-1]] == list(STEP.shapes)
    assert found.workload.backward_ns == 1_800_000
    assert found.workload.forward_ns == truth[0][0].backward_start_ns - truth[0][0].start_ns
    assert found.workload.optimizer_ns < 100_000


def cpu_alone(shapes: Sequence[Sequence[int]]) -> str:
    """Steps of one thread of the CPU, which runs forward and backward."""
    lines, now = [], 10**12

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
    return json.dumps({"traceEvents": lines})


@pytest.mark.parametrize("shapes", [[(8, 8), (8,), (8, 8), (8,)], [(4, 4)] * 4, [(3, 2), (3,)]])
def test_layers_alike_on_the_cpu_are_no_micro_batches(shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(cpu_alone(shapes))
    workload = read_kineto([path], ImportOptions(world_size=1)).workload
    assert workload is not None
    assert [gradient.shape for gradient in workload.gradients[::-1]] == shapes
    assert workload.backward_ns == 110_000 * len(shapes) - 6_000


@pytest.mark.parametrize(("synchronises", "count"), [("each", 3), ("last", 1), ("none", 0)])
def test_it_is_counted_how_many_micro_batches_were_reduced(
    synchronises: str, count: int, tmp_path: Path
) -> None:
    job = replace(STEP, micro_batches=3, synchronises=synchronises)
    (path, _) = write(build(job, Dialect())[0], tmp_path, Dialect())
    for step in read_rank(path, no_progress).steps:
        assert (step.micro_batches, step.has_models) == (3, False)
        assert len(step.reductions) == (3 if count else 0)
        assert sum(one.role == "earlier" for one in step.collectives) == 3 * max(0, count - 1)


@pytest.mark.parametrize("side_stream", [False, True])
@pytest.mark.parametrize("during", ["aten::linear", "torch::autograd::AccumulateGrad", "Optimizer.step"])
def test_the_end_of_a_step_before_the_trace_is_no_steps_own(
    during: str, side_stream: bool, tmp_path: Path
) -> None:
    """The device still reduces for a step that the trace does not have, while it shows the next one."""
    job = replace(STEP, forward_ns=STEP.forward_ns[:3], offsets_ns=(0,))
    events = json.loads(build(job, Dialect())[0][0])["traceEvents"]
    begin = min(one["ts"] for one in events if one["name"] == "ProfilerStep#1")
    at = min(one["ts"] for one in events if one["ts"] > begin and one["name"].startswith(during))
    kept = [one for one in events if one["ts"] >= begin]
    earlier = [one for one in events if one["ts"] < begin and one["name"].startswith("nccl")]
    assert len(earlier) == 3
    for place, one in enumerate(earlier):
        stream = 99 if side_stream else one["args"]["stream"]
        moved = {"ts": round(at + 1 + place, 3), "dur": 0.9, "args": one["args"] | {"stream": stream}}
        kept.append(one | moved)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": kept}))
    for step in read_rank(path, no_progress).steps:
        assert len(step.reductions) == 3
        assert all(one.role == "gradients" for one in step.collectives)
    found = read_kineto([path], ImportOptions(world_size=2))
    assert not any("other collectives" in line for line in found.found)
    assert any("3 collectives that were launched before the trace began" in line for line in found.dropped)
    assert [row["num_elements"] for row in found.buckets] == [10_100, 20_200, 60_300]


@pytest.mark.parametrize("late_ns", [0, 1, 500, 1_000])
def test_a_copy_out_may_seem_to_begin_before_its_collective_ends(late_ns: int, tmp_path: Path) -> None:
    """Streams' times have a resolution: a nanosecond is no wait of 0.6 ms."""
    text = build(replace(STEP, offsets_ns=(0,)), Dialect())[0][0]
    trace = json.loads(text)
    for event in trace["traceEvents"]:
        if event["name"].startswith("nccl"):
            event["dur"] = round(event["dur"] + late_ns / 1000, 3)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    (rate,) = {row["copy_out_ns"] for row in read_kineto([path], ImportOptions()).steps}
    assert rate == 30_000


def without(text: str, dropped: Callable[[dict[str, Any]], bool]) -> str:
    trace = json.loads(text)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if not dropped(event)]
    return json.dumps(trace)


@pytest.mark.parametrize("lost", ["the beginning", "the device's forward"])
def test_a_step_without_its_forward_is_dropped(lost: str, tmp_path: Path) -> None:
    """The trace begins in the midst of its backward, or has not what the device did before it."""
    job = replace(STEP, forward_ns=STEP.forward_ns[:2], offsets_ns=(0,))
    text = build(job, Dialect(steps=lost != "the beginning"))[0][0]
    events = json.loads(text)["traceEvents"]
    third = [one["ts"] for one in events if one["name"] == "torch::autograd::AccumulateGrad"][2]
    first = min(one["ts"] for one in events if one["name"].startswith("nccl"))

    def is_lost(event: dict[str, Any]) -> bool:
        begins = event["ts"] <= third + 1
        return begins if lost == "the beginning" else event["cat"] == "kernel" and event["ts"] < first

    path = tmp_path / "trace.json"
    path.write_text(without(text, is_lost))
    found = read_kineto([path], ImportOptions())
    (row,) = found.steps
    assert (row["number"], row["forward_ns"]) == (1, 1_000_000)
    assert any("1 steps without their forward in the trace" in line for line in found.dropped)


def test_steps_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = build(replace(STEP, offsets_ns=(0,)), Dialect(steps=False))[0][0]
    path.write_text(without(text, lambda event: event["name"].startswith("Optimizer")))
    with pytest.raises(InputError, match=r"where a step begins; call profiler\.step\(\) each iteration"):
        read_kineto([path], ImportOptions())


def test_a_compiled_backward_that_sends_its_gradients_itself_gives_no_workload(tmp_path: Path) -> None:
    """They are accumulated after the last all-reduce: what each one's ready time is nothing tells."""
    job = replace(STEP, offsets_ns=(0,), buckets=(1,) * 6, transfer_ns=(100_000,) * 6, copy_in_ns=0)
    trace = json.loads(build(replace(job, copy_out_ns=0), Dialect())[0][0])
    events = trace["traceEvents"]
    for step in [one for one in events if one["name"].startswith("ProfilerStep")]:
        inside = [one for one in events if step["ts"] <= one["ts"] < step["ts"] + step["dur"]]
        optimizer = next(one for one in inside if one["name"].startswith("Optimizer"))
        moved = [one for one in inside if one["name"] == "torch::autograd::AccumulateGrad"]
        for place, one in enumerate(moved):
            one |= {"ts": round(optimizer["ts"] - 1 + place * 0.01, 3), "dur": 0.005}
    kept = [one for one in events if not one["name"].endswith("function: torch::autograd::AccumulateGrad")]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": kept}))
    found = read_kineto([path], ImportOptions())
    assert len(found.buckets) == 6
    assert found.workload is None
    assert any("compiled backward" in line for line in found.missing)


SLOW = (0, 0, 90_000_000, 95_000_000, 96_000_000)


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_steps_that_differ_manifold_the_quiet_ones_are_taken(ranks: int) -> None:
    """Be they the minority; the others are named."""
    job = replace(STEP, forward_ns=((1_000_000,) * ranks,) * 5, offsets_ns=(0, 3_000_000)[:ranks])
    quiet, _ = imported(replace(job, forward_ns=job.forward_ns[:3]), Dialect())
    found, _ = imported(replace(job, stalls_ns=SLOW), Dialect())
    assert found.workload is not None
    assert quiet.workload is not None
    assert found.workload.backward_ns == quiet.workload.backward_ns
    assert not quiet.doubtful
    assert [row["number"] for row in found.steps] == [0, 1]
    assert len(found.doubtful) == 1
    assert "3 steps of 5 left out" in found.doubtful[0]
    for record in found.measurements:
        assert len(record.iterations) == 2
        assert record.dropped_warmup == 3
    assert all(row.backward_ns == quiet.workload.backward_ns for row in found.ranks)


def test_no_two_steps_alike_are_refused() -> None:
    forward = tuple((time,) for time in (1_000_000, 20_000_000, 90_000_000))
    with pytest.raises(InputError, match="no two steps in it take about as long"):
        imported(replace(STEP, offsets_ns=(0,), forward_ns=forward), Dialect())


# Several ranks: who is missing, which group reduces, whose clock is whose, which steps belong together.

JOB = Job(
    shapes=((100, 100), (100,), (200, 100), (200,), (300, 200), (300,)),
    buckets=(2, 2, 2),
    gradient_ns=(300_000,) * 6,
    transfer_ns=(400_000, 500_000, 600_000),
    forward_ns=((1_000_000, 1_700_000),) * 4,
    offsets_ns=(0, 3_000_000_000),
)
Change = Callable[[int, dict[str, Any]], None]


def read(folder: Path, change: Change = lambda rank, trace: None, dialect: Dialect | None = None) -> Traced:
    texts, _ = build(JOB, Dialect() if dialect is None else dialect)
    paths = []
    for rank, text in enumerate(texts):
        trace = json.loads(text, parse_float=str)
        change(rank, trace)
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(trace))
    return read_kineto(paths, ImportOptions())


@pytest.mark.parametrize("said", ["nccl", "undefined", "cpu:gloo,cuda:nccl"])
def test_the_backend_is_the_one_of_gpus_however_the_group_was_made(tmp_path: Path, said: str) -> None:
    def named(rank: int, trace: dict[str, Any]) -> None:
        trace["distributedInfo"]["backend"] = said

    found = read(tmp_path, named)
    assert found.workload is not None
    for made in (found.workload, *found.hardware):
        assert (made.provenance["device_type"], made.provenance["backend"]) == ("cuda", "nccl")
    assert {one.backend for one in found.measurements} == {"nccl"}


def test_where_ranks_are_missing_there_are_bounds_and_no_last_comer(tmp_path: Path) -> None:
    def eight(rank: int, trace: dict[str, Any]) -> None:
        trace["distributedInfo"]["world_size"] = 8

    found = read(tmp_path, eight)
    assert any("WARNING: 2 of 8 ranks" in line for line in found.assumed)
    assert [row.came_last for row in found.ranks] == [None, None]
    assert [row.waited_ns for row in found.ranks] == [None, None]
    (hardware,) = found.hardware
    times = [point.duration_ns for point in hardware.all_reduce]
    assert times == sorted(times)
    assert hardware.world_size == 8
    assert hardware.provenance["curve"] == "ranks are missing: an upper bound"


def test_the_world_is_the_group_that_reduces(tmp_path: Path) -> None:
    """A group has no more traces than ranks; clocks count from their traces' bases."""

    def group(size: int) -> Change:
        def change(rank: int, trace: dict[str, Any]) -> None:
            trace["distributedInfo"]["world_size"] = 16
            trace["baseTimeNanoseconds"] = 7_000_000_000 * rank
            for event in trace["traceEvents"]:
                if event["name"] == "record_param_comms":
                    event["args"]["Group size"] = size

        return change

    found = read(tmp_path, group(2))
    assert found.hardware[0].world_size == 2
    assert any("2 of the job's 16 ranks" in line for line in found.found)
    assert found.ranks[1].clock_offset_ns == 10_000_000_000
    with pytest.raises(InputError, match="reduced over 1 ranks, and there are 2 traces"):
        read(tmp_path, group(1))


def test_several_ranks_whose_steps_have_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"steps without numbers.* call profiler\.step\(\) each iteration"):
        read(tmp_path, dialect=Dialect(steps=False))
