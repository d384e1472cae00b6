"""Megatron-Core's DistributedDataParallel: gradients added into buffers, buckets sent as they complete (A9).

Settings have Megatron's own names, read from megatron-core 0.16.1 (``core/distributed``): what it refuses is
an ``InputError`` here. Buckets are cut once, from the last parameter to the first, and stay the same; only
the first iteration differs, which sends everything after backward.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.clock.program import AROUND, FORWARD, HOOK, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.hardware import Hardware
from sim.nouns.settings import micro_batches, read, setting, settings_of
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.step_writer import (
    Plan,
    StepWriter,
    check_gradients,
    forward_modules,
    shared_optimizer_ns,
    works,
)
from sim.units import transfer_ns

SYSTEM = "megatron"
_PARAMETER_ALIGNMENT = 64  # elements, of a parameter's start under the distributed optimizer
_BUCKET_ALIGNMENT = 128  # and of a bucket's end
_BUSBW_ALIGNMENT = 1 << 16
_NORM_NOTE = "what Megatron's optimizer sends itself (the norm, one number) is not counted"
_FEWEST_DEFAULT = 40_000_000
_DEFAULT_A_RANK = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """How a job uses Megatron-Core's DistributedDataParallel; its defaults where nothing is said.

    ``bucket_size`` None is Megatron's default, which the number of ranks decides. ``flag`` is that of
    Megatron-LM's training script; a flag that is off is left out.
    """

    overlap_grad_reduce: bool = setting(  # A9.4
        False,
        "Sends buckets during backward; off: all gradients of a dtype at once, after it.",
        flag="--overlap-grad-reduce",
    )
    bucket_size: int | None = setting(  # A9.2
        None,
        "Elements (not bytes) at which a bucket is closed. Empty: Megatron's default.",
        flag="--ddp-bucket-size",
    )
    grad_reduce_in_fp32: bool = setting(  # A9.1
        False,
        "Gradients are kept and sent as float32, whatever the parameters are.",
        flag="--accumulate-allreduce-grads-in-fp32",
    )
    use_distributed_optimizer: bool = setting(  # A9.3
        False,
        "Reduce-scatter, each rank optimises its share, then all-gather.",
        flag="--use-distributed-optimizer",
    )
    overlap_param_gather: bool = setting(  # A9.6
        False,
        "Gathers parameters during forward; needs overlap_grad_reduce and use_distributed_optimizer.",
        flag="--overlap-param-gather",
    )
    num_microbatches: int = micro_batches()  # A9.4
    pad_buckets_for_high_nccl_busbw: bool = setting(  # A9.3
        False,
        "Ends buckets at multiples of 2^16 elements.",
        flag="--ddp-pad-buckets-for-high-nccl-busbw",
    )
    average_in_collective: bool = setting(  # A9.5
        False,
        "Averages while reducing, without a pass over each bucket before.",
        flag="--ddp-average-in-collective",
    )

    def grad_dtype(self, dtype: str) -> str:
        """What gradients of parameters of ``dtype`` are kept in, and travel as (A9.1)."""
        return "float32" if self.grad_reduce_in_fp32 else dtype

    def size_limit(self, world_size: int | None) -> int | None:
        """Elements at which a bucket is closed; None: never, without ``overlap_grad_reduce`` (A9.2).

        ``world_size`` None: so few ranks that the default size is its minimum.
        """
        if not self.overlap_grad_reduce:
            return None
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
    made = read(MegatronSettings, SYSTEM, settings)
    shards, overlaps = made.use_distributed_optimizer, made.overlap_grad_reduce
    if made.overlap_param_gather and not (shards and overlaps):
        raise InputError(
            f"{SYSTEM}: overlap_param_gather=True is not legal alone; Megatron-LM takes it with "
            f"use_distributed_optimizer and overlap_grad_reduce"
        )
    first = workload.gradients[0]
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.device != first.device:
            raise NotModelledError(
                f"{what} is on {gradient.device or 'no device'}, others on {first.device or 'no device'}; "
                f"Megatron-Core's buffers are all on one device"
            )
        if gradient.num_bytes % DTYPE_BYTES[gradient.dtype]:
            raise NotModelledError(f"{what} has {gradient.num_bytes} bytes, no whole {gradient.dtype}s")
    twice = "when its last time is, the workload does not tell"
    check_gradients(workload, "Megatron-Core", "grad_reduce_in_fp32", twice)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronBucket:
    """A part of a buffer that travels as one: ``members`` in its order, ``elements`` with padding."""

    members: tuple[int, ...]
    dtype: str
    grad_dtype: str
    elements: int

    @property
    def num_bytes(self) -> int:
        """Bytes of gradients that travel."""
        return self.elements * DTYPE_BYTES[self.grad_dtype]


def lay_out_buffers(
    workload: Workload, settings: MegatronSettings, world_size: int | None
) -> tuple[MegatronBucket, ...]:
    """Every bucket, buffer by buffer in the order in which their dtypes occur (A9.1, A9.2).

    ``world_size`` None: padding is that of one rank, and ``bucket_size`` by default that of few; neither
    changes which parameters a bucket holds, up to 40 ranks.
    """
    limit = settings.size_limit(world_size)
    divisor = _divisor(settings, world_size)
    by_dtype: dict[str, list[int]] = {}
    for gradient in workload.gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient.index)
    return tuple(
        MegatronBucket(
            members=members,
            dtype=dtype,
            grad_dtype=settings.grad_dtype(dtype),
            elements=_pad(elements, divisor),
        )
        for dtype, indices in by_dtype.items()
        for members, elements in _cut(workload, settings, indices[::-1], limit)
    )


def _cut(
    workload: Workload, settings: MegatronSettings, indices: list[int], limit: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """Members of each bucket of a buffer and its elements up to the end of the last of them.

    Starts of buckets are multiples of 64, so that offsets within one depend on it alone.
    """
    shards = settings.use_distributed_optimizer
    cut: list[tuple[tuple[int, ...], int]] = []
    members: list[int] = []
    end = 0
    for index in indices:
        start = _pad(end, _PARAMETER_ALIGNMENT) if shards else end
        members.append(index)
        end = start + workload.gradients[index].elements
        if limit is not None and end >= limit:
            cut.append((tuple(members), end))
            members, end = [], 0
    return [*cut, (tuple(members), end)] if members else cut


def _divisor(settings: MegatronSettings, world_size: int | None) -> int:
    """What a bucket's elements are a multiple of (A9.3)."""
    if not settings.use_distributed_optimizer:
        return 1
    busbw = _BUSBW_ALIGNMENT if settings.pad_buckets_for_high_nccl_busbw else 1
    return math.lcm(world_size or 1, _BUCKET_ALIGNMENT, busbw)


