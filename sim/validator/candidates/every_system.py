"""Candidates for every system and every switch of DDP that can be replayed, with sensible settings."""

from typing import Any

from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.comm_hooks import HOOKS
from sim.systems.last_hook import early_launches
from sim.systems.registry import assign, write
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.replayable import TEXTBOOK, check_replayable

_LAST_HOOK_CAPS_MB = (25, 10, 4, 1)


# By name: policy and options of ``sim.assign``.
_SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP default": ("ddp", {}),
    **{name: ("ddp", {**options}) for one in SWITCHES.values() for name, options in one.tried.items()},
    **{
        f"comm_hook={one.name}": ("ddp", {"comm_hook": one.name})
        for one in HOOKS.values()
        if not one.needs_nccl
    },
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
