"""What ``sim.record`` wrote beside a real training run: its Workload, the job's own step, and its link."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.errors import InputError, NotModelledError
from sim.formats.recordings import load_recording
from sim.importer.imported import Imported, ImportOptions, Kind, Note, RankRow
from sim.importer.readers import RECORDING
from sim.importer.samples import SHORTEST_OVER_RANKS, left_out, median_curve, quiet_numbers, scatter_by_size
from sim.metrics.intervals import median_interval
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS, SETTINGS
from sim.nouns.devices import link_source, serialised_by
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.recording import RecordedBackward, RecordedParameter, RecordedRank, RecordedStep, Recording
from sim.nouns.workload import AsRun, Gradient, ReadyIncludes, Workload
from sim.recorder.watched_workload import workload_of_backwards
from sim.systems.ddp_assignment import AS_RECORDED
from sim.units import NS_PER_S, format_ms, format_ranks, format_size, median_ns

# ---- what is left without warm-up

FEWEST_BACKWARDS = 3


class Kept(NamedTuple):
    """One rank's steps without warm-up, and those of its backwards that a Workload can be made from: they
    belong to one forward.

    ``plain`` ran under ``no_sync``: no copies, no launches, no communication in them (A3.12);
    ``synchronised`` have all three. ``loud`` are steps left out as ``_loud_steps`` says, and ``lengths_ns``
    what they and their likes took, by step number.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    loud: frozenset[int]
    lengths_ns: dict[int, int]


def warmup_by(clock: str) -> int:
    """Steps dropped from the start, of a recording on this clock: the rebuild on a CPU (A2.6), and DDP's host
    syncs on a GPU (A4.3).
    """
    return 2 if clock == "host" else 11


def warmup_steps(recording: Recording) -> int:
    """As ``warmup_by``, of a recording."""
    return warmup_by(recording.ranks[0].header.clock)


def keep(recording: Recording) -> tuple[Kept, ...]:
    """By rank, what is left without warm-up, loud steps, and backwards that belong to several forwards."""
    warmup, (loud, lengths) = warmup_steps(recording), _loud_steps(recording)
    found = []
    for rank in recording.ranks:
        steps = tuple(step for step in rank.steps if step.step > warmup and step.step not in loud)
        alone = [one for step in steps for one in step.backwards if one.forwards == 1]
        plain, synchronised = (tuple(b for b in alone if b.synchronised == kind) for kind in (False, True))
        found.append(Kept(rank, steps, plain, synchronised, loud, lengths))
    return tuple(found)


def _loud_steps(recording: Recording) -> tuple[frozenset[int], dict[int, int]]:
    """Numbers of steps that no median is to be taken over, and how long they and their likes took.

    Steps that ran the same forwards and backwards are compared, each by the rank that took longest. A median
    stands as long as most of them are quiet; where half of them or more take a multiple of the quiet ones,
    those are left out. Where no two are alike, or too few are quiet for a workload, all stay.
    """
    longest = defaultdict[object, dict[int, int]](dict)
    for step in (step for rank in recording.ranks for step in rank.steps):
        if step.step > warmup_steps(recording):
            lengths = longest[tuple((one.forwards, one.synchronised) for one in step.backwards)]
            lengths[step.step] = max(lengths.get(step.step, 0), step.step_ns)
    loud, compared = set[int](), dict[int, int]()
    for lengths in longest.values():
        quiet = quiet_numbers(lengths, on_gpu=recording.ranks[0].header.clock != "host")
        if len(quiet) >= FEWEST_BACKWARDS and 2 * len(quiet) <= len(lengths):
            loud |= lengths.keys() - quiet
            compared |= lengths
    return frozenset(loud), compared


# ---- whether its times can be true

# Shares of a median: two phases of one job differ by less from run to run anyway.
_LITTLE, _DRIFT = 0.03, 0.05
_FEWEST = 3  # times in a group that is compared


