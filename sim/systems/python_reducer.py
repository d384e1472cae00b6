"""DDP's Python reducer (``optimize_ddp="python_reducer"``): compiled autograd traces an all-reduce for each
gradient, and Inductor fuses them into buckets (A11.6 to A11.9)."""

from sim.clock.program import BackwardEnd, CopyBack, Program, Ready, Wait, effects_of, tail_ns, works
from sim.costs.service_time import all_reduce_ns
from sim.errors import AssignmentError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective
from sim.nouns.hardware import Hardware
from sim.nouns.workload import DTYPE_BYTES, ReadyTimes, Workload
from sim.systems.compile_cuts import MARK, PYTHON_REDUCER, is_moved_so, operators
from sim.systems.micro_batch import LaneWriter
from sim.units import MIB, transfer_ns

_FIRST_BYTES = MIB  # of the first bucket, whatever DDP's caps are
_NOTE = (
    "optimize_ddp=python_reducer: each bucket is sent where Inductor's fusion puts it, behind its last "
    "gradient. Where gradients outweigh activations, Inductor may move all-reduces back, even behind all of "
    "backward, to save memory; torch._inductor.config.reorder_for_peak_memory = False keeps them (A11.8). "
    "Backward takes as long as it was recorded, though compiled kernels are faster"
)


def as_traced(workload: Workload) -> Workload:
    """The same step with gradients in the order in which the compiled backward makes them (A11.6).

    Operators are told by names, as ``torch_compiled`` tells them. A gradient that comes earlier than in the
    recording, such as a weight's before its bias's, keeps its time, and the other waits for it.

    Raises:
        NotModelledError: what the compiled backward does with a gradient is not known, or not modelled.
    """
    asked = {"optimize_ddp": PYTHON_REDUCER}
    if is_moved_so(workload, asked):
        return workload
    for gradient in workload.gradients:
        if gradient.ready_ns is None or gradient.uses > 1:
            what = "never ready" if gradient.ready_ns is None else f"ready {gradient.uses} times"
            raise NotModelledError(
                f"{workload.label(gradient)} is {what}; the Python reducer of that is not modelled"
            )
    if len({gradient.key for gradient in workload.gradients}) > 1:
        raise NotModelledError(
            f"workload {workload.name!r}: Inductor's fusion takes gradients of one dtype and device only"
        )
    order = tuple(index for operator in reversed(operators(workload)) for index in operator)

    def moved(times: ReadyTimes) -> ReadyTimes:
        made, last = list(times), 0
        for index in order:
            if (time := made[index]) is not None:
                made[index] = last = max(last, time)
        return tuple(made)

    return workload.retimed(moved, ready_order=order, extensions=workload.extensions | {MARK: asked})


def fused_buckets(workload: Workload, cap: int) -> list[list[int]]:
    """The gradients of each all-reduce, in the order of launches (A11.7).

    Args:
        cap: DDP's cap in bytes; it is rounded down to whole MiB.
    """
    buckets: list[list[int]] = [[]]
    size, limit = 0, _FIRST_BYTES
    for index in as_traced(workload).order():
        if buckets[-1] and size >= limit:
            buckets.append([])
            size, limit = 0, cap // MIB * MIB
        buckets[-1].append(index)
        size += workload.gradients[index].num_bytes
    return buckets


def write(workload: Workload, hardware: Hardware, assignment: Assignment, cap: int) -> Program:
    """The program of a step: a bucket is joined, divided and sent when its last gradient is there.

    Args:
        workload: as ``as_traced`` returns it.

    Raises:
        AssignmentError: the buckets are not those that the fusion makes; it cannot be given others.
    """
    buckets = assignment.bucket_indices
    made = fused_buckets(workload, cap)
    if [set(bucket) for bucket in buckets] != [set(bucket) for bucket in made]:
        raise AssignmentError(
            f"bucket_indices: under optimize_ddp={PYTHON_REDUCER} Inductor makes {len(made)} bucket(s), by "
            f"bucket_cap_mb alone; these {len(buckets)} cannot be given to it"
        )
    step = _Step(workload, hardware)
    completes = {bucket[-1]: number for number, bucket in enumerate(made)}
    for index, work in works(workload):
        step.work("backward", work, gradient=index)
        if index in completes:
            step.send(completes[index], made[completes[index]])
    step.work("backward", tail_ns(workload))
    step.lane.append(BackwardEnd())
    for number in range(len(made)):
        step.lane += [Wait(number), CopyBack(number, 0)]
    return Program(
        lane=tuple(step.lane),
        collectives=tuple(step.collectives),
        carriers=tuple((number,) for number in range(len(made))),
        effects=effects_of(workload, hardware),
        optimizer_ns=workload.optimizer_ns,
        notes=(_NOTE,),
    )


class _Step(LaneWriter):
    """The lane of a step, as it is written."""

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        super().__init__()
        self._gradients = workload.gradients
        self._hardware = hardware
        included = "copy_in" in workload.ready_includes
        self._copy_rate = None if included else hardware.copy_in_bytes_per_s

    def send(self, number: int, bucket: list[int]) -> None:
        """Send a bucket: one pass joins its gradients, if they are several, another divides them (A11.9)."""
        members = [self._gradients[index] for index in bucket]
        size = sum(member.on_wire for member in members)
        passes = 1 + (len(members) > 1)
        self.work("copy_in", transfer_ns(passes * size, self._copy_rate), bucket=number)
        self.lane.append(Ready(number))
        self.launch(
            Collective(
                kind="all_reduce",
                elements=size // DTYPE_BYTES[members[0].dtype],
                dtype=members[0].dtype,
                num_bytes=size,
                service_ns=all_reduce_ns(self._hardware, size),
                phase="backward",
                gradient=bucket[-1],
                bucket=number,
            )
        )
