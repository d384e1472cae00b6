"""A job with switches of DistributedDataParallel, as the search plays it: one backward that takes as long."""

from dataclasses import dataclass, replace
from functools import cached_property

from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import Switches, read_switches, split_switches
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import DTYPE_BYTES, ReadyTimes, Workload
from sim.systems.ddp_assignment import as_compiled, as_the_job, check_used
from sim.systems.registry import assign
from sim.systems.simulate import Engine, simulate
from sim.tuner.problem import Scorer
from sim.units import transfer_ns


@dataclass(frozen=True, eq=False)
class Searched:
    """What is searched for, ``workload`` on ``hardware`` with the switches of its job, and how it is scored.

    The search knows one backward under DDP's own all-reduce. ``scorer`` scores buckets on an equivalent: what
    the switches change for all buckets alike is in its times and bytes. ``simulate`` plays what was found
    with the switches themselves.
    """

    workload: Workload
    hardware: Hardware

    @cached_property
    def switches(self) -> Switches:
        """Those of the job."""
        return read_switches(self._any_buckets)

    @cached_property
    def compiled(self) -> Workload:
        """The workload as DDP sees it, under torch.compile too."""
        return as_compiled(self.workload, self._any_buckets)

    @cached_property
    def times(self) -> int:
        """How many backwards of a step reduce, each with the buckets."""
        return self.switches.accumulation_steps if self.switches.syncs_each else 1

    @cached_property
    def scorer(self) -> Scorer:
        """Scores buckets for the job.

        Raises:
            NotModelledError: torch takes no buckets under these switches.
        """
        return Scorer(*self.equivalent, self.compiled)

    @cached_property
    def in_use(self) -> Assignment | None:
        """The buckets that the job had, where they are not those of DDP's default."""
        job = self.workload.job
        if job is None or not job.bucket_indices:
            return None
        default = assign(self.workload)
        if set(map(frozenset, default.bucket_indices)) == set(map(frozenset, job.bucket_indices)):
            return None
        return self.as_used(Assignment(bucket_indices=job.bucket_indices))

    def as_used(self, found: Assignment) -> Assignment:
        """An assignment that a search found, with the job's switches."""
        return as_the_job(self.workload, found)

    def simulate(self, assignment: Assignment, engine: Engine = "simpy") -> Timeline:
        """A step of the job."""
        return simulate(self.workload, self.hardware, assignment, engine)

    def rest_ns(self, step_ns: int, assignment: Assignment) -> int:
        """What a step holds beside its backwards with ``assignment`` that reduce."""
        return step_ns - self.times * self.scorer.sync_end_ns(assignment.bucket_indices)

    @property
    def _any_buckets(self) -> Assignment:
        kwargs, settings = split_switches(self.workload.switches)
        everything = tuple(range(len(self.workload.gradients)))
        return Assignment(bucket_indices=(everything,), ddp_kwargs=kwargs, settings=settings)

    @cached_property
    def equivalent(self) -> tuple[Workload, Hardware]:
        """A workload and a machine on which DDP without switches takes as long with any buckets."""
        workload, hardware, switches = self.workload, self.hardware, self.switches
        if not workload.switches:
            return workload, hardware
        check_used(workload, switches)
        earlier_ns = 0
        if switches.accumulation_steps > 1 and self.times == 1:
            largest = assign(workload, "single")
            earlier_ns = simulate(workload, hardware, largest, "analytic").accumulation_ns
        seen = replace(self.compiled, job=None)
        if switches.find_unused_parameters or switches.static_graph:
            seen = _all_ready(seen)
        adds = switches.accumulation_steps > 1 and switches.set_to_none
        seen = _later(
            seen,
            hardware.mark_used_ns if switches.searches else 0,
            hardware.accumulate_bytes_per_s if adds else None,
        )
        hook = switches.hook
        dtype = switches.reduce_dtype if hook is None else hook.dtype
        into = None if switches.keeps_views and hook is not None else hardware.copy_in_bytes_per_s
        back = None if switches.gradient_as_bucket_view else hardware.copy_out_bytes_per_s
        narrow = 1.0  # copies are counted by the bytes on the wire, and are of the gradients' own
        if dtype is not None:
            narrow = DTYPE_BYTES[dtype] / max(DTYPE_BYTES[one.dtype] for one in seen.gradients)
        return replace(
            _on_wire(seen, dtype),
            forward_ns=seen.forward_ns + earlier_ns,
            buffers=seen.buffers if switches.syncs_buffers else (),
        ), replace(
            hardware,
            copy_in_bytes_per_s=None if into is None else into * narrow,
            copy_out_bytes_per_s=None if back is None else back * narrow,
        )


def _all_ready(workload: Workload) -> Workload:
    """With unused parameters ready as the first gradient is, when DDP marks them (A3.13), and ready once."""
    unused = [one.index for one in workload.gradients if one.ready_ns is None]

    def filled(times: ReadyTimes) -> ReadyTimes:
        first = min((time for time in times if time is not None), default=None)
        return tuple(first if time is None and index in missing else time for index, time in enumerate(times))

    missing = set(unused)
    order = (*sorted(unused, reverse=True), *workload.order())
    made = workload.retimed(filled, ready_order=order) if unused else workload
    return replace(made, gradients=tuple(replace(one, uses=1) for one in made.gradients))


def _later(workload: Workload, mark_ns: int, add_bytes_per_s: float | None) -> Workload:
    """With the time that each hook takes to mark its gradient as used (A3.13), and the time that it takes to
    add the gradient to that of the micro-batches before (A3.12).
    """
    total, later = 0, {}
    for index in workload.order():
        gradient = workload.gradients[index]
        total += mark_ns + (0 if gradient.sparse else transfer_ns(gradient.num_bytes, add_bytes_per_s))
        later[index] = total

    def moved(times: ReadyTimes) -> ReadyTimes:
        return tuple(None if one is None else one + later.get(at, 0) for at, one in enumerate(times))

    if not total:
        return workload
    return workload.retimed(moved, backward_ns=workload.backward_ns + total, ready_order=workload.order())


def _on_wire(workload: Workload, dtype: str | None) -> Workload:
    """With the bytes that gradients have on the wire, where another dtype is sent."""
    if dtype is None:
        return workload
    width = DTYPE_BYTES[dtype]
    return replace(
        workload,
        gradients=tuple(
            one if one.sparse else replace(one, wire_bytes=one.num_bytes * width // DTYPE_BYTES[one.dtype])
            for one in workload.gradients
        ),
    )
