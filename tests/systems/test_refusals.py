"""What each system refuses, by the name of the setting or the gradient and with what is legal."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.errors import AssignmentError, InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.settings import settings_of
from sim.systems import zero
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.registry import MAX_ITERATIONS, write
from sim.systems.zero import ZeroSettings
from tests.handmade import handmade
from tests.systems.cases import HARDWARE, POLICIES, four_gradients, mlp

WORKLOAD = four_gradients("tokens", "h.0", "h.1", "head")
CLASSES = {"ddp": Switches, "zero1": ZeroSettings, "megatron": MegatronSettings, "fully_shard": Fsdp2Settings}
HOOKS = {"overlap_grad_reduce": True, "bucket_size": 60}
SHARDED = {"use_distributed_optimizer": True}
COMPILED = {"optimize_ddp": "ddp_optimizer"}
EACH = {"accumulation_steps": 3, "no_sync": False}


@pytest.mark.parametrize(
    ("policy", "name"), [(policy, name) for policy, cls in CLASSES.items() for name in settings_of(cls)]
)
def test_every_setting_refuses_what_it_cannot_be(policy: str, name: str) -> None:
    with pytest.raises(InputError, match=f"{policy}: {name}=.* is not legal; give "):
        sim.assign(WORKLOAD, policy, **{name: []})


ZERO = "is not modelled; modelled settings: reduce_bucket_size"


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("fsdp", {}, "policy: 'fsdp' is not modelled; give one of ddp, "),
        *(("ddp", {"static_graph": one}, "legal; give true or false") for one in (None, 1, "True")),
        ("ddp", {"accumulation_steps": 0}, "accumulation_steps=0 is not legal; give an integer >= 1, at"),
        ("ddp", {"comm_hook": "powerSGD"}, "comm_hook='powerSGD' is not modelled: .*; give one of fp16"),
        ("ddp", {"sync_module_states": True}, "sync_module_states=True is not modelled; modelled settings:"),
        ("ddp", {"check_reduction": True}, "check_reduction=True is not modelled"),
        ("ddp", {"delay_all_reduce_named_params": [["p0", 0]]}, "delay_all_reduce.* is not modelled"),
        ("ddp", {"mixed_precision": {"param_dtype": "float16"}}, "mixed_precision=.* is not modelled"),
        ("ddp", {"join_inputs": [2, 4]}, r"join_inputs=\[2, 4\] is not modelled"),
        ("ddp", {"static_graph": True, "accumulation_steps": 2}, "static_graph and accumulation_steps: "),
        ("ddp", {"bucket_cap_mb": -1}, "bucket cap: -1 MiB is not legal"),
        ("ddp", {"bucket_cap_mb": "25"}, "bucket cap: '25' MiB is not legal"),
        ("ddp", {"bucket_cap_mb_list": []}, "an empty list is not legal"),
        ("ddp", {"bucket_cap_mb_list": "1,25"}, "bucket_cap_mb_list: '1,25' is not legal; give a list"),
        ("ddp", {"bucket_cap_mb_list": [True]}, "bucket cap: True MiB is not legal"),
        ("ddp", {"optimize_ddp": "python_reducer"}, "python_reducer"),
        ("ddp", {"optimize_ddp": "python_reducer_without_compiled_forward"}, "as under no_opt"),
        ("ddp", {"compile_cap_mb": 25}, "compile_cap_mb needs optimize_ddp=ddp_optimizer"),
        ("ddp", COMPILED | {"compile_cap_mb": 0.5}, r"compile_cap_mb=0.5 is not legal; give at least 1"),
        ("ddp", COMPILED | {"compile_cap_mb": 0}, "compile_cap_mb=0 is not legal; give a number above 0"),
        ("zero2", {"stage": 3}, f"stage=3 {ZERO}"),
        ("zero1", {"gradient_accumulation_steps": 0}, "give an integer >= 1, at most 10000"),
        ("zero1", {"gradient_predivide_factor": 0.0}, "give a number above 0"),
        ("zero1", {"gradient_clipping": float("nan")}, "give a number >= 0"),
        ("zero1", {"communication_data_type": "float32"}, "give one of fp32, fp16, bf16"),
        ("zero1", {"grad_accum_dtype": "fp32"}, ZERO),
        ("zero2", {"expert_groups": {1: 2}}, ZERO),
        ("zero1", {"check_grad_overflow": True}, "a setting of bf16; the parameters are float32"),
        ("megatron", {"num_buckets": 4}, "num_buckets=4 is not modelled; modelled settings: overlap_grad_"),
        ("megatron", {"overlap_param_gather": True}, "takes it with use_distributed_optimizer"),
        ("fully_shard", {"mesh": 1}, "mesh=1 is not modelled; modelled settings: units"),
        ("fully_shard", {"units": "layers.*"}, "names no module of workload 'four'"),
        ("fully_shard", {"units": "h,h.0"}, "lies within another unit"),
        ("arrival-counted", {"bucket_cap_mb": 1.0, "first_bucket_mb": 0.5}, "give bucket_cap_mb alone"),
        ("last-hook", {"gradient_as_bucket_view": True}, "no switch gradient_as_bucket_view=True"),
        ("per-parameter-sync", {"bucket_cap_mb": 1.0}, "takes no bucket caps"),
        ("flat-views", {"bucket_cap_mb": -1}, "-1"),
    ],
)
def test_what_is_not_legal_is_refused_by_name(policy: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SimError, match=words):
        sim.assign(WORKLOAD, policy, **options)


UNUSED, TWICE, SPARSE = {"ready_ns": None}, {"uses": 2}, {"sparse": True}


@pytest.mark.parametrize(
    ("policy", "options", "change", "words"),
    [
        ("ddp", {}, UNUSED, "is never ready; DDP without find_unused"),  # A3.21
        ("ddp", {"accumulation_steps": 2}, UNUSED, "is never ready; DDP without find_unused"),
        ("ddp", {"find_unused_parameters": True}, UNUSED | SPARSE, "sparse and never ready; DDP stops"),
        ("ddp", {"static_graph": True}, UNUSED | SPARSE, "sparse and never ready; DDP stops"),
        ("ddp", {}, TWICE, "becomes ready 2 times .*marked ready tw"),  # A8.5
        ("ddp", {"find_unused_parameters": True}, TWICE, "becomes ready 2 times .*marked ready tw"),
        ("ddp", COMPILED, SPARSE, "some gradients are sparse"),
        ("zero2", {}, SPARSE, "is sparse; ZeRO takes dense gradients"),
        ("zero2", {}, TWICE, "Gradient computed twice for this partition"),
        ("zero2", {}, {"dtype": "float64"}, "is float64; under zero2"),
        ("megatron", HOOKS, SPARSE, "is sparse"),
        ("megatron", HOOKS, TWICE, "becomes ready 2 times"),
        ("megatron", HOOKS, {"wire_bytes": 8}, "has wire_bytes 8"),
        ("megatron", HOOKS, {"device": "cuda:1"}, "those of Megatron-Core are all on one device"),
        ("megatron", HOOKS, UNUSED, "others of its bucket are"),
        ("fully_shard", {}, SPARSE, "is sparse"),
        ("fully_shard", {}, UNUSED, "is never ready"),
        ("fully_shard", {}, {"wire_bytes": 8}, "has wire_bytes 8"),
        ("fully_shard", {}, {"shape": (), "num_bytes": 4}, "is a scalar"),
        ("fully_shard", {}, {"dtype": "bfloat16", "num_bytes": 40}, "'root' holds parameters of bfloat16, f"),
        *((policy, {}, change, policy) for policy in POLICIES for change in (SPARSE, TWICE)),
        ("last-hook", {}, {"dtype": "float64"}, "2 dtypes or devices into bucket 0"),  # A7.5
    ],
)
def test_a_gradient_on_which_a_system_stops_is_refused(
    policy: str, options: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    *rest, last = WORKLOAD.gradients
    workload = replace(WORKLOAD, gradients=(*rest, replace(last, **change)))
    with pytest.raises(NotModelledError, match=words):
        sim.assign(workload, policy, **options)


def test_a_textbook_system_stops_where_a_gradient_never_comes() -> None:
    gradients = (replace(WORKLOAD.gradients[0], ready_ns=None), *WORKLOAD.gradients[1:])
    for policy in [one for one in POLICIES if one != "last-hook"]:
        with pytest.raises(NotModelledError, match=r"gradient 0 \(tokens.weight\) is never ready"):
            write(replace(WORKLOAD, gradients=gradients), HARDWARE, sim.assign(WORKLOAD, policy))


@pytest.mark.parametrize(("policy", "options"), [("ddp", {"find_unused_parameters": True}), ("zero2", {})])
def test_a_backward_needs_a_gradient(policy: str, options: dict[str, Any]) -> None:
    unused = replace(WORKLOAD, gradients=tuple(replace(g, ready_ns=None) for g in WORKLOAD.gradients))
    with pytest.raises(InputError, match="no gradient ever becomes ready"):
        sim.assign(unused, policy, **options)


def test_where_a_switch_makes_a_gradient_legal() -> None:
    first, *rest = WORKLOAD.gradients
    for change, name in (
        (UNUSED, "find_unused_parameters"),
        (UNUSED, "static_graph"),
        (TWICE, "static_graph"),
    ):
        assert sim.assign(replace(WORKLOAD, gradients=(replace(first, **change), *rest)), **{name: True})


@pytest.mark.parametrize(
    ("policy", "options", "hardware", "words"),
    [
        ("megatron", HOOKS | SHARDED, {"reduce_scatter": None}, "no reduce_scatter curve"),
        ("fully_shard", {}, {"reduce_scatter": None}, "no reduce_scatter curve"),
        *(
            ("fully_shard", {"replicas": ranks}, {"world_size": 4}, f"replicas={ranks} is not legal on 4 ran")
            for ranks in (3, 4, 8)
        ),
    ],
)
def test_what_a_machine_does_not_carry_is_refused(
    policy: str, options: dict[str, Any], hardware: dict[str, Any], words: str
) -> None:
    with pytest.raises(SimError, match=words):
        write(WORKLOAD, replace(HARDWARE, **hardware), sim.assign(WORKLOAD, policy, **options))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"colour": "red"}}, "ddp: colour='red' is not modelled; modelled settings"),
        ({"settings": {"static_graph": True}}, "settings: static_graph=True is not modelled; it is set"),
        ({"ddp_kwargs": {"process_group": "x"}}, "ddp: process_group='x' is not modelled"),
        ({"bucket_indices": ((0, 1),)}, "index 2 .* is in no bucket"),  # A8.3
        ({"bucket_indices": ((0, 1), (2, 3), (4,))}, "index 4 is not legal"),
        ({"policy": "zero2", "bucket_indices": ((0, 1), (2, 3))}, "not the buckets that zero2 makes"),
        ({"policy": "flat-views", "bucket_indices": ((0, 1), (999,))}, "999"),
    ],
)
def test_an_assignment_is_checked_as_well(change: dict[str, Any], words: str) -> None:
    with pytest.raises((NotModelledError, AssignmentError), match=words):
        sim.simulate(WORKLOAD, HARDWARE, Assignment(**{"bucket_indices": ((0, 1, 2, 3),)} | change))


def test_iterations_that_are_not_modelled_are_refused() -> None:
    for iteration in (1, 2, 3):
        assignment = sim.assign(WORKLOAD, iteration=iteration, **EACH)
        with pytest.raises(NotModelledError, match=f"iteration: {iteration} is not modelled with accumul"):
            sim.simulate(WORKLOAD, HARDWARE, assignment, iteration=iteration)
    sim.simulate(WORKLOAD, HARDWARE, sim.assign(WORKLOAD, static_graph=True, **EACH))
    for iterations in (0, MAX_ITERATIONS + 1, True, 1.5):
        with pytest.raises(InputError, match=f"iterations: {iterations} is not legal; give an integer >= 1"):
            sim.explain(WORKLOAD, iterations=iterations)


def test_rebuilt_buckets_are_not_those_of_iteration_1() -> None:
    """A2.2, A2.6: an assignment of the steady state, by keywords, is refused before DDP has it."""
    steady = sim.assign(mlp(), bucket_cap_mb=0.05)
    with pytest.raises(AssignmentError, match=r"iteration 1 DDP still has the 1 bucket\(s\)"):
        sim.simulate(mlp(), HARDWARE, steady, iteration=1)
    injected = replace(steady, policy="explicit", ddp_kwargs={})
    assert len(sim.simulate(mlp(), HARDWARE, injected, iteration=1).buckets) == 2


def test_off_is_legal_for_what_is_not_modelled() -> None:
    off = sim.assign(WORKLOAD, check_reduction=False, delay_all_reduce_named_params=None, init_sync=False)
    assert off.bucket_indices == sim.assign(WORKLOAD).bucket_indices


def test_forward_sync_buffers_goes_first() -> None:
    """torch 2.13's name wins over the older one."""
    for given_value in (True, False):
        made = sim.assign(WORKLOAD, forward_sync_buffers=given_value, broadcast_buffers=not given_value)
        assert read_switches(made).syncs_buffers is given_value


