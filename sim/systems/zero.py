"""DeepSpeed's ZeRO-1 and ZeRO-2 (A5): settings, flat groups, what is flushed when, and what a step does.

Checked against DeepSpeed 0.19.8: what it refuses itself is an ``InputError`` here. Nothing is rebuilt and no
iteration differs from another (A5.3).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from sim.clock.program import AROUND, COPY_IN, OPTIMIZER, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Legal, Positive
from sim.nouns.collective import Collective
from sim.nouns.hardware import Hardware
from sim.nouns.settings import MICRO_BATCHES, MicroBatches, read, setting, settings_of
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.step_writer import Plan, StepWriter, check_gradients, message, shared_optimizer_ns
from sim.units import transfer_ns

STAGES = {"zero1": 1, "zero2": 2}
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_HOST_LINK_BYTES_PER_S = 25e9  # between device and host: PCIe 4.0 x16, as copies of pinned memory have it
_FP32, _FP64 = DTYPE_BYTES["float32"], DTYPE_BYTES["float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """How a job uses ZeRO-1 or ZeRO-2; DeepSpeed's defaults where nothing is said.

    ``dtype`` is the parameters'. ``place`` is where DeepSpeed's configuration has a setting, if not in
    ``zero_optimization``.
    """

    stage: int
    dtype: str
    reduce_bucket_size: Positive = setting(  # A5.1
        500_000_000, "Elements (not bytes) after which a bucket is sent."
    )
    overlap_comm: bool = setting(False, "Reduces on a stream of its own, during backward.")  # A5.6
    contiguous_gradients: bool = setting(True, "Copies gradients into one buffer as they arrive.")  # A5.5
    reduce_scatter: bool = setting(  # A5.7
        True, "Divides first, and keeps what this rank owns; off: one plain all-reduce a bucket."
    )
    gradient_accumulation_steps: MicroBatches = setting(1, MICRO_BATCHES, place="beside")  # A5.9
    communication_data_type: Literal["fp32", "fp16", "bf16"] | None = setting(  # A8.8
        None, "The dtype in which gradients travel.", place="beside"
    )
    cpu_offload: bool = setting(False, "Gradients go to the host, and the optimizer runs there.")  # A8.8
    gradient_clipping: float = setting(1.0, "The largest norm; 0 switches clipping off.", place="beside")
    compute_grad_norm: bool = setting(  # A5.11
        True, "The norm of all gradients in step(); needed by gradient_clipping."
    )
    prescale_gradients: bool = setting(  # A8.8
        False, "Divides before reducing; not with reduce_scatter in stage 2.", place="beside"
    )
    gradient_predivide_factor: Annotated[float, Legal(kind=float, is_open=True)] = setting(  # A8.8
        1.0, "Divides before reducing; not with reduce_scatter in stage 2.", place="beside"
    )
    check_grad_overflow: bool = setting(
        True, "With bf16 parameters: whether step() looks for overflow.", place="bf16"
    )
    accelerator: Literal["cuda", "cpu"] = setting(  # the environment's
        "cuda", "On cpu every collective blocks the host (DS_ACCELERATOR=cpu).", place="elsewhere"
    )

    @property
    def sent_dtype(self) -> str:
        """What gradients travel as: torch's name."""
        return _DTYPES[self.communication_data_type] if self.communication_data_type else self.dtype

    @property
    def casts(self) -> bool:
        """Whether they travel as another dtype than they are."""
        return self.sent_dtype != self.dtype

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
        """Whether reductions and their copies run beside compute: never where collectives block the host
        (A5.6), nor where it tests each owned gradient for overflow, as offloading does."""
        return self.overlap_comm and self.accelerator == "cuda" and not self.cpu_offload

    @property
    def checks_overflow(self) -> bool:
        """Whether step() begins with an all-reduce of the overflow flag (A8.8)."""
        return self.dtype == "float16" or (self.dtype == "bfloat16" and self.check_grad_overflow)


class Slice(NamedTuple):
    """A part of one gradient in one rank's partition, in elements."""

    owner: int
    elements: int


Message = tuple[Slice, ...]  # what one all-reduce carries


