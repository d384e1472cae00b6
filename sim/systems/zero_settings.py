"""ZeRO's settings, by DeepSpeed's names: which are modelled, what each may be, what is refused and why.

Checked against DeepSpeed 0.19.8: what it refuses itself is an ``InputError`` here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import Workload
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

MODELLED_ZERO_SETTINGS = {
    "reduce_bucket_size": "elements after which a bucket is flushed, 5e8 (A5.1)",
    "overlap_comm": "reduces on a stream of its own, during backward (A5.6)",
    "contiguous_gradients": "copies gradients into one buffer as they arrive (A5.5)",
    "reduce_scatter": "divides first, and keeps what is owned (A5.7)",
    "use_multi_rank_bucket_allreduce": "one all-reduce a flush; false: one reduce an owner (A5.7)",
    "round_robin_gradients": "deals parameters out to partitions (A5.10)",
    "parameter_alignment": "pads every parameter to 16 bytes in the flat group",
    "allgather_bucket_size": "without effect since torch 1.13 (A5.11)",
    "allgather_partitions": "without effect",
    "compute_grad_norm": "the norm's all-reduce a group in step() (A5.11)",
    "ignore_unused_parameters": "false: an unused parameter is an error under cpu_offload",
    "cpu_offload": "gradients to the host, optimizer there (A8.8)",
    "gradient_accumulation_steps": "micro-batches a step (A5.9)",
    "gradient_clipping": "DeepSpeed's default is 1.0; needs the norm",
    "gradient_predivide_factor": "one more kernel without reduce_scatter (A8.8)",
    "prescale_gradients": "divides before reducing, without reduce_scatter (A8.8)",
    "communication_data_type": "what gradients travel as: fp32, fp16 or bf16 (A8.8)",
    "grad_accum_dtype": "what gradients are accumulated in: fp32, fp16 or bf16",
    "check_grad_overflow": "bf16's overflow check in step(), true",
    "expert_groups": "optimizer groups of experts and their ep_size, such as {1: 2} (A8.8)",
    "accelerator": "cuda, or cpu (DS_ACCELERATOR=cpu), where collectives block the host",
    "offload_bytes_per_s": "between device and host, for cpu_offload on cuda",
}
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PARAMETER_DTYPES = ("float32", "float16", "bfloat16")
_ACCELERATORS = ("cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """How a job uses ZeRO-1 or ZeRO-2; DeepSpeed's defaults where nothing is said.

    Sizes are in elements. ``dtype`` is the parameters'; ``communication_data_type`` and
    ``grad_accum_dtype`` are torch's names, by default the parameters' dtype. ``expert_groups`` holds
    (optimizer group, ep_size).
    """

    stage: int
    dtype: str
    communication_data_type: str
    grad_accum_dtype: str
    check_grad_overflow: bool
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    use_multi_rank_bucket_allreduce: bool = True
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    allgather_bucket_size: int = 500_000_000
    allgather_partitions: bool = True
    compute_grad_norm: bool = True
    ignore_unused_parameters: bool = True
    cpu_offload: bool = False
    gradient_accumulation_steps: int = 1
    gradient_clipping: float = 1.0
    gradient_predivide_factor: float = 1.0
    prescale_gradients: bool = False
    expert_groups: Mapping[int, int] = field(default_factory=dict)
    accelerator: str = "cuda"
    offload_bytes_per_s: float | None = None

    @property
    def reduces_in_hooks(self) -> bool:
        """Whether gradients are reduced as they arrive; else after backward (A5.9)."""
        return self.stage == 2 or self.overlap_comm

    @property
    def fills_buffers(self) -> bool:
        """Whether gradients are copied into the contiguous buffer, which offloading forces (A5.5, A8.8)."""
        return self.contiguous_gradients or self.cpu_offload

    @property
    def has_reduction_stream(self) -> bool:
        """Whether reductions run beside compute: never where collectives block the host (A5.6)."""
        return self.overlap_comm and self.accelerator == "cuda"

    @property
    def waits_on_host(self) -> bool:
        """Whether the host waits for every flush: offloading tests each owned gradient for overflow."""
        return self.cpu_offload or not self.has_reduction_stream

    @property
    def synchronizes(self) -> bool:
        """Whether the device is synchronised ahead of every collective of a flush (A5.7, A8.8)."""
        return not self.fills_buffers or (self.reduce_scatter and not self.use_multi_rank_bucket_allreduce)

    @property
    def casts_gradients(self) -> bool:
        """Whether hooks keep a second copy of each gradient, in ``grad_accum_dtype`` (stage 1 only)."""
        return self.stage == 1 and self.grad_accum_dtype != self.dtype

    @property
    def adds_to_partition(self) -> bool:
        """Whether owned slices are added to an fp32 partition at each flush."""
        return self.grad_accum_dtype == "float32" != self.dtype

    @property
    def buffer_dtype(self) -> str:
        """The dtype of what is flushed."""
        return self.grad_accum_dtype if self.casts_gradients else self.dtype

    @property
    def checks_overflow(self) -> bool:
        """Whether step() begins with an all-reduce of the overflow flag (A8.8)."""
        return self.dtype == "float16" or (self.dtype == "bfloat16" and self.check_grad_overflow)

    @property
    def scales_gradients(self) -> bool:
        """Whether step() multiplies this rank's gradients, to clip them or undo the loss scale (A5.12)."""
        return self.gradient_clipping > 0 or self.dtype == "float16"


