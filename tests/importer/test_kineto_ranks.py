"""Several ranks: who is missing, which group reduces, whose clock is whose, which steps belong together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import InputError
from sim.importer.kineto.trace_import import read_kineto
from sim.nouns.imported import Imported, ImportOptions
from tests.importer.built_traces import Dialect, Job, build

JOB = Job(
    shapes=((100, 100), (100,), (200, 100), (200,), (300, 200), (300,)),
    buckets=(2, 2, 2),
    gradient_ns=(300_000,) * 6,
    transfer_ns=(400_000, 500_000, 600_000),
    forward_ns=((1_000_000, 1_700_000),) * 4,
    offsets_ns=(0, 3_000_000_000),
)
Change = Callable[[int, dict[str, Any]], None]


def read(folder: Path, change: Change = lambda rank, trace: None, dialect: Dialect | None = None) -> Imported:
    texts, _ = build(JOB, Dialect() if dialect is None else dialect)
    paths = []
    for rank, text in enumerate(texts):
        trace = json.loads(text, parse_float=str)
        change(rank, trace)
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(trace))
    return read_kineto(paths, ImportOptions())


def test_all_ranks_tell_transfers_and_who_came_last(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert [point.duration_ns for point in found.hardware[0].all_reduce] == [400_000, 500_000, 600_000]
    assert [row.came_last for row in found.ranks] == [0, found.ranks[0].collectives]
    assert found.ranks[1].came_last
    assert not any("WARNING" in line for line in found.assumed)


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
    def pair_of_sixteen(rank: int, trace: dict[str, Any]) -> None:
        trace["distributedInfo"]["world_size"] = 16
        for event in trace["traceEvents"]:
            if event["name"] == "record_param_comms":
                event["args"]["Group size"] = 2

    found = read(tmp_path, pair_of_sixteen)
    assert found.hardware[0].world_size == 2
    assert any("2 of the job's 16 ranks" in line for line in found.found)
    assert found.ranks[1].came_last


def test_more_traces_than_the_group_has_ranks_are_an_error(tmp_path: Path) -> None:
    def alone(rank: int, trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"]:
            if event["name"] == "record_param_comms":
                event["args"]["Group size"] = 1

    with pytest.raises(InputError, match="reduced over 1 ranks, and there are 2 traces"):
        read(tmp_path, alone)


def test_other_groups_collectives_tell_no_clocks(tmp_path: Path) -> None:
    """Each rank has small all-reduces of its own group after the optimizer, which end when they like."""

    def own_group(rank: int, trace: dict[str, Any]) -> None:
        events = trace["traceEvents"]
        steps = [event for event in events if event["name"].startswith("Optimizer.step")]
        for number, step in enumerate((step, part) for step in steps for part in range(6)):
            at, correlation = float(step[0]["ts"]) + 0.1 * step[1], 900_000 + number
            called = {"pid": 1, "tid": 100, "ph": "X"}
            facts = {"In msg nelems": 5, "dtype": "Float", "Collective name": "allreduce", "Group size": 4}
            events += [
                {
                    **called,
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": f"{at:.3f}",
                    "dur": "0.05",
                    "args": {"correlation": correlation},
                },
                {
                    **called,
                    "cat": "cpu_op",
                    "name": "record_param_comms",
                    "ts": f"{at - 0.02:.3f}",
                    "dur": "0.09",
                    "args": {**facts, "Process Group Name": f"own{rank}"},
                },
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
                    "pid": 0,
                    "tid": 30,
                    "ts": f"{at + 600 + 20 * step[1] + 170 * rank:.3f}",
                    "dur": "15",
                    "args": {"stream": 30, "correlation": correlation},
                },
            ]

    plain, found = read(tmp_path), read(tmp_path, own_group)
    assert [row.clock_offset_ns for row in found.ranks] == [0, 3_000_000_000]
    assert [row.clock_scatter_ns for row in found.ranks] == [0, 0]
    assert [row.came_last for row in found.ranks] == [row.came_last for row in plain.ranks]


def test_clocks_count_from_their_traces_base(tmp_path: Path) -> None:
    def based(rank: int, trace: dict[str, Any]) -> None:
        trace["baseTimeNanoseconds"] = 7_000_000_000 * rank

    assert read(tmp_path, based).ranks[1].clock_offset_ns == 10_000_000_000


@pytest.mark.parametrize("late", [1, 2])
def test_profiles_without_numbers_that_began_steps_apart(tmp_path: Path, late: int) -> None:
    """Backwards differ from step to step here, so that only one way of pairing keeps the ends together."""
    uneven = Job(
        **{
            **{name: getattr(JOB, name) for name in ("shapes", "buckets", "gradient_ns", "transfer_ns")},
            "forward_ns": (
                (1_000_000,) * 2,
                (2_500_000,) * 2,
                (1_400_000,) * 2,
                (3_300_000,) * 2,
                (900_000,) * 2,
            ),
            "offsets_ns": (0, 3_000_000_000),
        }
    )
    texts, _ = build(uneven, Dialect(steps=False))
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    paths[0].write_text(texts[0])
    trace = json.loads(texts[1], parse_float=str)
    ends = sorted(
        float(event["ts"]) + float(event["dur"])
        for event in trace["traceEvents"]
        if event["name"].startswith("Optimizer.step")
    )
    since = ends[late - 1]
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if event["ph"] != "X" or float(event["ts"]) > since
    ]
    paths[1].write_text(json.dumps(trace))
    found = read_kineto(paths, ImportOptions())
    assert found.ranks[1].clock_offset_ns == 3_000_000_000
    assert not any("whole steps" in line for line in found.assumed)


def test_steps_that_are_all_alike_leave_it_open(tmp_path: Path) -> None:
    found = read(tmp_path, dialect=Dialect(steps=False))
    assert found.ranks[1].clock_offset_ns == 3_000_000_000
    assert any("clocks are known up to whole steps" in line for line in found.assumed)
