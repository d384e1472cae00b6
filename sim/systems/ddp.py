"""DistributedDataParallel's Reducer: what a backward under it does, in every iteration."""

from dataclasses import dataclass, replace

from sim.clock.program import (
    BackwardEnd,
    CopyBack,
    LaneItem,
    Launch,
    Program,
    Ready,
    Wait,
    Work,
    effects_of,
    tail_ns,
    works,
)
from sim.costs.service_time import all_reduce_ns
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, Phase
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload
from sim.systems.comm_hooks import messages
from sim.systems.compile_cuts import AS_RECORDED
from sim.systems.ddp_assignment import constructed_in
from sim.systems.ddp_broadcasts import before_forward
from sim.systems.hook_table import Message, SentBucket
from sim.systems.micro_batch import LaneWriter, micro_batches
from sim.systems.switches import Switches, check_used, read_switches
from sim.units import transfer_ns


def copied_bytes(gradient: Gradient) -> int:
    """Bytes of one gradient that DDP copies into and out of its bucket; sparse: none (A3.18)."""
    return 0 if gradient.sparse else gradient.on_wire


def search_ns(workload: Workload, hardware: Hardware, switches: Switches) -> int:
    """What the search for unused parameters adds at the end of a forward, in ns (A3.13)."""
    return hardware.search_unused_ns * len(workload.gradients) if switches.searches else 0


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The programs of one step, one a micro-batch; all but the last run under ``no_sync`` (A3.12).

    With the setting ``no_sync=false`` each of them reduces. From the second one on, a gradient is added to
    what is there already.

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3).
        InputError, NotModelledError: a switch that is not legal or not modelled, or a parameter on which DDP
            itself would stop.
    """
    assignment.check_fits(workload)
    switches = read_switches(assignment)
    check_used(workload, switches)
    _check_iteration(workload, assignment, switches, iteration)
    if switches.join_inputs is not None and len(switches.join_inputs) != hardware.world_size:
        raise InputError(
            f"ddp: join_inputs={list(switches.join_inputs)} is not legal; give one number a rank, "
            f"{hardware.world_size}"
        )
    writer = _Writer(workload, hardware, assignment, switches, iteration)
    return micro_batches(switches.accumulation_steps, writer.micro_batch)


def _check_iteration(
    workload: Workload, assignment: Assignment, switches: Switches, iteration: Iteration
) -> None:
    """Raise unless the iteration exists, and its buckets are those that DDP has by then (A2.2, A2.6)."""
    inputs, rebuilt_from = switches.join_inputs, switches.rebuilt_from
    if iteration == "steady":
        return
    if switches.syncs_each:
        raise NotModelledError(
            f"iteration: {iteration} is not modelled with accumulation_steps={switches.accumulation_steps} "
            f"and no_sync=false, where DDP rebuilds its buckets within a step; give steady"
        )
    if assignment.by_keywords and rebuilt_from is not None and iteration < rebuilt_from:
        constructed = constructed_in(workload, assignment)
        if [set(bucket) for bucket in constructed] != [set(b) for b in assignment.bucket_indices]:
            raise AssignmentError(
                f"bucket_indices: in iteration {iteration} DDP still has the {len(constructed)} bucket(s) of "
                f"its constructor; give the policy and its caps, or iteration {rebuilt_from}"
            )
    if inputs is not None and iteration > max(inputs):
        raise InputError(
            f"iteration: {iteration} is not legal; with join_inputs {list(inputs)} no rank has more than "
            f"{max(inputs)}"
        )


@dataclass(slots=True, eq=False)
class _Writer:
    workload: Workload
    hardware: Hardware
    assignment: Assignment
    switches: Switches
    iteration: Iteration

    def micro_batch(self, number: int) -> Program:
        """Micro-batch ``number`` (from 0)."""
        if number == self.switches.accumulation_steps - 1:
            return self._synchronised(number)
        if self.switches.no_sync:
            return self._unsynchronised(number)
        return replace(self._synchronised(number), optimizer_ns=0)

    def _unsynchronised(self, number: int) -> Program:
        """A micro-batch under ``no_sync``: gradients accumulate, nothing is copied or sent (A3.12)."""
        before, notes = self._before_forward(number)
        cut = [(index, work + self.addition_ns(index, number)) for index, work in works(self.workload)]
        lane: list[LaneItem] = [Work("backward", work, index) for index, work in cut if work]
        return Program(
            lane=(*lane, Work("backward", tail_ns(self.workload)), BackwardEnd()),
            collectives=(),
            carriers=(),
            effects=effects_of(self.workload, self.hardware),
            before_forward=before,
            notes=notes,
        )

    def _synchronised(self, number: int) -> Program:
        """A micro-batch that reduces: the last one, or each where none is under ``no_sync``."""
        workload, switches = self.workload, self.switches
        before, notes = self._before_forward(number)
        backward = _Backward(self, number)
        if switches.static_graph and self.iteration == 1:
            backward.reduce_afterwards()
        else:
            backward.reduce_while_ready()
        backward.finalize()
        return Program(
            lane=tuple(backward.lane),
            collectives=tuple(backward.collectives),
            carriers=tuple(map(tuple, backward.carriers)),
            effects=effects_of(workload, self.hardware),
            before_forward=before,
            before_forward_ns=search_ns(workload, self.hardware, switches),
            before_forward_for="unused parameters",
            optimizer_ns=workload.optimizer_ns,
            notes=(*notes, *self._notes()),
        )

    def addition_ns(self, index: int, number: int) -> int:
        """What AccumulateGrad takes to add one gradient to that of the micro-batches before (A3.12).

        The first micro-batch of a step has nothing to add to; without ``set_to_none`` it adds to zeros, and
        recorded times are then taken to contain additions.
        """
        gradient = self.workload.gradients[index]
        if number == 0 or gradient.sparse or not self.switches.set_to_none:
            return 0
        return transfer_ns(gradient.num_bytes, self.hardware.accumulate_bytes_per_s)

    def _before_forward(self, number: int) -> tuple[tuple[Collective, ...], tuple[str, ...]]:
        unsynchronised_before = 0 if self.switches.syncs_each else number
        return before_forward(
            self.workload,
            self.hardware,
            self.assignment,
            self.switches,
            self.iteration,
            unsynchronised_before,
        )

    def _notes(self) -> tuple[str, ...]:
        switches, notes = self.switches, []
        if switches.gradient_as_bucket_view and not switches.set_to_none:
            notes.append(
                "gradients are accumulated in place into their buckets, and zeroed in each step; that work "
                "is part of the recorded backward only if it was recorded with set_to_none=False"
            )
        if switches.reduce_dtype is not None:
            notes.append("mixed_precision is modelled from torch's source; no run has checked it (A2.9)")
        if switches.optimize_ddp is not None:
            notes.append(
                "gradients are ready where torch.compile's cuts end; backward takes as long as it was "
                "recorded, though compiled kernels are faster (A11)"
            )
        elif AS_RECORDED.items() <= self.workload.extensions.items():
            notes.append(
                "the job was recorded under torch.compile: gradients are ready where its own cuts end. "
                "bucket_cap_mb would move these cuts too; they stay where ddp.bucket_bytes_cap is set to the "
                "cap in bytes that the recorded job had (A11.4)"
            )
        hook = switches.comm_hook
        if hook is not None and hook.kind.note and self.hardware.low_rank_bytes_per_s is None:
            notes.append(hook.kind.note)
        return tuple(notes)


class _Backward(LaneWriter):
    """The lane of one synchronised backward, as it is written (A3)."""

    def __init__(self, writer: _Writer, number: int) -> None:
        super().__init__()
        self.writer = writer
        self.number = number
        self.workload = writer.workload
        self.hardware = writer.hardware
        self.switches = writer.switches
        first_views = number == 0 and writer.switches.set_to_none  # gradients are None when it begins
        self.keeps_views = writer.switches.keeps_views and not first_views
        self.buckets = writer.assignment.bucket_indices
        self.home = {index: number for number, bucket in enumerate(self.buckets) for index in bucket}
        self.pending = [len(bucket) for bucket in self.buckets]
        self.next_bucket = 0
        self.carriers: list[list[int]] = [[] for _ in self.buckets]
        self.map: int | None = None
        self.unused = {g.index for g in self.workload.gradients if g.ready_ns is None}
        included = self.workload.ready_includes
        self.copy_in_rate = None if "copy_in" in included else self.hardware.copy_in_bytes_per_s
        self.hook_ns = 0 if "copy_in" in included else self.hardware.hook_cost_ns
        self.copy_out_rate = self.hardware.copy_out_bytes_per_s
        self.compresses = self._compresses()

    def reduce_while_ready(self) -> None:
        """Copies in at each hook, launches in bucket order as soon as the next bucket is complete (A3.5).

        The first hook marks every unused parameter ready ahead of its own (A3.3).
        """
        marks = self.hardware.mark_used_ns * self.switches.searches
        for number, (index, work) in enumerate(works(self.workload)):
            self.work("backward", work + self.writer.addition_ns(index, self.number), gradient=index)
            self.work("hook", marks, gradient=index)
            for unused in sorted(self.unused) if number == 0 else ():
                self._arrive(unused, index)
            self._arrive(index, index)
        self.work("backward", tail_ns(self.workload))
        self.lane.append(BackwardEnd())

    def reduce_afterwards(self) -> None:
        """Iteration 1 of a static graph: map, copies in index order, all buckets, after backward (A3.15)."""
        for index, work in works(self.workload):
            self.work("backward", work, gradient=index)
        self.work("backward", tail_ns(self.workload))
        self.lane.append(BackwardEnd())
        self._launch_map("end of backward", None)
        for gradient in self.workload.gradients:
            self._copy_in(gradient.index)
        for bucket in range(len(self.buckets)):
            self._complete(bucket)
            self._launch(bucket, "end of backward", None)

    def finalize(self) -> None:
        """Waits for the buckets in order and copies each back; then waits for the map (A3.10, A3.13).

        Where a parameter is unused here, its bucket waits for the map before it is copied back. What no rank
        used is not copied.
        """
        waits_for_map = self.map is not None
        for number, bucket in enumerate(self.buckets):
            for carrier in self.carriers[number]:
                self.lane.append(Wait(carrier))
            if waits_for_map and self.map is not None and not self.unused.isdisjoint(bucket):
                self.lane.append(Wait(self.map))
                waits_for_map = False
            self.lane.append(CopyBack(number, self._copy_out_ns(bucket)))
        if waits_for_map and self.map is not None:
            self.lane.append(Wait(self.map))

    def _arrive(self, index: int, trigger: int) -> None:
        """A gradient is ready; ``trigger`` is the one whose hook says so."""
        self._copy_in(index)
        bucket = self.home[index]
        self.pending[bucket] -= 1
        if self.pending[bucket]:
            return
        self._complete(bucket)
        while self.next_bucket < len(self.buckets) and self.pending[self.next_bucket] == 0:
            if not self._is_skipped(self.next_bucket):
                self._launch(self.next_bucket, "backward", trigger)
            self.next_bucket += 1
        if self.next_bucket == len(self.buckets) and self.switches.searches:
            self._launch_map("backward", trigger)

    def _is_skipped(self, bucket: int) -> bool:
        """A3.14: a bucket of nothing but unused parameters is not sent."""
        return self.switches.skip_all_reduce_unused_params and self.unused.issuperset(self.buckets[bucket])

    def _copy_in(self, index: int) -> None:
        """A3.4: fused with the division, or in place; an unused gradient's slice is filled with zeros."""
        switches, hook_ns = self.switches, self.hook_ns
        size = copied_bytes(self.workload.gradients[index])
        if switches.batched_grad_copy:
            size = 0
        elif index in self.unused:
            size, hook_ns = size // 2, 0  # written, not read; no hook of its own
        elif self.keeps_views and switches.comm_hook is not None:
            size = 0
        self.work("copy_in", hook_ns + transfer_ns(size, self.copy_in_rate), gradient=index)

    def _complete(self, bucket: int) -> None:
        """All gradients are in; batched copies are made now, then the division (A3.4)."""
        switches = self.switches
        if switches.batched_grad_copy:
            size = sum(copied_bytes(self.workload.gradients[index]) for index in self.buckets[bucket])
            passes = (not self.keeps_views) + (switches.comm_hook is None)
            self.work("copy_in", transfer_ns(passes * size, self.copy_in_rate), bucket=bucket)
        self.lane.append(Ready(bucket))

    def _launch(self, bucket: int, phase: Phase, gradient: int | None) -> None:
        members = [self.workload.gradients[index] for index in self.buckets[bucket]]
        hook, reduce_dtype = self.switches.comm_hook, self.switches.reduce_dtype
        dtype, size = members[0].dtype, sum(member.on_wire for member in members)
        narrows = hook is not None and hook.kind.dtype is not None
        if narrows and not members[0].sparse:
            # A wire_bytes that is given is narrow already: a hook narrows the dense size.
            size = sum(member.num_bytes for member in members)
        if reduce_dtype is not None and not members[0].sparse:
            size = (
                sum(member.num_bytes for member in members) * DTYPE_BYTES[reduce_dtype] // DTYPE_BYTES[dtype]
            )
            dtype = reduce_dtype
        called_with = SentBucket(gradients=members, num_bytes=size, dtype=dtype)
        for number, message in enumerate(messages(hook, called_with, self.compresses)):
            self._send(message, bucket, phase, gradient, is_first=number == 0)

    def _send(
        self, message: Message, bucket: int, phase: Phase, gradient: int | None, *, is_first: bool
    ) -> None:
        number = len(self.collectives)
        if is_first:
            before_ns = self._hook_ns(message.before_bytes, message.before_products, self.copy_in_rate)
            self.work("hook", before_ns, bucket=bucket)
        self.collectives.append(
            Collective(
                kind="all_reduce",
                elements=message.elements,
                dtype=message.dtype,
                num_bytes=message.num_bytes,
                service_ns=all_reduce_ns(self.hardware, message.num_bytes),
                phase=phase,
                gradient=gradient,
                bucket=bucket,
                after=None if is_first else number - 1,
                settle_ns=self._hook_ns(message.after_bytes, message.after_products, self.copy_out_rate),
            )
        )
        self.carriers[bucket].append(number)
        if is_first:
            self.lane.append(Launch(number))

    def _hook_ns(self, moved: int, products: int, rate: float | None) -> int:
        """What a hook computes: a copy of N bytes reads and writes N each; products take longer, if known."""
        beyond_ns = transfer_ns(products, self.hardware.low_rank_bytes_per_s) - transfer_ns(
            products // 2, rate
        )
        return transfer_ns(moved // 2, rate) + max(0, beyond_ns)

    def _launch_map(self, phase: Phase, gradient: int | None) -> None:
        """The all-reduce of int32[P] that says which parameters any rank used (A3.9)."""
        elements = len(self.workload.gradients)
        size = elements * DTYPE_BYTES["int32"]
        self.map = self.launch(
            Collective(
                kind="all_reduce",
                elements=elements,
                dtype="int32",
                num_bytes=size,
                service_ns=all_reduce_ns(self.hardware, size),
                phase=phase,
                gradient=gradient,
                purpose="used parameters",
            )
        )

    def _copy_out_ns(self, bucket: tuple[int, ...]) -> int:
        if self.switches.gradient_as_bucket_view:
            return 0
        used = [self.workload.gradients[index] for index in bucket if index not in self.unused]
        return transfer_ns(sum(map(copied_bytes, used)), self.copy_out_rate)

    def _compresses(self) -> bool:
        """Whether a hook's warm-up is over: PowerSGD's counter advances with each last bucket (A3.17)."""
        hook, iteration = self.switches.comm_hook, self.writer.iteration
        if hook is None or self._is_skipped(len(self.buckets) - 1):
            return False
        return iteration == "steady" or iteration > hook.warm_up + self._missed_count()

    def _missed_count(self) -> int:
        """A static graph's iteration 1 does not advance the counter unless it has a single bucket (A3.15)."""
        if not self.switches.static_graph:
            return 0
        assignment = self.writer.assignment
        count = len(self.buckets)  # injected ones are there from the start
        if assignment.by_keywords:
            count = len(constructed_in(self.workload, assignment))
        return int(count > 1)