def read_zero_settings(settings: Mapping[str, Any], stage: int, workload: Workload) -> ZeroSettings:
    """The settings of a job with the parameters of ``workload``.

    Raises:
        InputError: a value or combination that DeepSpeed refuses, too.
        NotModelledError: a name or gradient that is not modelled, or settings for DeepSpeed's BF16_Optimizer.
    """
    given = read_settings(f"zero{stage}", settings, MODELLED_ZERO_SETTINGS, _READERS)
    dtype = _parameter_dtype(workload, stage)
    if "check_grad_overflow" in settings and dtype != "bfloat16":
        raise InputError(f"zero{stage}: check_grad_overflow is a setting of bf16; the parameters are {dtype}")
    by_dtype: dict[str, Any] = {
        "communication_data_type": dtype,
        "grad_accum_dtype": dtype,
        "check_grad_overflow": True,
    }
    made = ZeroSettings(stage=stage, dtype=dtype, **(by_dtype | given))
    _check_together(made)
    _check_gradients(workload, made)
    return made


def _parameter_dtype(workload: Workload, stage: int) -> str:
    first = workload.gradients[0]
    for gradient in workload.gradients:
        if gradient.key != first.key or gradient.dtype not in _PARAMETER_DTYPES:
            raise NotModelledError(
                f"{workload.label(gradient)} is {gradient.dtype} on {gradient.device or 'no device'}; under "
                f"zero{stage} all parameters have one device and one dtype of {', '.join(_PARAMETER_DTYPES)}"
            )
    return first.dtype


def _check_gradients(workload: Workload, settings: ZeroSettings) -> None:
    """Raise where DeepSpeed itself would stop."""
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.sparse:
            raise NotModelledError(f"{what} is sparse; ZeRO cannot flatten it")
        check_wire_bytes(gradient, what, "ZeRO", "communication_data_type")
        if gradient.uses > 1:
            raise NotModelledError(
                f"{what} becomes ready {gradient.uses} times in one backward; DeepSpeed raises 'Gradient "
                f"computed twice for this partition' (A8.8)"
            )
        is_fatal = settings.cpu_offload and not settings.ignore_unused_parameters
        if gradient.ready_ns is None and is_fatal:
            raise InputError(
                f"{what} is never ready; under cpu_offload with ignore_unused_parameters=false its owners "
                f"raise an error and the other ranks hang"
            )
    check_backward(workload)


def _check_together(settings: ZeroSettings) -> None:
    """Raise for combinations that DeepSpeed refuses, or answers with another optimizer."""
    stage = settings.stage
    scales = settings.gradient_predivide_factor != 1.0 or settings.prescale_gradients
    if stage == 2 and settings.reduce_scatter and scales:
        raise InputError(
            "zero2: gradient_predivide_factor and prescale_gradients are not legal with reduce_scatter; give "
            "reduce_scatter=false"
        )
    if not settings.compute_grad_norm and (settings.gradient_clipping > 0 or settings.cpu_offload):
        raise InputError(
            f"zero{stage}: compute_grad_norm=false needs gradient_clipping=0 (DeepSpeed's default is 1.0) "
            f"and no cpu_offload"
        )
    is_bf16_in_fp32 = settings.dtype == "bfloat16" and settings.adds_to_partition
    if stage == 1 and is_bf16_in_fp32 and not settings.cpu_offload:
        raise NotModelledError(
            "zero1: bfloat16 parameters with grad_accum_dtype=fp32 are DeepSpeed's BF16_Optimizer, another "
            "system, which is not modelled; give zero2, or grad_accum_dtype=bf16"
        )
    if settings.expert_groups and not (settings.reduce_scatter and (stage == 1 or settings.fills_buffers)):
        raise InputError(
            f"zero{stage}: expert_groups need reduce_scatter, and in stage 2 contiguous_gradients"
        )


def _number(positive: bool) -> Reader:
    """A reader of finite numbers above 0, or from 0 on."""

    def read(system: str, name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < float("inf") or (positive and value == 0):
            raise refuse(system, name, value, f"a finite number {'> 0' if positive else '>= 0'}")
        return float(value)

    return read


def _dtype(system: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in _DTYPES:
        raise refuse(system, name, value, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]


def _accelerator(system: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in _ACCELERATORS:
        raise refuse(system, name, value, f"one of {', '.join(_ACCELERATORS)}")
    return str(value)


def _expert_groups(system: str, name: str, value: Any) -> Mapping[int, int]:
    """{optimizer group: ep_size}; in JSON the groups are strings."""
    legal = "an object of optimizer groups and their ep_size >= 1, such as {1: 2}"
    if not isinstance(value, Mapping):
        raise refuse(system, name, value, legal)
    try:
        read = {int(group): size for group, size in value.items()}
    except (TypeError, ValueError):
        raise refuse(system, name, value, legal) from None
    for size in read.values():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise refuse(system, name, value, legal)
    return read


_READERS: dict[str, Reader] = {
    **{one.name: read_flag for one in fields(ZeroSettings) if one.type is bool},
    "reduce_bucket_size": read_count(1),
    "allgather_bucket_size": read_count(0, step=2),
    "gradient_accumulation_steps": read_micro_batches,
    "gradient_clipping": _number(positive=False),
    "gradient_predivide_factor": _number(positive=True),
    "communication_data_type": _dtype,
    "grad_accum_dtype": _dtype,
    "expert_groups": _expert_groups,
    "accelerator": _accelerator,
    "offload_bytes_per_s": _number(positive=True),
}
