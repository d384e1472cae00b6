"""Megatron-Core's DistributedDataParallel: gradients added into buffers, buckets sent as they complete (A9).

Settings have Megatron's own names (``megatron_settings``). Buckets are cut once, from the last parameter to
the first, and stay the same; only the first iteration differs, which sends everything after backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sim.clock.program import BackwardEnd, CopyBack, Program, Ready, Wait, effects_of, tail_ns, works
from sim.costs.doubts import missing_curve
from sim.costs.service_time import collective_ns
from sim.errors import AssignmentError, NotModelledError
from sim.nouns.assignment import Assignment, assigned
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.bucketing import Caps
from sim.systems.forward_gathers import forward_modules, play_chained, told_of_forward
from sim.systems.megatron_layout import MegatronBucket, lay_out_buffers
from sim.systems.megatron_settings import (
    SYSTEM,
    MegatronSettings,
    default_bucket_size,
    read_megatron_settings,
)
from sim.systems.micro_batch import LaneWriter, micro_batches, shared_optimizer_ns
from sim.units import transfer_ns

_NORM_NOTE = "what Megatron's optimizer sends itself (the norm, one number) is not counted"


def assign(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """The buckets of ``megatron``, as it numbers them; the same in every iteration (A9.2).

    Args:
        options: settings, by Megatron's names.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a gradient on which
            Megatron itself would stop.
    """
    settings = read_megatron_settings(options, workload)
    buckets = lay_out_buffers(workload, settings, None)
    _groups(workload, settings, buckets)
    return assigned(workload, policy, tuple(bucket.members for bucket in buckets), options)


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The programs of one step, one a micro-batch; the last one reduces.

    Raises:
        AssignmentError: the buckets are not those of these settings on as many ranks.
        InputError, NotModelledError: as ``assign``, or a curve that the hardware does not have.
    """
    settings = read_megatron_settings(assignment.settings, workload)
    assignment.check_fits(workload)
    buckets = check_cut(workload, assignment, hardware.world_size)
    writer = _Writer(workload, hardware, settings, buckets)
    return micro_batches(settings.num_microbatches, lambda number: writer.micro_batch(number, iteration))


def check_cut(
    workload: Workload, assignment: Assignment, world_size: int | None
) -> tuple[MegatronBucket, ...]:
    """The buckets that the settings of ``assignment`` cut on ``world_size`` ranks (None: at most 40).

    Raises:
        AssignmentError: they are not those of ``assignment`` (A9.2).
        InputError, NotModelledError: as ``assign``.
    """
    settings = read_megatron_settings(assignment.settings, workload)
    buckets = lay_out_buffers(workload, settings, world_size)
    if assignment.bucket_indices != tuple(bucket.members for bucket in buckets):
        why = ""
        if world_size and settings.is_cut and settings.bucket_size is None and settings.num_buckets is None:
            size = default_bucket_size(world_size)
            why = f"; on {world_size} ranks the default is bucket_size={size}: give it"
        raise AssignmentError(
            f"bucket_indices: not the buckets that Megatron-Core cuts with these settings{why} (A9.2)"
        )
    return buckets


def _groups(
    workload: Workload, settings: MegatronSettings, buckets: Sequence[MegatronBucket]
) -> tuple[tuple[int, ...], ...]:
    """Buckets that are sent together, by number: each alone, or all where bucketing is disabled (A9.2).

    Raises:
        NotModelledError: a group in which some gradient comes and some never does, sent from hooks.
    """
    numbers = range(len(buckets))
    groups = (tuple(numbers),) if settings.disable_bucketing else tuple((number,) for number in numbers)
    for group in groups if settings.overlap_grad_reduce else ():
        members = [workload.gradients[index] for number in group for index in buckets[number].members]
        unused = [gradient for gradient in members if gradient.ready_ns is None]
        if unused and len(unused) < len(members):
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {unused[0].index} ({unused[0].name}) is never ready, "
                f"others of its bucket are; with overlap_grad_reduce Megatron-Core stops on that (A9.4)"
            )
    return groups


