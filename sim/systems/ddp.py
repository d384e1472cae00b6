"""DistributedDataParallel: what its constructor sends, what a step under it does, what its buckets hold."""

from collections.abc import Iterator
from dataclasses import dataclass

from sim.clock.program import AROUND, COPY_IN, HOOK, Program
from sim.errors import AssignmentError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.ddp_switches import FLOATS, Switches, read_switches
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload
from sim.systems.compile_cuts import AS_RECORDED
from sim.systems.ddp_assignment import (
    as_compiled,
    check_used,
    compute_bucket_assignment_by_size,
    constructed_in,
)
from sim.systems.step_writer import Plan, StepWriter
from sim.units import transfer_ns

_COALESCED_BYTES = 250 << 20  # DDP's broadcast_bucket_size
_GRADIENTS = "gradients before they are views"


def copied_bytes(gradient: Gradient) -> int:
    """Bytes of one gradient that DDP copies into and out of its bucket; sparse: none (A3.18)."""
    return 0 if gradient.sparse else gradient.on_wire


def search_ns(workload: Workload, hardware: Hardware, switches: Switches) -> int:
    """What the search for unused parameters adds at the end of a forward, in ns (A3.13)."""
    return hardware.search_unused_ns * len(workload.gradients) if switches.searches else 0


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "DdpPlan":
    """What DDP does with any buckets, under the switches of ``assignment``.

    Raises:
        InputError, NotModelledError: a switch that is not legal or not modelled, or a parameter on which DDP
            itself would stop.
    """
    switches = read_switches(assignment)
    check_used(workload, switches)
    return DdpPlan(
        workload=as_compiled(workload, assignment),
        buckets=assignment.bucket_indices,
        micro_batches=switches.accumulation_steps,
        assignment=assignment,
        switches=switches,
    )


@dataclass(frozen=True, kw_only=True)
class DdpPlan(Plan):
    """All micro-batches but the last run under ``no_sync``; with ``no_sync=false`` each reduces (A3.12).

    From the second one on, a gradient is added to what is there already.
    """

    assignment: Assignment
    switches: Switches

    def write(self, hardware: Hardware, iteration: Iteration) -> tuple[Program, ...]:
        """The programs of a step, one a micro-batch.

        Raises:
            AssignmentError: the buckets are not those that DDP has by then (A2.2, A2.6).
            NotModelledError: an iteration that is not modelled.
        """
        if iteration == "steady":
            return super().write(hardware, iteration)
        if self.switches.syncs_each:
            raise NotModelledError(
                f"iteration: {iteration} is not modelled with accumulation_steps={self.micro_batches} and "
                f"no_sync=false, where DDP rebuilds its buckets within a step; give steady"
            )
        rebuilt_from = self.switches.rebuilt_from
        if self.assignment.by_keywords and rebuilt_from is not None and iteration < rebuilt_from:
            constructed = constructed_in(self.workload, self.assignment)
            if [set(bucket) for bucket in constructed] != [set(bucket) for bucket in self.buckets]:
                raise AssignmentError(
                    f"bucket_indices: in iteration {iteration} DDP still has the {len(constructed)} "
                    f"bucket(s) of its constructor; give the policy and its caps, or iteration {rebuilt_from}"
                )
        return super().write(hardware, iteration)

    def _micro_batch(self, hardware: Hardware, iteration: Iteration, number: int) -> Program:
        return _MicroBatch(self, hardware, iteration, number).write()

    def construct(self) -> tuple[Collective, ...]:
        """What the constructor sends (A2.8): a count, shapes and strides, then parameters and buffers.

        Frozen parameters, which the real one sends too, are in no workload.
        """
        if not self.switches.init_sync:
            return ()
        words = 2 * sum(len(gradient.shape) for gradient in self.workload.gradients)
        return (
            _message("all_gather", 1, "int64", "construction", "number of parameters"),
            _message("broadcast", words, "int64", "construction", "shapes", root=0),
            *_states(self.workload, self.switches.sends_buffers),
        )

    def buffer_bytes(self) -> int:
        """Flat buffers, of which the cap decides how many there are, not how much they hold; none of sparse
        gradients. Under ``gradient_as_bucket_view`` gradients live in them, and are held twice until they are
        copied in (A3.4). Narrow copies of a hook, or in ``reduce_dtype``, come on top (A3.17).
        """
        switches, gradients, dtype = self.switches, self.workload.gradients, self.switches.param_dtype
        sizes = [
            0 if one.sparse else one.num_bytes if dtype is None else one.elements * DTYPE_BYTES[dtype]
            for one in gradients
        ]
        held = sum(sizes)
        if switches.gradient_as_bucket_view and dtype is None:  # mixed precision casts them out again (A2.9)
            views = [size * (one.ready_ns is not None) for size, one in zip(sizes, gradients, strict=True)]
            held -= sum(views)
            if not switches.keeps_views and switches.accumulation_steps > 1:
                held += sum(views)  # made under no_sync, they are no views
            elif not switches.keeps_views and switches.batched_grad_copy:
                held += max(sum(views[index] for index in bucket) for bucket in self.buckets)
            elif not switches.keeps_views:
                held += max(views)
        narrow = switches.reduce_dtype if switches.hook is None else switches.hook.dtype
        if narrow is not None and (switches.hook is not None or narrow != dtype):
            held += sum(one.elements for one in gradients) * DTYPE_BYTES[narrow]  # all may be under way
        return held


