"""``fully_shard`` and ``replicate`` (FSDP2): modules as units, and when a step gathers and reduces each.

A unit is a bucket; buckets are numbered in the order in which backward reduces them. Iterations are alike.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
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
from sim.systems.forward_gathers import forward_modules, play_prefetched, told_of_forward
from sim.systems.fsdp2_settings import BLOCKS, REPLICATED, SHARDED, Fsdp2Settings, read_fsdp2_settings
from sim.systems.fsdp2_units import Unit, cut_units
from sim.systems.micro_batch import LaneWriter, micro_batches, shared_optimizer_ns
from sim.units import transfer_ns

POLICIES = (SHARDED, REPLICATED)
_STREAMS = (
    "streams of FSDP2 are modelled from torch's source; a replay has their order and waits, without a GPU"
)


def assign(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """The units of ``fully_shard`` or ``replicate``, in the order in which backward reduces them (A10.4).

    Args:
        options: settings, by torch's names, and ``units``.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a parameter that torch
            refuses.
    """
    settings = read_fsdp2_settings(options, policy, workload)
    units = plan(workload, settings, policy, 1).reduced
    return assigned(workload, policy, tuple(unit.indices for unit in units), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """Units in the order of forward, and in that of reductions; ``late`` are reduced after backward.

    ``finished``: all but the root in the order in which forward is done with them. That differs from
    ``forward`` if a unit's modules are used both before and after another unit.
    """

    forward: tuple[Unit, ...]
    finished: tuple[Unit, ...]
    reduced: tuple[Unit, ...]
    late: frozenset[str]


def plan(workload: Workload, settings: Fsdp2Settings, policy: str, ranks: int) -> UnitPlan:
    """Which units there are, and when each is reduced (A10.2, A10.4).

    A unit is reduced by the hook on its inputs' gradient. The root has none, nor has a unit before which no
    parameter is used: they are reduced in autograd's final callback, the root first, then as declared.
    """
    units = cut_units(workload, settings, policy, ranks)
    home = {index: unit for unit in units for index in unit.indices}
    place = {index: number for number, index in enumerate(workload.order())}
    last = {unit.name: max(place[index] for index in unit.indices) for unit in units}
    late = {unit.name for unit in units if unit.is_root or last[unit.name] == len(place) - 1}
    by_hook = sorted((unit for unit in units if unit.name not in late), key=lambda unit: last[unit.name])
    used = [home[index] for module in forward_modules(workload) for index in module.indices[:1]]
    forward = dict.fromkeys([unit for unit in units if unit.is_root] + used)
    finished: dict[Unit, None] = {}
    for unit in used:
        finished.pop(unit, None)
        finished[unit] = None
    return UnitPlan(
        forward=tuple(forward),
        finished=tuple(unit for unit in finished if not unit.is_root),
        reduced=(*by_hook, *(unit for unit in units if unit.name in late)),
        late=frozenset(late),
    )


def check_units(workload: Workload, assignment: Assignment) -> None:
    """Raise ``AssignmentError`` unless the buckets are the units that the settings make (A10.1)."""
    policy = assignment.policy
    settings = read_fsdp2_settings(assignment.settings, policy, workload)
    if assignment.bucket_indices != tuple(u.indices for u in plan(workload, settings, policy, 1).reduced):
        raise AssignmentError(
            f"bucket_indices: not the units that {policy} makes with these settings (A10.1)"
        )


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The programs of one step, one a micro-batch; the last one reduces.

    Raises:
        AssignmentError: the buckets are not the units of these settings.
        InputError, NotModelledError: as ``assign``, or a curve that the hardware does not have.
    """
    policy = assignment.policy
    settings = read_fsdp2_settings(assignment.settings, policy, workload)
    assignment.check_fits(workload)
    check_units(workload, assignment)
    units = plan(workload, settings, policy, settings.shards(policy, hardware.world_size))
    writer = _Writer(workload, hardware, settings, units, policy)
    return micro_batches(settings.accumulation_steps, writer.micro_batch)


