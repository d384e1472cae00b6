"""What is no replicated data parallelism is declined, and what only looks like it is not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.errors import InputError, NotModelledError
from sim.importer.imported import ImportOptions
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.test_kineto_steps import cpu_alone
from tests.importer.traced import Traced, read_kineto

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


def read(trace: Any, folder: Path, **options: Any) -> Traced:
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


def operator(name: str) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "tid": 100, "pid": 1, "ts": 10**12, "dur": 1}


ALL_REDUCE, GATHER, SCATTER, SEND_RECV = (
    NCCL % word
    for word in (
        "AllReduce_Sum_f32_RING_LL",
        "AllGather_RING_LL",
        "ReduceScatter_Sum_f32_RING_LL",
        "SendRecv",
    )
)
STEP, NODE = "ProfilerStep", "AddmmBackward"
SEND = {"Collective name": "send"}


@pytest.mark.parametrize(
    ("reduces", "kernels", "why"),
    [
        (False, [(GATHER, 2, STEP, {}), (SCATTER, 2, STEP, {})], "2 all-gathers and 2 reduce-scatters"),
        (False, [(SCATTER, 1, "AddmmBackward1", {})], "zero2"),
        (True, [(SEND_RECV, 1, STEP, SEND)], "1 sends and receives"),
        (True, [(SEND_RECV, 3, STEP, SEND)], "3 sends and receives"),
        (True, [(ALL_REDUCE, 1, NODE, {})], "4 all-reduces a step .* tensor parallelism"),
        (True, [(ALL_REDUCE, 1, NODE, {"In msg nelems": 65_536})], "4 all-reduces .* tensor parallelism"),
    ],
)
def test_other_ways_to_train_are_told_by_what_they_send(
    reduces: bool, kernels: list[tuple[str, int, str, dict[str, Any]]], why: str, tmp_path: Path
) -> None:
    trace = [event for event in events() if reduces or "AllReduce" not in event["name"]]
    for name, count, inside, facts in kernels:
        added(trace, name, count, inside, **facts)
    with pytest.raises(NotModelledError, match=why):
        read(trace, tmp_path)


@pytest.mark.parametrize("name", ["FullyShardedDataParallel.forward", "FSDP::pre_backward", "fsdp::copy_in"])
def test_fsdp_is_told_by_its_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotModelledError, match="FSDP"):
        read([*events(), operator(name)], tmp_path)


def test_all_to_all_runs_as_send_recv_kernels_and_is_no_pipeline(tmp_path: Path) -> None:
    added(trace := events(), SEND_RECV, 2, STEP, **{"Collective name": "all_to_allv"})
    assert any("2 other collectives a step (all_to_all)" in line for line in read(trace, tmp_path).found)


def test_statistics_of_batch_norms_are_no_activations(tmp_path: Path) -> None:
    """SyncBatchNorm: all-reduces within backward's nodes, told by their size, or by the node's name."""
    for wrappers in (True, False):
        trace = events(Dialect(arguments_on="kernel", wrappers=wrappers))
        added(trace, ALL_REDUCE, 1, "AddmmBackward", **{"In msg nelems": 64})
        assert len(read(trace, tmp_path).buckets) == 2
    trace = events()
    added(trace, ALL_REDUCE, 1, "AddmmBackward")
    for event in trace:
        event["name"] = event["name"].replace("AddmmBackward0", "SyncBatchNormBackward")
    assert len(read(trace, tmp_path).buckets) == 2


def test_several_models_in_turn_are_declined(tmp_path: Path) -> None:
    """A GAN: an optimizer's step lies between two backwards of one of the profiler's steps."""
    trace = events(job=replace(JOB, micro_batches=2, synchronises="each"))
    assert len(read(trace, tmp_path).buckets) == 2
    forwards = [event for event in trace if event["name"] == "aten::linear"]
    name = {"name": "Optimizer.step#Adam.step", "cat": "user_annotation"}
    trace += [one | name | {"ts": one["ts"] - 0.5, "dur": 0.1} for one in forwards[1::2]]
    with pytest.raises(NotModelledError, match=r"step 1 has 2 backwards .* several models in turn"):
        read(trace, tmp_path)


def test_traces_without_a_backward_are_declined(tmp_path: Path) -> None:
    forward = [
        event for event in events() if "utograd" not in event["name"] and "Backward" not in event["name"]
    ]
    with pytest.raises(NotModelledError, match="no backward in it: inference"):
        read(forward, tmp_path)
    frozen = [event for event in events() if "AccumulateGrad" not in event["name"]]
    with pytest.raises(NotModelledError, match="accumulates no gradient"):
        read(frozen, tmp_path)
    device = [event for event in events() if event["cat"] == "kernel"]
    with pytest.raises(InputError, match=r"ProfilerActivity\.CPU"):
        read(device, tmp_path)


def without_kernels(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in trace if event["cat"] not in ("kernel", "cuda_runtime")]


@pytest.mark.parametrize("category", ["hpu_op", "MTIA_CCP_Events", "privateuse1_op"])
def test_a_device_that_is_not_read_is_no_cpu(category: str, tmp_path: Path) -> None:
    job = replace(JOB, forward_ns=JOB.forward_ns[:1] * 20)
    trace = [event for event in events(job=job) if event["cat"] != "cuda_runtime"]
    for event in trace:
        if event["cat"] == "kernel" and "nccl" not in event["name"]:
            event["cat"] = category
    kept = [event for event in trace if event["cat"] != "kernel" and "record_param" not in event["name"]]
    with pytest.raises(InputError, match=rf"not read \({category.lower()} 120\), and no kernel of a GPU"):
        read(kept, tmp_path)


@pytest.mark.parametrize("missing", [True, False])
def test_many_events_of_an_unknown_category_are_no_cpu_and_few_are_told(
    missing: bool, tmp_path: Path
) -> None:
    """As of a vendor's own profiler, which writes no category at all."""
    path = tmp_path / "cpu.json"

    def told(count: int) -> Traced:
        trace = json.loads(cpu_alone([(8, 8), (8,)]))["traceEvents"]
        extra = {"ph": "X", "name": "MatMul", "tid": 5, "pid": 9, "ts": 10**9, "dur": 5, "args": {}}
        trace += [extra | ({} if missing else {"cat": "strange\n"})] * count
        path.write_text(json.dumps({"traceEvents": trace}))
        return read_kineto([path], ImportOptions(world_size=1))

    assert not any("WARNING" in line for line in told(0).assumed)
    assert any("WARNING: 99 events of categories that are not read" in line for line in told(99).assumed)
    with pytest.raises(InputError, match="100 events of categories that are not read"):
        told(100)


