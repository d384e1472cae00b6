"""DeepSpeed, Megatron-Core and FSDP2 themselves, paced on real ranks, use the buckets that are predicted."""

import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.systems.fsdp2 import plan, read_fsdp2_settings
from sim.systems.micro_batch import forward_modules
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.replay_jobs import paced_job
from sim.validator.hosts.launch import _free_port
from tests.dist.test_systems_replay import TWO, shrunk
from tests.ranks import run_together

pytestmark = [pytest.mark.dist, pytest.mark.slow]

Cases = dict[str, tuple[str, dict[str, Any]]]  # policy and options, by name
ZERO = {"accelerator": "cpu", "reduce_bucket_size": 6_553_600}
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 3_000_000}
SHARDED = {**OVERLAP, "use_distributed_optimizer": True}


def units(workload: Workload, assignment: Assignment) -> list[str]:
    """Names of the units but the root, as forward comes to them; modules of one unit with + between."""
    settings = read_fsdp2_settings(assignment.settings, workload)
    return [one.name for one in plan(workload, settings, 1).forward if not one.is_root]


def played(
    workload: Workload, cases: dict[str, tuple[str, dict[str, Any]]], folder: Path, ranks: int = 2
) -> Any:
    """What each rank's systems did in two steps; each ran its predicted buckets, for as long as was slept."""
    modules = forward_modules(workload)
    ends = accumulate(module.duration_ns for module in modules)
    asked = {name: sim.assign(workload, policy, **options) for name, (policy, options) in cases.items()}
    job = {
        **paced_job(workload, [Candidate(name=n, assignment=a) for n, a in asked.items()], 2, 3, 0),
        "groups": [gradient.group for gradient in workload.gradients],
        "names": [gradient.name for gradient in workload.gradients],
        "modules": [[list(module.indices), end] for module, end in zip(modules, ends, strict=True)],
        "units": {n: units(workload, a) for n, a in asked.items() if a.policy == "fully_shard"},
    }
    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    said = run_together(
        "tests.dist.evidence.worker", folder, str(ranks), str(_free_port()), world_size=ranks,
        environment={"DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert [code for code, _ in said] == [0] * ranks, said
    found = [json.loads((folder / f"did.{rank}").read_text()) for rank in range(ranks)]
    hardware = replace(TWO, world_size=ranks)
    for name, assignment in asked.items():
        assert sim.simulate(workload, hardware, assignment).step_ns > 0
        for did in found:
            assert [set(bucket) for bucket in did[name]["buckets"]] == [
                set(bucket) for bucket in assignment.bucket_indices
            ], name
            batches = assignment.settings.get("num_microbatches", 1)
            least = batches * (workload.forward_ns + workload.backward_ns)
            assert all(step["step"] >= least for step in did[name]["steps"]), name
    return found


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")
def test_zero(small_workload: Workload, tmp_path: Path) -> None:
    workload = shrunk(small_workload)
    gradients = tuple(replace(one, group=one.index % 2) for one in workload.gradients)
    workload = replace(workload, gradients=gradients, buffers=())
    small = {**ZERO, "reduce_bucket_size": 200_000}
    cases: Cases = {
        "zero1": ("zero1", ZERO),
        "zero2": ("zero2", ZERO),
        "small zero1": ("zero1", small),
        "small zero2": ("zero2", small),
    }
    assert len(sim.assign(workload, "zero2", **small).bucket_indices) > 2
    for did in played(workload, cases, tmp_path):
        # The host waits in the hook for each flush, and the schedule with it.
        assert all(step["backward_end"] > workload.backward_ns for step in did["small zero2"]["steps"])


@pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core")
def test_megatron(small_workload: Workload, tmp_path: Path) -> None:
    cases: Cases = {
        "whole": ("megatron", {}),
        "overlap": ("megatron", OVERLAP),
        "small buckets": ("megatron", {**OVERLAP, "bucket_size": 600_000}),
        "distributed optimizer": ("megatron", SHARDED),
        "gathers in forward": ("megatron", {**SHARDED, "overlap_param_gather": True}),
        "batches": ("megatron", {**OVERLAP, "num_microbatches": 2}),
    }
    played(shrunk(small_workload), cases, tmp_path)


def test_fully_shard(small_workload: Workload, tmp_path: Path) -> None:
    grouped = {"units": "layers.0+layers.1,layers.5", "reduce_dtype": "bfloat16"}
    cases: Cases = {
        "default": ("fully_shard", {}),
        "kept": ("fully_shard", {"reshard_after_forward": False}),
        "two ahead": ("fully_shard", {"forward_prefetch": 2, "backward_prefetch": 2}),
        "the root alone": ("fully_shard", {"units": ""}),
        "grouped": ("fully_shard", grouped),
    }
    for did in played(shrunk(small_workload), cases, tmp_path):
        assert did["default"]["gradients"] == [11.0]


def test_hsdp_goes_by_its_two_groups(small_workload: Workload, tmp_path: Path) -> None:
    """A10.7: what is reduced is the sum of all ranks, so each all-reduce began behind its reduce-scatter."""
    cases: Cases = {
        "hsdp": ("fully_shard", {"replicas": 2}),
        "kept": ("fully_shard", {"replicas": 2, "reshard_after_forward": False}),
    }
    for did in played(shrunk(small_workload), cases, tmp_path, ranks=4):
        assert did["hsdp"]["gradients"] == did["kept"]["gradients"] == [1111.0]
