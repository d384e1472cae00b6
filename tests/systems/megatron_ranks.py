"""Runs cases under real Megatron-Core, and says what the simulation makes of the same cases."""

import importlib.util
import os
from functools import cache
from typing import Any

import pytest

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems import megatron
from sim.systems.bucketing import Caps
from sim.systems.megatron import lay_out_buffers, read_megatron_settings
from tests.handmade import handmade
from tests.systems.ddp_ranks import run_cases
from tests.systems.megatron_cases import EVERYDAY, HALF_USED, Case

COMPARED = ("phase", "gradient", "kind", "elements", "dtype")
_FREE = (CurvePoint(num_bytes=0, duration_ns=0),)


def require_megatron() -> None:
    """Skip without Megatron-Core, or fail where it is demanded."""
    if importlib.util.find_spec("megatron") is not None:
        return
    missing = "no Megatron-Core: pip install --no-deps megatron-core==0.16.1"
    if os.environ.get("BUCKETSIM_REQUIRE_MEGATRON") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


def run_megatron(cases: list[Case], *, world_size: int = 2) -> list[list[Any]]:
    """The answers of every rank to every case: ``answers[case][rank]``."""
    require_megatron()
    return run_cases(cases, worker="megatron_worker", world_size=world_size)


@cache
def everyday_answers() -> dict[str, list[Any]]:
    """What every rank answers to ``EVERYDAY`` and to ``HALF_USED``, by name; run once."""
    cases = EVERYDAY | {"half used": HALF_USED}
    return dict(zip(cases, run_megatron(list(cases.values())), strict=True))


def workload_of(answer: Any) -> Workload:
    """What a rank trained, ready in the order that was seen there; what fired no hook is never ready."""
    order = answer["ready"][-1]
    parameters = answer["parameters"]
    return handmade(
        [1 + order.index(index) if index in order else None for index in range(len(parameters))],
        names=[one["name"] for one in parameters],
        shapes=[(one["elements"],) for one in parameters],
        dtypes=[one["dtype"] for one in parameters],
        backward_ns=len(parameters),
    )


def settings_of(case: Case) -> dict[str, Any]:
    """The flat settings that the simulation takes."""
    return case["config"] | {name: case[name] for name in ("num_microbatches",) if name in case}


def assigned(case: Case, workload: Workload) -> Assignment:
    """The case's buckets, by simulation."""
    return megatron.assign(workload, "megatron", Caps(), settings_of(case), "steady")


def buckets_of(case: Case, workload: Workload, world_size: int) -> list[list[Any]]:
    """Members and elements of every bucket, by simulation."""
    settings = read_megatron_settings(settings_of(case), workload)
    return [[list(one.members), one.elements] for one in lay_out_buffers(workload, settings, world_size)]


def simulated(case: Case, workload: Workload, iteration: int, world_size: int) -> list[dict[str, Any]]:
    """The collectives of a step in the order of their launches, as real ranks tell them."""
    hardware = Hardware(
        name="any", world_size=world_size, all_reduce=_FREE, reduce_scatter=_FREE, all_gather=_FREE
    )
    return [
        {name: getattr(sent, name) for name in COMPARED}
        for program in megatron.write(workload, hardware, assigned(case, workload), iteration)
        for sent in (*program.before_forward, *program.collectives, *program.after_sync)
    ]


def told(answer: Any, step: int) -> list[dict[str, Any]]:
    """What a rank sent in a step."""
    return [{name: event[name] for name in COMPARED} for event in answer["events"] if event["step"] == step]
