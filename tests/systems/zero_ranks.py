"""Runs cases under real DeepSpeed, and says what the simulation makes of the same cases."""

import importlib.util
import os
from functools import cache
from typing import Any

import pytest

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from sim.systems import zero
from sim.systems.bucketing import Caps
from tests.systems.ddp_ranks import run_cases
from tests.systems.zero_cases import Case, everyday_cases

COMPARED = ("kind", "elements", "dtype", "phase", "gradient", "root")
FREE = (CurvePoint(num_bytes=0, duration_ns=0),)


def require_deepspeed() -> None:
    """Skip without DeepSpeed, or fail where it is demanded."""
    if importlib.util.find_spec("deepspeed") is not None:
        return
    missing = "no DeepSpeed: DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed"
    if os.environ.get("BUCKETSIM_REQUIRE_DEEPSPEED") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


def run_zero(cases: list[Case], *, world_size: int = 2) -> list[list[Any]]:
    """The answers of every rank to every case: ``answers[case][rank]``."""
    require_deepspeed()
    return run_cases(cases, worker="zero_worker", world_size=world_size, DS_ACCELERATOR="cpu")


@cache
def everyday_answers() -> dict[str, list[Any]]:
    """What every rank answers to ``everyday_cases``, by name; run once."""
    cases = everyday_cases()
    return dict(zip(cases, run_zero(list(cases.values())), strict=True))


def workload_of(answer: Any) -> Workload:
    """What a rank trained, ready in the order that was seen there; what fired no hook is never ready."""
    order = answer["ready"][-1][-1]
    return Workload(
        name="seen",
        gradients=tuple(
            Gradient(
                index=index,
                name=parameter["name"],
                shape=(parameter["elements"],),
                dtype=parameter["dtype"],
                num_bytes=parameter["num_bytes"],
                ready_ns=1 + order.index(index) if index in order else None,
                group=parameter["group"],
            )
            for index, parameter in enumerate(answer["parameters"])
        ),
        forward_ns=0,
        backward_ns=len(answer["parameters"]),
        optimizer_ns=0,
    )


def settings_of(case: Case) -> tuple[str, dict[str, Any]]:
    """The policy and the flat settings that the simulation takes, of DeepSpeed's nested configuration."""
    config = case["config"]
    flat = dict(config["zero_optimization"])
    policy = f"zero{flat.pop('stage')}"
    if flat.pop("offload_optimizer", None) is not None:
        flat["cpu_offload"] = True
    nested = ("zero_optimization", "bf16", "fp16")
    flat |= {name: value for name, value in config.items() if name not in nested}
    if "check_grad_overflow" in config.get("bf16", {}):
        flat["check_grad_overflow"] = config["bf16"]["check_grad_overflow"]
    return policy, flat


def simulated(case: Case, workload: Workload, world_size: int = 2) -> list[dict[str, Any]]:
    """The collectives of one step in the order of their launches, as real ranks tell them."""
    policy, settings = settings_of(case)
    hardware = Hardware(name="any", world_size=world_size, all_reduce=FREE, all_gather=FREE)
    assignment = zero.assign(workload, policy, Caps(), settings, "steady")
    return [
        {name: getattr(sent, name) for name in COMPARED} | {"micro_batch": micro_batch}
        for micro_batch, program in enumerate(zero.write(workload, hardware, assignment, "steady"), start=1)
        for sent in (*program.collectives, *program.after_sync)
    ]


def told(answer: Any, iteration: int) -> list[dict[str, Any]]:
    """What a rank sent in an iteration (0: the constructor)."""
    return [
        {name: event[name] for name in (*COMPARED, "micro_batch")}
        for event in answer["events"]
        if event["iteration"] == iteration
    ]