@dataclass(slots=True, eq=False)
class _Writer:
    """What all micro-batches of a step share."""

    workload: Workload
    hardware: Hardware
    settings: Fsdp2Settings
    units: UnitPlan
    policy: str

    @property
    def gathers(self) -> bool:
        """Whether parameters are gathered: not where every rank has them all."""
        return self.policy == SHARDED and self.hardware.world_size > 1

    def micro_batch(self, number: int) -> Program:
        """Micro-batch ``number`` (from 0)."""
        is_last = number == self.settings.accumulation_steps - 1
        backward = _Backward(self, number, reduces=is_last)
        backward.run()
        gathers, waited_ns = self._forward()
        services = sum(one.service_ns for one in gathers)
        return Program(
            lane=tuple(backward.lane),
            collectives=tuple(backward.collectives),
            carriers=tuple(backward.sent[n] for n in range(len(backward.sent))),
            effects=replace(effects_of(self.workload, self.hardware), channels=1),  # one communicator
            before_forward=gathers,
            before_forward_ns=max(0, waited_ns - services),
            hidden_ns=max(0, services - waited_ns),
            optimizer_ns=self._optimizer_ns() if is_last else 0,
            notes=(_STREAMS, *self._groups(), *self._root_alone(), *told_of_forward(gathers, waited_ns)),
        )

    def _groups(self) -> tuple[str, ...]:
        """Notes under HSDP: whose curves are taken, and that its two groups share a channel (A10.7)."""
        replicas, ranks = self.settings.replicas, self.hardware.world_size
        if replicas == 1:
            return ()
        return (
            f"HSDP: the hardware's reduce_scatter and all_gather are taken for those of a group of "
            f"{ranks // replicas} ranks that share, its all_reduce for that of {replicas} replicas; measured "
            f"on all {ranks} ranks, they are not these",
            "HSDP: collectives of both groups go one after the other, as over one link; a GPU may run an "
            "all-reduce of replicas beside a reduce-scatter or a gather, and be faster",
        )

    def _root_alone(self) -> tuple[str, ...]:
        """A note if no unit was found where blocks were asked for, as they are by default."""
        if self.settings.units != BLOCKS or len(self.units.forward) > 1:
            return ()
        return ("no module of the workload is numbered in a list: all parameters are one unit, the root's",)

    def _forward(self) -> tuple[tuple[Collective, ...], int]:
        """Gathers of forward in order, and what forward waits for them and for copies (A10.2)."""
        forward = self.units.forward
        copies = [self.copy_out_ns(unit) for unit in forward]
        if not self.gathers:
            return (), sum(copies) if self.policy == REPLICATED else 0
        alone = [self.gather(unit, "forward") for unit in forward]
        queued = [self.gather(unit, "forward", is_queued=True) for unit in forward]
        home = {index: number for number, unit in enumerate(forward) for index in unit.indices}
        alone_ns, queued_ns = ([one.service_ns for one in sent] for sent in (alone, queued))
        ahead = max(1, self.settings.forward_prefetch)
        modules = forward_modules(self.workload)
        played = play_prefetched(modules, home, alone_ns, queued_ns, copies, ahead)
        return tuple((queued if n in played.queued else alone)[n] for n in played.order), played.waited_ns

    def copy_out_ns(self, unit: Unit) -> int:
        """ns of copying gathered parameters out of one buffer; ``replicate`` copies its own ones instead."""
        size = unit.numel * DTYPE_BYTES[self.settings.gathered_dtype(unit.dtype)]
        return transfer_ns(size, self.hardware.copy_out_bytes_per_s)

    def gather(self, unit: Unit, phase: Phase, *, is_queued: bool = False) -> Collective:
        """The all-gather of a unit's parameters; ``is_queued``: it begins as another one ends (A10.8)."""
        dtype = self.settings.gathered_dtype(unit.dtype)
        made = self._collective("all_gather", unit.numel, dtype, phase, purpose="parameters")
        if not is_queued:
            return made
        factor = Fraction(self.hardware.queued_gather_factor)
        return replace(made, service_ns=round(made.service_ns * factor))

    def reduction(self, unit: Unit, bucket: int, phase: Phase) -> Collective:
        """The reduce-scatter of a unit's gradients; under ``replicate`` their all-reduce (A10.4)."""
        kind: CollectiveKind = "reduce_scatter" if self.policy == SHARDED else "all_reduce"
        dtype = self.settings.sent_dtype(unit.dtype)
        return self._collective(kind, unit.numel, dtype, phase, bucket=bucket)

    def replicas_reduction(self, sent: Collective, number: int) -> Collective | None:
        """The all-reduce of a rank's share over the replicas, behind collective ``number`` (A10.7)."""
        if self.settings.replicas == 1:
            return None
        share = sent.elements * self.settings.replicas // self.hardware.world_size
        return self._collective("all_reduce", share, sent.dtype, sent.phase, bucket=sent.bucket, after=number)

    def _collective(
        self, kind: CollectiveKind, elements: int, dtype: str, phase: Phase, **more: Any
    ) -> Collective:
        num_bytes = elements * DTYPE_BYTES[dtype]
        return Collective(
            kind=kind,
            elements=elements,
            dtype=dtype,
            num_bytes=num_bytes,
            service_ns=self._service_ns(kind, num_bytes),
            phase=phase,
            **more,
        )

    def _service_ns(self, kind: CollectiveKind, num_bytes: int) -> int:
        duration_ns = collective_ns(self.hardware, kind, num_bytes)
        if duration_ns is None:
            raise NotModelledError(f"{self.policy}: {missing_curve(self.hardware, kind)}")
        return duration_ns

    def _optimizer_ns(self) -> int:
        """Under ``fully_shard`` the optimizer works on one rank's share, padding included (A10.6)."""
        if self.policy == REPLICATED:
            return self.workload.optimizer_ns
        shards = self.settings.shards(self.policy, self.hardware.world_size)
        owned = sum(unit.numel for unit in self.units.reduced) // shards
        return shared_optimizer_ns(self.workload, owned)


