"""What a running job is predicted to do: a workload from its first steps, and the step of each layout."""

from collections.abc import Iterable
from dataclasses import replace

from sim.errors import InputError, NotModelledError, SimError
from sim.importer.recorded import job_settings as live_job
from sim.importer.recorded.recorded_steps import workload_of
from sim.live.link import hardware_of
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import Hardware
from sim.nouns.live import Calibration, LayoutPrediction
from sim.nouns.recording import RecordedLayout, Recording
from sim.nouns.timeline import Timeline
from sim.systems.simulate import simulate
from sim.units import format_sizes


def calibrate_live(
    window: Recording, layouts: Iterable[RecordedLayout], hardware: Hardware | None = None
) -> Calibration:
    """A workload from the steps of ``window``, and the step that it predicts for each of ``layouts``.

    Args:
        window: whole steps of all ranks, as ``live_window`` gives them.
        layouts: DDP's buckets, as the job reports them.
        hardware: the machine; None makes one of the collectives of ``window``.

    Raises:
        InputError: too few steps, a hardware of another number of ranks, or no hardware and no buckets.
        NotModelledError: settings of the job that no engine models.
    """
    header = window.ranks[0].header
    if hardware is not None and hardware.world_size != window.world_size:
        raise InputError(
            f"hardware {hardware.name!r}: world_size: {hardware.world_size} is not legal; the job has "
            f"{window.world_size} ranks"
        )
    accumulation = live_job.accumulation(window)
    switches = live_job.switches(header.ddp)
    settings = live_job.settings(header.comm_hook, accumulation)
    if hardware is None and "comm_hook" in settings:
        raise InputError(
            f"comm_hook: {header.comm_hook}: the recording says how large buckets are, not what the hook "
            f"sends; give a hardware, such as bucketsim calibrate makes"
        )
    workload = workload_of(window)
    notes = live_job.notes(window, workload.ready_includes != (), hardware)
    machine = hardware_of(window) if hardware is None else hardware
    # what searching for unused parameters takes is in every recorded time already
    machine = replace(machine, search_unused_ns=0, mark_used_ns=0)
    bare = Calibration(
        first_step=window.ranks[0].steps[0].step,
        last_step=window.ranks[0].steps[-1].step,
        workload=workload,
        hardware=machine,
        hardware_is_own=hardware is None,
        accumulation=accumulation,
        switches=switches,
        settings=settings,
        layouts=(),
        notes=notes,
    )
    return replace(bare, layouts=tuple(_predict(bare, layout) for layout in layouts))


def played(calibration: Calibration, assignment: Assignment) -> Timeline:
    """The step that the calibration predicts under ``assignment``."""
    return simulate(calibration.workload, calibration.hardware, assignment, "analytic")


def assignment_of(calibration: Calibration, buckets: tuple[tuple[int, ...], ...]) -> Assignment:
    """These buckets under the job's switches."""
    bare = Assignment(bucket_indices=buckets, provenance={"source": "sim.record"})
    bare.check_fits(calibration.workload)
    return replace(
        bare,
        bucket_bytes=bucket_bytes(calibration.workload, buckets),
        made_for=made_for(calibration.workload, calibration.hardware.world_size),
        policy="explicit",
        ddp_kwargs=dict(calibration.switches),
        settings=dict(calibration.settings),
    )


def beyond(calibration: Calibration, buckets: tuple[tuple[int, ...], ...]) -> str:
    """Why the job's own collectives do not say what these buckets take; empty where they do."""
    known = [point.num_bytes for point in calibration.hardware.all_reduce]
    sizes = bucket_bytes(calibration.workload, buckets)
    if min(known) <= min(sizes) and max(sizes) <= max(known):
        return ""
    return (
        f"these buckets have {format_sizes(sizes)}, and the job's own collectives tell only what "
        f"{format_sizes(known)} {'take' if len(known) > 1 else 'takes'}; give a hardware, such as bucketsim "
        f"calibrate makes"
    )


def _predict(calibration: Calibration, layout: RecordedLayout) -> LayoutPrediction:
    parts, why_not = None, ""
    try:
        if calibration.hardware_is_own and (why := beyond(calibration, layout.bucket_indices)):
            raise NotModelledError(why)
        report = summarize(played(calibration, assignment_of(calibration, layout.bucket_indices)))
        parts = live_job.parts(calibration, report)
    except SimError as error:
        why_not = str(error)
    return LayoutPrediction(
        step=layout.step, bucket_indices=layout.bucket_indices, parts=parts, why_not=why_not
    )
