"""Candidates for every system and every switch of DDP that can be replayed, with sensible settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import one_of
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.hook_table import HOOKS, HookKind
from sim.systems.last_hook import early_launches
from sim.systems.registry import assign, write
from sim.units import MIB
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.replayable import check_installed, check_replayable

_BUCKET_BYTES = 25 * MIB  # DDP's own default
_LAST_HOOK_CAPS_MB = (25, 10, 4, 1)
_WITHOUT_OPTIONS = (
    *("per-parameter", "single", "per-parameter-sync", "per-parameter-async", "after-backward"),
    *("arrival-counted", "flat-views", "last-hook-safe", "last-hook"),
)
_MEGATRON = {"overlap_grad_reduce": True, "bucket_size": 3_000_000}
_SHARDED = {**_MEGATRON, "use_distributed_optimizer": True}
_ZERO = {"reduce_bucket_size": _BUCKET_BYTES // 4, "accelerator": "cpu"}


def _hooked(kind: HookKind) -> dict[str, tuple[str, dict[str, Any]]]:
    """The candidate of a hook, by its name; none where there is nothing to try."""
    if kind.tried is None:
        return {}
    policy, numbers = kind.tried
    hook = {"name": kind.name, **numbers} if numbers else kind.name
    return {f"comm_hook={kind.name}": (policy, {"comm_hook": hook})}


# By name: policy and options of ``sim.assign``.
_SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP default": ("ddp", {}),
    **{name: ("ddp", {**options}) for one in SWITCHES.values() for name, options in one.tried.items()},
    **{name: tried for kind in HOOKS.values() for name, tried in _hooked(kind).items()},
    **{policy: (policy, {}) for policy in _WITHOUT_OPTIONS},
    "zero1": ("zero1", _ZERO),
    "zero2": ("zero2", _ZERO),
    "zero2, reduce to owners": ("zero2", {**_ZERO, "use_multi_rank_bucket_allreduce": False}),
    "megatron": ("megatron", {}),
    "megatron, overlap": ("megatron", _MEGATRON),
    "megatron, small buckets": ("megatron", {**_MEGATRON, "bucket_size": 600_000}),
    "megatron, distributed optimizer": ("megatron", _SHARDED),
    "megatron, gathers in forward": ("megatron", {**_SHARDED, "overlap_param_gather": True}),
    "fully_shard": ("fully_shard", {}),
    "fully_shard, kept after forward": ("fully_shard", {"reshard_after_forward": False}),
    "fully_shard, two ahead": ("fully_shard", {"forward_prefetch": 2, "backward_prefetch": 2}),
    "fully_shard, the root alone": ("fully_shard", {"units": ""}),
    "replicate": ("replicate", {}),
    "replicate, the root alone": ("replicate", {"units": ""}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EverySystem:
    """The candidates, and by name why the others cannot be run on this workload."""

    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]


def every_system(workload: Workload, hardware: Hardware, only: Sequence[str] = ()) -> EverySystem:
    """One candidate for each system and switch that a paced replay of ``workload`` can run on the CPU.

    Left out is also what ``hardware`` has no curve for: there is nothing to hold it against. ``only`` are
    policies; others are not asked for at all.

    Raises:
        InputError: a policy in ``only`` that no candidate has.
    """
    known = dict.fromkeys(policy for policy, _ in _SYSTEMS.values())
    for policy in only:
        one_of("only", policy, known)
    found, left_out = [], {}
    for name, (policy, options) in _SYSTEMS.items():
        if only and policy not in only:
            continue
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
