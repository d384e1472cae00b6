"""The lines to paste, as Python that is parsed and run, for each torch; DeepSpeed's configuration, as JSON;
Megatron's flags; and what an assignment says of the model that it was made for."""

import ast
import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import AssignmentError, InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import HOOKS, CommHook
from sim.nouns.workload import Workload
from tests.commands import bucketsim
from tests.strategies import workloads

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
WORKLOAD = sim.load_workload(EXAMPLES / "workload.json")
CAPPED = sim.assign(WORKLOAD, bucket_cap_mb=8)
HALVES = replace(WORKLOAD, gradients=tuple(replace(one, dtype="bfloat16") for one in WORKLOAD.gradients))


def keywords(text: str) -> dict[str, Any] | None:
    """What stock DDP is given; None where ``sim.apply`` gives it the buckets."""
    calls = {ast.unparse(one.func): one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call)}
    ddp = calls.get("torch.nn.parallel.DistributedDataParallel")
    assert (ddp is None) == ("sim.apply" in calls)
    return None if ddp is None else {one.arg or "": ast.literal_eval(one.value) for one in ddp.keywords}


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, "any torch from 2.4 on"),
        ({"bucket_cap_mb": 8}, "any torch from 2.4 on"),
        ({"bucket_cap_mb_list": [4.0, 8.0]}, "needs torch '>=2.11'"),
        ({"policy": "per-parameter"}, "needs torch '>=2.12'"),
        ({"skip_all_reduce_unused_params": False}, "needs torch '>=2.8'"),
        ({"batched_grad_copy": True}, "needs torch '>=2.12'"),
        ({"bucket_cap_mb": 8, "forward_sync_buffers": True}, "needs torch '>=2.13'"),
    ],
)
def test_lines_say_which_torch_has_their_keywords(options: dict[str, Any], needs: str) -> None:
    """A2.1, B(i), and the switches of each version."""
    assignment = sim.assign(WORKLOAD, **options)
    lines = sim.snippet(assignment, WORKLOAD)
    assert lines.splitlines()[0].endswith(needs)
    assert keywords(lines) == assignment.ddp_kwargs


@given(workloads(), st.floats(0.1, 50))
def test_any_workload_has_lines(workload: Workload, cap: float) -> None:
    try:
        assignment = sim.assign(workload, bucket_cap_mb=cap)
    except NotModelledError:
        return  # DDP itself stops on this workload
    given_back = keywords(sim.snippet(assignment, workload))
    assert given_back is not None
    assert sim.assign(workload, **given_back).bucket_indices == assignment.bucket_indices


@pytest.mark.parametrize("kind", HOOKS.values(), ids=lambda kind: kind.name)
def test_a_hook_is_registered_by_its_own_name(kind: CommHook) -> None:
    """The lines import what torch has: a hook of another place cannot be a row."""
    lines = sim.snippet(sim.assign(WORKLOAD, comm_hook=kind.name), WORKLOAD)
    assert lines.splitlines()[-1].endswith(f".{kind.name}_hook)")
    assert f"from torch.distributed.algorithms.ddp_comm_hooks import {kind.module}\n" in lines
    ast.parse(lines)
    real = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{kind.module}")
    assert callable(getattr(real, f"{kind.name}_hook"))


@pytest.mark.parametrize(
    "change",
    [
        {"ddp_kwargs": {"x); import os": 1}},
        {"settings": {"x\nimport os": 1}},
        {"settings": {"comm_hook": "x\nimport os"}},
        {"settings": {"comm_hook": {"name": "noop", "x=1); import os": 1}}},
    ],
)
def test_nothing_of_a_file_becomes_code(change: dict[str, Any]) -> None:
    with pytest.raises(SimError, match=r"not (legal|modelled)"):
        sim.snippet(replace(CAPPED, **change), WORKLOAD)


def test_buckets_that_no_keyword_reaches_are_pasted_with_apply(tmp_path: Path) -> None:
    """Not contiguous in ready order; tests/dist/test_apply_and_record.py has it on real ranks."""
    count, views = len(WORKLOAD.gradients), {"gradient_as_bucket_view": True}
    buckets = (tuple(range(0, count, 2)), tuple(range(1, count, 2)))
    assignment = Assignment(bucket_indices=buckets, ddp_kwargs=views)
    text, names = sim.snippet(assignment, WORKLOAD), dict[str, Any]()
    assert "needs bucketsim" in text
    assert text.endswith("ddp_model = sim.apply(model, assignment)\n")
    exec(re.sub(r"^ddp_model.*$", "", text, flags=re.MULTILINE), names)
    assert names["assignment"] == assignment
    file = tmp_path / "a.json"
    file.write_text(sim.to_text(assignment))
    said = bucketsim("export", EXAMPLES / "workload.json", "--assignment", file, "--as", "snippet")
    assert (said.code, said.out) == (0, text)