class _MicroBatch(StepWriter):
    """Micro-batch ``number`` (from 0), as it is written (A3)."""

    def __init__(self, plan: DdpPlan, hardware: Hardware, iteration: Iteration, number: int) -> None:
        switches = plan.switches
        self.is_last = number == plan.micro_batches - 1
        self.reduces = self.is_last or not switches.no_sync
        super().__init__(plan.workload, hardware, "ddp", len(plan.buckets) if self.reduces else 0)
        self.plan, self.buckets, self.switches = plan, plan.buckets, switches
        self.iteration, self.number = iteration, number
        first_views = number == 0 and switches.set_to_none  # gradients are None when it begins
        self.keeps_views = switches.keeps_views and not first_views
        self.home = {index: number for number, bucket in enumerate(self.buckets) for index in bucket}
        self.pending = [len(bucket) for bucket in self.buckets]
        self.next_bucket = 0
        self.map: int | None = None
        self.unused = {g.index for g in plan.workload.gradients if g.ready_ns is None}
        self.copy_out_rate = hardware.copy_out_bytes_per_s

    def write(self) -> Program:
        """The whole of it; under ``no_sync`` gradients accumulate, nothing is copied or sent (A3.12)."""
        workload, hardware, switches = self.workload, self.hardware, self.switches
        before = tuple(self._before_forward())
        for sent in before:
            self.block(sent)
        if self.reduces:
            self.compute(AROUND, search_ns(workload, hardware, switches))
        self.forward()
        if before and hardware.broadcast is None and hardware.world_size > 1:
            notes: tuple[str, ...] = (
                f"{len(before)} broadcast(s) before forward are not counted: hardware {hardware.name!r} has "
                f"no broadcast curve",
            )
        else:
            notes = ()
        if not self.reduces:
            for _ in self.backward(self.addition_ns):
                pass
            self.synchronised()
            return self.program(notes=notes)
        if switches.static_graph and self.iteration == 1:
            self.reduce_afterwards()
        else:
            self.reduce_while_ready()
        self.finalize()
        self.synchronised(workload.optimizer_ns * self.is_last)
        return self.program(around_for="unused parameters", notes=(*notes, *self._notes()))

    def _before_forward(self) -> Iterator[Collective]:
        """What precedes the forward.

        The rebuild's two broadcasts of int32 (A2.7) come in the first forward after the recording backward,
        then buffers, one broadcast a dtype (A3.16), in a forward that follows a synchronised one.
        """
        plan, switches = self.plan, self.switches
        if self.number and not switches.syncs_each:
            return
        if plan.assignment.by_keywords and self.iteration == switches.rebuilt_from:
            for words in (len(self.workload.gradients) + 1, len(self.buckets)):
                yield self._broadcast(4 * words, "int32", "rebuilt buckets")
        by_dtype: dict[str, int] = {}
        for buffer in self.workload.buffers if switches.syncs_buffers else ():
            dtype, size = buffer.dtype, buffer.num_bytes
            if switches.buffer_dtype is not None and dtype in FLOATS:
                size = size * DTYPE_BYTES[switches.buffer_dtype] // DTYPE_BYTES[dtype]
                dtype = switches.buffer_dtype
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
        for dtype, size in by_dtype.items():
            yield self._broadcast(size, dtype, "buffers")

    def _broadcast(self, num_bytes: int, dtype: str, purpose: str) -> Collective:
        return self.collective(
            "broadcast",
            num_bytes // DTYPE_BYTES[dtype],
            dtype,
            "before forward",
            num_bytes=num_bytes,
            is_counted=False,
            root=0,
            purpose=purpose,
        )

    def addition_ns(self, index: int) -> int:
        """What AccumulateGrad takes to add one gradient to that of the micro-batches before (A3.12).

        The first micro-batch of a step has nothing to add to; without ``set_to_none`` it adds to zeros, and
        recorded times are then taken to contain additions.
        """
        gradient = self.workload.gradients[index]
        if self.number == 0 or gradient.sparse or not self.switches.set_to_none:
            return 0
        return transfer_ns(gradient.num_bytes, self.hardware.accumulate_bytes_per_s)

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
        return tuple(notes)

    def reduce_while_ready(self) -> None:
        """Copies in at each hook, launches in bucket order as soon as the next bucket is complete (A3.5).

        The first hook marks every unused parameter ready ahead of its own (A3.3).
        """
        marks, unused = self.hardware.mark_used_ns * self.switches.searches, sorted(self.unused)
        for index in self.backward(self.addition_ns):
            self.compute(HOOK, marks, gradient=index)
            while unused:
                self._arrive(unused.pop(0), index)
            self._arrive(index, index)

    def reduce_afterwards(self) -> None:
        """Iteration 1 of a static graph: map, copies in index order, all buckets, after backward (A3.15)."""
        for _ in self.backward():
            pass
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
                self.wait(carrier)
            if waits_for_map and self.map is not None and not self.unused.isdisjoint(bucket):
                self.wait(self.map)
                waits_for_map = False
            self.copy_back(number, self._copy_out_ns(bucket))
        if waits_for_map and self.map is not None:
            self.wait(self.map)

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
        self.compute(COPY_IN, hook_ns + transfer_ns(size, self.copy_in_rate), gradient=index)

    def _complete(self, bucket: int) -> None:
        """All gradients are in; batched copies are made now, then the division (A3.4)."""
        switches = self.switches
        if switches.batched_grad_copy:
            size = sum(copied_bytes(self.workload.gradients[index]) for index in self.buckets[bucket])
            passes = (not self.keeps_views) + (switches.comm_hook is None)
            self.compute(COPY_IN, transfer_ns(passes * size, self.copy_in_rate), bucket=bucket)
        self.ready(bucket)

    def _launch(self, bucket: int, phase: Phase, gradient: int | None) -> None:
        """Send a bucket, with what its hook computes around that (A3.17).

        A sparse gradient sends indices and values (A3.18). Without a hook DDP divides while it copies in. A
        hook divides the bucket in place before, and one with a dtype of its own casts it before, and back
        after; one that sends nothing does nothing.
        """
        members = [self.workload.gradients[index] for index in self.buckets[bucket]]
        hook, own, is_sparse = self.switches.hook, members[0].dtype, members[0].sparse
        if hook is not None and not hook.sends:
            return
        dtype = hook.dtype if hook is not None else None if is_sparse else self.switches.reduce_dtype
        # A wire_bytes that is given is narrow already: what is cast is the dense size.
        is_cast = dtype is not None and not is_sparse
        size = sum(one.num_bytes if is_cast else one.on_wire for one in members)
        sent = size if dtype is None else size * DTYPE_BYTES[dtype] // DTYPE_BYTES[own]
        before = after = 0  # bytes that are read, and bytes that are written
        if hook is not None:
            before, after = (2 * size, 0) if dtype is None else (size + 3 * sent, sent + size)
        self.compute(HOOK, transfer_ns(before // 2, self.copy_in_rate), bucket=bucket)
        self.send(
            self.collective(
                "all_reduce",
                sum(one.num_bytes // DTYPE_BYTES[one.dtype] for one in members),
                dtype or own,
                phase,
                num_bytes=sent,
                gradient=gradient,
                bucket=bucket,
                settle_ns=transfer_ns(after // 2, self.copy_out_rate),
            )
        )

    def _launch_map(self, phase: Phase, gradient: int | None) -> None:
        """The all-reduce of int32[P] that says which parameters any rank used (A3.9)."""
        elements, purpose = len(self.workload.gradients), "used parameters"
        self.map = self.send(
            self.collective("all_reduce", elements, "int32", phase, gradient=gradient, purpose=purpose)
        )

    def _copy_out_ns(self, bucket: tuple[int, ...]) -> int:
        if self.switches.gradient_as_bucket_view:
            return 0
        used = (self.workload.gradients[index] for index in bucket if index not in self.unused)
        return sum(transfer_ns(copied_bytes(one), self.copy_out_rate) for one in used)  # one by one (A3.4)


def _message(
    kind: CollectiveKind, elements: int, dtype: str, phase: Phase, purpose: str, root: int | None = None
) -> Collective:
    """A collective whose time is not counted."""
    return Collective(
        kind=kind,
        elements=elements,
        dtype=dtype,
        num_bytes=elements * DTYPE_BYTES[dtype],
        service_ns=0,
        phase=phase,
        root=root,
        purpose=purpose,
    )


def _states(workload: Workload, with_buffers: bool) -> list[Collective]:
    """Coalesced broadcasts of parameters and buffers: one a dtype, in chunks of 250 MiB or more."""
    sizes = [(gradient.dtype, gradient.num_bytes) for gradient in workload.gradients]
    if with_buffers:
        sizes += [(buffer.dtype, buffer.num_bytes) for buffer in workload.buffers]
    chunks = compute_bucket_assignment_by_size(
        [size for _, size in sizes], [dtype for dtype, _ in sizes], [_COALESCED_BYTES]
    )
    sent = []
    for chunk in chunks:
        dtype = sizes[chunk[0]][0]
        elements = sum(sizes[place][1] for place in chunk) // DTYPE_BYTES[dtype]
        sent.append(_message("broadcast", elements, dtype, "construction", "parameters and buffers", 0))
    return sent