def _pad(elements: int, divisor: int) -> int:
    return -(-elements // divisor) * divisor


def _check_complete(
    workload: Workload, settings: MegatronSettings, buckets: tuple[MegatronBucket, ...]
) -> None:
    """Raise ``NotModelledError`` where hooks send a bucket of which some gradient comes and some does not."""
    for bucket in buckets if settings.overlap_grad_reduce else ():
        members = [workload.gradients[index] for index in bucket.members]
        unused = [gradient for gradient in members if gradient.ready_ns is None]
        if unused and len(unused) < len(members):
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {unused[0].index} ({unused[0].name}) is never ready, "
                f"others of its bucket are; with overlap_grad_reduce Megatron-Core stops on that (A9.4)"
            )


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "MegatronPlan":
    """The buckets of ``megatron`` on ``world_size`` ranks (None: at most 40), as it numbers them (A9.2).

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a gradient on which
            Megatron itself would stop.
    """
    settings, why = read_megatron_settings(assignment.settings, workload), ""
    parts = lay_out_buffers(workload, settings, world_size)
    _check_complete(workload, settings, parts)
    if world_size and settings.overlap_grad_reduce and settings.bucket_size is None:
        size = default_bucket_size(world_size)
        why = f"; on {world_size} ranks the default is bucket_size={size}: give it"
    return MegatronPlan(
        workload=workload,
        buckets=tuple(part.members for part in parts),
        micro_batches=settings.num_microbatches,
        why=f"{why} (A9.2)",
        settings=settings,
        parts=parts,
    )


@dataclass(frozen=True, kw_only=True)
class MegatronPlan(Plan):
    """The last micro-batch reduces. ``parts`` are the buckets with their padding."""

    settings: MegatronSettings
    parts: tuple[MegatronBucket, ...]

    def _micro_batch(self, hardware: Hardware, iteration: Iteration, number: int) -> Program:
        return _MicroBatch(self, hardware, number, iteration).write()

    def buffer_bytes(self) -> int:
        """What the buffers, in which gradients lie, have beyond them: padding, and what fp32 adds; and the
        largest gradient that backward makes, until its hook has added it."""
        beyond = sum(part.num_bytes for part in self.parts) - self.workload.total_bytes
        return max(0, beyond) + max(one.num_bytes for one in self.workload.gradients)

    def lines(self) -> str:
        """Flags to add to Megatron-LM's training script; what is set elsewhere is told in a comment."""
        lines: list[str] = []
        for name, one in settings_of(MegatronSettings).items():
            value, flag = getattr(self.settings, name), one.metadata.get("flag")
            if value == one.default:
                continue
            if flag is None:
                lines.insert(0, f"# Set elsewhere, and part of this assignment: {name}={value!r}")
            else:
                lines.append(flag if value is True else f"{flag} {value}")
        if is_all_bf16(self.workload) and not self.settings.grad_reduce_in_fp32:
            lines.append("--grad-reduce-in-bf16")  # Megatron-LM reduces in fp32 under --bf16 unless told
        if not any(line.startswith("--") for line in lines):
            lines.append("# No flags: Megatron-LM's own defaults.")
        return "\n".join(lines) + "\n"


