"""An import without names, paths, hosts and sentences, so that it may be given away."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sim.importer.imported import Imported
from sim.importer.readers import READABLE
from sim.nouns.ddp_switches import HOOKS, SWITCHES
from sim.nouns.workload import DTYPE_BYTES

# Keys of spreads, provenance, environments and extensions that name nobody, beside those of DDP's switches.
_KEYS = """
accumulation_steps all_gather all_reduce assumed backend backward_ns band broadcast buckets buffers bytes
clock comm_slowdown compute_slowdown copy_in_bytes_per_s copy_out_bytes_per_s count device device_type
devices dropped_warmup_steps end_ns forward_ns high hook_cost_ns index last_arriver launch_cost_ns launch_ns
level low max max_ns mean_ns median median_ns min min_ns missing_ranks no_sync_backward_ns num_bytes
optimizer_ns optimizer_seen p10_ns p25 p75 p90_ns parameters place quantile ranges rank ranks ready_ns
recorded_ranks reduce_scatter slow statistic step_ns steps sync_end_ns torch_compile torn_ranks traced_ranks
value world_size
"""
KEYS = frozenset(_KEYS.split()) | set(SWITCHES)
# Fields whose words are ours: the nouns check them.
_OURS = ("dtype", "policy", "role", "mode", "ready_includes")
_WORDS = frozenset((*READABLE, *HOOKS, *DTYPE_BYTES, "host", "mean", "median", "upper bound"))
_TEXTS = re.compile(
    r"(cuda|cpu|xpu|hip|mps|hpu|npu|meta)(:\d{1,4})?|nccl|rccl|gloo|mpi|ucc|xccl|hccl|"
    r"median over steps of the shortest over ranks"
)


def anonymize(imported: Imported) -> Imported:
    """``imported`` without what tells whose it is.

    Every name and text gives way to a numbered one, the same for the same ("name 12"); sentences leave.
    Provenance, spreads, environments and extensions keep numbers and a few words, under ``KEYS`` and under
    numbers (sizes, ranks).
    """
    stripped: Imported = _stripped(replace(imported, notes=()), {})
    return stripped


def _stripped(value: Any, names: dict[str, str]) -> Any:
    """``value`` as it may be given away; ``names`` has what each text became."""
    if isinstance(value, str) and not _is_ours(value):
        return names.setdefault(value, f"name {len(names)}")
    if isinstance(value, tuple):
        return tuple(_stripped(item, names) for item in value)
    if isinstance(value, dict):
        return _object(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    held = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in _OURS}
    return replace(value, **{name: _stripped(item, names) for name, item in held.items()})


def _is_ours(text: str) -> bool:
    return text in _WORDS or _TEXTS.fullmatch(text) is not None


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: item for key, item in value.items() if key in KEYS or (key.isascii() and key.isdigit())}
    return {key: kept for key, item in known.items() if (kept := _value(item)) is not None or item is None}


def _value(value: Any) -> Any:
    """Numbers, booleans and listed words as they are; lists and objects as far as they hold those."""
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        items = [(_value(item), item) for item in value]
        return [kept for kept, item in items if kept is not None or item is None]
    return (
        value
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and _is_ours(value))
        else None
    )
