"""What ``sim.record`` wrote beside a real training run: its Workload, and the job's own step."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, get_args

from sim.errors import InputError, NotModelledError
from sim.formats.recordings import load_recording
from sim.importer.imported import Imported, ImportOptions, Kind, Note
from sim.importer.readers import RECORDING
from sim.importer.samples import own_step, quiet_steps
from sim.metrics.intervals import median_interval, step_of_ranks
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS, SETTINGS
from sim.nouns.devices import serialised_by
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording
from sim.nouns.workload import AsRun, Gradient, ReadyIncludes, Workload
from sim.recorder.watched_workload import workload_of_backwards
from sim.systems.ddp_assignment import AS_RECORDED
from sim.units import format_ms, format_ranks, format_size, median_ns

# ---- what is left without warm-up

FEWEST_BACKWARDS = 3


class Kept(NamedTuple):
    """One rank's steps without warm-up, and those of its backwards that a Workload can be made from: they
    belong to one forward.

    ``plain`` ran under ``no_sync``: no copies, no launches, no communication in them (A3.12);
    ``synchronised`` have all three. ``loud`` are steps that are left out, and ``said`` tells of them.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    loud: set[int]
    said: list[str]


def warmup_steps(clock: str) -> int:
    """Steps to drop from the start: DDP's rebuild on a CPU (A2.6), and its host syncs on a GPU (A4.3)."""
    return 2 if clock == "host" else 11


def keep(recording: Recording) -> tuple[Kept, ...]:
    """By rank, what is left without warm-up, loud steps, and backwards that belong to several forwards.

    Steps that ran the same forwards and backwards, with buckets of the same sizes, are compared, each by the
    rank that took longest. A median stands where a few are held up; where these are a group, they are loud.
    Where no two are alike, or too few are quiet for a workload, all stay.
    """
    clock = recording.ranks[0].header.clock
    warm = [[step for step in rank.steps if step.step > warmup_steps(clock)] for rank in recording.ranks]
    longest = defaultdict[object, dict[int, int]](dict)
    for step in chain.from_iterable(warm):
        ran = [(one.forwards, one.synchronised, len(one.buckets)) for one in step.backwards]
        sizes = [sent.num_bytes for one in step.backwards for sent in one.buckets]
        lengths = longest[*ran, *sizes]
        lengths[step.step] = max(lengths.get(step.step, 0), step.step_ns)
    loud, told, found = set[int](), list[str](), list[Kept]()
    for lengths in longest.values():
        quiet, said = quiet_steps(lengths, on_gpu=clock != "host")
        if len(quiet) >= FEWEST_BACKWARDS and len(lengths) - len(quiet) >= _MANY * len(lengths):
            loud |= lengths.keys() - quiet
            told.append(said)
    for rank, trained in zip(recording.ranks, warm, strict=True):
        steps = tuple(step for step in trained if step.step not in loud)
        alone = [one for step in steps for one in step.backwards if one.forwards == 1]
        plain, synchronised = (tuple(b for b in alone if b.synchronised == kind) for kind in (False, True))
        found.append(Kept(rank, steps, plain, synchronised, loud, told))
    return tuple(found)


# ---- whether its times can be true

_LITTLE = 0.03  # share of a median: two phases of one job differ by less from run to run anyway


def check_recording(kept: Sequence[Kept]) -> tuple[dict[int, float], list[str]]:
    """By rank, what the times of its plain backwards are to be divided by; and sentences on what cannot be
    true of the recording and what was done about it, each once with its ranks.
    """
    paces = {one.rank.header.rank: _pace(one) for one in kept}
    slowed = {rank: pace for rank, pace in paces.items() if pace != 1}
    said = [*kept[0].said]
    if slowed:
        by = " to ".join(dict.fromkeys(f"{pick(slowed.values()):.2f}" for pick in (min, max)))
        pace = "slower" if max(slowed.values()) > 1 else "faster"
        said.append(
            f"{format_ranks(slowed)}: the machine was {pace} in steps with plain backwards than in those "
            f"beside communication, whose forward is the same and whose backward is no shorter: the plain "
            f"times are divided by {by}; record plain backwards between the others, not before or after them"
        )
    said += dict.fromkeys(line for one in kept for line in serialised_by(one.rank.header.environment))
    return paces, said


def _pace(one: Kept) -> float:
    """What the times of a rank's plain backwards are to be divided by.

    Forward has no communication beside it either way: where it took longer in steps with plain backwards the
    machine was slower then. A synchronised backward does all that a plain one does, and more: a plain one
    that still takes longer is taken to be as long.
    """
    if min(len(one.plain), len(one.synchronised)) < FEWEST_BACKWARDS:
        return 1.0
    pace = _ratio([b.forward_ns for b in one.plain], [b.forward_ns for b in one.synchronised], _LITTLE) or 1.0
    plain = [round(b.backward_ns / pace) for b in one.plain]
    return pace * max(1.0, _ratio(plain, [b.backward_ns for b in one.synchronised], 0))


def _ratio(ones: Sequence[int], others: Sequence[int], least: float) -> float:
    """The ratio of two medians; 0 unless they differ by more than ``least`` of the smaller, and their 95 %
    intervals are apart."""
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
    keeps = [step.kept for one in kept for step in one.steps]
    found |= {"set_to_none": False} if 2 * sum(keeps) > len(keeps) else {}
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


