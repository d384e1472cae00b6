"""Real DeepSpeed, Megatron-Core and FSDP2 on ranks, and what the simulation makes of the same cases."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from sim.systems.registry import write
from tests.systems.ddp_ranks import run_cases
from tests.systems.sharded_cases import FSDP2, MEGATRON, ZERO, Case

Answer = dict[str, Any]
FREE = (CurvePoint(num_bytes=0, duration_ns=0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A worker, what it needs, its everyday cases, and which facts of a collective it tells.

    ``asked`` makes of a case the policy and the flat settings that the simulation takes.
    """

    worker: str
    package: str
    install: str
    everyday: dict[str, Case]
    compared: tuple[str, ...]
    asked: Callable[[Case], tuple[str, dict[str, Any]]]


def _zero(case: Case) -> tuple[str, dict[str, Any]]:
    """DeepSpeed's nested configuration as flat settings."""
    config = case["config"]
    flat = dict(config["zero_optimization"])
    policy = f"zero{flat.pop('stage')}"
    if flat.pop("offload_optimizer", None) is not None:
        flat["cpu_offload"] = True
    flat |= {
        name: value for name, value in config.items() if name not in ("zero_optimization", "bf16", "fp16")
    }
    if "check_grad_overflow" in config.get("bf16", {}):
        flat["check_grad_overflow"] = config["bf16"]["check_grad_overflow"]
    return policy, flat


def _megatron(case: Case) -> tuple[str, dict[str, Any]]:
    return "megatron", case["config"] | {name: case[name] for name in ("num_microbatches",) if name in case}


def _fsdp2(case: Case) -> tuple[str, dict[str, Any]]:
    return "fully_shard", case["settings"] | {"units": case["units"]}


SYSTEMS = {
    "zero": System(
        worker="zero_worker",
        package="deepspeed",
        install="DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed",
        everyday=ZERO,
        compared=("kind", "elements", "dtype", "phase", "gradient", "root", "micro_batch"),
        asked=_zero,
    ),
    "megatron": System(
        worker="megatron_worker",
        package="megatron",
        install="pip install --no-deps megatron-core==0.16.1",
        everyday=MEGATRON,
        compared=("kind", "elements", "dtype", "phase", "gradient"),
        asked=_megatron,
    ),
    "fsdp2": System(
        worker="fsdp2_worker",
        package="torch",
        install="",
        everyday=FSDP2,
        compared=("kind", "elements", "dtype", "phase", "micro_batch"),
        asked=_fsdp2,
    ),
}


def run(name: str, cases: list[Case], *, world_size: int = 2) -> list[list[Answer]]:
    """The answers of every rank to every case; skips without the system, or fails where it is demanded."""
    system = SYSTEMS[name]
    if importlib.util.find_spec(system.package) is None:
        missing = f"no {system.package}: {system.install}"
        if os.environ.get(f"BUCKETSIM_REQUIRE_{system.package.upper()}") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return run_cases(cases, worker=system.worker, world_size=world_size, DS_ACCELERATOR="cpu")


@cache
def everyday_answers(name: str) -> dict[str, list[Answer]]:
    """What each of two ranks answers to the everyday cases of a system, by name; run once."""
    cases = SYSTEMS[name].everyday
    return dict(zip(cases, run(name, list(cases.values())), strict=True))


def workload_of(answer: Answer) -> Workload:
    """What a rank trained, ready in the order that was seen there; what fired no hook is never ready."""
    order, parameters = answer["ready"], answer["parameters"]
    return Workload(
        name="seen",
        gradients=tuple(
            Gradient(
                index=index,
                name=one["name"],
                shape=tuple(one["shape"]),
                dtype=one["dtype"],
                num_bytes=one["num_bytes"],
                ready_ns=1 + order.index(index) if index in order else None,
                group=one.get("group", 0),
            )
            for index, one in enumerate(parameters)
        ),
        forward_ns=0,
        backward_ns=len(parameters),
        optimizer_ns=0,
    )


def assigned(name: str, case: Case, workload: Workload) -> Assignment:
    policy, settings = SYSTEMS[name].asked(case)
    return sim.assign(workload, policy, **settings)


def simulated(
    name: str, case: Case, workload: Workload, iteration: Any = "steady", world_size: int = 2
) -> list[dict[str, Any]]:
    """The collectives of a step in the order of their launches, as real ranks tell them."""
    hardware = Hardware(
        name="any", world_size=world_size, all_reduce=FREE, reduce_scatter=FREE, all_gather=FREE
    )
    return [
        {fact: number if fact == "micro_batch" else getattr(sent, fact) for fact in SYSTEMS[name].compared}
        for number, program in enumerate(
            write(workload, hardware, assigned(name, case, workload), iteration), start=1
        )
        for sent in program.collectives
    ]


def told(name: str, answer: Answer, iteration: int) -> list[dict[str, Any]]:
    """What a rank sent in an iteration (0: as it was made)."""
    return [
        {fact: event[fact] for fact in SYSTEMS[name].compared}
        for event in answer["events"]
        if event["iteration"] == iteration
    ]