class _Backward(LaneWriter):
    """The lane of one micro-batch, as it is written."""

    def __init__(self, writer: _Writer, number: int, *, reduces: bool) -> None:
        super().__init__()
        self.writer, self.number, self.reduces = writer, number, reduces
        self.sent: dict[int, tuple[int, ...]] = {}  # by bucket, its collectives
        self.gathered: dict[str, int] = {}  # by unit, its gather of this backward
        self.under_way: int | None = None  # the last reduce-scatter, for which the next one waits

    def run(self) -> None:
        """Units as backward comes to them: gathered and copied out, computed, reduced (A10.3, A10.4)."""
        units, workload = self.writer.units, self.writer.workload
        home = {index: number for number, unit in enumerate(units.reduced) for index in unit.indices}
        missing = [set(unit.indices) for unit in units.reduced]
        begun: set[int] = set()
        for number, unit in enumerate(units.reduced):
            if unit.is_root:
                begun.add(number)
                self._pre_backward(unit)
        for index, work in works(workload):
            bucket = home[index]
            unit = units.reduced[bucket]
            if bucket not in begun:
                begun.add(bucket)
                self._pre_backward(unit)
            self.work("backward", work + self._addition_ns(index), gradient=index)
            missing[bucket].remove(index)
            if not missing[bucket] and unit.name not in units.late:
                self._reduce(bucket, "backward")
        self.work("backward", tail_ns(workload))
        self.lane.append(BackwardEnd())
        for bucket, unit in enumerate(units.reduced):
            if unit.name in units.late:
                self._reduce(bucket, "end of backward")
        for bucket, carriers in sorted(self.sent.items()):
            self.lane += [Wait(carriers[-1]), CopyBack(bucket, 0)]

    def _addition_ns(self, index: int) -> int:
        """From the second micro-batch on gradients are added to those of the ones before (A3.12)."""
        size = self.writer.workload.gradients[index].num_bytes * bool(self.number)
        return transfer_ns(size, self.writer.hardware.accumulate_bytes_per_s)

    def _pre_backward(self, unit: Unit) -> None:
        """Wait for the unit's gather, copy it out, and prefetch what backward comes to next (A10.3)."""
        settings, units = self.writer.settings, self.writer.units
        if not self.writer.gathers or not settings.reshard_after_forward:
            return
        self._gather(unit)
        if unit.name in self.gathered:
            self.lane.append(Wait(self.gathered[unit.name]))
            self.work("hook", self.writer.copy_out_ns(unit))
        before = [one for one in units.forward if not one.is_root]  # as lists for prefetching are written
        if not settings.backward_prefetch:
            before = list(units.finished)
        place = len(before) if unit.is_root else before.index(unit)
        ahead = max(1, settings.backward_prefetch)
        is_queued = False
        for target in before[max(place - ahead, 0) : place][::-1]:
            is_queued |= self._gather(target, is_queued=is_queued)

    def _gather(self, unit: Unit, *, is_queued: bool = False) -> bool:
        """Launch a unit's gather, unless it was before; the root needs none. Returns whether it did."""
        if unit.is_root or unit.name in self.gathered:
            return False
        self.gathered[unit.name] = self.launch(self.writer.gather(unit, "backward", is_queued=is_queued))
        return True

    def _reduce(self, bucket: int, phase: Phase) -> None:
        """Wait for the reduce-scatter before, copy in, and send, in the last micro-batch alone.

        ``replicate`` copies twice, the second time beside backward as long as that lasts (A10.4).
        """
        if not self.reduces:
            return
        writer = self.writer
        unit = writer.units.reduced[bucket]
        if self.under_way is not None:
            self.lane.append(Wait(self.under_way))
        sent = writer.reduction(unit, bucket, phase)
        is_copied_twice = writer.policy == REPLICATED and phase == "end of backward"
        copied = sent.num_bytes * (2 if is_copied_twice else 1)
        self.work("copy_in", transfer_ns(copied, writer.hardware.copy_in_bytes_per_s), bucket=bucket)
        self.lane.append(Ready(bucket))
        number = self.launch(sent)
        self.sent[bucket] = (number,)
        if writer.policy == SHARDED:
            self.under_way = number
        if (behind := writer.replicas_reduction(sent, number)) is not None:
            self.sent[bucket] = (number, len(self.collectives))
            self.collectives.append(behind)
