"""Workload, hardware and assignment as plain integers: what both engines play."""

from dataclasses import dataclass
from fractions import Fraction

from sim.costs.collectives import all_reduce_ns, service_ns
from sim.engine.bucketing import check_ddp_kwargs
from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import transfer_ns

MODELLED_POLICIES = ("ddp", "per-parameter", "single", "explicit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One backward pass under one assignment; times in ns.

    Per gradient, in ready order: ``gradients`` (its index), ``work_ns`` (backward's own work before
    it is ready), ``copy_in_ns``, ``bucket_of``. Per bucket, in launch order: ``wire_bytes``,
    ``service_ns`` (its collective alone), ``copy_out_ns``. ``tail_ns`` is the work after the last.
    """

    gradients: tuple[int, ...]
    work_ns: tuple[int, ...]
    copy_in_ns: tuple[int, ...]
    bucket_of: tuple[int, ...]
    tail_ns: int
    wire_bytes: tuple[int, ...]
    service_ns: tuple[int, ...]
    copy_out_ns: tuple[int, ...]
    channels: int
    launch_cost_ns: int
    launch_blocks_compute: bool
    compute_slowdown: Fraction
    comm_slowdown: Fraction
    channel_slowdown: Fraction
    copy_in_slowdown: Fraction
    copy_out_slowdown: Fraction
    comm_copy_out_slowdown: Fraction

    @property
    def pending(self) -> list[int]:
        """Gradients that each bucket still waits for when backward begins: the Reducer's count (A3)."""
        counts = [0] * len(self.wire_bytes)
        for bucket in self.bucket_of:
            counts[bucket] += 1
        return counts

    @property
    def stretches(self) -> bool:
        """Whether any slow-down is in force."""
        factors = (
            self.compute_slowdown,
            self.comm_slowdown,
            self.channel_slowdown,
            self.copy_in_slowdown,
            self.copy_out_slowdown,
            self.comm_copy_out_slowdown,
        )
        return any(factor != 1 for factor in factors)


def copied_bytes(workload: Workload, index: int) -> int:
    """Bytes of one gradient that DDP copies into and out of its bucket; sparse: none (A3.18)."""
    gradient = workload.gradients[index]
    return 0 if gradient.sparse else gradient.on_wire


def make_plan(workload: Workload, hardware: Hardware, assignment: Assignment) -> Plan:
    """The plan of one backward pass.

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3).
        NotModelledError: a policy, switch or unused parameter that is not modelled.
    """
    if assignment.policy not in MODELLED_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is not modelled yet; give {', '.join(MODELLED_POLICIES)}"
        )
    assignment.check_fits(workload)
    check_ddp_kwargs(assignment.ddp_kwargs)
    order = workload.order()
    if len(order) < len(workload.gradients):
        unused = next(g for g in workload.gradients if g.ready_ns is None)
        raise NotModelledError(
            f"workload {workload.name!r}: gradient {unused.index} ({unused.name}) is never ready; DDP "
            f"without find_unused_parameters raises an error on it (A3.21)"
        )
    bucket_of = {index: number for number, bucket in enumerate(assignment.bucket_indices) for index in bucket}
    work: list[int] = []
    before = 0
    for index in order:
        ready = workload.gradients[index].ready_ns
        assert ready is not None
        work.append(ready - before)
        before = ready
    included = workload.ready_includes
    copy_in_rate = None if "copy_in" in included else hardware.copy_in_bytes_per_s
    views = assignment.ddp_kwargs.get("gradient_as_bucket_view", False)
    wire = tuple(
        sum(workload.gradients[index].on_wire for index in bucket) for bucket in assignment.bucket_indices
    )
    copied = [sum(copied_bytes(workload, index) for index in bucket) for bucket in assignment.bucket_indices]
    copy_out_rate = None if views else hardware.copy_out_bytes_per_s
    return Plan(
        gradients=order,
        work_ns=tuple(work),
        copy_in_ns=tuple(transfer_ns(copied_bytes(workload, i), copy_in_rate) for i in order),
        bucket_of=tuple(bucket_of[index] for index in order),
        tail_ns=workload.backward_ns - before,
        wire_bytes=wire,
        service_ns=tuple(all_reduce_ns(hardware, size) for size in wire),
        copy_out_ns=tuple(transfer_ns(size, copy_out_rate) for size in copied),
        channels=hardware.comm_channels,
        launch_cost_ns=hardware.launch_cost_ns,
        launch_blocks_compute=hardware.launch_blocks_compute and "launch" not in included,
        compute_slowdown=Fraction(1) if "interference" in included else Fraction(hardware.compute_slowdown),
        comm_slowdown=Fraction(hardware.comm_slowdown),
        channel_slowdown=Fraction(hardware.channel_slowdown),
        copy_in_slowdown=Fraction(hardware.copy_in_slowdown),
        copy_out_slowdown=Fraction(hardware.copy_out_slowdown),
        comm_copy_out_slowdown=Fraction(hardware.comm_copy_out_slowdown),
    )


def pre_forward(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: object
) -> tuple[int, tuple[str, ...]]:
    """Time in ns before forward, and notes on what could not be counted.

    Buffers are broadcast once per dtype before each forward (A3.16); iteration 2 begins with the
    rebuild's two broadcasts of int32 (A2.7).
    """
    sizes: list[int] = []
    broadcast = assignment.ddp_kwargs.get("broadcast_buffers", True)
    if assignment.ddp_kwargs.get("forward_sync_buffers", broadcast):
        by_dtype: dict[str, int] = {}
        for buffer in workload.buffers:
            by_dtype[buffer.dtype] = by_dtype.get(buffer.dtype, 0) + buffer.num_bytes
        sizes += by_dtype.values()
    if iteration == 2:
        sizes += [4 * (len(workload.gradients) + 1), 4 * len(assignment.bucket_indices)]
    if not sizes or hardware.world_size == 1:
        return 0, ()
    if hardware.broadcast is None:
        return 0, (
            f"{len(sizes)} broadcast(s) before forward are not counted: hardware "
            f"{hardware.name!r} has no broadcast curve",
        )
    return sum(service_ns(hardware.broadcast, size) for size in sizes), ()