def test_numbers_as_json_has_them_are_whole() -> None:
    made = sim.assign(WORKLOAD, "zero2", reduce_bucket_size=5e8)  # DeepSpeed's default
    plain = sim.assign(WORKLOAD, "zero2")
    assert zero.plan(WORKLOAD, made, 2).settings == zero.plan(WORKLOAD, plain, 2).settings


def test_what_a_flat_group_needs() -> None:
    workload = handmade([2, 1], [0, 40])
    workload = replace(workload, gradients=tuple(replace(g, group=g.index) for g in workload.gradients))
    with pytest.raises(NotModelledError, match="optimizer group 0 has no elements"):
        write(workload, HARDWARE, sim.assign(workload, "zero2"))


def test_the_default_size_of_megatron_grows_with_the_ranks() -> None:
    """59 million elements are two buckets on up to 40 ranks, and one on 64."""
    large = tuple(replace(g, shape=(14 << 20,), num_bytes=56 << 20) for g in WORKLOAD.gradients)
    workload = replace(WORKLOAD, gradients=large)
    assignment = sim.assign(workload, "megatron", overlap_grad_reduce=True)
    assert write(workload, replace(HARDWARE, world_size=40), assignment)
    with pytest.raises(AssignmentError, match="bucket_size=64000000"):
        write(workload, replace(HARDWARE, world_size=64), assignment)