def check_recording(kept: Sequence[Kept]) -> tuple[dict[int, float], list[str]]:
    """Compare what a rank did under ``no_sync`` with what it did beside communication, and early with late.

    Returns:
        By rank, what the times of its plain backwards are to be divided by; and sentences on what was found
        and done, each once with its ranks.
    """
    paces = {one.rank.header.rank: _pace(one) for one in kept}
    slowed = {rank: pace for rank, pace in paces.items() if pace != 1}
    drifts = []  # how long earlier and later steps took, of those like the last
    for one in kept:
        manners = [[b.synchronised for b in step.backwards] for step in one.steps]
        alike = [step.step_ns for step, each in zip(one.steps, manners, strict=True) if each == manners[-1]]
        early, late = alike[: len(alike) // 2], alike[-(len(alike) // 2) :]
        if len(early) >= _FEWEST and _ratio(early, late, _DRIFT):
            drifts.append((one.rank.header.rank, median_ns(early), median_ns(late)))
    said = [left_out(kept[0].lengths_ns, kept[0].lengths_ns.keys() - kept[0].loud)]
    if slowed:
        least, most = (f"{pick(slowed.values()):.2f}" for pick in (min, max))
        pace = "slower" if max(slowed.values()) > 1 else "faster"
        by = least if least == most else f"{least} to {most}"
        said.append(
            f"{format_ranks(slowed)}: the machine was {pace} in steps with plain backwards than in those "
            f"beside communication, whose forward is the same and whose backward is no shorter: the plain "
            f"times are divided by {by}; record plain backwards between the others, not before or after them"
        )
    if drifts:
        ranks, earlier, later = zip(*drifts, strict=True)
        said.append(
            f"{format_ranks(ranks)}: earlier steps took {format_ms(max(earlier))}, later ones "
            f"{format_ms(max(later))}: the machine changed meanwhile, a median is of neither; record again"
        )
    said += dict.fromkeys(line for one in kept for line in serialised_by(one.rank.header.environment))
    return paces, list(filter(None, said))


def _pace(one: Kept) -> float:
    """What the times of a rank's plain backwards are to be divided by.

    Forward has no communication beside it either way: where it took longer in steps with plain backwards the
    machine was slower then. A synchronised backward does all that a plain one does, and more: a plain one
    that still takes longer is taken to be as long.
    """
    if min(len(one.plain), len(one.synchronised)) < _FEWEST:
        return 1.0
    pace = _ratio([b.forward_ns for b in one.plain], [b.forward_ns for b in one.synchronised], _LITTLE) or 1.0
    plain = [round(b.backward_ns / pace) for b in one.plain]
    return pace * max(1.0, _ratio(plain, [b.backward_ns for b in one.synchronised], 0))


def _ratio(ones: Sequence[int], others: Sequence[int], least: float) -> float:
    """The ratio of two medians; 0 unless they differ by more than ``least`` of the smaller, and their 95 %
    intervals are apart.
    """
    one, other = median_ns(ones), max(1, median_ns(others))
    (low, high), (other_low, other_high) = median_interval(ones), median_interval(others)
    is_apart = max(one, other) > (1 + least) * min(one, other) and (low > other_high or other_low > high)
    return one / other if is_apart else 0.0


# ---- how the job ran

_HOOKS = {f"{one.name}_hook": one.name for one in HOOKS.values() if one.sends}
_MANY = 0.2  # of all steps


def job_of(kept: Sequence[Kept]) -> tuple[AsRun, tuple[str, ...]]:
    """The job, and a sentence on each thing that it did and that is not modelled: it is taken as not done."""
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
    found: dict[str, Any] = {}  # where not at their defaults, each by one name
    for name, one in ARGUMENTS.items():
        value = header.ddp.get(name) if one.metadata["recorded"] else None
        if value is not None and value != one.default:
            found[one.metadata["alias_of"] or name] = value
    untold = []
    if header.comm_hook in _HOOKS:
        found["comm_hook"] = _HOOKS[header.comm_hook]
    elif header.comm_hook is not None:
        untold.append(
            f"comm_hook: {header.comm_hook!r} is not modelled here; modelled are {', '.join(_HOOKS)} and none"
        )
    count, reduced = _accumulation(kept)
    found |= {"accumulation_steps": count} if count > 1 else {}
    found |= {"no_sync": False} if reduced == count > 1 else {}
    if reduced not in (1, count):
        untold.append(
            f"accumulation: of {count} backwards a step {reduced} reduce; modelled are one or all of them"
        )
    buckets = layouts[-1].bucket_indices if layouts else ()
    is_whole = sorted(index for one in buckets for index in one) == [*range(len(header.parameters))]
    return AsRun(switches=found, bucket_indices=buckets if is_whole else ()), tuple(untold)


def _accumulation(kept: Sequence[Kept]) -> tuple[int, int]:
    """Micro-batches that a step has, and how many of them reduce.

    The fewest that many steps have: further ones, under ``no_sync`` in some steps, were run to be measured
    alone (A3.12), and a step now and then that has fewer is the end of an epoch.
    """
    counts = Counter(
        (len(step.backwards), sum(one.synchronised for one in step.backwards))
        for rank in kept
        for step in rank.steps
        if step.backwards[-1].synchronised
    )
    return min((one for one in counts if counts[one] >= _MANY * counts.total()), default=(1, 1))


# ---- the workload

_NO_NAMES = ("", "DistributedDataParallel", "OptimizedModule")  # what is around a model
_PARAMETER = [one.name for one in fields(RecordedParameter)]
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
    kept, warmup = keep(recording), warmup_steps(recording)
    (paces, doubtful), (job, untold) = check_recording(kept), job_of(kept)
    plain = all(len(rank.plain) >= FEWEST_BACKWARDS for rank in kept)
    backwards = [rank.plain if plain else rank.synchronised for rank in kept]
    for rank, few in zip(kept, backwards, strict=True):
        if len(few) < FEWEST_BACKWARDS:
            raise InputError(
                f"{recording.name}: rank {rank.rank.header.rank} has {len(few)} synchronised backwards after "
                f"{warmup} steps of warm-up; record at least {FEWEST_BACKWARDS} more steps"
            )
    chosen, used = max(
        zip(kept, backwards, strict=True), key=lambda one: median_ns([each.backward_ns for each in one[1]])
    )
    header = chosen.rank.header
    optimizer = [step.optimizer_ns for step in chosen.steps if step.optimizer_ns is not None]
    return workload_of_backwards(
        recording.name if header.module in _NO_NAMES else header.module,
        [
            Gradient(index=index, ready_ns=None, **{key: getattr(one, key) for key in _PARAMETER})
            for index, one in enumerate(header.parameters)
        ],
        used,
        pace=paces[header.rank] if plain else 1.0,
        fired=chosen.rank.layouts[-1].fired if chosen.rank.layouts else (),
        forward_ns=median_ns([b.forward_ns for b in chosen.synchronised or used]),
        optimizer_ns=median_ns(optimizer) if optimizer else 0,
        ready_includes=() if plain else _OWN_EFFECTS,
        buffers=header.buffers,
        job=job,
        extensions=AS_RECORDED if any(step.compiled for step in chosen.rank.steps) else {},
        provenance={
            **header.provenance,
            **{key: getattr(header, key) for key in ("module", "device_type", "backend", "clock", "ddp")},
            "source": "bucketsim import recording",
            "comm_hook": header.comm_hook,
            "made_from": f"{len(used)} {'no_sync' if plain else 'synchronised'} backwards",
            "rank": header.rank,
            "rank_is": "the one with the longest median backward: a collective starts with its last arriver",
            "world_size": recording.world_size,
            "missing_ranks": list(recording.missing_ranks),
            "torn_ranks": [rank.header.rank for rank in recording.ranks if rank.torn],
            "dropped_warmup_steps": warmup,
            "backward_starts": "at the end of forward; the loss is in it",
            "optimizer_seen": bool(optimizer),
            "doubtful": [*doubtful, *untold],
        },
    )


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
    header, (job, untold), (micro_batches, _) = kept[0].rank.header, job_of(kept), _accumulation(kept)
    rows = [
        row
        for row in _common_steps(kept)
        if len({len(step.backwards) for step in row}) == 1
        and len(row[0].backwards) >= micro_batches
        and all(one.backwards[-micro_batches].started_ns <= one.step_ns for one in row)
    ]
    why = {
        "no buckets were recorded": not kept[0].rank.layouts,
        next(iter(untold), ""): bool(untold),
        "not every gradient was in a bucket": not job.bucket_indices,
        "no step was recorded by every rank with its last buckets": not rows,
    }
    if any(why.values()):
        return next(text for text, is_so in why.items() if is_so)
    provenance = {"source": "sim.record", "recording": recording.name}
    iterations = tuple(_iteration(row, micro_batches) for row in rows)
    buckets = job.bucket_indices
    return Measurement(
        name="as run",
        role="candidate",
        mode="trace",
        backend=header.backend,
        world_size=recording.world_size,
        asked=Assignment(
            policy="explicit",
            bucket_indices=buckets,
            bucket_bytes=bucket_bytes(workload, buckets),
            ddp_kwargs={name: value for name, value in job.switches.items() if name in ARGUMENTS},
            settings={name: value for name, value in job.switches.items() if name in SETTINGS},
            made_for=made_for(workload, recording.world_size),
            provenance=provenance,
        ),
        observed=buckets,
        iterations=iterations,
        traced=tuple(iteration for iteration in iterations if iteration.buckets),
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        dropped_warmup=warmup_steps(recording),
        environment={"place": header.device, "recorded_ranks": len(recording.ranks)},
        provenance=provenance,
    )


def _common_steps(kept: Sequence[Kept]) -> list[tuple[RecordedStep, ...]]:
    """Steps since the last layout that every rank has, each of which ends in a synchronised backward."""
    layouts = kept[0].rank.layouts
    steps = [[step for step in rank.steps if layouts and step.step >= layouts[-1].step] for rank in kept]
    rows = _of_all_ranks(steps)
    return [row for row in rows if all(b.synchronised and b.forwards == 1 for b in map(_last, row))]


def _of_all_ranks(ranks: Sequence[Sequence[RecordedStep]]) -> list[tuple[RecordedStep, ...]]:
    """The steps that every rank has, in order."""
    by_rank = [{step.step: step for step in steps} for steps in ranks]
    return [tuple(steps[at] for steps in by_rank) for at in sorted(set.intersection(*map(set, by_rank)))]


def _last(step: RecordedStep) -> RecordedBackward:
    return step.backwards[-1]


def _iteration(row: Sequence[RecordedStep], micro_batches: int) -> MeasuredIteration:
    """The step of the rank that waited least; its buckets without starts, as recordings do not tell when a
    channel is free.
    """
    step = min(row, key=lambda one: _last(one).sync_end_ns)
    last, lasted_ns = _last(step), dict[int, int]()
    for bucket in (bucket for one in map(_last, row) for bucket in one.buckets):
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
    rows = [[one.buckets for one in map(_last, row)] for row in _common_steps(kept)]
    waits = [
        [bucket.end_ns - bucket.launch_ns for bucket in same]
        for row in rows
        if {len(buckets) for buckets in row} == {len(kept[0].rank.layouts[-1].bucket_indices)}
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
    """The all-reduce curve within the training step, and what copies back take; of steps that are not loud
    and whose last backward reduced the same buckets on every rank.

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
    by_size, gaps = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    rates, before, loud = [], [], keep(recording)[0].loud
    for row in _of_all_ranks([rank.steps for rank in recording.ranks]):
        backwards = list(map(_last, row))
        sizes = {tuple(bucket.num_bytes for bucket in one.buckets) for one in backwards}
        if row[0].step in loud or len(sizes) > 1 or () in sizes:
            continue
        for size, lasted in zip(*sizes, zip(*map(_durations_ns, backwards), strict=True), strict=True):
            by_size[size].append(min(lasted))
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
    is_view = header.ddp.get("gradient_as_bucket_view") or not rates
    ns_a_byte = 0.0 if is_view else sorted(rates)[len(rates) // 2]
    each = max(0, median_ns(before)) // max(1, len(header.buffers))
    return Hardware(
        name=OWN_NAME,
        world_size=recording.world_size,
        all_reduce=median_curve(by_size),
        launch_cost_ns=_launch_cost_ns({size: median_ns(times) for size, times in gaps.items() if size}),
        copy_out_bytes_per_s=NS_PER_S / ns_a_byte if ns_a_byte > 0 else None,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=each),) if header.buffers else None,
        spread={"all_reduce": scatter_by_size(by_size, SHORTEST_OVER_RANKS)},
        provenance={
            "source": "sim.record",
            "recording": recording.name,
            "device_type": header.device_type,
            "backend": header.backend,
            "curve": "ranks are missing: an upper bound"
            if recording.missing_ranks
            else "within the training step, by the last rank to come",
        },
    )


def _launch_cost_ns(gap_ns: dict[int, int]) -> int:
    """ns at 0 bytes of a line through the gaps by bytes, in which smaller buckets weigh more."""
    if not gap_ns or max(gap_ns) < _APART * min(gap_ns):
        return 0
    sizes = np.array([*gap_ns], float)
    _, cost = np.polyfit(sizes, np.array([*gap_ns.values()], float), 1, w=1 / sizes)
    return min(max(0, round(float(cost))), *gap_ns.values())


def _durations_ns(backward: RecordedBackward) -> list[int]:
    """How long each bucket took, from its launch or the end of all before it."""
    free = [0, *accumulate((one.end_ns for one in backward.buckets), max)]
    return [
        max(0, one.end_ns - max(one.launch_ns, at)) for one, at in zip(backward.buckets, free, strict=False)
    ]


def _ns_a_byte(backward: RecordedBackward) -> float | None:
    """What copying one byte back takes; None where buckets hold nothing."""
    sizes = [bucket.num_bytes for bucket in backward.buckets]
    left = list(accumulate(reversed(sizes)))[::-1]
    if not left or not left[-1]:
        return None
    ends = [max(backward.backward_ns, bucket.end_ns) for bucket in backward.buckets]
    return max(0.0, min((backward.sync_end_ns - end) / size for end, size in zip(ends, left, strict=True)))


# ---- the import


def read_recording(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """A workload, the job's own steps and who came last, from one recording: its directory, or files of it.

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
    backwards = sum(len(step.backwards) for rank in kept for step in rank.steps)
    shared = backwards - sum(len(rank.plain) + len(rank.synchronised) for rank in kept)
    later = sorted(path.name for path in folders[0].glob("restart-*") if path.is_dir())
    ran = (
        f"{len(recording.ranks)} of {recording.world_size} ranks, {header.level} level, {header.backend} on "
        f"{header.device_type}, {sum(len(rank.steps) for rank in recording.ranks)} steps in all"
    )
    trained = (
        f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}"
    )
    contained = (
        f"the times contain {', '.join(workload.ready_includes)}; to be rid of them, run a few backwards "
        f"under no_sync while recording"
    )
    rows: tuple[tuple[Kind, Any, str], ...] = (
        ("found", True, ran),
        ("found", True, trained),
        ("found", header.comm_hook, f"the communication hook {header.comm_hook}"),
        ("assumed", True, f"made from {told['made_from']} of rank {told['rank']}, {told['rank_is']}"),
        ("assumed", True, "backward starts at the end of forward; the loss is in it"),
        ("assumed", workload.extensions, "the model ran under torch.compile, whose cuts stay"),
        ("assumed", workload.ready_includes, contained),
        ("assumed", not told["optimizer_seen"], "no optimizer step was seen; optimizer_ns is 0"),
        ("dropped", True, f"the first {warmup_steps(recording)} steps of each rank, as warm-up"),
        ("dropped", shared, f"{shared} backwards that followed several forwards with gradients"),
        ("dropped", recording.missing_ranks, f"no file of {format_ranks(recording.missing_ranks)}"),
        ("dropped", later, f"later starts of the job, each to be imported by itself: {', '.join(later)}"),
        ("dropped", torn := told["torn_ranks"], f"the last line of {format_ranks(torn)}, which was cut off"),
        *(("doubtful", True, text) for text in told["doubtful"]),
        ("missing", isinstance(run, str), f"the job's own step, to hold predictions to: {run}"),
    )
    return Imported(
        format=RECORDING,
        name=workload.name,
        workload=workload,
        measurements=() if isinstance(run, str) else (run,),
        ranks=rank_rows(kept),
        notes=tuple(Note(kind, text) for kind, is_so, text in rows if is_so),
    )
