"""What is no replicated data parallelism is declined, and what only looks like it is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from sim.errors import InputError, NotModelledError
from sim.importer.kineto import read_kineto
from sim.nouns.imported import Imported, ImportOptions
from tests.importer.built_traces import Dialect, Job, build

JOB = Job(
    shapes=((256, 256), (256,), (256, 256), (256,)),
    buckets=(2, 2),
    gradient_ns=(50_000,) * 4,
    transfer_ns=(90_000, 60_000),
    forward_ns=((1_000_000, 1_000_000),) * 3,
    offsets_ns=(0, 0),
)
NCCL = "ncclDevKernel_%s(ncclDevKernelArgsStorage<4096ul>)"


def events(dialect: Dialect | None = None, job: Job = JOB) -> list[dict[str, Any]]:
    """A trace of DDP, to be changed."""
    text = build(job, dialect or Dialect(arguments_on="kernel"))[0][0]
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


def read(trace: Any, folder: Path, **options: Any) -> Imported:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    return read_kineto([path], ImportOptions(world_size=2, **options))


def added(trace: list[dict[str, Any]], name: str, count: int, inside: str, **arguments: Any) -> None:
    """Kernels of a name in every step, launched within operators of another name on its thread."""
    hosts = [event for event in trace if event["name"].startswith(inside)]
    assert hosts
    for number in range(count):
        for place, host in enumerate(hosts):
            correlation = 10**6 + number * 1000 + place
            at = host["ts"] + host["dur"] * (number + 1) / (count + 2)
            launch = {"correlation": correlation}
            trace.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": host["tid"]}
                | {"pid": 1, "ts": round(at, 3), "dur": 0.001, "args": launch}
            )
            trace.append(
                {"ph": "X", "cat": "kernel", "name": name, "tid": 30, "pid": 1, "ts": round(at + 1, 3)}
                | {"dur": 5, "args": {"stream": 30, "correlation": correlation, **arguments}}
            )


def test_the_trace_that_is_changed_is_taken_as_it_is(tmp_path: Path) -> None:
    assert [row["num_elements"] for row in read(events(), tmp_path).details["buckets"]] == [65_792, 65_792]


@pytest.mark.parametrize(
    "name",
    [
        "FullyShardedDataParallel.forward",
        "FSDP::all_gather (layers.0)",
        "FSDP::pre_backward",
        "fsdp::all_gather_copy_in",
    ],
)
def test_fsdp_is_told_by_its_names(name: str, tmp_path: Path) -> None:
    trace = events()
    trace.append({"ph": "X", "cat": "cpu_op", "name": name, "tid": 100, "pid": 1, "ts": 10**12, "dur": 1})
    with pytest.raises(NotModelledError, match="FSDP"):
        read(trace, tmp_path)


def test_fsdp_is_told_by_what_it_sends(tmp_path: Path) -> None:
    trace = [event for event in events() if "AllReduce" not in event["name"]]
    added(trace, NCCL % "AllGather_RING_LL", 2, "ProfilerStep")
    added(trace, NCCL % "ReduceScatter_Sum_f32_RING_LL", 2, "ProfilerStep")
    with pytest.raises(NotModelledError, match="2 all-gathers, 2 reduce-scatters"):
        read(trace, tmp_path)


@pytest.mark.parametrize("times", [1, 3])
def test_pipelines_are_told_by_point_to_point(times: int, tmp_path: Path) -> None:
    trace = events()
    added(trace, NCCL % "SendRecv", times, "ProfilerStep", **{"Collective name": "send"})
    with pytest.raises(NotModelledError, match=f"{times} sends and receives"):
        read(trace, tmp_path)


def test_all_to_all_runs_as_send_recv_kernels_and_is_no_pipeline(tmp_path: Path) -> None:
    trace = events()
    added(trace, NCCL % "SendRecv", 2, "ProfilerStep", **{"Collective name": "all_to_allv"})
    found = read(trace, tmp_path)
    assert any("2 other collectives a step (all_to_all)" in line for line in found.found)


@pytest.mark.parametrize("elements", [None, 65_536])
def test_tensor_parallelism_is_told_by_activations(elements: int | None, tmp_path: Path) -> None:
    trace = events()
    told = {} if elements is None else {"In msg nelems": elements, "dtype": "Float"}
    added(trace, NCCL % "AllReduce_Sum_f32_RING_LL", 1, "AddmmBackward", **told)
    with pytest.raises(NotModelledError, match=r"4 all-reduces a step .* tensor parallelism"):
        read(trace, tmp_path)


def test_statistics_of_batch_norms_are_no_activations(tmp_path: Path) -> None:
    """SyncBatchNorm: all-reduces within backward's nodes, told by their size, or by the node's name."""
    for wrappers in (True, False):
        trace = events(Dialect(arguments_on="kernel", wrappers=wrappers))
        added(trace, NCCL % "AllReduce_Sum_f32_RING_LL", 1, "AddmmBackward", **{"In msg nelems": 64})
        assert len(read(trace, tmp_path).details["buckets"]) == 2
    trace = events()
    added(trace, NCCL % "AllReduce_Sum_f32_RING_LL", 1, "AddmmBackward")
    for event in trace:
        event["name"] = event["name"].replace("AddmmBackward0", "SyncBatchNormBackward")
    assert len(read(trace, tmp_path).details["buckets"]) == 2


def test_metrics_after_the_optimizer_are_no_activations(tmp_path: Path) -> None:
    trace = events()
    added(trace, NCCL % "AllReduce_Sum_f32_RING_LL", 6, "Optimizer.step")
    found = read(trace, tmp_path)
    assert [row["num_elements"] for row in found.details["buckets"]] == [65_792, 65_792]
    assert any("6 other collectives a step (all_reduce)" in line for line in found.found)


def test_optimizers_within_another_or_after_it_end_the_same_step(tmp_path: Path) -> None:
    """As ZeroRedundancyOptimizer's, where no profiler's step tells."""
    trace = events(Dialect(steps=False))
    alone = read(trace, tmp_path).details["steps"]
    for event in [event for event in trace if event["name"].startswith("Optimizer.step")]:
        for start, length in ((0, 0.1), (1, 0.3)):
            at = round(event["ts"] + start * event["dur"], 3)
            trace.append(
                event | {"ts": at, "dur": round(length * event["dur"], 3), "name": "Optimizer.step#A"}
            )
    assert read(trace, tmp_path).details["steps"] == alone


def test_a_sharded_optimizers_reduce_scatter_is_declined(tmp_path: Path) -> None:
    trace = [event for event in events() if "AllReduce" not in event["name"]]
    added(trace, NCCL % "ReduceScatter_Sum_f32_RING_LL", 1, "AddmmBackward1")
    with pytest.raises(NotModelledError, match="zero2"):
        read(trace, tmp_path)


def test_traces_without_a_backward_are_declined(tmp_path: Path) -> None:
    forward = [
        event for event in events() if "utograd" not in event["name"] and "Backward" not in event["name"]
    ]
    with pytest.raises(NotModelledError, match="an inference trace"):
        read(forward, tmp_path)
    frozen = [event for event in events() if "AccumulateGrad" not in event["name"]]
    with pytest.raises(NotModelledError, match="accumulates no gradient"):
        read(frozen, tmp_path)
    device = [event for event in events() if event["cat"] == "kernel"]
    with pytest.raises(InputError, match=r"ProfilerActivity\.CPU"):
        read(device, tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ts": "soon"}, "ts: 'soon' is not legal"),
        ({"ts": None}, "ts: None is not legal"),
        ({"ts": True}, "ts: True is not legal"),
        ({"ts": 10**30}, "is not legal; give a time in microseconds"),
        ({"ts": "1e999999999"}, "is not legal; give a time in microseconds"),
        ({"ts": "9" * 5000}, "is not legal; give a time in microseconds"),
        ({"dur": [1]}, r"dur: \[1\] is not legal"),
        ({"args": 7}, "args: 7 is not legal"),
        ({"name": 7}, "name: 7 is not legal"),
    ],
)
def test_an_event_that_is_not_legal_is_named(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    trace = events()
    place = next(number for number, event in enumerate(trace) if event["cat"] == "kernel")
    trace[place] |= change
    with pytest.raises(InputError, match=why) as error:
        read(trace, tmp_path)
    assert f"trace.json: traceEvents.{place}: " in str(error.value)
    assert len(str(error.value)) < 300


def test_events_that_end_before_they_start_are_dropped_and_told(tmp_path: Path) -> None:
    trace = events()
    trace.append(
        {"ph": "X", "cat": "kernel", "name": "k", "tid": 7, "pid": 1, "ts": 1, "dur": -5, "args": {}}
    )
    assert any("1 events that end before they start" in line for line in read(trace, tmp_path).dropped)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ([], "no events"),
        ({"traceEvents": []}, "no events"),
        ({"schema": "1.0.1", "nodes": []}, "no events"),
        ([1], "1 is not legal; give an object"),
    ],
)
def test_what_is_no_trace_is_an_error(trace: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        read(trace, tmp_path)


def test_files_of_one_rank_or_of_several_jobs_are_errors(tmp_path: Path) -> None:
    texts, _ = build(JOB, Dialect())
    first, second = (tmp_path / name for name in ("a.json", "b.json"))
    first.write_text(texts[0])
    second.write_text(texts[0])
    with pytest.raises(InputError, match="one file of each rank"):
        read_kineto([first, second], ImportOptions())
    second.write_text(texts[1].replace('"world_size": 2', '"world_size": 4'))
    with pytest.raises(InputError, match="give the traces of one job"):
        read_kineto([first, second], ImportOptions())
    second.write_text(build(JOB, Dialect(bare_list=True))[0][1])
    with pytest.raises(InputError, match="does not say which rank"):
        read_kineto([first, second], ImportOptions())
    second.write_text(texts[1].replace("ProfilerStep#", "ProfilerStep#10"))
    with pytest.raises(InputError, match="shares no step"):
        read_kineto([first, second], ImportOptions())
    with pytest.raises(InputError, match="world_size: 2, but 8 was given"):
        read_kineto([first], ImportOptions(world_size=8))
