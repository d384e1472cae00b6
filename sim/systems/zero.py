"""DeepSpeed's ZeRO-1 and ZeRO-2: the buckets that they flush, and what a step under them does (A5).

Settings have DeepSpeed's own names (``zero_settings``). Nothing is rebuilt and no iteration differs from
another (A5.3).
"""

from typing import Any

from sim.clock.program import BackwardEnd, CopyBack, Launch, Program, Ready, Wait, effects_of, tail_ns, works
from sim.costs.doubts import missing_curve
from sim.costs.service_time import service_ns
from sim.errors import AssignmentError, NotModelledError
from sim.nouns.assignment import Assignment, assigned
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.hardware import Curve, Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.bucketing import Caps
from sim.systems.micro_batch import LaneWriter, micro_batches, shared_optimizer_ns
from sim.systems.zero_copies import (
    accumulating_bytes,
    arrival_bytes,
    flush_bytes,
    message_bytes,
    offloaded_bytes,
    returned_bytes,
    step_bytes,
)
from sim.systems.zero_flushes import Flush, ZeroMessage, plan_flushes, plan_messages
from sim.systems.zero_layout import ProcessGroup, lay_out
from sim.systems.zero_settings import ZeroSettings, read_zero_settings
from sim.units import transfer_ns

STAGES = {"zero1": 1, "zero2": 2}


