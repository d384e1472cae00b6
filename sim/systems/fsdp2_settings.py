"""Settings of ``fully_shard`` and ``replicate`` (FSDP2): which are modelled, what each may be, what is not.

Read from torch 2.13.0: ``distributed/fsdp/_fully_shard`` and ``_composable/replicate_with_fsdp.py`` (A10).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.setting_readers import (
    Reader,
    check_wire_bytes,
    read_count,
    read_flag,
    read_micro_batches,
    read_settings,
    refuse,
)
from sim.systems.switches import FLOATS, check_backward

SHARDED, REPLICATED = "fully_shard", "replicate"
BLOCKS = "blocks"
MODELLED_FSDP2_SETTINGS = {
    "units": "modules that are wrapped beside the root, such as h.*; several in one: h.0+h.1 (A10.1)",
    "reshard_after_forward": "frees parameters after forward, so that backward gathers them again (A10.3)",
    "forward_prefetch": "units that each one prefetches in forward; 0: implicitly the next (A10.2)",
    "backward_prefetch": "units that each one prefetches in backward; 0: implicitly the next (A10.3)",
    "param_dtype": "MixedPrecisionPolicy: what parameters are gathered and computed in (A10.5)",
    "reduce_dtype": "MixedPrecisionPolicy: what gradients travel in (A10.5)",
    "accumulation_steps": "micro-batches a step; the last one reduces (A10.6)",
    "replicas": "ranks of the mesh's replicate dimension (HSDP); 1: all ranks share (A10.7)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2Settings:
    """How a job uses ``fully_shard`` or ``replicate``; torch's defaults where nothing is said.

    ``units``: names of modules, or patterns of them, with commas between; ``blocks``: every module that is
    numbered in a list, the outermost ones. Dtypes are torch's names, None the parameters' own.
    """

    units: str = BLOCKS
    reshard_after_forward: bool = True
    forward_prefetch: int = 0
    backward_prefetch: int = 0
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    accumulation_steps: int = 1
    replicas: int = 1

    def gathered_dtype(self, dtype: str) -> str:
        """What parameters of ``dtype`` are gathered in."""
        return self.param_dtype or dtype

    def shards(self, policy: str, world_size: int) -> int:
        """How many ranks share each parameter. Raises ``InputError`` unless ``replicas`` leaves 2 or more."""
        if policy == REPLICATED:
            return 1
        if self.replicas > 1 and (world_size % self.replicas or world_size < 2 * self.replicas):
            raise InputError(
                f"{policy}: replicas={self.replicas} is not legal on {world_size} ranks; give a divisor that "
                f"leaves 2 ranks or more to share (with 1, torch's replicate does the same)"
            )
        return world_size // self.replicas

    def sent_dtype(self, dtype: str) -> str:
        """What gradients of parameters of ``dtype`` travel in."""
        return self.reduce_dtype or self.param_dtype or dtype


def read_fsdp2_settings(settings: Mapping[str, Any], policy: str, workload: Workload) -> Fsdp2Settings:
    """The settings of a job with the parameters of ``workload`` under ``policy``.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a name that is not modelled, or a gradient on which torch stops.
    """
    made = Fsdp2Settings(**read_settings(policy, settings, MODELLED_FSDP2_SETTINGS, _READERS))
    shards = ("reshard_after_forward", "forward_prefetch", "backward_prefetch", "replicas")
    if policy == REPLICATED and (given := [name for name in shards if name in settings]):
        raise InputError(f"{policy}: {given[0]} is not legal; it gathers nothing")
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.sparse or gradient.uses > 1 or gradient.ready_ns is None:
            why = "is sparse" if gradient.sparse else "is never ready, or more than once in a backward"
            raise NotModelledError(f"{what} {why}; {policy} is modelled without")
        check_wire_bytes(gradient, what, policy, "reduce_dtype")
        if gradient.num_bytes == DTYPE_BYTES[gradient.dtype] and gradient.shape == ():
            raise NotModelledError(f"{what} is a scalar, which {policy} refuses")
    check_backward(workload)
    return made


def _text(system: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(system, name, value, "names of modules with commas between, such as h.*, or blocks")
    return value


def _dtype(system: str, name: str, value: Any) -> str:
    if value not in FLOATS:
        raise refuse(system, name, value, f"one of {', '.join(FLOATS)}")
    return str(value)


_READERS: dict[str, Reader] = {
    **{one.name: read_flag for one in fields(Fsdp2Settings) if one.type is bool},
    "units": _text,
    "forward_prefetch": read_count(0),
    "backward_prefetch": read_count(0),
    "param_dtype": _dtype,
    "reduce_dtype": _dtype,
    "accumulation_steps": read_micro_batches,
    "replicas": read_count(1),
}
