"""Candidates for every system and every switch of DDP that can be replayed, with sensible settings."""

from dataclasses import dataclass
from typing import Any

from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.last_hook import early_launches
from sim.systems.registry import assign, write
from sim.units import MIB
from sim.validator.candidates import Candidate
from sim.validator.replayable import check_installed, check_replayable

_BUCKET_BYTES = 25 * MIB  # DDP's own default
_LAST_HOOK_CAPS_MB = (25, 10, 4, 1)
_VIEW = {"gradient_as_bucket_view": True}
_ZERO = {"reduce_bucket_size": _BUCKET_BYTES // 4, "accelerator": "cpu"}
_POWER_SGD = {"name": "powerSGD", "matrix_approximation_rank": 4, "start_powerSGD_iter": 2}
# By name: policy and options of ``sim.assign``.
_SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP default": ("ddp", {}),
    "gradient_as_bucket_view": ("ddp", _VIEW),
    "batched_grad_copy": ("ddp", {"batched_grad_copy": True}),
    "set_to_none=False": ("ddp", {"set_to_none": False}),
    "view, set_to_none=False": ("ddp", {**_VIEW, "set_to_none": False}),
    "find_unused_parameters": ("ddp", {"find_unused_parameters": True}),
    "skip_all_reduce_unused_params": (
        "ddp",
        {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    ),
    "static_graph": ("ddp", {"static_graph": True}),
    "accumulation_steps=2": ("ddp", {"accumulation_steps": 2}),
    "DDP_SET_LAST_BUCKET_CAP=1": ("ddp", {"set_last_bucket_cap": True}),
    "comm_hook=allreduce": ("ddp", {"comm_hook": "allreduce"}),
    "comm_hook=fp16_compress": ("ddp", {"comm_hook": "fp16_compress"}),
    "comm_hook=powerSGD": ("single", {"comm_hook": _POWER_SGD}),
    "comm_hook=noop": ("ddp", {"comm_hook": "noop"}),
    "per-parameter": ("per-parameter", {}),
    "single": ("single", {}),
    "per-parameter-sync": ("per-parameter-sync", {}),
    "per-parameter-async": ("per-parameter-async", {}),
    "after-backward": ("after-backward", {}),
    "arrival-counted": ("arrival-counted", {}),
    "flat-views": ("flat-views", {}),
    "last-hook-safe": ("last-hook-safe", {}),
    "last-hook": ("last-hook", {}),
    "zero1": ("zero1", _ZERO),
    "zero2": ("zero2", _ZERO),
    "zero2, reduce to owners": (
        "zero2",
        {**_ZERO, "use_multi_rank_bucket_allreduce": False},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EverySystem:
    """The candidates, and by name why the others cannot be run on this workload."""

    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]


def every_system(workload: Workload, hardware: Hardware) -> EverySystem:
    """One candidate for each system and switch that a paced replay of ``workload`` can run on the CPU.

    Left out is also what ``hardware`` has no curve for: there is nothing to hold it against.
    """
    found, left_out = [], {}
    for name, (policy, options) in _SYSTEMS.items():
        try:
            made = _assignment(workload, policy, options)
            candidate = Candidate(name=name, assignment=made)
            check_replayable(workload, [candidate])
            check_installed([candidate])
            write(workload, hardware, made)
            found.append(candidate)
        except SimError as error:
            left_out[name] = str(error)
    return EverySystem(candidates=tuple(found), left_out=left_out)


def _assignment(workload: Workload, policy: str, options: dict[str, Any]) -> Assignment:
    """Of ``last-hook`` the first of some caps by which no bucket is sent too early, or the last of them."""
    if policy != "last-hook":
        return assign(workload, policy, **options)
    made = [assign(workload, policy, cap) for cap in _LAST_HOOK_CAPS_MB]
    return next((one for one in made if not early_launches(workload, one)), made[-1])