def test_zero_has_deepspeeds_configuration() -> None:
    top = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.5, "communication_data_type": "fp32"}
    inner = {"reduce_bucket_size": 5000, "overlap_comm": True}
    made = sim.assign(WORKLOAD, "zero2", **top, **inner, cpu_offload=True, accelerator="cpu")
    offload = {"offload_optimizer": {"device": "cpu"}}
    config = json.loads(sim.deepspeed_config(made, WORKLOAD))
    assert config == top | {"zero_optimization": {"stage": 2} | inner | offload}
    made = sim.assign(HALVES, "zero1", check_grad_overflow=False)
    bf16 = {"enabled": True, "check_grad_overflow": False}
    assert json.loads(sim.deepspeed_config(made, HALVES)) == {"bf16": bf16, "zero_optimization": {"stage": 1}}


def test_megatron_has_flags() -> None:
    made = sim.assign(WORKLOAD, "megatron", overlap_grad_reduce=True, bucket_size=5e8)
    assert sim.megatron_flags(made, WORKLOAD) == "--overlap-grad-reduce\n--ddp-bucket-size 500000000\n"
    made = sim.assign(WORKLOAD, "megatron", num_microbatches=2)
    assert sim.megatron_flags(made, WORKLOAD).splitlines() == [
        "# Set elsewhere, and part of this assignment: num_microbatches=2",
        "# No flags: Megatron-LM's own defaults.",
    ]
    assert sim.megatron_flags(sim.assign(HALVES, "megatron"), HALVES) == "--grad-reduce-in-bf16\n"


def test_fully_shard_has_lines_that_wrap_its_units() -> None:
    for options, told in (
        ({"backward_prefetch": 1}, "set_modules_to_backward_prefetch(order[place + 1 : place + 2])"),
        ({"param_dtype": "bfloat16"}, "fully_shard(model, mp_policy=mp_policy)"),
        ({"replicas": 2}, "shape = (2, dist.get_world_size() // 2)"),
        ({"replicas": 2}, "fully_shard(model, mesh=mesh)"),
        ({"accumulation_steps": 2}, "in all but the last of 2 micro-batches"),
    ):
        unit = WORKLOAD.gradients[0].name.rpartition(".")[0]
        lines = sim.snippet(sim.assign(WORKLOAD, "fully_shard", units=unit, **options), WORKLOAD)
        ast.parse(lines)
        assert told in lines
        assert f"units = [[{unit!r}]]" in lines


@pytest.mark.parametrize(
    ("door", "policy", "change", "words"),
    [
        (sim.snippet, "ddp", {"ddp_kwargs": {"bucket_cap_mb": 0}}, "ddp_kwargs"),
        (sim.snippet, "zero2", {}, "'zero2' is no system of DistributedDataParallel"),
        (sim.snippet, "last-hook-safe", {}, "last-hook-safe"),
        (sim.snippet, "fully_shard", {"reverse": True}, "not the buckets that fully_shard makes"),
        (sim.megatron_flags, "megatron", {"reverse": True}, "not the buckets that megatron makes"),
        (sim.megatron_flags, "megatron", {"settings": {"bucket_size": "4e6"}}, "bucket_size"),
        (sim.megatron_flags, "ddp", {}, "'ddp' is no system of Megatron-Core"),
        (sim.deepspeed_config, "ddp", {}, "ddp"),
        (sim.deepspeed_config, "last-hook-safe", {}, "last-hook-safe"),
    ],
)
def test_no_lines_for_what_they_would_not_do(
    door: Any, policy: str, change: dict[str, Any], words: str
) -> None:
    made = sim.assign(WORKLOAD, policy)
    if change.pop("reverse", False):
        first, *each = ((one.index,) for one in WORKLOAD.gradients)
        made = replace(made, bucket_indices=(*each, first), bucket_bytes=None)
    with pytest.raises((AssignmentError, InputError, NotModelledError), match=words):
        door(replace(made, **change), WORKLOAD)
