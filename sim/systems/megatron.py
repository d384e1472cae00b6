"""Megatron-Core's DistributedDataParallel: gradients added into buffers, buckets sent as they complete (A9).

Settings have Megatron's own names, read from megatron-core 0.16.1 (``core/distributed``): what it refuses is
an ``InputError`` here. Buckets are cut once, from the last parameter to the first, and stay the same; only
the first iteration differs, which sends everything after backward.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from sim.clock.program import AROUND, HOOK, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.settings import MICRO_BATCHES, MicroBatches, read, setting, settings_of
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.step_writer import Plan, StepWriter, check_gradients, completed_by, shared_optimizer_ns
from sim.units import transfer_ns

SYSTEM = "megatron"
_PARAMETER_ALIGNMENT = 64  # elements, of a parameter's start under the distributed optimizer
_BUCKET_ALIGNMENT = 128  # and of a bucket's end


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
    num_microbatches: MicroBatches = setting(1, MICRO_BATCHES)  # A9.4

    def grad_dtype(self, dtype: str) -> str:
        """What gradients of parameters of ``dtype`` are kept in, and travel as (A9.1)."""
        return "float32" if self.grad_reduce_in_fp32 else dtype


def is_all_bf16(workload: Workload) -> bool:
    """Whether every parameter is bfloat16, as Megatron-LM has them under ``--bf16``."""
    return all(gradient.dtype == "bfloat16" for gradient in workload.gradients)


def default_bucket_size(world_size: int | None) -> int:
    """Elements of a bucket where none are given, on ``world_size`` data-parallel ranks (A9.2)."""
    return max(40_000_000, 1_000_000 * (world_size or 1))


class MegatronBucket(NamedTuple):
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
    """Every bucket, buffer by buffer in the order in which their dtypes occur (A9.1 to A9.3).

    Without ``overlap_grad_reduce`` a buffer is one bucket. Starts of buckets are multiples of 64 elements, so
    that offsets within one depend on it alone.

    ``world_size`` None: padding is that of one rank, and ``bucket_size`` by default that of few; neither
    changes which parameters a bucket holds, up to 40 ranks.
    """
    limit, shards = math.inf, settings.use_distributed_optimizer
    if settings.overlap_grad_reduce:
        size = settings.bucket_size
        limit = default_bucket_size(world_size) if size is None else size
    divisor = math.lcm(world_size or 1, _BUCKET_ALIGNMENT) if shards else 1
    parts: list[MegatronBucket] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in workload.gradients):
        indices = [gradient.index for gradient in workload.gradients if gradient.dtype == dtype]
        members: list[int] = []
        end = 0
        for index in indices[::-1]:
            members.append(index)
            end = _pad(end, _PARAMETER_ALIGNMENT if shards else 1) + workload.gradients[index].elements
            if end >= limit or index == indices[0]:
                kept = settings.grad_dtype(dtype)
                parts.append(MegatronBucket(tuple(members), dtype, kept, _pad(end, divisor)))
                members, end = [], 0
    return tuple(parts)


def _pad(elements: int, divisor: int) -> int:
    return -(-elements // divisor) * divisor


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "MegatronPlan":
    """The buckets of ``megatron`` on ``world_size`` ranks (None: at most 40), as it numbers them (A9.2).

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a gradient on which
            Megatron itself would stop: with hooks, one of a bucket of which others come and it does not.
    """
    settings, why = read(MegatronSettings, SYSTEM, assignment.settings), ""
    shards, overlaps = settings.use_distributed_optimizer, settings.overlap_grad_reduce
    if settings.overlap_param_gather and not (shards and overlaps):
        raise InputError(
            f"{SYSTEM}: overlap_param_gather=True is not legal alone; Megatron-LM takes it with "
            f"use_distributed_optimizer and overlap_grad_reduce"
        )
    twice = "when its last time is, the workload does not tell"
    check_gradients(workload, "Megatron-Core", "grad_reduce_in_fp32", twice)
    parts = lay_out_buffers(workload, settings, world_size)
    for part in parts if overlaps else ():
        unused = [index for index in part.members if workload.gradients[index].ready_ns is None]
        if unused and len(unused) < len(part.members):
            raise NotModelledError(
                f"{workload.label(workload.gradients[unused[0]])} is never ready, others of its bucket are; "
                f"with overlap_grad_reduce Megatron-Core stops on that (A9.4)"
            )
    if world_size and overlaps and settings.bucket_size is None:
        size = default_bucket_size(world_size)
        why = f"; on {world_size} ranks the default is bucket_size={size}: give it"
    return MegatronPlan(
        system=SYSTEM,
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


class _MicroBatch(StepWriter[MegatronPlan]):
    """A micro-batch, as it is written."""

    def write(self) -> Program:
        """The whole of it."""
        settings, parts = self.plan.settings, self.plan.parts
        shards, gathers = settings.use_distributed_optimizer, settings.overlap_param_gather
        if not self.number:  # buffers are zeroed: written, not read (A9.5)
            written = sum(part.num_bytes for part in parts)
            self.compute(AROUND, transfer_ns(written // 2, self.hardware.copy_in_bytes_per_s))
            if gathers:
                self._gather_in_forward()
        self.forward()
        self._reduce()
        owned = sum(part.elements for part in parts) // self.hardware.world_size
        optimizer_ns = self.workload.optimizer_ns
        self.synchronised(shared_optimizer_ns(self.workload, owned) if shards else optimizer_ns)
        for part in parts if self.is_last and shards and not gathers else ():
            self.block(self.gathered(part, "step"))  # one after the other (A9.6)
        if self.is_last and shards:
            self.notes.append("what Megatron's optimizer sends itself (the norm, one number) is not counted")
        return self.program("zeroed gradients")

    def _reduce(self) -> None:
        """Backward with each gradient's addition; what hooks send, and what is sent or waited for after."""
        in_hooks = self.reduces and self.plan.settings.overlap_grad_reduce and self.iteration != 1
        triggers = completed_by(self.plan.buckets, self.workload.order()) if in_hooks else {}
        for index in self.backward():
            self.compute(HOOK, self.hook_ns + self._main_grad_ns(index), gradient=index)
            if index in triggers:
                self._start(triggers[index], "backward", index)
        for number, sent in enumerate(self.carriers):
            if not sent:  # no hook has sent it (A9.4)
                self._start(number, "after backward", None)
            self.collect(number)

    def _main_grad_ns(self, index: int) -> int:
        """ns of ``main_grad.add_(grad)`` in every micro-batch: it reads two tensors and writes one (A9.5)."""
        one = self.workload.gradients[index]
        moved = one.num_bytes + 2 * one.elements * DTYPE_BYTES[self.plan.settings.grad_dtype(one.dtype)]
        return transfer_ns(moved // 3, self.hardware.accumulate_bytes_per_s)

    def _start(self, number: int, phase: Phase, gradient: int | None) -> None:
        """Divide a bucket in place, then send it (A9.5)."""
        settings, part = self.plan.settings, self.plan.parts[number]
        self.ready(number)
        if self.hardware.world_size > 1:
            divided_ns = transfer_ns(part.num_bytes, self.hardware.copy_in_bytes_per_s)
            self.compute(HOOK, divided_ns, bucket=number)
        kind: CollectiveKind = "reduce_scatter" if settings.use_distributed_optimizer else "all_reduce"
        self.send(
            self.collective(kind, part.elements, part.grad_dtype, phase, gradient=gradient, bucket=number)
        )

    def _gather_in_forward(self) -> None:
        """Modules of forward, whose hooks wait for their bucket's gather and launch that of the one before.

        Buckets are numbered as backward reduces them, so forward comes to the last one first (A9.6).
        """
        home = {index: part for part in self.plan.parts for index in part.members}
        before = dict(zip(self.plan.parts[1:], self.plan.parts, strict=False))

        def come_to(indices: tuple[int, ...]) -> None:
            for part in dict.fromkeys(home[index] for index in indices):
                self.gather(part, "forward")
                if self.is_first_use(part) and part in before:
                    self.gather(before[part], "forward")

        self.forward_by_module(come_to)

    def gathered(self, what: MegatronBucket, phase: Phase, **_: Any) -> Collective:
        """The all-gather of a bucket's parameters."""
        more: dict[str, Any] = {"purpose": "parameters", "is_counted": False}
        return self.collective("all_gather", what.elements, what.dtype, phase, **more)


MegatronPlan.writer = _MicroBatch