def assign(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """The buckets of ``zero1`` or ``zero2``, in the order in which they are flushed in every iteration.

    Gradients that are never ready or have no elements are never sent; they come last, in a bucket of their
    own.

    Args:
        options: settings, by DeepSpeed's names.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a gradient on which
            DeepSpeed itself would stop.
    """
    settings = read_zero_settings(options, STAGES[policy], workload)
    return assigned(workload, policy, _buckets(workload, plan_flushes(workload, settings)), options)


def _buckets(workload: Workload, flushes: tuple[Flush, ...]) -> tuple[tuple[int, ...], ...]:
    sent = [flush.members for flush in flushes]
    left = {gradient.index for gradient in workload.gradients}.difference(*sent)
    return (*sent, tuple(sorted(left))) if left else tuple(sent)


def construct(workload: Workload, assignment: Assignment) -> tuple[Collective, ...]:
    """What the engine's constructor sends: every parameter, one by one, as bytes.

    Frozen parameters, which the real one sends too, are in no workload.
    """
    return tuple(
        Collective(
            kind="broadcast",
            elements=gradient.num_bytes,
            dtype="uint8",
            num_bytes=gradient.num_bytes,
            service_ns=0,
            phase="construction",
            root=0,
            purpose="parameters",
        )
        for gradient in workload.gradients
    )


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The programs of one step, one a micro-batch; the last ends in DeepSpeed's ``step()``.

    Stage 2 reduces in every micro-batch, stage 1 in the last one (A5.9).

    Raises:
        AssignmentError: the buckets are not those of these settings.
        InputError, NotModelledError: as ``assign``, or a curve that the hardware does not have.
    """
    settings = read_zero_settings(assignment.settings, STAGES[assignment.policy], workload)
    flushes = plan_flushes(workload, settings)
    assignment.check_fits(workload)
    if assignment.bucket_indices != _buckets(workload, flushes):
        raise AssignmentError(
            f"bucket_indices: not the buckets that {assignment.policy} flushes with these settings; ZeRO's "
            f"buckets follow from reduce_bucket_size and the order of gradients (A5.2)"
        )
    writer = _Writer(workload, hardware, settings, flushes)
    return micro_batches(settings.gradient_accumulation_steps, writer.micro_batch)


class _Writer:
    """What all micro-batches of a step share."""

    def __init__(
        self, workload: Workload, hardware: Hardware, settings: ZeroSettings, flushes: tuple[Flush, ...]
    ) -> None:
        self.workload = workload
        self.hardware = hardware
        self.settings = settings
        self.flushes = flushes
        self.groups = lay_out(workload, settings, hardware.world_size)
        self.everyone = ProcessGroup(0, hardware.world_size, 1)
        self.messages = tuple(
            plan_messages(workload, flush, settings, self.groups, self.everyone) for flush in flushes
        )
        self.bucket_count = len(_buckets(workload, flushes))
        self.copy_in_rate = None if "copy_in" in workload.ready_includes else hardware.copy_in_bytes_per_s
        self.hook_ns = 0 if "copy_in" in workload.ready_includes else hardware.hook_cost_ns
        self.copy_out_rate = hardware.copy_out_bytes_per_s
        self.offload_rate = self._offload_rate()

    def _offload_rate(self) -> float | None:
        settings = self.settings
        if settings.offload_bytes_per_s is not None or not settings.cpu_offload:
            return settings.offload_bytes_per_s
        if settings.accelerator == "cpu" or _is_timeless(self.hardware.all_reduce):
            return self.copy_out_rate  # what is offloaded stays in the same memory
        raise NotModelledError(
            "cpu_offload: the time of copies between device and host is not known; give offload_bytes_per_s, "
            "or accelerator=cpu"
        )

    def micro_batch(self, number: int) -> Program:
        """Micro-batch ``number`` (from 0)."""
        settings = self.settings
        is_last = number == settings.gradient_accumulation_steps - 1
        backward = _Backward(self, number, reduces=settings.stage == 2 or is_last)
        backward.run()
        after_sync, notes = self._step() if is_last else ((), ())
        returned = returned_bytes(settings, self.groups) if is_last else 0
        moved = step_bytes(settings, self.groups) if is_last else 0
        return Program(
            lane=tuple(backward.lane),
            collectives=tuple(backward.collectives),
            carriers=tuple(map(tuple, backward.carriers)),
            effects=effects_of(self.workload, self.hardware),
            after_sync=after_sync,
            after_sync_ns=transfer_ns(moved, self.copy_out_rate) + transfer_ns(returned, self.offload_rate),
            optimizer_ns=self._optimizer_ns() if is_last else 0,
            notes=notes,
        )

    def _optimizer_ns(self) -> int:
        """The optimizer works on one rank's partitions (A5.11)."""
        owned = sum(group.partition_elements for group in self.groups.values())
        return shared_optimizer_ns(self.workload, owned)

    def _step(self) -> tuple[tuple[Collective, ...], tuple[str, ...]]:
        """What ``step()`` sends, one after the other and beside no work, and notes (A5.11, A8.8).

        The overflow flag, the norm of each group, the norms of expert groups once more among their ranks,
        then each group's parameters, except where one rank has them all.
        """
        settings, groups = self.settings, list(self.groups.values())
        experts = [group for group in groups if group.processes.ep_size]
        sent = []
        if settings.checks_overflow:
            sent.append(self._in_step("all_reduce", 1, "uint8", self.everyone, "overflow"))
        if settings.compute_grad_norm:
            sent += [self._in_step("all_reduce", 1, "float32", self.everyone, "norm") for _ in groups]
            sent += [self._in_step("all_reduce", 1, "float32", each.processes, "norm") for each in experts]
        sent += [
            self._in_step("all_gather", group.elements, settings.dtype, group.processes, "parameters")
            for group in groups
            if group.processes.world_size > 1
        ]
        return tuple(sent), tuple(self._notes(sent))

    def _notes(self, sent: list[Collective]) -> list[str]:
        settings, notes = self.settings, []
        gathers = sum(collective.kind == "all_gather" for collective in sent)
        if gathers and self.hardware.all_gather is None:
            notes.append(
                f"{gathers} all-gather(s) of parameters in step() are not counted: hardware "
                f"{self.hardware.name!r} has no all_gather curve"
            )
        if settings.cpu_offload:
            notes.append("cpu_offload: optimizer_ns of the workload must be that of the optimizer on the CPU")
        if settings.has_reduction_stream:
            notes.append(
                "overlap_comm's reduction stream is modelled from DeepSpeed's source; no run has checked it "
                "(A5.6)"
            )
        return notes

    def _in_step(
        self, kind: CollectiveKind, elements: int, dtype: str, processes: ProcessGroup, purpose: str
    ) -> Collective:
        return self.collective(kind, elements, dtype, processes, phase="step", purpose=purpose)

    def collective(
        self,
        kind: CollectiveKind,
        elements: int,
        dtype: str,
        processes: ProcessGroup,
        *,
        phase: Phase,
        **more: Any,
    ) -> Collective:
        """A collective among ``processes``, with its time."""
        num_bytes = elements * DTYPE_BYTES[dtype]
        return Collective(
            kind=kind,
            elements=elements,
            dtype=dtype,
            num_bytes=num_bytes,
            service_ns=self._service_ns(kind, num_bytes, processes),
            phase=phase,
            **more,
        )

    def _service_ns(self, kind: CollectiveKind, num_bytes: int, processes: ProcessGroup) -> int:
        """Time of a collective in ns. An all-gather without a curve takes 0, which ``_notes`` tells.

        Raises ``NotModelledError`` for others without a curve, and for a group of some ranks, but not of one,
        since curves are of all ranks.
        """
        hardware = self.hardware
        curve = hardware.curve(kind)
        if processes.world_size == 1 or (curve is None and kind == "all_gather"):
            return 0
        if curve is None:
            raise NotModelledError(f"use_multi_rank_bucket_allreduce=false: {missing_curve(hardware, kind)}")
        if processes.world_size != hardware.world_size and not _is_timeless(curve):
            raise NotModelledError(
                f"expert_groups: a group of {processes.world_size} ranks reduces its experts; the curves of "
                f"hardware {hardware.name!r} are those of {hardware.world_size}"
            )
        return service_ns(curve, num_bytes)


def _is_timeless(curve: Curve) -> bool:
    """Whether all times of a curve are 0; such a curve holds for any number of ranks."""
    return not any(point.duration_ns for point in curve)


class _Backward(LaneWriter):
    """The lane of one micro-batch, as it is written."""

    def __init__(self, writer: _Writer, number: int, *, reduces: bool) -> None:
        super().__init__()
        self.writer = writer
        self.workload = writer.workload
        self.settings = writer.settings
        self.number = number
        self.copies_on_stream = not writer.settings.waits_on_host
        self.flushes = writer.flushes if reduces else ()
        self.home = {index: k for k, flush in enumerate(self.flushes) for index in flush.members}
        self.pending = [len(flush.members) for flush in self.flushes]
        self.next_flush = 0
        self.carriers: list[list[int]] = [[] for _ in range(writer.bucket_count if reduces else 0)]
        self.under_way: int | None = None  # the last collective that the lane has not waited for

    def run(self) -> None:
        """Backward, what is reduced during it and after it, and the device's synchronisation at its end."""
        hooks = self.settings.reduces_in_hooks
        for index, work in works(self.workload):
            self.work("backward", work, gradient=index)
            elements = self.workload.gradients[index].elements
            accumulating = accumulating_bytes(elements, self.settings, self.number)
            copied_ns = transfer_ns(accumulating, self.writer.copy_in_rate)
            self.work("copy_in", self.writer.hook_ns + copied_ns, gradient=index)
            if hooks:
                self._arrive(index)
        self.work("backward", tail_ns(self.workload))
        self.lane.append(BackwardEnd())
        if not hooks:
            for flush in self.flushes:
                for index in flush.members:
                    self._arrive(index)
                self._flush()
        elif self.flushes:
            self._flush()
        self._wait()
        for bucket in range(0 if self.copies_on_stream else len(self.flushes), len(self.carriers)):
            if bucket >= len(self.flushes):
                self.lane.append(Ready(bucket))
            self.lane.append(CopyBack(bucket, 0))

    def _arrive(self, index: int) -> None:
        """Append a gradient to its bucket, after flushing the one before it if that is open (A5.2)."""
        if index not in self.home:
            return
        bucket = self.home[index]
        if bucket > self.next_flush:
            self._flush()
        elements = self.workload.gradients[index].elements
        copied = arrival_bytes(elements, self.settings)
        self.work("copy_in", transfer_ns(copied, self.writer.copy_in_rate), gradient=index)
        self.pending[bucket] -= 1
        if self.pending[bucket] == 0:
            self.lane.append(Ready(bucket))

    def _flush(self) -> None:
        """Reduce the open bucket (A5.6 to A5.8).

        With a reduction stream the lane first waits for what is queued there, so that at most one flush is
        under way; with ``synchronizes`` it waits so before every collective. Where the host waits, as it does
        without such a stream, the lane stands still until the flush is done, and does the last copies itself.
        """
        bucket, settings, writer = self.next_flush, self.settings, self.writer
        self.next_flush += 1
        flush, messages = self.flushes[bucket], writer.messages[bucket]
        whole = flush_bytes(self.workload, flush, settings, writer.groups)
        offloaded = offloaded_bytes(self.workload, flush, settings, writer.groups, self.number)
        at_the_end = transfer_ns(whole, writer.copy_out_rate) + transfer_ns(offloaded, writer.offload_rate)
        self._wait()
        for place, message in enumerate(messages):
            moved = message_bytes(message, settings, writer.hardware.world_size)
            copies = transfer_ns(moved, writer.copy_out_rate)
            is_last = place == len(messages) - 1
            if is_last:
                copies += at_the_end
            self._send(message, bucket, flush, copies if self.copies_on_stream or not is_last else 0)
        if not self.copies_on_stream:
            self._wait()
            self.lane.append(CopyBack(bucket, copies))

    def _send(self, message: ZeroMessage, bucket: int, flush: Flush, copies_ns: int) -> None:
        """Launch one collective; what is copied around it follows it on its stream."""
        if self.settings.synchronizes or not self.copies_on_stream:
            self._wait()
        number = len(self.collectives)
        self.collectives.append(
            self.writer.collective(
                message.kind,
                message.elements,
                self.settings.communication_data_type,
                message.processes,
                phase=flush.phase,
                gradient=flush.gradient,
                bucket=bucket,
                root=message.root,
                after=self.under_way,
                settle_ns=copies_ns,
                holds_channel=True,
            )
        )
        self.carriers[bucket].append(number)
        if self.under_way is None:
            self.lane.append(Launch(number))
        self.under_way = number

    def _wait(self) -> None:
        if self.under_way is not None:
            self.lane.append(Wait(self.under_way))
            self.under_way = None