def workload_of(recording: Recording) -> Workload:
    """A Workload from recorded steps: medians of one rank, the one whose backward lasts longest.

    Where every rank has at least ``FEWEST_BACKWARDS`` backwards under ``no_sync``, only those are used
    and the times are free of DDP's own effects; otherwise synchronised ones are, and ``ready_includes``
    says what is in them. What cannot be true of the recording is mended where it allows it and told in
    ``provenance``. The name is the class of the model, or the recording's where only a wrapper's is known.

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
    kept, warmup = keep(recording), warmup_steps(recording.ranks[0].header.clock)
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
        [Gradient(index=at, ready_ns=None, **asdict(one)) for at, one in enumerate(header.parameters)],
        used,
        pace=paces[header.rank] if plain else 1.0,
        fired=chosen.rank.layouts[-1].fired if chosen.rank.layouts else (),
        forward_ns=median_ns([b.forward_ns for b in chosen.synchronised or used]),
        optimizer_ns=median_ns(optimizer) if optimizer else 0,
        ready_includes=() if plain else get_args(ReadyIncludes),
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


# ---- the job's own step


def as_run(recording: Recording, workload: Workload) -> Measurement | str:
    """The job's steps under its last buckets, as a measurement; a sentence on why not if there is none.

    A step lasts as ``step_of_ranks`` says. All else is of the rank that waited least, the last to most
    collectives; each of these lasts as long as on the rank that waited least for it. Backwards under
    ``no_sync`` that only some steps have were run to be measured alone, and their time is left out of the
    step; those that every step has are its micro-batches (A3.12).
    """
    kept = keep(recording)
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
    (job, untold), (micro_batches, _) = job_of(kept), _accumulation(kept)
    rows = [
        row
        for row in of_all_ranks([rank.steps for rank in kept])
        if layouts
        and row[0].step >= layouts[-1].step
        and all(last.synchronised and last.forwards == 1 for last in (step.backwards[-1] for step in row))
        and len({len(step.backwards) for step in row}) == 1
        and len(row[0].backwards) >= micro_batches
        and all(one.backwards[-micro_batches].started_ns <= one.step_ns for one in row)
    ]
    why = [
        layouts or "no buckets were recorded",
        *untold,
        job.bucket_indices or "not every gradient was in a bucket",
        rows or "no step was recorded by every rank with its last buckets",
    ]
    if no := next((one for one in why if isinstance(one, str)), ""):
        return no
    return own_step(
        workload,
        Assignment(
            policy="explicit",
            bucket_indices=job.bucket_indices,
            ddp_kwargs={name: value for name, value in job.switches.items() if name in ARGUMENTS},
            settings={name: value for name, value in job.switches.items() if name in SETTINGS},
            provenance={"source": "sim.record", "recording": recording.name},
        ),
        (_iteration(row, micro_batches) for row in rows),
        backend=header.backend,
        world_size=recording.world_size,
        dropped_warmup=warmup_steps(header.clock),
        environment={"place": header.device, "recorded_ranks": len(recording.ranks)},
    )


def of_all_ranks(ranks: Sequence[Sequence[RecordedStep]]) -> list[tuple[RecordedStep, ...]]:
    """The steps that every rank has, in order."""
    by_rank = [{step.step: step for step in steps} for steps in ranks]
    return [tuple(steps[at] for steps in by_rank) for at in sorted(set.intersection(*map(set, by_rank)))]


def _iteration(row: Sequence[RecordedStep], micro_batches: int) -> MeasuredIteration:
    """A step, as ``as_run`` says; recordings do not tell when a bucket's channel is free, and it starts."""
    step = min(row, key=lambda one: one.backwards[-1].sync_end_ns)
    last, lasted_ns = step.backwards[-1], dict[int, int]()
    for bucket in (bucket for one in row for bucket in one.backwards[-1].buckets):
        seen_ns = bucket.end_ns - bucket.launch_ns
        lasted_ns[bucket.index] = min(seen_ns, lasted_ns.get(bucket.index, seen_ns))
    return MeasuredIteration(
        step_ns=int(step_of_ranks([one.step_ns - one.backwards[-micro_batches].started_ns for one in row])),
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


# ---- the import


def read_recording(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """A workload and the job's own steps, from one recording: its directory, or files of it.

    Raises:
        InputError: several recordings, or as ``load_recording`` and ``workload_of``.
        NotModelledError: as ``workload_of``.
    """
    folders = list(dict.fromkeys(path.parent if path.is_file() else path for path in paths))
    if len(folders) != 1:
        raise InputError(f"PATH: {len(folders)} paths are not legal; give one directory of a recording")
    recording = load_recording(folders[0])
    workload = workload_of(recording)
    workload = replace(workload, name=options.name or workload.name)
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
        ("assumed", workload.extensions, "the model ran under torch.compile, whose cuts stay"),
        ("assumed", workload.ready_includes, contained),
        ("assumed", not told["optimizer_seen"], "no optimizer step was seen; optimizer_ns is 0"),
        ("dropped", True, f"the first {told['dropped_warmup_steps']} steps of each rank, as warm-up"),
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
        notes=tuple(Note(kind, text) for kind, is_so, text in rows if is_so),
    )