class FlatGroup(NamedTuple):
    """One optimizer group, flattened, padded and cut into equal partitions; all in elements.

    ``places``: by index of its gradients, where each begins and ends.
    """

    places: dict[int, tuple[int, int]]
    elements: int
    partition_elements: int

    def slices(self, index: int) -> Message:
        """The parts of a gradient, by owner; a gradient may straddle partitions (A5.1)."""
        size, (begin, end) = self.partition_elements, self.places[index]
        return tuple(
            Slice(owner, min(end, (owner + 1) * size) - max(begin, owner * size))
            for owner in range(begin // size, (end - 1) // size + 1)
        )


def lay_out(workload: Workload, world_size: int) -> dict[int, FlatGroup]:
    """The flat groups of a job of ``world_size`` ranks, by optimizer group, in order.

    Parameters without elements are left out. Every group is padded to a multiple of 2 x the ranks.

    Raises:
        NotModelledError: a group with nothing to optimise, on which DeepSpeed stops.
    """
    numbers = sorted({gradient.group for gradient in workload.gradients})
    places: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in numbers}
    ends = dict.fromkeys(places, 0)
    for one in workload.gradients:
        if one.elements:
            places[one.group][one.index] = ends[one.group], ends[one.group] + one.elements
            ends[one.group] += one.elements
    groups = {}
    for number, end in ends.items():
        if not end:
            raise NotModelledError(
                f"workload {workload.name!r}: optimizer group {number} has no elements; DeepSpeed stops on it"
            )
        share = 2 * -(-end // (2 * world_size))
        groups[number] = FlatGroup(places[number], share * world_size, share)
    return groups


class Flush(NamedTuple):
    """The bucket that is reduced at one moment: ``members`` in the order in which they were appended.

    ``gradient`` is the one whose arrival flushes it; None: what remains after backward.
    """

    members: tuple[int, ...]
    gradient: int | None


def plan_flushes(workload: Workload, settings: ZeroSettings) -> tuple[Flush, ...]:
    """The flushes of one backward that reduces, in order (A5.2, A5.4, A5.9).

    A gradient that does not fit any more flushes what is there, and is appended. Stage 1 without
    ``overlap_comm`` walks parameters group by group after backward, not gradients as they arrive.
    """
    gradients = [workload.gradients[index] for index in workload.order()]
    if not settings.reduces_in_hooks:
        gradients.sort(key=lambda one: (one.group, one.index))
    flushes: list[Flush] = []
    members: list[int] = []
    held = 0
    for one in gradients:
        if one.elements and members and held + one.elements > settings.reduce_bucket_size:
            flushes.append(Flush(tuple(members), one.index if settings.reduces_in_hooks else None))
            members, held = [], 0
        if one.elements:
            members.append(one.index)
            held += one.elements
    return (*flushes, Flush(tuple(members), None)) if members else tuple(flushes)


def _most(parts: Iterable[Slice]) -> int:
    """Elements of the owner that has most of them: what the busiest does, as the others wait for it."""
    owned: Counter[int] = Counter()
    for part in parts:
        owned[part.owner] += part.elements
    return max(owned.values(), default=0)


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "ZeroPlan":
    """The buckets of ``zero1`` or ``zero2``, in the order in which they are flushed in every iteration.

    Gradients that are never ready or have no elements are never sent; they come last, in a bucket of their
    own.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a gradient on which
            DeepSpeed itself would stop.
    """
    policy, stage = assignment.policy, STAGES[assignment.policy]
    dtype = workload.gradients[0].dtype
    settings = read(ZeroSettings, policy, assignment.settings, stage=stage, dtype=dtype)
    if others := [one for one in workload.gradients if one.dtype != dtype or dtype not in _DTYPES.values()]:
        raise NotModelledError(
            f"{workload.label(others[0])} is {others[0].dtype}; under {policy} all parameters have one of "
            f"{', '.join(_DTYPES.values())}"
        )
    twice = "DeepSpeed raises 'Gradient computed twice for this partition' (A8.8)"
    check_gradients(workload, "ZeRO", "communication_data_type", twice)
    scales = settings.gradient_predivide_factor != 1.0 or settings.prescale_gradients
    needs_norm, why = settings.gradient_clipping > 0 or settings.cpu_offload, ""
    if "check_grad_overflow" in assignment.settings and dtype != "bfloat16":
        why = f"check_grad_overflow is a setting of bf16; the parameters are {dtype}"
    elif stage == 2 and settings.reduce_scatter and scales:
        why = (
            "gradient_predivide_factor and prescale_gradients are not legal with reduce_scatter; give "
            "reduce_scatter=false"
        )
    elif not settings.compute_grad_norm and needs_norm:
        why = "compute_grad_norm=false needs gradient_clipping=0 (DeepSpeed's default is 1.0), no cpu_offload"
    if why:
        raise InputError(f"{policy}: {why}")
    flushes = plan_flushes(workload, settings)
    sent = tuple(flush.members for flush in flushes)
    left = {gradient.index for gradient in workload.gradients}.difference(*sent)
    return ZeroPlan(
        system=policy,
        workload=workload,
        buckets=(*sent, tuple(sorted(left))) if left else sent,
        micro_batches=settings.gradient_accumulation_steps,
        reduces_each=settings.stage == 2,
        why="; ZeRO's buckets follow from reduce_bucket_size and the order of gradients (A5.2)",
        settings=settings,
        given=tuple(assignment.settings),
        flushes=flushes,
        world_size=world_size,
    )


@dataclass(frozen=True, kw_only=True)
class ZeroPlan(Plan):
    """Stage 2 reduces in every micro-batch, stage 1 in the last one, which ends in ``step()`` (A5.9)."""

    settings: ZeroSettings
    given: tuple[str, ...]
    flushes: tuple[Flush, ...]
    world_size: int | None

    @cached_property
    def groups(self) -> dict[int, FlatGroup]:
        """The flat groups of the job, by optimizer group."""
        assert self.world_size is not None
        return lay_out(self.workload, self.world_size)

    @cached_property
    def messages(self) -> tuple[tuple[Message, ...], ...]:
        """The all-reduces of each flush."""
        return tuple(self._messages(flush.members) for flush in self.flushes)

    def slices(self, index: int) -> Message:
        """The parts of a gradient, by owner."""
        return self.groups[self.workload.gradients[index].group].slices(index)

    def _messages(self, members: Sequence[int]) -> tuple[Message, ...]:
        """The all-reduces of a flush, in order (A5.7, A8.8): a slice an owner, sent as soon as they have more
        than ``reduce_bucket_size`` elements.

        A bucket that is not cut up by owner is whole gradients, owned by rank 0 by name only.
        """
        if not self.settings.reduce_scatter or not self.settings.fills_buffers:
            return (tuple(Slice(0, self.workload.gradients[index].elements) for index in members),)
        parts: list[Slice] = []
        for part in (part for index in members for part in self.slices(index)):
            if parts and parts[-1].owner == part.owner:  # neighbours of one owner are one slice
                part = Slice(part.owner, parts.pop().elements + part.elements)
            parts.append(part)
        messages: list[Message] = []
        taken: list[Slice] = []
        for part in parts:
            taken.append(part)
            if sum(one.elements for one in taken) > self.settings.reduce_bucket_size:
                messages.append(tuple(taken))
                taken = []
        return (*messages, tuple(taken)) if taken else tuple(messages)

    def construct(self) -> tuple[Collective, ...]:
        """What the engine's constructor sends: every parameter, one by one, as bytes.

        Frozen parameters, which the real one sends too, are in no workload.
        """
        return tuple(
            message("broadcast", one.num_bytes, "uint8", "construction", purpose="parameters", root=0)
            for one in self.workload.gradients
        )

    def buffer_bytes(self) -> int:
        """Contiguous buffers of ``reduce_bucket_size`` elements, full or not, two with ``overlap_comm``; the
        staging of offloading; and one collective's flattened or cast copy.

        A gradient larger than the buffer is reduced where it is (A5.4).
        """
        settings, held = self.settings, 0
        width, wire = DTYPE_BYTES[settings.dtype], DTYPE_BYTES[settings.sent_dtype]
        if settings.fills_buffers:
            held += settings.reduce_bucket_size * width * (1 + settings.overlap_comm)
        if settings.cpu_offload:
            held += max(gradient.elements for gradient in self.workload.gradients) * width
        flattens = not settings.fills_buffers or settings.reduce_scatter
        copies = [
            sum(part.elements for part in message)
            * (width * flattens * (len(message) > 1) + wire * settings.casts)
            for flush in self.messages
            for message in flush
        ]
        return held + max(copies, default=0)

    def lines(self) -> str:
        """The JSON text to merge into DeepSpeed's configuration, with the settings that are given."""
        rows, dtype = settings_of(ZeroSettings), self.settings.dtype
        config: dict[str, Any] = {}
        section: dict[str, Any] = {"enabled": True}
        zero: dict[str, Any] = {"stage": self.settings.stage}
        places = {"beside": config, "bf16": section, "elsewhere": {}}
        for name in self.given:
            places.get(rows[name].metadata.get("place", ""), zero)[name] = getattr(self.settings, name)
        if zero.pop("cpu_offload", False):
            zero["offload_optimizer"] = {"device": "cpu"}
        if dtype != "float32":
            config["bf16" if dtype == "bfloat16" else "fp16"] = section
        return json.dumps(config | {"zero_optimization": zero}, indent=2) + "\n"


class _MicroBatch(StepWriter[ZeroPlan]):
    """A micro-batch, as it is written."""

    def __init__(self, plan: ZeroPlan, hardware: Hardware, iteration: Iteration, number: int) -> None:
        super().__init__(plan, hardware, iteration, number)
        self.settings = plan.settings
        self.flushes = plan.flushes if self.reduces else ()
        self.home = {index: k for k, flush in enumerate(self.flushes) for index in flush.members}
        is_on_host = self.settings.accelerator == "cpu"  # what is offloaded stays in the same memory
        self.offload_rate = self.copy_out_rate if is_on_host else _HOST_LINK_BYTES_PER_S
        self.next_flush = 0

    def write(self) -> Program:
        """The whole of it: backward, what is reduced during it and after it, and what step() does."""
        self.forward()
        self._reduce()
        if self.is_last:
            self._step()
            self._note()
        else:
            self.synchronised()
        return self.program()

    def _reduce(self) -> None:
        """Backward, what is reduced during it and after it, and the device's synchronisation at its end."""
        hooks, sent = self.settings.reduces_in_hooks, len(self.flushes)
        for index in self.backward():
            self.compute(COPY_IN, self.hook_ns, gradient=index)
            if hooks:
                self._arrive(index)
        if not hooks:
            for index in self.home:
                self._arrive(index)
        if self.flushes:
            self._flush()
        self.catch_up()
        for bucket in range(0 if self.settings.has_reduction_stream else sent, len(self.carriers)):
            if bucket >= sent:
                self.ready(bucket)
            self.copy_back(bucket)

    def _arrive(self, index: int) -> None:
        """Append a gradient to its bucket, after flushing the one before it if that is open (A5.2).

        It is copied into the buffer, unless it does not fit (A5.4) and nothing is offloaded.
        """
        if index not in self.home:
            return
        bucket, settings = self.home[index], self.settings
        if bucket > self.next_flush:
            self._flush()
        elements = self.workload.gradients[index].elements
        if settings.cpu_offload or (settings.fills_buffers and elements <= settings.reduce_bucket_size):
            size = elements * DTYPE_BYTES[settings.dtype]
            self.compute(COPY_IN, transfer_ns(size, self.copy_in_rate), gradient=index)
        if index == self.flushes[bucket].members[-1]:
            self.ready(bucket)

    def _flush(self) -> None:
        """Reduce the open bucket (A5.6 to A5.8).

        With a reduction stream the lane first waits for what is queued there, so that at most one flush is
        under way. Where the host waits, as it does without such a stream, the lane stands still until the
        flush is done, and does the last copies itself. Without contiguous gradients the device is
        synchronised ahead of each collective (A8.8).
        """
        bucket, settings = self.next_flush, self.settings
        self.next_flush += 1
        flush, messages, copies = self.flushes[bucket], self.plan.messages[bucket], 0
        self.catch_up()
        for place, parts in enumerate(messages, start=1):
            copies = transfer_ns(self._message_bytes(parts), self.copy_out_rate)
            if is_last := place == len(messages):
                copies += transfer_ns(self._flush_bytes(flush), self.copy_out_rate)
                copies += transfer_ns(self._offloaded_bytes(flush), self.offload_rate)
            if not settings.fills_buffers or not settings.has_reduction_stream:
                self.catch_up()
            sent = self.collective(
                "all_reduce",
                sum(part.elements for part in parts),
                settings.sent_dtype,
                "after backward" if flush.gradient is None else "backward",
                gradient=flush.gradient,
                bucket=bucket,
                after=self.under_way,
                settle_ns=copies if settings.has_reduction_stream or not is_last else 0,
                holds_channel=True,
            )
            self.under_way = self.send(sent)
        if not settings.has_reduction_stream:
            self.catch_up()
            self.copy_back(bucket, copies)

    # What is moved in memory beside collectives, in bytes (A5.5, A5.7, A5.8, A8.8), read from DeepSpeed
    # 0.19.8. A pass over N bytes that reads and writes each counts N: what a copy of N bytes moves.

    def _message_bytes(self, parts: Message) -> int:
        """Flattening, casts, scaling without ``reduce_scatter``, copies back, of one collective."""
        settings, elements = self.settings, sum(part.elements for part in parts)
        buffer, wire = DTYPE_BYTES[settings.dtype], DTYPE_BYTES[settings.sent_dtype]
        moved = 2 * (buffer + wire) * settings.casts * elements  # there and back
        if settings.fills_buffers and not settings.reduce_scatter:
            factor, ranks = settings.gradient_predivide_factor, self.hardware.world_size
            scalings = 1 if settings.prescale_gradients else (factor != 1.0) + (factor != ranks)
            return (moved + 2 * wire * elements * scalings) // 2
        flattens = len(parts) > 1
        kept = _most(parts) if settings.fills_buffers else elements
        moved += 2 * buffer * elements * flattens + (buffer + wire) * kept * (flattens or settings.casts)
        if not settings.fills_buffers:
            moved += 2 * wire * elements  # the division, which else ``_flush_bytes`` counts
        return moved // 2

    def _flush_bytes(self, flush: Flush) -> int:
        """Once a flush: the division, and the copy of owned gradients into the partition's buffer."""
        settings, moved = self.settings, 0
        if settings.fills_buffers and settings.reduce_scatter:
            moved += sum(self.workload.gradients[index].elements for index in flush.members)
        if settings.fills_buffers and not settings.cpu_offload:
            moved += self._most_of(flush)
        return moved * DTYPE_BYTES[settings.dtype]

    def _most_of(self, flush: Flush, *, whole: bool = True) -> int:
        """Elements that the busiest owner has of a flush's gradients: of those it has a part of, or parts."""
        gradients, parts = self.workload.gradients, self.plan.slices
        return _most(
            Slice(part.owner, gradients[index].elements if whole else part.elements)
            for index in flush.members
            for part in parts(index)
        )

    def _offloaded_bytes(self, flush: Flush) -> int:
        """What a flush moves between device and host under ``cpu_offload`` (A8.8).

        Owned parts go to the host as fp32 in the last micro-batch. If there are several micro-batches, whole
        gradients go to the host in each, and from the second on come back to be added to.
        """
        settings, moved = self.settings, 0
        if settings.cpu_offload and self.is_last:
            moved += _FP32 * self._most_of(flush, whole=False)
        if settings.cpu_offload and settings.gradient_accumulation_steps > 1:
            there_and_back = 2 if self.number else 1
            moved += DTYPE_BYTES[settings.dtype] * self._most_of(flush) * there_and_back
        return moved

    def _step(self) -> None:
        """What ``step()`` does, one after the other (A5.11, A8.8).

        The overflow flag, the norm of each group, the optimizer on one rank's partitions, then each group's
        parameters, unless one rank has them all.
        """
        settings, groups = self.settings, self.plan.groups.values()
        owned = sum(group.partition_elements for group in groups)
        self.synchronised()
        if settings.checks_overflow:
            self.block(self.collective("all_reduce", 1, "uint8", "step", purpose="overflow"))
        for _ in groups if settings.compute_grad_norm else ():
            self.block(self.collective("all_reduce", 1, "float32", "step", purpose="norm"))
        self.compute(OPTIMIZER, shared_optimizer_ns(self.workload, owned))
        self.compute(AROUND, transfer_ns(owned * self._step_bytes() // 2, self.copy_out_rate))
        returned = DTYPE_BYTES[settings.dtype] * owned * settings.cpu_offload  # updated partitions
        self.compute(AROUND, transfer_ns(returned, self.offload_rate))
        gathered: dict[str, Any] = {"purpose": "parameters", "is_counted": False}
        for group in groups if self.hardware.world_size > 1 else ():
            self.block(self.collective("all_gather", group.elements, settings.dtype, "step", **gathered))

    def _step_bytes(self) -> int:
        """What step() does with an element of this rank's partitions around the optimizer, read and written
        (A5.12): overflow check, norm, flattening, clipping, and the updated partition back into the
        parameters.

        Nothing under ``cpu_offload``: norms are taken in the flushes.
        """
        settings, held = self.settings, DTYPE_BYTES[self.settings.dtype]
        if settings.cpu_offload:
            return 0
        moved = _FP32 + held + 2 * held * settings.checks_overflow
        moved += (held + 2 * _FP64) * settings.compute_grad_norm
        moved += 2 * held + (held + _FP32) * (held != _FP32)
        return moved + 2 * _FP32 * (settings.gradient_clipping > 0 or settings.dtype == "float16")

    def _note(self) -> None:
        if self.settings.cpu_offload:
            whose = "optimizer_ns of the workload must be that of the optimizer on the CPU"
            self.notes.append(f"cpu_offload: {whose}")
            if self.settings.accelerator == "cuda":
                self.notes.append("cpu_offload: copies between device and host at 25 GB/s, not measured")
        if self.settings.overlap_comm and self.settings.accelerator == "cuda":
            stream = "overlap_comm's reduction stream is modelled from DeepSpeed's source"
            self.notes.append(f"{stream}; no run has checked it (A5.6)")


ZeroPlan.writer = _MicroBatch
