"""Megatron-Core's settings, by its own names: which are modelled, what each may be, what is refused and why.

Read from megatron-core 0.16.1 (``core/distributed/distributed_data_parallel.py`` and its ``_config.py``); for
``num_buckets`` from Megatron-LM's ``training.py``, which turns ``--ddp-num-buckets`` into elements (A9).
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
from sim.systems.switches import check_backward

SYSTEM = "megatron"
MODELLED_MEGATRON_SETTINGS = {
    "bucket_size": "elements at which a bucket is closed, max(40e6, 1e6 x ranks) (A9.2)",
    "num_buckets": "--ddp-num-buckets: bucket_size is all elements // this (A9.2)",
    "overlap_grad_reduce": "sends buckets from hooks; off: one bucket a dtype, after backward (A9.4)",
    "grad_reduce_in_fp32": "buffers, and what travels, are float32 whatever the parameters are (A9.1)",
    "use_distributed_optimizer": "reduce-scatter, padding, the optimizer on a share, all-gather (A9.3)",
    "overlap_param_gather": "gathers a bucket's parameters from forward's hooks (A9.6)",
    "pad_buckets_for_high_nccl_busbw": "ends of buckets at multiples of 2^16, too (A9.3)",
    "average_in_collective": "no pass over the bucket before it is sent (A9.5)",
    "disable_bucketing": "all of a model chunk at once, as for chunks after the first (A9.2)",
    "pipeline_rank": "above 0: one bucket a dtype, as on later pipeline stages (A9.2)",
    "shared_embedding": "name of the parameter that pipeline stages share: a bucket of its own (A9.3)",
    "num_microbatches": "micro-batches a step; the last one reduces (A9.4)",
}
_FEWEST_DEFAULT = 40_000_000
_DEFAULT_A_RANK = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """How a job uses Megatron-Core's DistributedDataParallel; its defaults where nothing is said.

    ``bucket_size`` is in elements, None its default, which the number of ranks decides.
    """

    bucket_size: int | None = None
    num_buckets: int | None = None
    overlap_grad_reduce: bool = False
    grad_reduce_in_fp32: bool = False
    use_distributed_optimizer: bool = False
    overlap_param_gather: bool = False
    pad_buckets_for_high_nccl_busbw: bool = False
    average_in_collective: bool = False
    disable_bucketing: bool = False
    pipeline_rank: int = 0
    shared_embedding: str | None = None
    num_microbatches: int = 1

    @property
    def is_cut(self) -> bool:
        """Whether a buffer is cut by ``bucket_size`` at all (A9.2)."""
        return self.overlap_grad_reduce and not self.disable_bucketing and self.pipeline_rank == 0

    def grad_dtype(self, dtype: str) -> str:
        """What gradients of parameters of ``dtype`` are kept in, and travel as (A9.1)."""
        return "float32" if self.grad_reduce_in_fp32 else dtype

    def size_limit(self, workload: Workload, world_size: int | None) -> int | None:
        """Elements at which a bucket is closed; None: never.

        ``world_size`` None: so few ranks that the default size is its minimum.
        """
        if not self.is_cut:
            return None
        if self.num_buckets is not None:
            return sum(gradient.elements for gradient in workload.gradients) // self.num_buckets
        return default_bucket_size(world_size) if self.bucket_size is None else self.bucket_size


def is_all_bf16(workload: Workload) -> bool:
    """Whether every parameter is bfloat16, as Megatron-LM has them under ``--bf16``."""
    return all(gradient.dtype == "bfloat16" for gradient in workload.gradients)


def default_bucket_size(world_size: int | None) -> int:
    """Elements of a bucket where none are given, on ``world_size`` data-parallel ranks (A9.2)."""
    return max(_FEWEST_DEFAULT, _DEFAULT_A_RANK * (world_size or 1))


def read_megatron_settings(settings: Mapping[str, Any], workload: Workload) -> MegatronSettings:
    """The settings of a job with the parameters of ``workload``.

    Raises:
        InputError: a value or combination that Megatron refuses, too.
        NotModelledError: a name that is not modelled, or a gradient on which Megatron stops.
    """
    made = MegatronSettings(**read_settings(SYSTEM, settings, MODELLED_MEGATRON_SETTINGS, _READERS))
    _check_together(made)
    _check_gradients(workload)
    names = [gradient.name for gradient in workload.gradients]
    if made.shared_embedding is not None and made.shared_embedding not in names:
        raise refuse(SYSTEM, "shared_embedding", made.shared_embedding, f"a parameter, such as {names[0]!r}")
    return made


def _check_together(settings: MegatronSettings) -> None:
    if settings.bucket_size is not None and settings.num_buckets is not None:
        raise InputError(f"{SYSTEM}: bucket_size and num_buckets are not legal together; give one of them")
    shards, overlaps = settings.use_distributed_optimizer, settings.overlap_grad_reduce
    if settings.overlap_param_gather and not (shards and overlaps):
        raise InputError(
            f"{SYSTEM}: overlap_param_gather=True is not legal alone; Megatron-LM takes it with "
            f"use_distributed_optimizer and overlap_grad_reduce"
        )


def _check_gradients(workload: Workload) -> None:
    first = workload.gradients[0]
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.sparse:
            raise NotModelledError(f"{what} is sparse; Megatron-Core's buffers hold dense gradients")
        if gradient.uses > 1:
            raise NotModelledError(
                f"{what} becomes ready {gradient.uses} times in one backward; when its last time is, the "
                f"workload does not tell"
            )
        check_wire_bytes(gradient, what, "Megatron-Core", "grad_reduce_in_fp32")
        if gradient.device != first.device:
            raise NotModelledError(
                f"{what} is on {gradient.device or 'no device'}, others on {first.device or 'no device'}; "
                f"Megatron-Core's buffers are all on one device"
            )
        if gradient.num_bytes % DTYPE_BYTES[gradient.dtype]:
            raise NotModelledError(f"{what} has {gradient.num_bytes} bytes, no whole {gradient.dtype}s")
    check_backward(workload)


def _text(system: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(system, name, value, "the name of a parameter")
    return value


_READERS: dict[str, Reader] = {
    **{one.name: read_flag for one in fields(MegatronSettings) if one.type is bool},
    "bucket_size": read_count(0),
    "num_buckets": read_count(1),
    "pipeline_rank": read_count(0),
    "num_microbatches": read_micro_batches,
    "shared_embedding": _text,
}