@dataclass(eq=False)
class _Writer:
    """What all micro-batches of a step share."""

    workload: Workload
    hardware: Hardware
    settings: MegatronSettings
    buckets: tuple[MegatronBucket, ...]

    def micro_batch(self, number: int, iteration: Iteration) -> Program:
        """Micro-batch ``number`` (from 0)."""
        settings, hardware = self.settings, self.hardware
        is_last = number == settings.num_microbatches - 1
        backward = _Backward(self, reduces=is_last, in_hooks=settings.overlap_grad_reduce and iteration != 1)
        backward.run()
        gathers, hidden_ns = self._forward if number == 0 else ((), 0)
        return Program(
            lane=tuple(backward.lane),
            collectives=tuple(backward.collectives),
            carriers=backward.sent,
            effects=effects_of(self.workload, hardware),
            before_forward=gathers,
            before_forward_ns=self._zeroing_ns() if number == 0 else 0,
            before_forward_for="zeroed gradients",
            hidden_ns=hidden_ns,
            after_sync=self._step_gathers() if is_last else (),
            optimizer_ns=self._optimizer_ns() if is_last else 0,
            notes=self._notes() if is_last else (),
        )

    def _zeroing_ns(self) -> int:
        """ns to zero the buffers at the start of a step: they are written, not read (A9.5)."""
        written = sum(bucket.num_bytes for bucket in self.buckets)
        return transfer_ns(written // 2, self.hardware.copy_in_bytes_per_s)

    @cached_property
    def _forward(self) -> tuple[tuple[Collective, ...], int]:
        """Gathers that forward's hooks launch, in order, and how much of them forward hides (A9.6)."""
        if not self.settings.overlap_param_gather:
            return (), 0
        groups = _groups(self.workload, self.settings, self.buckets)
        home = {i: k for k, group in enumerate(groups) for n in group for i in self.buckets[n].members}
        sent = [[self.gather(self.buckets[number], "forward") for number in group] for group in groups]
        services = [sum(one.service_ns for one in together) for together in sent]
        played = play_chained(forward_modules(self.workload), home, services)
        gathers = tuple(one for group in played.order for one in sent[group])
        hidden_ns = sum(one.service_ns for one in gathers) - played.waited_ns
        return gathers, min(hidden_ns, self.workload.forward_ns)  # gathers may outlast forward

    def _step_gathers(self) -> tuple[Collective, ...]:
        """Gathers at the end of the optimizer's step, one after the other, in the order of buckets (A9.6)."""
        if not self.settings.use_distributed_optimizer or self.settings.overlap_param_gather:
            return ()
        return tuple(self.gather(bucket, "step") for bucket in self.buckets)

    def gather(self, bucket: MegatronBucket, phase: Phase) -> Collective:
        """The all-gather of a bucket's parameters."""
        num_bytes = bucket.elements * DTYPE_BYTES[bucket.dtype]
        return Collective(
            kind="all_gather",
            elements=bucket.elements,
            dtype=bucket.dtype,
            num_bytes=num_bytes,
            service_ns=self.service_ns("all_gather", num_bytes),
            phase=phase,
            purpose="parameters",
        )

    def service_ns(self, kind: CollectiveKind, num_bytes: int) -> int:
        """ns of a collective; without a curve an all-gather counts 0, and other collectives are refused."""
        duration_ns = collective_ns(self.hardware, kind, num_bytes)
        if duration_ns is None and kind != "all_gather":
            raise NotModelledError(
                f"{SYSTEM}: use_distributed_optimizer: {missing_curve(self.hardware, kind)}"
            )
        return duration_ns or 0

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
        if settings.overlap_param_gather:
            gathers, hidden_ns = self._forward
            notes += told_of_forward(gathers, sum(one.service_ns for one in gathers) - hidden_ns)
        return tuple(notes)


class _Backward(LaneWriter):
    """The lane of one micro-batch, as it is written."""

    def __init__(self, writer: _Writer, *, reduces: bool, in_hooks: bool) -> None:
        super().__init__()
        self.writer = writer
        self.workload, self.settings, self.buckets = writer.workload, writer.settings, writer.buckets
        self.groups = _groups(self.workload, self.settings, self.buckets) if reduces else ()
        self.in_hooks = in_hooks
        included = "copy_in" in self.workload.ready_includes
        self._hook_ns = 0 if included else writer.hardware.hook_cost_ns
        self.carriers: dict[int, int] = {}  # by bucket

    @property
    def sent(self) -> tuple[tuple[int, ...], ...]:
        """The collective of each bucket, in order; nothing in a micro-batch that sends none."""
        return tuple((self.carriers[number],) for number in sorted(self.carriers))

    def run(self) -> None:
        """Backward with each gradient's addition; what hooks send, and what is sent or waited for after."""
        members = [
            {index for number in group for index in self.buckets[number].members} for group in self.groups
        ]
        used = {index for index, _ in works(self.workload)}
        pending = [group & used if self.in_hooks else set() for group in members]
        home = {index: number for number, missing in enumerate(pending) for index in missing}
        for index, work in works(self.workload):
            self.work("backward", work, gradient=index)
            self.work("hook", self._hook_ns + self._addition_ns(index), gradient=index)
            if (number := home.get(index)) is not None:
                pending[number].remove(index)
                if not pending[number]:
                    self._start(number, "backward", index)
        self.work("backward", tail_ns(self.workload))
        self.lane.append(BackwardEnd())
        for group in range(len(self.groups)):
            self._finish(group)

    def _addition_ns(self, index: int) -> int:
        """ns of ``main_grad.add_(grad)`` in every micro-batch: it reads two tensors and writes one (A9.5)."""
        dtype = self.workload.gradients[index].dtype
        narrow, wide = DTYPE_BYTES[dtype], DTYPE_BYTES[self.settings.grad_dtype(dtype)]
        moved = self.workload.gradients[index].elements * (narrow + 2 * wide)
        return transfer_ns(moved // 3, self.writer.hardware.accumulate_bytes_per_s)

    def _start(self, group: int, phase: Phase, gradient: int | None) -> None:
        """Divide a group's buckets in place, then send them (A9.5)."""
        settings, hardware = self.settings, self.writer.hardware
        divides = hardware.world_size > 1 and not settings.average_in_collective
        for number in self.groups[group]:
            self.lane.append(Ready(number))
            size = self.buckets[number].num_bytes
            if divides:
                self.work("hook", transfer_ns(size, hardware.copy_in_bytes_per_s), bucket=number)
        kind: CollectiveKind = "reduce_scatter" if settings.use_distributed_optimizer else "all_reduce"
        for number in self.groups[group]:
            bucket = self.buckets[number]
            self.carriers[number] = self.launch(
                Collective(
                    kind=kind,
                    elements=bucket.elements,
                    dtype=bucket.grad_dtype,
                    num_bytes=bucket.num_bytes,
                    service_ns=self.writer.service_ns(kind, bucket.num_bytes),
                    phase=phase,
                    gradient=gradient,
                    bucket=number,
                )
            )

    def _finish(self, group: int) -> None:
        """Send what no hook has sent, and wait, group by group (A9.4)."""
        if self.groups[group][0] not in self.carriers:
            self._start(group, "after backward", None)
        for number in self.groups[group]:
            self.lane += [Wait(self.carriers[number]), CopyBack(number, 0)]
