"""Candidates for every system and every switch of DDP that can be replayed, with sensible settings."""

from typing import Any

from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import HOOKS
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign, write
from sim.systems.textbook import early_launches
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.replayable import TEXTBOOK, check_replayable

_LAST_HOOK_CAPS_MB = (25, 10, 4, 1)


_VIEW = {"gradient_as_bucket_view": True}
_FINDS = {"find_unused_parameters": True}
# By name: options of ``sim.assign``, for DDP: every switch that ranks can be asked for.
_SWITCHES: dict[str, dict[str, Any]] = {
    "DDP default": {},
    "gradient_as_bucket_view": _VIEW,
    "batched_grad_copy": {"batched_grad_copy": True},
    "set_to_none=False": {"set_to_none": False},
    "view, set_to_none=False": _VIEW | {"set_to_none": False},
    "find_unused_parameters": _FINDS,
    "skip_all_reduce_unused_params": _FINDS | {"skip_all_reduce_unused_params": True},
    "static_graph": {"static_graph": True},
    "accumulation_steps=2": {"accumulation_steps": 2},
    "DDP_SET_LAST_BUCKET_CAP=1": {"set_last_bucket_cap": True},
    **{f"comm_hook={one.name}": {"comm_hook": one.name} for one in HOOKS.values() if not one.needs_nccl},
}
# By name: policy and options.
_SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("ddp", options) for name, options in _SWITCHES.items()},
    **{policy: (policy, {}) for policy in ("per-parameter", "single", *TEXTBOOK)},
}


def every_system(workload: Workload, hardware: Hardware) -> tuple[list[Candidate], dict[str, str]]:
    """A candidate for each switch and hook of DDP and each textbook system, and why others are left out.

    Left out, by name, is what cannot be run on ``workload``, or what ``hardware`` has no curve for: there is
    nothing to hold it against.
    """
    found, left_out = [], {}
    for name, (policy, options) in _SYSTEMS.items():
        try:
            made = _assignment(workload, policy, options)
            candidate = Candidate(name=name, assignment=made)
            check_replayable(workload, [candidate])
            write(workload, hardware, made)
            found.append(candidate)
        except SimError as error:
            left_out[name] = str(error)
    return found, left_out


def _assignment(workload: Workload, policy: str, options: dict[str, Any]) -> Assignment:
    """Of ``last-hook`` the first of some caps by which no bucket is sent too early, or the last of them."""
    if policy != "last-hook":
        return assign(workload, policy, **options)
    made = [assign(workload, policy, cap) for cap in _LAST_HOOK_CAPS_MB]
    return next((one for one in made if not early_launches(workload, one)), made[-1])
