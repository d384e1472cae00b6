"""The steps that a job took while it was recorded, as the measurement that its prediction has to meet."""

from collections.abc import Sequence

from sim.importer.recorded.job_settings import accumulation, job_of
from sim.importer.recorded.kept_steps import Kept, keep, warmup_steps
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.recording import RecordedBackward, RecordedStep, Recording
from sim.nouns.workload import Workload
from sim.systems.switches import MODELLED_DDP_KWARGS, MODELLED_SETTINGS


def as_run(recording: Recording, workload: Workload) -> Measurement | str:
    """The job's steps under its last buckets, as a measurement; a sentence on why not if there is none.

    A step's times are those of the rank that waited least in it, which came last to most of its collectives.
    To some another rank may have come last: each collective lasts as long as on the rank that waited least
    for it, so that its end holds no wait for others. Backwards under ``no_sync`` that only some steps have
    were run to be measured alone, so their time is left out of the step; those that every step has are its
    micro-batches (A3.12).
    """
    kept = keep(recording)
    header = kept[0].rank.header
    layouts = kept[0].rank.layouts
    if not layouts:
        return "no buckets were recorded"
    job, untold = job_of(kept)
    if untold:
        return untold[0]
    buckets = job.bucket_indices
    if not buckets:
        return "not every gradient was in a bucket"
    micro_batches, _ = accumulation(kept)
    steps = [
        row for row in _common_steps(kept, since=layouts[-1].step) if len(row[0].backwards) >= micro_batches
    ]
    if not steps:
        return "no step was recorded by every rank with its last buckets"
    asked = Assignment(
        policy="explicit",
        bucket_indices=buckets,
        bucket_bytes=bucket_bytes(workload, buckets),
        ddp_kwargs={name: value for name, value in job.switches.items() if name in MODELLED_DDP_KWARGS},
        settings={name: value for name, value in job.switches.items() if name in MODELLED_SETTINGS},
        made_for=made_for(workload, recording.world_size),
        provenance={"source": "sim.record", "recording": recording.name},
    )
    iterations = tuple(_iteration(row, micro_batches) for row in steps)
    return Measurement(
        name="as run",
        role="candidate",
        mode="trace",
        backend=header.backend,
        world_size=recording.world_size,
        asked=asked,
        observed=buckets,
        iterations=iterations,
        traced=tuple(iteration for iteration in iterations if iteration.buckets),
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        dropped_warmup=warmup_steps(recording),
        environment={"place": header.device, "recorded_ranks": len(recording.ranks)},
        provenance={"source": "sim.record", "recording": recording.name},
    )


def _common_steps(kept: Sequence[Kept], since: int) -> list[tuple[RecordedStep, ...]]:
    """Steps that end in a synchronised backward, with the same micro-batches on every rank."""
    by_rank = [
        {
            step.step: step
            for step in rank.steps
            if step.step >= since and step.backwards[-1].synchronised and step.backwards[-1].forwards == 1
        }
        for rank in kept
    ]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    rows = [tuple(steps[number] for steps in by_rank) for number in common]
    return [row for row in rows if len({len(step.backwards) for step in row}) == 1]


def _iteration(row: Sequence[RecordedStep], micro_batches: int) -> MeasuredIteration:
    step = min(row, key=lambda one: one.backwards[-1].sync_end_ns)
    last = step.backwards[-1]
    return MeasuredIteration(
        step_ns=step.step_ns - step.backwards[-micro_batches].started_ns,
        backward_end_ns=last.backward_ns,
        sync_end_ns=last.sync_end_ns,
        buckets=_buckets(last, [one.backwards[-1] for one in row]),
    )


def _buckets(told: RecordedBackward, on_ranks: Sequence[RecordedBackward]) -> tuple[MeasuredBucket, ...]:
    """Buckets with the instants of ``told``; no starts, as recordings do not tell when a channel is free."""
    lasted_ns: dict[int, int] = {}
    for bucket in (bucket for backward in on_ranks for bucket in backward.buckets):
        seen_ns = bucket.end_ns - bucket.launch_ns
        lasted_ns[bucket.index] = min(seen_ns, lasted_ns.get(bucket.index, seen_ns))
    return tuple(
        MeasuredBucket(
            index=bucket.index,
            ready_ns=bucket.ready_ns,
            launch_ns=bucket.launch_ns,
            start_ns=None,
            end_ns=bucket.launch_ns + lasted_ns[bucket.index],
        )
        for bucket in told.buckets
    )
