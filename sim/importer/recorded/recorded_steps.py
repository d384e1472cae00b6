"""What a recording says: a Workload, and medians of what its ranks and buckets did."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.formats.documents import SCHEMA_VERSION
from sim.importer.recorded.job_settings import job_of
from sim.importer.recorded.kept_steps import FEWEST_BACKWARDS, Kept, keep, warmup_steps
from sim.importer.recorded.recording_checks import check_recording
from sim.nouns.recording import RecordedBackward, RecordedRank, Recording
from sim.nouns.workload import Gradient, ReadyIncludes, Workload
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import median_ns

_NO_NAMES = ("", "DistributedDataParallel", "OptimizedModule")  # what is around a model
_OWN_EFFECTS: tuple[ReadyIncludes, ...] = ("copy_in", "launch", "interference")


def workload_of(recording: Recording) -> Workload:
    """A Workload from recorded steps: medians of one rank, the one whose backward lasts longest.

    Where every rank has at least ``FEWEST_BACKWARDS`` backwards under ``no_sync``, only those are used
    and the times are free of DDP's own effects; otherwise synchronised ones are, and ``ready_includes``
    says what is in them. Backward starts at the end of forward (A3.1), so that the loss is in it. What cannot
    be true of the recording is mended where it allows it (``check_recording``) and told in ``provenance``.
    The name is the class of the model, or the recording's where only a wrapper's class was written down.

    Raises:
        InputError: too few steps after warm-up, or backward made nothing ready.
        NotModelledError: recorded with TORCH_DISTRIBUTED_DEBUG=DETAIL, whose verification collectives
            are in every time (A8.7).
    """
    if recording.ranks[0].header.ddp.get("torch_distributed_debug") == "DETAIL":
        raise NotModelledError(
            f"{recording.name}: recorded with TORCH_DISTRIBUTED_DEBUG=DETAIL, which adds collectives to "
            f"every step; record again without it"
        )
    kept = keep(recording)
    checked = check_recording(kept)
    plain = all(len(rank.plain) >= FEWEST_BACKWARDS for rank in kept)
    backwards = {rank.rank.header.rank: rank.plain if plain else rank.synchronised for rank in kept}
    fewest = min(backwards, key=lambda rank: len(backwards[rank]))
    if len(backwards[fewest]) < FEWEST_BACKWARDS:
        raise InputError(
            f"{recording.name}: rank {fewest} has {len(backwards[fewest])} synchronised backwards after "
            f"{warmup_steps(recording)} steps of warm-up; record at least {FEWEST_BACKWARDS} more steps"
        )
    chosen = max(
        kept,
        key=lambda rank: median_ns([b.backward_ns for b in backwards[rank.rank.header.rank]]),
    )
    header = chosen.rank.header
    used = backwards[header.rank]
    pace = checked.pace[header.rank] if plain else 1.0
    backward_ns = round(median_ns([backward.backward_ns for backward in used]) / pace)
    samples = [
        tuple(None if time is None else round(time / pace) for time in backward.ready_ns) for backward in used
    ]
    ready = [
        min(median_ns(times), backward_ns) if (times := [t for t in column if t is not None]) else None
        for column in zip(*samples, strict=True)
    ]
    places = _firing_places(chosen.rank)
    order = sorted(
        (index for index, time in enumerate(ready) if time is not None),
        key=lambda index: (ready[index] or 0, places.get(index, len(ready)), -index),
    )
    if not order:
        raise InputError(f"{recording.name}: no gradient became ready in any backward")
    job, untold = job_of(kept)
    optimizer = [step.optimizer_ns for step in chosen.steps if step.optimizer_ns is not None]
    return Workload(
        name=recording.name if header.module in _NO_NAMES else header.module,
        gradients=tuple(
            Gradient(
                index=index,
                name=parameter.name,
                shape=parameter.shape,
                dtype=parameter.dtype,
                num_bytes=parameter.num_bytes,
                ready_ns=ready[index],
                sparse=parameter.sparse,
                device=parameter.device,
                uses=max(backward.uses.get(index, 1) for backward in used),
            )
            for index, parameter in enumerate(header.parameters)
        ),
        forward_ns=median_ns([b.forward_ns for b in chosen.synchronised or used]),
        backward_ns=backward_ns,
        optimizer_ns=median_ns(optimizer) if optimizer else 0,
        ready_order=tuple(order),
        ready_includes=() if plain else _OWN_EFFECTS,
        buffers=header.buffers,
        samples=tuple(samples),
        job=job,
        extensions=AS_RECORDED if any(step.compiled for step in chosen.rank.steps) else {},
        provenance={
            **header.provenance,
            "source": "bucketsim import recording",
            "module": header.module,
            "device_type": header.device_type,
            "backend": header.backend,
            "clock": header.clock,
            "comm_hook": header.comm_hook,
            "ddp": header.ddp,
            "made_from": f"{len(used)} {'no_sync' if plain else 'synchronised'} backwards",
            "rank": header.rank,
            "rank_is": "the one with the longest median backward: a collective starts with its last arriver",
            "world_size": recording.world_size,
            "missing_ranks": list(recording.missing_ranks),
            "torn_ranks": torn_ranks(recording),
            "dropped_warmup_steps": warmup_steps(recording),
            "backward_starts": "at the end of forward; the loss is in it",
            "optimizer_seen": bool(optimizer),
            "doubtful": [*checked.doubtful, *untold],
        },
    )


def measured_of(recording: Recording) -> dict[str, Any]:
    """Medians of steps by rank and of buckets over ranks, as JSON.

    A bucket's times are those of the slowest rank in each step, medians over steps, in ns from the end
    of that rank's forward; ``last_arriver`` counts, by rank, the steps in which it waited least between
    the bucket's launch and its end: it came last, and no clocks of two ranks are compared. Buckets are left
    out at the light level, and where steps differ in their buckets only those with the last layout count.
    """
    kept = keep(recording)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "recorded_steps",
        "provenance": {"source": "bucketsim import recording", "recording": recording.name},
        "world_size": recording.world_size,
        "ranks": [
            {
                "rank": rank.rank.header.rank,
                "steps": len(rank.steps),
                "step_ns": _spread([step.step_ns for step in rank.steps]),
                "optimizer_ns": _spread([s.optimizer_ns for s in rank.steps if s.optimizer_ns is not None]),
                "forward_ns": _spread([backward.forward_ns for backward in rank.synchronised]),
                "backward_ns": _spread([backward.backward_ns for backward in rank.synchronised]),
                "sync_end_ns": _spread([backward.sync_end_ns for backward in rank.synchronised]),
                "no_sync_backward_ns": _spread([backward.backward_ns for backward in rank.plain]),
            }
            for rank in kept
        ],
        "buckets": _buckets(kept),
    }


def torn_ranks(recording: Recording) -> list[int]:
    """Ranks whose last line was cut off and left out."""
    return [rank.header.rank for rank in recording.ranks if rank.torn]


def _firing_places(rank: RecordedRank) -> dict[int, int]:
    """By parameter, its place in the order in which gradients come, where the recording tells it.

    A GPU's events are as far apart as kernels are: gradients that one kernel makes ready have one time. Older
    recordings have the order in DDP's buckets alone, which are by firing once DDP has rebuilt them; with
    unused parameters it never does.
    """
    if not rank.layouts:
        return {}
    last, ddp = rank.layouts[-1], rank.header.ddp
    order: Sequence[int] = last.fired
    if not order and (ddp.get("static_graph") or not ddp.get("find_unused_parameters")):
        order = [index for bucket in last.bucket_indices for index in bucket]
    return {index: place for place, index in enumerate(order)}


def _spread(times: Sequence[int]) -> dict[str, int] | None:
    if not times:
        return None
    return {"count": len(times), "min": min(times), "median": median_ns(times), "max": max(times)}


def _buckets(kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """One row a bucket of the last layout, over the steps that every rank ran with it."""
    layouts = kept[0].rank.layouts
    if not layouts:
        return []
    layout = layouts[-1]
    by_rank = [_last_reduced(rank, layout.step, len(layout.bucket_indices)) for rank in kept]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    if not common:
        return []
    rows = []
    for place, parameters in enumerate(layout.bucket_indices):
        last: Counter[int] = Counter()
        ready, launch, end = [], [], []
        for number in common:
            buckets = [steps[number].buckets[place] for steps in by_rank]
            ready.append(max(bucket.ready_ns for bucket in buckets))
            launch.append(max(bucket.launch_ns for bucket in buckets))
            end.append(max(bucket.end_ns for bucket in buckets))
            waited = [bucket.end_ns - bucket.launch_ns for bucket in buckets]
            last[kept[waited.index(min(waited))].rank.header.rank] += 1
        rows.append(
            {
                "index": place,
                "num_bytes": buckets[0].num_bytes,
                "parameters": list(parameters),
                "steps": len(common),
                "ready_ns": median_ns(ready),
                "launch_ns": median_ns(launch),
                "end_ns": median_ns(end),
                "last_arriver": {str(rank): count for rank, count in sorted(last.items())},
            }
        )
    return rows


def _last_reduced(kept: Kept, since: int, count: int) -> dict[int, RecordedBackward]:
    """By step number, the last backward with ``count`` buckets."""
    return {
        step.step: backward
        for step in kept.steps
        for backward in step.backwards
        if step.step >= since and backward.forwards == 1 and len(backward.buckets) == count
    }
