"""What a recorded job did: its own step, its link, and all of a recording as an import."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.imported import Imported, ImportOptions, Kind, Note, RankRow
from sim.importer.readers import RECORDING
from sim.importer.recorded.recorded_workload import (
    Kept,
    accumulation,
    job_of,
    keep,
    torn_ranks,
    warmup_steps,
    workload_of,
)
from sim.importer.samples import SHORTEST_OVER_RANKS, median_curve, scatter_by_size
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.ddp_switches import ARGUMENTS, SETTINGS
from sim.nouns.devices import link_source
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.recording import RecordedBackward, RecordedLayout, RecordedStep, Recording
from sim.nouns.workload import Workload
from sim.units import NS_PER_S, format_ms, format_ranks, format_size, median_ns

# ---- the job's own step, and who came last


def as_run(recording: Recording, workload: Workload) -> Measurement | str:
    """The job's steps under its last buckets, as a measurement; a sentence on why not if there is none.

    A step's times are those of the rank that waited least in it, which came last to most of its collectives.
    To some another rank may have come last: each collective lasts as long as on the rank that waited least
    for it, so that its end holds no wait for others. Backwards under ``no_sync`` that only some steps have
    were run to be measured alone, so their time is left out of the step; those that every step has are its
    micro-batches (A3.12).
    """
    kept = keep(recording)
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
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
        row
        for row in _common_steps(kept, layouts[-1])
        if len({len(step.backwards) for step in row}) == 1
        and len(row[0].backwards) >= micro_batches
        and all(one.backwards[-micro_batches].started_ns <= one.step_ns for one in row)
    ]
    if not steps:
        return "no step was recorded by every rank with its last buckets"
    provenance = {"source": "sim.record", "recording": recording.name}
    asked = Assignment(
        policy="explicit",
        bucket_indices=buckets,
        bucket_bytes=bucket_bytes(workload, buckets),
        ddp_kwargs={name: value for name, value in job.switches.items() if name in ARGUMENTS},
        settings={name: value for name, value in job.switches.items() if name in SETTINGS},
        made_for=made_for(workload, recording.world_size),
        provenance=provenance,
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
        provenance=provenance,
    )


def _common_steps(kept: Sequence[Kept], layout: RecordedLayout) -> list[tuple[RecordedStep, ...]]:
    """Steps since ``layout`` that every rank has, each of which ends in a synchronised backward."""
    by_rank = [
        {
            step.step: step
            for step in rank.steps
            if step.step >= layout.step
            and step.backwards[-1].synchronised
            and step.backwards[-1].forwards == 1
        }
        for rank in kept
    ]
    common = sorted(set.intersection(*map(set, by_rank)))
    return [tuple(steps[number] for steps in by_rank) for number in common]


def _iteration(row: Sequence[RecordedStep], micro_batches: int) -> MeasuredIteration:
    """The step of the rank that waited least; its buckets without starts, as recordings do not tell when a
    channel is free.
    """
    step = min(row, key=lambda one: one.backwards[-1].sync_end_ns)
    last = step.backwards[-1]
    lasted_ns: dict[int, int] = {}
    for bucket in (bucket for one in row for bucket in one.backwards[-1].buckets):
        seen_ns = bucket.end_ns - bucket.launch_ns
        lasted_ns[bucket.index] = min(seen_ns, lasted_ns.get(bucket.index, seen_ns))
    return MeasuredIteration(
        step_ns=step.step_ns - step.backwards[-micro_batches].started_ns,
        backward_end_ns=last.backward_ns,
        sync_end_ns=last.sync_end_ns,
        buckets=tuple(
            MeasuredBucket(
                index=bucket.index,
                ready_ns=bucket.ready_ns,
                launch_ns=bucket.launch_ns,
                start_ns=None,
                end_ns=bucket.launch_ns + lasted_ns[bucket.index],
            )
            for bucket in last.buckets
        ),
    )


def rank_rows(kept: Sequence[Kept]) -> tuple[RankRow, ...]:
    """How long each rank's backward took, and how often it came last to a bucket of the last layout, over the
    steps that every rank ran with it: it waited least between the bucket's launch and its end, and no clocks
    of two ranks are compared.
    """
    layouts = kept[0].rank.layouts
    rows = (
        [[step.backwards[-1].buckets for step in row] for row in _common_steps(kept, layouts[-1])]
        if layouts
        else []
    )
    waits = [
        [bucket.end_ns - bucket.launch_ns for bucket in same]
        for row in rows
        if {len(buckets) for buckets in row} == {len(layouts[-1].bucket_indices)}
        for same in zip(*row, strict=True)
    ]
    last = [row.index(min(row)) for row in waits]
    several = len(kept) > 1 and bool(waits)
    return tuple(
        RankRow(
            rank=rank.rank.header.rank,
            collectives=len(waits),
            came_last=last.count(place) if several else None,
            waited_ns=median_ns([row[place] - min(row) for row in waits]) if several else None,
            backward_ns=median_ns([one.backward_ns for one in rank.synchronised or rank.plain]),
        )
        for place, rank in enumerate(kept)
    )


# ---- the link, by the job's own buckets

OWN_NAME = "the job's own collectives"
_APART = 2  # the largest bucket over the smallest, at least, for a line through them to be more than noise


def hardware_of(recording: Recording) -> Hardware:
    """The all-reduce curve within the training step, and what copies back take.

    Buckets are reduced one after another: each takes from its launch, or the end of all before it, to its own
    end, the collective itself the shortest of these over ranks (if every rank was recorded), and the curve's
    point is the median of that over steps. Gloo's two threads may reduce two at once: the curve contains
    that, and holds for one channel. Between a bucket's being ready and its launch lie the launch and the pass
    of the recorder's hook over it: ``launch_cost_ns`` is what is left for no bytes. Finalize waits for each
    bucket and copies it back (A3.10): ``sync_end = max over k of end_k + (bytes from k on) / rate``. A
    broadcast of buffers takes the median of what came before the module's forward.

    Raises:
        InputError: recorded without buckets (``level="light"``).
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    gaps: dict[int, list[int]] = defaultdict(list)
    rates, before = [], []
    for backwards in _reduced_steps(recording):
        for place in range(len(backwards[0].buckets)):
            by_size[backwards[0].buckets[place].num_bytes].append(
                min(_duration_ns(backward, place) for backward in backwards)
            )
        rates += [rate for backward in backwards if (rate := _ns_a_byte(backward)) is not None]
        before += [backward.forward_start_ns - backward.started_ns for backward in backwards]
        for bucket in (bucket for backward in backwards for bucket in backward.buckets):
            gaps[bucket.num_bytes].append(bucket.launch_ns - bucket.ready_ns)
    if not by_size:
        raise InputError(
            f"{recording.name}: no buckets were recorded (level='light'), so nothing says what an all-reduce "
            f"takes; give a hardware, such as {link_source(recording.backend)}"
        )
    header = recording.ranks[0].header
    ns_a_byte = sorted(rates)[len(rates) // 2] if rates else 0.0
    is_view = bool(header.ddp.get("gradient_as_bucket_view"))
    each = max(0, median_ns(before)) // max(1, len(header.buffers))
    return Hardware(
        name=OWN_NAME,
        world_size=recording.world_size,
        all_reduce=median_curve(by_size),
        launch_cost_ns=_launch_cost_ns({size: median_ns(times) for size, times in gaps.items() if size}),
        copy_out_bytes_per_s=None if is_view or ns_a_byte <= 0 else NS_PER_S / ns_a_byte,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=each),) if header.buffers else None,
        spread={"all_reduce": scatter_by_size(by_size, SHORTEST_OVER_RANKS)},
        provenance={
            "source": "sim.record",
            "recording": recording.name,
            "device_type": header.device_type,
            "backend": header.backend,
            "curve": "within the training step, by the last rank to come"
            if not recording.missing_ranks
            else "ranks are missing: an upper bound",
        },
    )