class _MicroBatch(StepWriter):
    """Micro-batch ``number`` (from 0), as it is written."""

    def __init__(self, plan: MegatronPlan, hardware: Hardware, number: int, iteration: Iteration) -> None:
        self.settings, self.buckets, self.is_first = plan.settings, plan.parts, number == 0
        self.is_last = number == plan.micro_batches - 1
        self.in_hooks = self.is_last and plan.settings.overlap_grad_reduce and iteration != 1
        super().__init__(plan.workload, hardware, SYSTEM, len(plan.parts) * self.is_last)

    def write(self) -> Program:
        """The whole of it."""
        if self.is_first:
            self.compute(AROUND, self._zeroing_ns())
            if self.settings.overlap_param_gather:
                self._gather_in_forward()
        self.forward()
        self.reduce()
        self.synchronised(self._optimizer_ns() if self.is_last else 0)
        if (
            self.is_last
            and self.settings.use_distributed_optimizer
            and not self.settings.overlap_param_gather
        ):
            for bucket in self.buckets:  # one after the other (A9.6)
                self.block(self.gather(bucket, "step"))
        return self.program(around_for="zeroed gradients", notes=self._notes() if self.is_last else ())

    def reduce(self) -> None:
        """Backward with each gradient's addition; what hooks send, and what is sent or waited for after."""
        used = {index for index, _ in works(self.workload)}
        pending = [used.intersection(one.members) for one in self.buckets if self.in_hooks]
        home = {index: number for number, missing in enumerate(pending) for index in missing}
        for index in self.backward():
            self.compute(HOOK, self.hook_ns + self._addition_ns(index), gradient=index)
            if (number := home.get(index)) is not None:
                pending[number].remove(index)
                if not pending[number]:
                    self._start(number, "backward", index)
        for number, sent in enumerate(self.carriers):
            if not sent:  # no hook has sent it (A9.4)
                self._start(number, "after backward", None)
            self.wait(self.carriers[number][0])
            self.copy_back(number)

    def _addition_ns(self, index: int) -> int:
        """ns of ``main_grad.add_(grad)`` in every micro-batch: it reads two tensors and writes one (A9.5)."""
        dtype = self.workload.gradients[index].dtype
        narrow, wide = DTYPE_BYTES[dtype], DTYPE_BYTES[self.settings.grad_dtype(dtype)]
        moved = self.workload.gradients[index].elements * (narrow + 2 * wide)
        return transfer_ns(moved // 3, self.hardware.accumulate_bytes_per_s)

    def _start(self, number: int, phase: Phase, gradient: int | None) -> None:
        """Divide a bucket in place, then send it (A9.5)."""
        settings, hardware, bucket = self.settings, self.hardware, self.buckets[number]
        self.ready(number)
        if hardware.world_size > 1 and not settings.average_in_collective:
            self.compute(HOOK, transfer_ns(bucket.num_bytes, hardware.copy_in_bytes_per_s), bucket=number)
        kind: CollectiveKind = "reduce_scatter" if settings.use_distributed_optimizer else "all_reduce"
        elements, dtype = bucket.elements, bucket.grad_dtype
        self.send(self.collective(kind, elements, dtype, phase, gradient=gradient, bucket=number))

    def _zeroing_ns(self) -> int:
        """ns to zero the buffers at the start of a step: they are written, not read (A9.5)."""
        written = sum(bucket.num_bytes for bucket in self.buckets)
        return transfer_ns(written // 2, self.hardware.copy_in_bytes_per_s)

    def _gather_in_forward(self) -> None:
        """Modules of forward, whose hooks wait for their bucket's gather and launch that of the one before.

        Buckets are numbered as backward reduces them, so forward comes to the last one first (A9.6).
        """
        home = {index: number for number, one in enumerate(self.buckets) for index in one.members}
        sent: dict[int, int] = {}
        waited: set[int] = set()

        def launch(bucket: int) -> None:
            if bucket not in sent:
                sent[bucket] = self.send(self.gather(self.buckets[bucket], "forward"))

        for module in forward_modules(self.workload):
            for bucket in dict.fromkeys(home[index] for index in module.indices):
                launch(bucket)
                if bucket not in waited:
                    waited.add(bucket)
                    self.wait(sent[bucket])
                    if bucket:
                        launch(bucket - 1)
            self.compute(FORWARD, module.duration_ns)

    def gather(self, bucket: MegatronBucket, phase: Phase) -> Collective:
        """The all-gather of a bucket's parameters."""
        return self.collective(
            "all_gather", bucket.elements, bucket.dtype, phase, purpose="parameters", is_counted=False
        )

    def _optimizer_ns(self) -> int:
        """ns of the optimizer; the distributed one works on one rank's share of the buffers (A9.6)."""
        if not self.settings.use_distributed_optimizer:
            return self.workload.optimizer_ns
        owned = sum(bucket.elements for bucket in self.buckets) // self.hardware.world_size
        return shared_optimizer_ns(self.workload, owned)

    def _notes(self) -> tuple[str, ...]:
        settings, hardware, notes = self.settings, self.hardware, []
        if settings.use_distributed_optimizer:
            notes.append(_NORM_NOTE)
            if hardware.all_gather is None and hardware.world_size > 1:
                notes.append(
                    f"all-gathers of parameters are not counted: hardware {hardware.name!r} has no "
                    f"all_gather curve"
                )
        return tuple(notes)
