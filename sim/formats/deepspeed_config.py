"""DeepSpeed's own configuration for an assignment of ZeRO."""

import json
from typing import Any

from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload

_STAGES = {"zero1": 1, "zero2": 2}
# Settings that stand beside ``zero_optimization`` (DeepSpeed 0.19.8).
_BESIDE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "gradient_predivide_factor",
    "prescale_gradients",
    "communication_data_type",
)
# What is no part of the configuration: the environment, the machine.
_ELSEWHERE = ("accelerator", "offload_bytes_per_s")
_SECTIONS = {"bfloat16": "bf16", "float16": "fp16"}


def deepspeed_config(assignment: Assignment, workload: Workload) -> str:
    """The JSON text to merge into DeepSpeed's configuration; batch size and optimizer are yours to add.

    ``accelerator`` (``DS_ACCELERATOR``) and ``offload_bytes_per_s`` (the machine's) are no part of it.

    Raises:
        AssignmentError: the assignment does not fit ``workload``.
        NotModelledError: an assignment of another system than ZeRO.
    """
    if assignment.policy not in _STAGES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of DeepSpeed, whose configuration this is; it is "
            f"written for {', '.join(_STAGES)}"
        )
    assignment.check_fits(workload)
    settings = {name: value for name, value in assignment.settings.items() if name not in _ELSEWHERE}
    config: dict[str, Any] = {name: settings.pop(name) for name in _BESIDE if name in settings}
    section = _SECTIONS.get(workload.gradients[0].dtype)
    if section is not None:
        check = {name: settings.pop(name) for name in ("check_grad_overflow",) if name in settings}
        config[section] = {"enabled": True, **check}
    if settings.pop("cpu_offload", False):
        settings["offload_optimizer"] = {"device": "cpu"}
    config["zero_optimization"] = {"stage": _STAGES[assignment.policy], **settings}
    return json.dumps(config, indent=2) + "\n"