def _reduced_steps(recording: Recording) -> list[list[RecordedBackward]]:
    """Of each step that is not loud the last synchronised backward of all ranks, where buckets are alike."""
    loud = keep(recording)[0].loud
    by_step: dict[int, list[RecordedBackward]] = defaultdict(list)
    for step in (step for rank in recording.ranks for step in rank.steps if step.step not in loud):
        if step.backwards[-1].buckets:
            by_step[step.step].append(step.backwards[-1])
    return [
        backwards
        for _, backwards in sorted(by_step.items())
        if len(backwards) == len(recording.ranks)
        and len({tuple(bucket.num_bytes for bucket in one.buckets) for one in backwards}) == 1
    ]


def _launch_cost_ns(gap_ns: dict[int, int]) -> int:
    """ns at 0 bytes of a line through the gaps by bytes, in which smaller buckets weigh more."""
    if not gap_ns or max(gap_ns) < _APART * min(gap_ns):
        return 0
    sizes = np.array([*gap_ns], float)
    _, cost = np.polyfit(sizes, np.array([*gap_ns.values()], float), 1, w=1 / sizes)
    return min(max(0, round(float(cost))), *gap_ns.values())


def _duration_ns(backward: RecordedBackward, place: int) -> int:
    """How long a bucket took, from its launch or the end of all before it."""
    bucket = backward.buckets[place]
    free = max((one.end_ns for one in backward.buckets[:place]), default=0)
    return max(0, bucket.end_ns - max(bucket.launch_ns, free))


