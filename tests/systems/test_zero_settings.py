"""ZeRO's settings: every one has a reader, and what is not legal is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.settings import settings_of
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.systems.zero import ZeroSettings, read_zero_settings
from tests.systems.sharded_cases import m1_workload

WORKLOAD = m1_workload()


def assign(workload: Workload, policy: str, options: dict[str, Any]) -> Assignment:
    return sim.assign(workload, policy, **options)


def test_defaults_are_deepspeeds() -> None:
    read = read_zero_settings({}, 2, WORKLOAD)
    assert (read.reduce_bucket_size, read.overlap_comm, read.contiguous_gradients) == (
        500_000_000,
        False,
        True,
    )
    assert (read.reduce_scatter, read.gradient_clipping) == (True, 1.0)
    assert read.sent_dtype == "float32"


@pytest.mark.parametrize("name", settings_of(ZeroSettings))
def test_every_setting_refuses_what_it_cannot_be(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}(=|.* is a setting of)"):
        assign(WORKLOAD, "zero1", {name: "no such value"})


def test_numbers_are_taken_as_deepspeed_takes_them() -> None:
    assert read_zero_settings({"reduce_bucket_size": 5e8}, 1, WORKLOAD).reduce_bucket_size == 500_000_000


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("zero2", {"stage": 3}, "stage=3 is not modelled; modelled settings: reduce_bucket_size"),
        ("zero2", {"overlap_comm": 1}, "overlap_comm=1 is not legal; give true or false"),
        ("zero2", {"reduce_bucket_size": True}, "give a whole number >= 1"),
        ("zero1", {"gradient_accumulation_steps": 0}, "give an integer 1 to 10000"),
        ("zero1", {"gradient_predivide_factor": 0.0}, "give a finite number > 0"),
        ("zero1", {"gradient_clipping": float("nan")}, "give a finite number >= 0"),
        ("zero1", {"communication_data_type": "float32"}, "give one of fp32, fp16, bf16"),
        ("zero1", {"grad_accum_dtype": "fp32"}, "is not modelled; modelled settings: reduce_bucket_size"),
        ("zero2", {"expert_groups": {1: 2}}, "is not modelled; modelled settings: reduce_bucket_size"),
        ("zero1", {"accelerator": "tpu"}, "give one of cuda, cpu"),
        ("zero1", {"check_grad_overflow": True}, "a setting of bf16; the parameters are float32"),
    ],
)
def test_a_setting_that_is_not_legal_is_refused_by_name(
    policy: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SimError, match=words):
        assign(WORKLOAD, policy, options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sparse": True}, "is sparse; ZeRO takes dense gradients"),
        ({"uses": 2}, "Gradient computed twice for this partition"),
        ({"dtype": "float64"}, "is float64 on no device"),
    ],
)
def test_a_gradient_on_which_deepspeed_stops_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    first, *rest = WORKLOAD.gradients
    workload = replace(WORKLOAD, gradients=(replace(first, **change), *rest))
    with pytest.raises(NotModelledError, match=words):
        assign(workload, "zero2", {})


def test_a_backward_needs_a_gradient() -> None:
    unused = replace(WORKLOAD, gradients=tuple(replace(g, ready_ns=None) for g in WORKLOAD.gradients))
    with pytest.raises(InputError, match="no gradient ever becomes ready"):
        assign(unused, "zero2", {})


def test_an_optimizer_group_without_elements_is_refused() -> None:
    first, *rest = WORKLOAD.gradients
    workload = replace(WORKLOAD, gradients=(replace(first, num_bytes=0, group=1), *rest))
    assignment = assign(workload, "zero2", {})
    hardware = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=0),))
    with pytest.raises(NotModelledError, match="optimizer group 1 has no elements"):
        write(workload, hardware, assignment, "steady")
