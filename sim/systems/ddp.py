"""DistributedDataParallel: what its constructor sends, what a step under it does, what its buckets hold."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.clock.program import AROUND, COPY_IN, HOOK, Program
from sim.errors import AssignmentError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, Phase
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload
from sim.systems.ddp_assignment import (
    AS_RECORDED,
    as_compiled,
    check_used,
    compute_bucket_assignment_by_size,
    constructed_in,
)
from sim.systems.step_writer import Plan, StepWriter, completed_by, message
from sim.units import transfer_ns

_COALESCED_BYTES = 250 << 20  # DDP's broadcast_bucket_size


def copied_bytes(gradient: Gradient) -> int:
    """Bytes of one gradient that DDP copies into and out of its bucket; sparse: none (A3.18)."""
    return 0 if gradient.sparse else gradient.on_wire


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "DdpPlan":
    """What DDP does with any buckets, under the switches of ``assignment``.

    Raises:
        InputError, NotModelledError: a switch that is not legal or not modelled, or a parameter on which DDP
            itself would stop.
    """
    switches = read_switches(assignment)
    check_used(workload, switches)
    return DdpPlan(
        system="ddp",
        workload=as_compiled(workload, assignment),
        buckets=assignment.bucket_indices,
        micro_batches=switches.accumulation_steps,
        reduces_each=not switches.no_sync,
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
        rebuilt_from = self.switches.rebuilt_from
        if iteration != "steady" and self.switches.syncs_each:
            raise NotModelledError(
                f"iteration: {iteration} is not modelled with accumulation_steps={self.micro_batches} and "
                f"no_sync=false, where DDP rebuilds its buckets within a step; give steady"
            )
        is_early = iteration != "steady" and rebuilt_from is not None and iteration < rebuilt_from
        if is_early and self.assignment.by_keywords:
            constructed = constructed_in(self.workload, self.assignment)
            if [set(bucket) for bucket in constructed] != [set(bucket) for bucket in self.buckets]:
                raise AssignmentError(
                    f"bucket_indices: in iteration {iteration} DDP still has the {len(constructed)} "
                    f"bucket(s) of its constructor; give the policy and its caps, or iteration {rebuilt_from}"
                )
        return super().write(hardware, iteration)

    def construct(self) -> tuple[Collective, ...]:
        """What the constructor sends (A2.8): a count, shapes and strides, then parameters and buffers.

        Frozen parameters, which the real one sends too, are in no workload.
        """
        if not self.switches.init_sync:
            return ()
        words = 2 * sum(len(gradient.shape) for gradient in self.workload.gradients)
        return (
            message("all_gather", 1, "int64", "construction", purpose="number of parameters"),
            message("broadcast", words, "int64", "construction", purpose="shapes", root=0),
            *self._states(),
        )

    def _states(self) -> Iterator[Collective]:
        """Coalesced broadcasts of parameters and buffers: one a dtype, in chunks of 250 MiB or more."""
        sizes = [(one.dtype, one.num_bytes) for one in self.workload.gradients]
        if self.switches.sends_buffers:
            sizes += [(one.dtype, one.num_bytes) for one in self.workload.buffers]
        for chunk in compute_bucket_assignment_by_size(
            [size for _, size in sizes], [dtype for dtype, _ in sizes], [_COALESCED_BYTES]
        ):
            dtype = sizes[chunk[0]][0]
            elements = sum(sizes[place][1] for place in chunk) // DTYPE_BYTES[dtype]
            told: dict[str, Any] = {"purpose": "parameters and buffers", "root": 0}
            yield message("broadcast", elements, dtype, "construction", **told)

    def buffer_bytes(self) -> int:
        """Flat buffers, of which the cap decides how many there are, not how much they hold; none of sparse
        gradients. Under ``gradient_as_bucket_view`` gradients live in them, and are held twice until they are
        copied in (A3.4). Narrow copies of a hook come on top (A3.17).
        """
        switches, gradients = self.switches, self.workload.gradients
        sizes = [0 if one.sparse else one.num_bytes for one in gradients]
        held = sum(sizes)
        if switches.gradient_as_bucket_view:
            views = [size * (one.ready_ns is not None) for size, one in zip(sizes, gradients, strict=True)]
            held -= sum(views)
            if not switches.keeps_views and switches.accumulation_steps > 1:
                held += sum(views)  # made under no_sync, they are no views
            elif not switches.keeps_views and switches.batched_grad_copy:
                held += max(sum(views[index] for index in bucket) for bucket in self.buckets)
            elif not switches.keeps_views:
                held += max(views)
        if switches.hook is not None and (narrow := switches.hook.dtype) is not None:
            held += sum(one.elements for one in gradients) * DTYPE_BYTES[narrow]  # all may be under way
        return held


class _MicroBatch(StepWriter[DdpPlan]):
    """A micro-batch, as it is written (A3)."""

    def __init__(self, plan: DdpPlan, hardware: Hardware, iteration: Iteration, number: int) -> None:
        super().__init__(plan, hardware, iteration, number)
        self.buckets, self.switches = plan.buckets, plan.switches
        first_views = number == 0 and self.switches.set_to_none  # gradients are None when it begins
        self.keeps_views = self.switches.keeps_views and not first_views
        self.unused = {g.index for g in self.workload.gradients if g.ready_ns is None}

    def write(self) -> Program:
        """The whole of it; under ``no_sync`` gradients accumulate, nothing is copied or sent (A3.12)."""
        workload, switches = self.workload, self.switches
        for sent in self._before_forward():
            self.block(sent)
        if self.reduces:  # the search for unused parameters ends the forward (A3.13)
            search_ns = self.hardware.search_unused_ns * len(workload.gradients)
            self.compute(AROUND, search_ns * switches.searches)
        self.forward()
        if not self.reduces:
            for _ in self.backward(self.addition_ns):
                pass
        elif switches.static_graph and self.iteration == 1:
            self._reduce_afterwards()
        else:
            self._reduce_while_ready()
        if self.reduces:
            self._finalize()
            self._note()
        self.synchronised(workload.optimizer_ns)
        return self.program("unused parameters")

    def _before_forward(self) -> Iterator[Collective]:
        """What precedes the forward.

        The rebuild's two broadcasts of int32 (A2.7) come in the first forward after the recording backward,
        then buffers, one broadcast a dtype (A3.16), in a forward that follows a synchronised one.
        """
        switches = self.switches
        if self.number and not switches.syncs_each:
            return
        sent: list[tuple[str, int, str]] = []
        if self.plan.assignment.by_keywords and self.iteration == switches.rebuilt_from:
            words = len(self.workload.gradients) + 1, len(self.buckets)
            sent += [("int32", 4 * count, "rebuilt buckets") for count in words]
        by_dtype: dict[str, int] = {}
        for buffer in self.workload.buffers if switches.syncs_buffers else ():
            by_dtype[buffer.dtype] = by_dtype.get(buffer.dtype, 0) + buffer.num_bytes
        sent += [(dtype, size, "buffers") for dtype, size in by_dtype.items()]
        for dtype, size, purpose in sent:
            more: dict[str, Any] = {"num_bytes": size, "is_counted": False, "root": 0, "purpose": purpose}
            yield self.collective("broadcast", size // DTYPE_BYTES[dtype], dtype, "before forward", **more)

    def addition_ns(self, index: int) -> int:
        """As of any system; without ``set_to_none`` the first micro-batch adds to zeros, and recorded times
        are then taken to contain additions."""
        is_in = not self.number or self.workload.gradients[index].sparse or not self.switches.set_to_none
        return 0 if is_in else super().addition_ns(index)

    def _note(self) -> None:
        switches = self.switches
        if switches.gradient_as_bucket_view and not switches.set_to_none:
            self.notes.append(
                "gradients are accumulated in place into their buckets, and zeroed in each step; that work "
                "is part of the recorded backward only if it was recorded with set_to_none=False"
            )
        if switches.optimize_ddp is not None:
            self.notes.append(
                "gradients are ready where torch.compile's cuts end; backward takes as long as it was "
                "recorded, though compiled kernels are faster (A11)"
            )
        elif AS_RECORDED.items() <= self.workload.extensions.items():
            self.notes.append(
                "the job was recorded under torch.compile: gradients are ready where its own cuts end. "
                "bucket_cap_mb would move these cuts too; they stay where ddp.bucket_bytes_cap is set to the "
                "cap in bytes that the recorded job had (A11.4)"
            )

    def _reduce_while_ready(self) -> None:
        """Copies in at each hook, launches in bucket order as soon as the next bucket is complete (A3.5).

        The first hook marks every unused parameter ready ahead of its own (A3.3).
        """
        marks, unused = self.hardware.mark_used_ns * self.switches.searches, sorted(self.unused)
        completes = completed_by(self.buckets, (*unused, *self.workload.order()))
        complete, launched = set[int](), 0
        for index in self.backward(self.addition_ns):
            self.compute(HOOK, marks, gradient=index)
            for arrived in (*unused, index):
                self._copy_in(arrived)
                if arrived not in completes:
                    continue
                self._complete(completes[arrived])
                complete.add(completes[arrived])
                while launched in complete:
                    skips = self.switches.skip_all_reduce_unused_params  # of unused parameters alone (A3.14)
                    if not (skips and self.unused.issuperset(self.buckets[launched])):
                        self._launch(launched, "backward", index)
                    launched += 1
                if launched == len(self.buckets) and self.switches.searches:
                    self._launch_map("backward", index)
            unused = []

    def _reduce_afterwards(self) -> None:
        """Iteration 1 of a static graph: map, copies in index order, all buckets, after backward (A3.15)."""
        for _ in self.backward():
            pass
        self._launch_map("end of backward", None)
        for gradient in self.workload.gradients:
            self._copy_in(gradient.index)
        for bucket in range(len(self.buckets)):
            self._complete(bucket)
            self._launch(bucket, "end of backward", None)

    def _finalize(self) -> None:
        """Waits for the buckets in order and copies each back; then waits for a map (A3.10, A3.13).

        Where a parameter is unused here, its bucket waits for the map before it is copied back. What no rank
        used is not copied.
        """
        for number, bucket in enumerate(self.buckets):
            for carrier in self.carriers[number]:
                self.wait(carrier)
            if not self.unused.isdisjoint(bucket):
                self.catch_up()
            used = set[int]() if self.switches.gradient_as_bucket_view else {*bucket} - self.unused
            sizes = [copied_bytes(self.workload.gradients[index]) for index in used]
            self.copy_back(number, sum([transfer_ns(size, self.copy_out_rate) for size in sizes]))
        self.catch_up()

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
        hook, own = self.switches.hook, members[0].dtype
        if hook is not None and not hook.sends:
            return
        dtype = None if hook is None else hook.dtype
        # A wire_bytes that is given is narrow already: what is cast is the dense size.
        is_cast = dtype is not None and not members[0].sparse
        size = sum([one.num_bytes if is_cast else one.on_wire for one in members])
        sent = size if dtype is None else size * DTYPE_BYTES[dtype] // DTYPE_BYTES[own]
        before = after = 0  # bytes that are read, and bytes that are written
        if hook is not None:
            before, after = (2 * size, 0) if dtype is None else (size + 3 * sent, sent + size)
        self.compute(HOOK, transfer_ns(before // 2, self.copy_in_rate), bucket=bucket)
        elements = sum([one.elements for one in members])
        more: dict[str, Any] = {"num_bytes": sent, "gradient": gradient, "bucket": bucket}
        more["settle_ns"] = transfer_ns(after // 2, self.copy_out_rate)
        self.send(self.collective("all_reduce", elements, dtype or own, phase, **more))

    def _launch_map(self, phase: Phase, gradient: int | None) -> None:
        """The all-reduce of int32[P] that says which parameters any rank used (A3.9)."""
        elements, purpose = len(self.workload.gradients), "used parameters"
        self.under_way = self.send(
            self.collective("all_reduce", elements, "int32", phase, gradient=gradient, purpose=purpose)
        )


DdpPlan.writer = _MicroBatch