@pytest.mark.parametrize("backend", ["nccl", "hccl", "xccl"])
def test_a_gpus_collectives_without_its_kernels_are_no_cpus(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    kept = without_kernels(events(Dialect(arguments_on="record_param_comms")))
    assert read(kept, tmp_path).workload is not None  # nothing in it tells of a device
    info = {"backend": backend, "rank": 0, "world_size": 2}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": kept}))
    with pytest.raises(InputError, match=rf"backend is {backend}, and no kernel .* ProfilerActivity\.CUDA"):
        read_kineto([path], ImportOptions())
    named = without_kernels(events(Dialect(arguments_on="nccl:all_reduce")))
    for event in named:
        event["name"] = event["name"].replace("nccl:", f"{backend}:")
    with pytest.raises(InputError, match=f"6 collectives of {backend}, and no kernel of a GPU"):
        read(named, tmp_path)


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
        ({"args": 7}, r"got `int` - at `\$\[\d+\]\.args`"),
        ({"name": 7}, r"got `int` - at `\$\[\d+\]\.name`"),
    ],
)
def test_an_event_that_is_not_legal_is_named(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    trace = events()
    place = next(number for number, event in enumerate(trace) if event["cat"] == "kernel")
    trace[place] |= change
    with pytest.raises(InputError, match=why) as error:
        read(trace, tmp_path)
    assert "trace.json: traceEvents " in str(error.value)
    assert len(str(error.value)) < 300


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
    with pytest.raises(InputError, match="do not say of which rank"):
        read_kineto([first, second], ImportOptions())
    second.write_text(build(replace(JOB, shapes=((9, 9), (9,)) * 2), Dialect())[0][1])
    with pytest.raises(InputError, match=r"b.json: step 0: its all-reduces .* are not those of .*a.json"):
        read_kineto([first, second], ImportOptions())
    second.write_text(texts[1].replace("ProfilerStep#", "ProfilerStep#10"))
    with pytest.raises(InputError, match="shares no step"):
        read_kineto([first, second], ImportOptions())
    with pytest.raises(InputError, match="over 2 ranks, but --world-size says 8"):
        read_kineto([first], ImportOptions(world_size=8))


def test_launches_without_what_they_launched_are_no_cpus(tmp_path: Path) -> None:
    job = replace(JOB, forward_ns=JOB.forward_ns[:1] * 20)
    kept = [event for event in events(job=job) if event["cat"] != "kernel"]
    with pytest.raises(InputError, match=r"launches of work for a device, and no kernel of a GPU"):
        read(kept, tmp_path)
