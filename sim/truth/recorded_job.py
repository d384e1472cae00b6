"""A recorded job: how it ran, on which machine, held to the step that it took: what all answers read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sim.errors import InputError, NotModelledError, SimError
from sim.importer.recorded import as_run, job_of, keep, workload_of
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.devices import link_source
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.recording import Recording
from sim.nouns.workload import AsRun, Workload
from sim.systems.ddp_assignment import as_the_job
from sim.systems.simulate import simulated_step_ns
from sim.truth.fit import OwnStep, check_ranks, hooked, own_step
from sim.truth.own_link import hardware_of
from sim.units import format_sizes

Buckets = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A workload with how its job ran, and the machine, both held to the job's own step.

    ``own`` says how, or, of a traced job, how far it is from its parts, which are not held to it; None where
    there is no such step, and ``why_not`` says why. ``recorded`` are both with
    what the recorder itself takes. ``link_is_own``: the machine was read off the job's own buckets, and tells
    what messages of their sizes take.
    """

    workload: Workload
    hardware: Hardware
    own: OwnStep | None = None
    why_not: str = ""
    recorded: tuple[Workload, Hardware] | None = None
    link_is_own: bool = False
    _played: dict[Buckets, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def is_held(self) -> bool:
        """Whether anything was fitted to the job's own step."""
        return self.own is not None and bool(self.own.factors)

    def predict(self, buckets: Buckets) -> int:
        """The step with these buckets in ns, as a recorder beside it sees it.

        Raises:
            AssignmentError, InputError, NotModelledError: as ``sim.with_switches`` and ``check_known``.
        """
        made = tuple(map(tuple, buckets))
        if made not in self._played:  # a page asks again whenever the job has taken more steps
            assignment = as_the_job(self.workload, Assignment(bucket_indices=made))
            assignment.check_fits(self.workload)
            self.check_known(assignment)
            inputs = self.recorded or (self.workload, self.hardware)
            self._played[made] = simulated_step_ns(*inputs, assignment)
        return self._played[made]

    def tune(self, buckets: Buckets) -> Recommendation:
        """``sim.tune`` of the job, had it had these buckets; raises as that, and as ``check_known`` what is
        recommended."""
        from sim.tuner import recommend  # with numba, which a step alone is spared

        job = replace(self.workload.job or AsRun(), bucket_indices=tuple(map(tuple, buckets)))
        found = recommend.tune(replace(self.workload, job=job), self.hardware)
        self.check_known(found.assignment)
        return found

    def check_known(self, assignment: Assignment) -> None:
        """Raise ``NotModelledError`` where the job's own collectives do not say what these buckets take."""
        known = [point.num_bytes for point in self.hardware.all_reduce]
        sizes = bucket_bytes(self.workload, assignment.bucket_indices)
        if not self.link_is_own or (min(known) <= min(sizes) and max(sizes) <= max(known)):
            return
        raise NotModelledError(
            f"these buckets have {format_sizes(sizes)}, and the job's own collectives tell only what "
            f"{format_sizes(known)} {'take' if len(known) > 1 else 'takes'}; give a hardware, such as "
            f"{link_source(str(self.workload.provenance.get('backend')))}"
        )


def job_in_recording(recording: Recording, hardware: Hardware | None = None) -> RecordedJob:
    """The job of a recording of all ranks, or of a window of it, as ``held_to`` of its import.

    Without a ``hardware`` one is read off the buckets of the recording.

    Raises:
        InputError: too few steps, a hardware of another number of ranks, or no hardware and no buckets.
        NotModelledError: a recording that no workload can be made of.
    """
    if hardware is not None:
        check_ranks(hardware, recording.world_size)
    workload = workload_of(recording)
    _, untold = job_of(keep(recording))
    if untold:
        raise NotModelledError(untold[0])
    if hardware is None and "comm_hook" in workload.switches:
        raise InputError(
            f"comm_hook: {workload.switches['comm_hook']}: the recording says how large buckets are, not "
            f"what the hook sends; give a hardware, such as {link_source(recording.backend)}"
        )
    machine = hardware_of(recording) if hardware is None else hardware
    made = held_to(workload, machine, as_run(recording, workload))
    return replace(made, link_is_own=hardware is None)


def held_to(workload: Workload, hardware: Hardware, measured: Measurement | str | None) -> RecordedJob:
    """The job, its machine without what its times contain already, held to the step that it took.

    ``measured`` is that step; None where there is none, and a text where it says why.
    """
    if workload.switches.get("find_unused_parameters"):
        # what searching for unused parameters takes is in every recorded time
        hardware = replace(hardware, search_unused_ns=0, mark_used_ns=0)
    bare = RecordedJob(workload=workload, hardware=hardware)
    if measured is None or "own_step" in hardware.spread:
        return bare
    if isinstance(measured, str):
        return replace(bare, why_not=measured)
    try:
        own = own_step(workload, hardware, measured)
    except SimError as error:
        return replace(bare, why_not=str(error))
    recorded = hooked(own.workload, own.hardware, measured) if own.recorder_ns else None
    return RecordedJob(workload=own.workload, hardware=own.hardware, own=own, recorded=recorded)
