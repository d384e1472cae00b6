"""Traces of real FSDP2 ranks: what is imported is what was wrapped, and a simulation of it sends the same."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import InputError, NotModelledError
from sim.importer.kineto.trace_import import read_kineto
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from sim.systems.fsdp2_settings import REPLICATED
from tests.importer.sharded_gpu import BACKWARD_US, COPY_US, FORWARD_US, GATHER_US, REDUCE_US, on_gpu
from tests.systems.ddp_ranks import run_cases
from tests.systems.fsdp2_cases import EVERYDAY, Case, random_case
from tests.systems.fsdp2_worker import TRACED
from tests.systems.test_fsdp2_sequences import COMPARED, simulated, workload_of

pytestmark = pytest.mark.dist
LONGEST_LIST = 30  # of tensors whose shapes torch.profiler keeps
Run = tuple[Case, list[Any], list[Path]]
_kept: list[tempfile.TemporaryDirectory[str]] = []


def traced(cases: Mapping[str, Case], world_size: int = 2) -> dict[str, Run]:
    """Cases by name, what their ranks answered, and their traces."""
    _kept.append(tempfile.TemporaryDirectory())
    folder = Path(_kept[-1].name)
    asked = [case | {"trace": str(folder / f"job{place}")} for place, case in enumerate(cases.values())]
    answers = run_cases(asked, worker="fsdp2_worker", world_size=world_size)
    return {
        name: (case, by_rank, sorted(folder.glob(f"job{place}_*.json")))
        for place, (name, case, by_rank) in enumerate(zip(cases, asked, answers, strict=True))
    }


@cache
def everyday() -> dict[str, Run]:
    cases = EVERYDAY | {
        "no shapes": EVERYDAY["fully_shard, block by block"] | {"record_shapes": False},
        "nested": EVERYDAY["fully_shard, block by block"]
        | {"wrapped": [["blocks.0.parts.0"], ["blocks.0"], ["blocks.1"]]},
    }
    return traced(cases)


def sent(answer: Any) -> list[dict[str, Any]]:
    return [
        {name: event[name] for name in (*COMPARED, "micro_batch")}
        for event in answer["events"]
        if event["step"] == 2
    ]


def played(found: Imported, workload: Workload, world_size: int) -> list[dict[str, Any]]:
    """What a simulation of the imported job sends."""
    settings = dict(found.details["settings"])
    policy = settings.pop("policy")
    case = {"policy": policy, "units": settings.pop("units", "blocks"), "settings": settings}
    return simulated(case, workload, world_size)


def check(run: Run, world_size: int = 2) -> None:
    """What is imported of a run's traces has its units, and a simulation of it sends what the ranks sent."""
    case, by_rank, paths = run
    assert by_rank[0]["error"] is None, case
    assert len(paths) == world_size
    told = sent(by_rank[0])
    found = read_kineto(paths, ImportOptions())
    reduced = [one for one in told if one["kind"] in ("reduce_scatter", "all_reduce")]
    gathered = [one for one in told if one["kind"] == "all_gather"]
    rows = found.details["buckets"]
    assert [(row["num_elements"], row["dtype"]) for row in rows] == [
        (one["elements"], one["dtype"]) for one in reduced
    ], case
    assert [len(row["transfer_ns"]) for row in rows] == [TRACED] * len(rows)
    assert found.workload is not None
    made = workload_of(by_rank[0])
    buckets = sim.assign(made, case["policy"], units=case["units"], **case["settings"]).bucket_indices
    if max(map(len, buckets)) > LONGEST_LIST:
        assert found.workload.whole_buckets
    else:
        shapes = sorted(one.shape for one in made.gradients)
        assert sorted(one.shape for one in found.workload.gradients) == shapes
    again = [one for one in played(found, found.workload, world_size) if one["kind"] != "all_gather"]
    assert again == reduced, case
    (hardware,) = found.hardware
    assert hardware.world_size == world_size
    assert (
        (hardware.reduce_scatter is None) == (hardware.all_gather is None) == (case["policy"] == REPLICATED)
    )
    if hardware.all_gather is not None:
        sizes = {4 * one["elements"] // (1 + (one["dtype"] == "bfloat16")) for one in gathered}
        assert {point.num_bytes for point in hardware.all_gather} == sizes
    named = read_kineto(paths, ImportOptions(model=made))
    assert named.workload is not None
    assert [one.name for one in named.workload.gradients] == [one.name for one in made.gradients]
    assert played(named, named.workload, world_size) == told, case
    for row in found.details["steps"]:
        assert 0 < row["forward_ns"] + row["backward_ns"] < row["step_ns"]
        assert row["copy_in_ns"] > 0


@pytest.mark.parametrize("name", EVERYDAY)
def test_what_was_wrapped_is_imported_and_sends_what_was_sent(name: str) -> None:
    check(everyday()[name])


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count", "world_size"), [(200, 30, 2), (240, 10, 3), (260, 10, 4)])
def test_random_jobs_are_imported_as_they_sent(first: int, count: int, world_size: int) -> None:
    cases = {str(seed): random_case(seed) for seed in range(first, first + count)}
    for run in traced(cases, world_size).values():
        check(run, world_size)


def test_a_unit_stands_for_its_gradients_where_shapes_are_missing() -> None:
    """The CPU's traces without shapes have no sizes; a model has them."""
    _, by_rank, paths = everyday()["no shapes"]
    found = read_kineto(paths, ImportOptions())
    assert found.workload is None
    assert any("profile with record_shapes=True" in line for line in found.missing)
    model = workload_of(by_rank[0])
    named = read_kineto(paths, ImportOptions(model=model)).workload
    assert named is not None
    ready = {one.name.rpartition(".")[0][:8]: one.ready_ns for one in named.gradients}
    assert sim.assign(named, "fully_shard").bucket_indices == sim.assign(model, "fully_shard").bucket_indices
    assert ready["blocks.2"] < ready["blocks.1"] < ready["blocks.0"]  # type: ignore[operator]


def test_one_ranks_trace_is_an_upper_bound() -> None:
    _, _, paths = everyday()["fully_shard, block by block"]
    found = read_kineto(paths[1:], ImportOptions())
    assert any("1 of 2 ranks" in line for line in found.assumed)
    assert found.hardware[0].world_size == 2


def test_what_is_not_modelled_is_refused_by_name() -> None:
    _, _, paths = everyday()["nested"]
    with pytest.raises(
        NotModelledError, match=r"unit 'blocks\.0\.parts\.0' of FSDP2 lies within unit 'blocks\.0'"
    ):
        read_kineto(paths, ImportOptions())
    _, _, paths = everyday()["fully_shard, block by block"]
    other = workload_of(everyday()["fully_shard, two blocks a unit, nothing before"][1][0])
    with pytest.raises(InputError, match="give the model that was trained"):
        read_kineto(paths, ImportOptions(model=other))


def test_work_is_what_the_compute_stream_ran_outside_of_fsdp2(tmp_path: Path) -> None:
    """3 blocks of a norm and a linear layer behind an embedding and before a head: 8 kernels either way."""
    _, by_rank, paths = everyday()["fully_shard, block by block"]
    found = read_kineto([on_gpu(path, tmp_path) for path in paths], ImportOptions())
    workload = found.workload
    assert workload is not None
    for row in found.details["steps"]:
        assert row["forward_ns"] == 8 * FORWARD_US * 1000
        assert row["backward_ns"] == 8 * BACKWARD_US * 1000
        assert row["copy_in_ns"] == 4 * COPY_US * 1000
        assert row["copy_out_ns"] == 7 * COPY_US * 1000
    assert (workload.forward_ns, workload.backward_ns) == (240_000, 400_000)
    # The head's kernel comes first, then each block's linear layer and norm; the embedding's is the last.
    ready = {gradient.name: gradient.ready_ns for gradient in workload.gradients}
    assert ready["gradient 1"] == 50_000
    assert [ready[f"blocks.{block}.gradient 2"] for block in (2, 1, 0)] == [100_000, 200_000, 300_000]
    assert [ready[f"blocks.{block}.gradient 0"] for block in (2, 1, 0)] == [150_000, 250_000, 350_000]
    assert ready["gradient 0"] == 400_000
    (hardware,) = found.hardware
    assert {point.duration_ns for point in hardware.reduce_scatter or ()} == {REDUCE_US * 1000}
    assert {point.duration_ns for point in hardware.all_gather or ()} == {GATHER_US * 1000}
    assert {point.duration_ns for point in hardware.all_reduce} == {(REDUCE_US + GATHER_US) * 1000}
    reduced = [one["elements"] for one in sent(by_rank[0]) if one["kind"] == "reduce_scatter"]
    assert [row["num_elements"] for row in found.details["buckets"]] == reduced
    assert any("work is what the compute stream ran" in line for line in found.assumed)


def test_sizes_of_whole_units_are_in_nccls_traces_without_shapes(tmp_path: Path) -> None:
    _, by_rank, paths = everyday()["fully_shard, block by block"]
    stripped = []
    for path in paths:
        out = on_gpu(path, tmp_path)
        trace = json.loads(out.read_text())
        for one in trace["traceEvents"]:
            one["args"].pop("Input Dims", None)
            one["args"].pop("Input type", None)
        out.write_text(json.dumps(trace))
        stripped.append(out)
    found = read_kineto(stripped, ImportOptions())
    workload = found.workload
    assert workload is not None
    assert workload.whole_buckets
    assert [gradient.name for gradient in workload.gradients] == [
        "unit 0",
        *(f"blocks.{block}.unit 0" for block in range(3)),
    ]
    reduced = [one["elements"] for one in sent(by_rank[0]) if one["kind"] == "reduce_scatter"]
    assert sorted(gradient.elements for gradient in workload.gradients) == sorted(reduced)
    assert [gradient.ready_ns for gradient in workload.gradients] == [400_000, 350_000, 250_000, 150_000]
    assert any("each unit stands for its gradients" in line for line in found.assumed)