def _ns_a_byte(backward: RecordedBackward) -> float | None:
    """What copying one byte back takes; None where buckets hold nothing."""
    sizes = [bucket.num_bytes for bucket in backward.buckets]
    left: Sequence[int] = list(accumulate(reversed(sizes)))[::-1]
    if not left or not left[-1]:
        return None
    ends = [max(backward.backward_ns, bucket.end_ns) for bucket in backward.buckets]
    return max(0.0, min((backward.sync_end_ns - end) / size for end, size in zip(ends, left, strict=True)))


# ---- the import


def read_recording(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """A workload, the job's own steps and who came last, from one recording.

    Args:
        paths: its directory, or files of one directory's ranks.
        options: only the name counts; a recording holds the rest.

    Raises:
        InputError: several recordings, or as ``load_recording`` and ``workload_of``.
        NotModelledError: as ``workload_of``.
    """
    folders = list(dict.fromkeys(path.parent if path.is_file() else path for path in paths))
    if len(folders) != 1:
        raise InputError(f"PATH: {len(folders)} paths are not legal; give one directory of a recording")
    recording = load_recording(folders[0])
    workload = workload_of(recording)
    if options.name:
        workload = replace(workload, name=options.name)
    header, told = recording.ranks[0].header, workload.provenance
    kept, run = keep(recording), as_run(recording, workload)
    shared, torn = sum(rank.dropped for rank in kept), torn_ranks(recording)
    later = sorted(path.name for path in folders[0].glob("restart-*") if path.is_dir())
    found = [
        f"{len(recording.ranks)} of {recording.world_size} ranks, {header.level} level, {header.backend} on "
        f"{header.device_type}, {sum(len(rank.steps) for rank in recording.ranks)} steps in all",
        f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}",
        header.comm_hook and f"the communication hook {header.comm_hook}",
    ]
    assumed = [
        f"made from {told['made_from']} of rank {told['rank']}, {told['rank_is']}",
        "backward starts at the end of forward; the loss is in it",
        workload.extensions
        and "the model ran under torch.compile: gradients are ready where its cuts end, and the cuts stay",
        workload.ready_includes
        and f"the times contain {', '.join(workload.ready_includes)}; to be rid of them, run a few backwards "
        f"under no_sync while recording",
        not told["optimizer_seen"] and "no optimizer step was seen; optimizer_ns is 0",
    ]
    dropped = [
        f"the first {warmup_steps(recording)} steps of each rank, as warm-up",
        shared and f"{shared} backwards that followed several forwards with gradients",
        recording.missing_ranks and f"no file of {format_ranks(recording.missing_ranks)}",
        later and f"later starts of the job, each to be imported by itself: {', '.join(later)}",
        torn and f"the last line of {format_ranks(torn)}, which was cut off",
    ]
    missing = [isinstance(run, str) and f"the job's own step, to hold predictions to: {run}"]
    said: dict[Kind, list[Any]] = {
        "found": found,
        "assumed": assumed,
        "dropped": dropped,
        "doubtful": told["doubtful"],
        "missing": missing,
    }
    return Imported(
        format=RECORDING,
        name=workload.name,
        workload=workload,
        measurements=() if isinstance(run, str) else (run,),
        ranks=rank_rows(kept),
        notes=tuple(Note(kind, text) for kind, texts in said.items() for text in texts if text),
    )
