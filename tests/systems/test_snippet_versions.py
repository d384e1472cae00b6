"""The lines for each torch, as Python that is parsed; and DeepSpeed's configuration, as JSON."""

import ast
import json
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
from sim.systems.snippets import read_version
from tests.strategies import workloads

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
WORKLOAD = sim.load_workload(EXAMPLES / "workload.json")
VERSIONS = [(2, minor) for minor in range(4, 14)]
LISTED = sim.assign(WORKLOAD, bucket_cap_mb_list=[4.0, 8.0])
CAPPED = sim.assign(WORKLOAD, bucket_cap_mb=8)
EACH = sim.assign(WORKLOAD, "per-parameter")


def calls(text: str) -> dict[str, ast.Call]:
    """The calls of a snippet by what is called, as it is written."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return {ast.unparse(call.func): call for call in found}


def keywords(text: str) -> dict[str, Any] | None:
    """What stock DDP is given; None where ``sim.apply`` gives it the buckets."""
    made = calls(text)
    ddp = made.get("torch.nn.parallel.DistributedDataParallel")
    assert (ddp is None) == ("sim.apply" in made)
    return None if ddp is None else {one.arg or "": ast.literal_eval(one.value) for one in ddp.keywords}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"2.{version[1]}")
def test_a_torch_gets_keywords_where_it_has_them(version: tuple[int, int]) -> None:
    """A2.1, B(i): a list since 2.11, a cap of 0 since 2.12."""
    text = f"{version[0]}.{version[1]}"
    for assignment, since in (
        (sim.assign(WORKLOAD), (2, 4)),
        (CAPPED, (2, 4)),
        (LISTED, (2, 11)),
        (EACH, (2, 12)),
    ):
        lines = sim.snippet(assignment, WORKLOAD, torch=text)
        assert f"for torch {text}" in lines.splitlines()[0]
        found = keywords(lines)
        assert (found == assignment.ddp_kwargs) == (version >= since)
        if found is None:
            assert f"# torch {text} " in lines
            assert ("bucketsim asks for torch >= 2.9" in lines) == (version < (2, 9))
            assert applied(lines).bucket_indices == assignment.bucket_indices


def applied(lines: str) -> Assignment:
    """The assignment that the lines give to ``sim.apply``."""
    names: dict[str, Any] = {"sim": sim}
    exec(lines.replace("ddp_model = sim.apply(model, assignment)", ""), names)
    made: Assignment = names["assignment"]
    return made


@pytest.mark.parametrize(
    ("switch", "since"),
    [
        ("skip_all_reduce_unused_params", (2, 8)),
        ("batched_grad_copy", (2, 12)),
        ("forward_sync_buffers", (2, 13)),
    ],
)
def test_a_torch_without_a_switch_is_refused(switch: str, since: tuple[int, int]) -> None:
    """Whatever its value: an older torch takes no keyword that it does not know."""
    assignment = sim.assign(WORKLOAD, **{switch: True})
    required = {"torch": f">=2.{since[1]}"} if since > (2, 9) else {}  # bucketsim itself needs 2.9
    for value in (True, False):
        assert sim.assign(WORKLOAD, **{switch: value}).requires == required
    for version in VERSIONS:
        text = f"{version[0]}.{version[1]}"
        if version >= since:
            assert keywords(sim.snippet(assignment, WORKLOAD, torch=text)) == {switch: True}
            continue
        for value in (True, False):
            with pytest.raises(InputError, match=f"torch: {text} has no {switch}.*give 2.{since[1]}"):
                sim.snippet(sim.assign(WORKLOAD, **{switch: value}), WORKLOAD, torch=text)


@pytest.mark.parametrize(
    ("assignment", "since"),
    [
        (sim.assign(WORKLOAD), (2, 4)),
        (CAPPED, (2, 4)),
        (LISTED, (2, 11)),
        (EACH, (2, 12)),
        (sim.assign(WORKLOAD, skip_all_reduce_unused_params=False), (2, 8)),
        (sim.assign(WORKLOAD, bucket_cap_mb=8, forward_sync_buffers=True), (2, 13)),
    ],
)
def test_the_title_names_the_oldest_torch_of_the_lines(
    assignment: Assignment, since: tuple[int, int]
) -> None:
    """From that version on the lines are the same as those without one, before they are not."""
    lines = sim.snippet(assignment, WORKLOAD)
    title = lines.splitlines()[0]
    assert ("any torch from 2.4 on" if since == (2, 4) else f"needs torch '>=2.{since[1]}'") in title
    for version in VERSIONS:
        try:
            found = sim.snippet(assignment, WORKLOAD, torch=f"2.{version[1]}").splitlines()[1:]
        except (InputError, NotModelledError):
            found = []
        assert (found == lines.splitlines()[1:]) == (version >= since)
    only_switches = "skip_all_reduce_unused_params" in lines or "forward_sync_buffers" in lines
    assert ("(before: sim.apply)" in title) == (since > (2, 4) and not only_switches)


@pytest.mark.parametrize("text", ["", "two", "2", "1.13", "2.x", "2.8;import os", "v2.8", "2.8 beta", "99"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"torch: .*give a version from 2\.4 on"):
        sim.snippet(CAPPED, WORKLOAD, torch=text)


@given(st.integers(4, 99), st.integers(0, 9), st.sampled_from(["", "+cpu", "+cu130", "a0+git1234"]))
def test_versions_as_torch_tells_them_are_read(minor: int, patch: int, build: str) -> None:
    assert read_version(f"2.{minor}.{patch}{build}") == (2, minor)
    assert read_version(f"2.{minor}") == (2, minor)


@given(workloads(), st.sampled_from(VERSIONS), st.floats(0.1, 50))
def test_any_workload_has_lines_for_any_torch(
    workload: Workload, version: tuple[int, int], cap: float
) -> None:
    """Both ways lead to the same buckets: what keywords reach is checked, what is spelled out is read."""
    try:
        assignment = sim.assign(workload, bucket_cap_mb=cap)
    except NotModelledError:
        return  # DDP itself stops on this workload
    lines = sim.snippet(assignment, workload, torch=f"{version[0]}.{version[1]}")
    if (found := keywords(lines)) is None:
        assert applied(lines).bucket_indices == assignment.bucket_indices
    else:
        again = sim.assign(workload, **found)
        assert again.bucket_indices == assignment.bucket_indices


@pytest.mark.parametrize("kind", HOOKS.values(), ids=lambda kind: kind.name)
def test_a_hook_is_registered_by_its_own_name(kind: CommHook) -> None:
    """The lines import what torch has: a hook of another place cannot be a row."""
    lines = sim.snippet(sim.assign(WORKLOAD, comm_hook=kind.name), WORKLOAD)
    assert lines.splitlines()[-1].endswith(f".{kind.name}_hook)")
    assert f"from torch.distributed.algorithms.ddp_comm_hooks import {kind.module}\n" in lines
    ast.parse(lines)
    pytest.importorskip("torch")
    real = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{kind.module}")
    assert callable(getattr(real, f"{kind.name}_hook"))


@pytest.mark.parametrize(
    "change",
    [
        {"ddp_kwargs": {"x); import os": 1}},
        {"settings": {"x\nimport os": 1}},
        {"settings": {"comm_hook": "x\nimport os"}},
        {"settings": {"comm_hook": {"name": "noop", "x=1); import os": 1}}},
        {"requires": {"environment": ["x"]}},
    ],
)
def test_nothing_of_a_file_becomes_code(change: dict[str, Any]) -> None:
    with pytest.raises(SimError, match=r"not (legal|modelled)"):
        sim.snippet(replace(CAPPED, **change), WORKLOAD)


ZERO_SETTINGS = {
    "reduce_bucket_size": 5000,
    "overlap_comm": True,
    "gradient_accumulation_steps": 2,
    "communication_data_type": "fp32",
    "gradient_clipping": 0.5,
    "cpu_offload": True,
    "accelerator": "cpu",
}


def test_zero_has_deepspeeds_configuration() -> None:
    made = sim.assign(WORKLOAD, "zero2", **ZERO_SETTINGS)
    assert json.loads(sim.deepspeed_config(made, WORKLOAD)) == {
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 5000,
            "overlap_comm": True,
            "offload_optimizer": {"device": "cpu"},
        },
    }


def test_parameters_of_bf16_are_said_in_deepspeeds_configuration() -> None:
    workload = replace(
        WORKLOAD, gradients=tuple(replace(gradient, dtype="bfloat16") for gradient in WORKLOAD.gradients)
    )
    made = sim.assign(workload, "zero1", check_grad_overflow=False)
    assert json.loads(sim.deepspeed_config(made, workload)) == {
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "zero_optimization": {"stage": 1},
    }


def test_megatron_has_flags() -> None:
    made = sim.assign(
        WORKLOAD, "megatron", overlap_grad_reduce=True, bucket_size=5e8, average_in_collective=False
    )
    assert sim.megatron_flags(made, WORKLOAD) == "--overlap-grad-reduce\n--ddp-bucket-size 500000000\n"
    edited = tuple((index,) for bucket in made.bucket_indices for index in bucket)
    with pytest.raises(AssignmentError, match="not the buckets that megatron makes"):
        sim.megatron_flags(replace(made, bucket_indices=edited, bucket_bytes=None), WORKLOAD)
    made = sim.assign(WORKLOAD, "megatron", num_microbatches=2)
    assert sim.megatron_flags(made, WORKLOAD).splitlines() == [
        "# Set elsewhere, and part of this assignment: num_microbatches=2",
        "# No flags: Megatron-LM's own defaults.",
    ]
    halves = replace(WORKLOAD, gradients=tuple(replace(one, dtype="bfloat16") for one in WORKLOAD.gradients))
    assert sim.megatron_flags(sim.assign(halves, "megatron"), halves) == "--grad-reduce-in-bf16\n"
    with pytest.raises(InputError, match="bucket_size"):
        sim.megatron_flags(replace(made, settings={"bucket_size": "4e6"}), WORKLOAD)
    with pytest.raises(NotModelledError, match="'ddp' is no system of Megatron-Core"):
        sim.megatron_flags(sim.assign(WORKLOAD, "ddp"), WORKLOAD)


@pytest.mark.parametrize("policy", ["ddp", "last-hook-safe"])
def test_no_configuration_of_deepspeed_for_another_system(policy: str) -> None:
    with pytest.raises(NotModelledError, match=policy):
        sim.deepspeed_config(sim.assign(WORKLOAD, policy), WORKLOAD)
