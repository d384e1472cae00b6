"""What a recording says of the job: how it ran, and its Workload."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.importer.samples import left_out, quiet_numbers
from sim.metrics.intervals import median_interval
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS
from sim.nouns.devices import serialised_by
from sim.nouns.recording import RecordedBackward, RecordedParameter, RecordedRank, RecordedStep, Recording
from sim.nouns.workload import AsRun, Gradient, ReadyIncludes, Workload
from sim.recorder.watched_workload import workload_of_backwards
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import format_ms, format_ranks, median_ns

# ---- what is left without warm-up

FEWEST_BACKWARDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One rank's steps without warm-up, and those of its backwards that a Workload can be made from.

    ``plain`` ran under ``no_sync``: no copies, no launches, no communication in them (A3.12);
    ``synchronised`` have all three. ``dropped`` counts backwards after more than one forward; ``loud`` are
    steps left out as ``_loud_steps`` says, and ``lengths_ns`` what they and their likes took, by step number.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    dropped: int
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
        backwards = [backward for step in steps for backward in step.backwards]
        alone = [backward for backward in backwards if backward.forwards == 1]
        found.append(
            Kept(
                rank=rank,
                steps=steps,
                plain=tuple(backward for backward in alone if not backward.synchronised),
                synchronised=tuple(backward for backward in alone if backward.synchronised),
                dropped=len(backwards) - len(alone),
                loud=loud,
                lengths_ns=lengths,
            )
        )
    return tuple(found)


def _loud_steps(recording: Recording) -> tuple[frozenset[int], dict[int, int]]:
    """Numbers of steps that no median is to be taken over, and how long they and their likes took.

    Steps that ran the same forwards and backwards are compared, each by the rank that took longest. A median
    stands as long as most of them are quiet; where half of them or more take a multiple of the quiet ones,
    those are left out. Where no two are alike, or too few are quiet for a workload, all stay.
    """
    warmup = warmup_steps(recording)
    longest: dict[tuple[tuple[int, bool], ...], dict[int, int]] = defaultdict(dict)
    for step in (step for rank in recording.ranks for step in rank.steps if step.step > warmup):
        lengths = longest[tuple((one.forwards, one.synchronised) for one in step.backwards)]
        lengths[step.step] = max(lengths.get(step.step, 0), step.step_ns)
    loud: set[int] = set()
    compared: dict[int, int] = {}
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
_ASIDE = (
    "gradients were copied into buckets on another stream than forward ran on, under which DDP had been made "
    "(Lightning up to 2026-05 does so): the copies ran beside backward, and are simulated within it; make "
    "DDP outside of torch.cuda.stream(...) and record again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``pace``: by rank, what the times of its plain backwards are to be divided by. ``doubtful``: sentences
    on what was found and done.
    """

    pace: dict[int, float]
    doubtful: tuple[str, ...]


def check_recording(kept: Sequence[Kept]) -> Checked:
    """Compare what a rank did under ``no_sync`` with what it did beside communication, and early with late.
    What several ranks show is told once, with the ranks.
    """
    paces = {one.rank.header.rank: _pace(one) for one in kept}
    slowed = {rank: pace for rank, pace in paces.items() if pace != 1}
    drifts = [(one, halves) for one in kept if (halves := _halves(one)) and _ratio(*halves, _DRIFT)]
    said = [left_out(kept[0].lengths_ns, kept[0].lengths_ns.keys() - kept[0].loud)]
    if slowed:
        least, most = min(slowed.values()), max(slowed.values())
        said.append(
            f"{format_ranks(list(slowed))}: the machine was {'slower' if most > 1 else 'faster'} in steps "
            f"with plain backwards than in those beside communication, whose forward is the same and whose "
            f"backward is no shorter: the plain times are divided by "
            f"{' to '.join(dict.fromkeys((f'{least:.2f}', f'{most:.2f}')))}; record plain backwards between "
            f"the others, not before or after them"
        )
    if drifts:
        early, late = (max(median_ns(halves[place]) for _, halves in drifts) for place in (0, 1))
        said.append(
            f"{format_ranks([one.rank.header.rank for one, _ in drifts])}: earlier steps took "
            f"{format_ms(early)}, later ones {format_ms(late)}: the machine changed meanwhile, and a median "
            f"is of neither; record again"
        )
    said += [_ASIDE] if any(step.aside for one in kept for step in one.steps) else []
    said += dict.fromkeys(line for one in kept for line in serialised_by(one.rank.header.environment))
    return Checked(pace=paces, doubtful=tuple(filter(None, said)))


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


def _halves(one: Kept) -> tuple[list[int], list[int]] | None:
    """How long earlier and later steps took, of those like the last; None where there are few."""
    manners = [[b.synchronised for b in step.backwards] for step in one.steps]
    alike = [step.step_ns for step, each in zip(one.steps, manners, strict=True) if each == manners[-1]]
    half = len(alike) // 2
    return (alike[:half], alike[-half:]) if half >= _FEWEST else None


def _ratio(ones: Sequence[int], others: Sequence[int], least: float) -> float:
    """The ratio of two medians; 0 unless they differ by more than ``least`` of the smaller, and their 95 %
    intervals are apart.
    """
    smaller, larger = sorted((median_ns(ones), median_ns(others)))
    (low, high), (other_low, other_high) = median_interval(ones), median_interval(others)
    is_apart = larger > (1 + least) * smaller and (low > other_high or other_low > high)
    return median_ns(ones) / max(1, median_ns(others)) if is_apart else 0.0


# ---- how the job ran

_HOOKS = {f"{one.name}_hook": one.name for one in HOOKS.values() if one.sends}
_MANY = 0.2  # of all steps


def job_of(kept: Sequence[Kept]) -> tuple[AsRun, tuple[str, ...]]:
    """The job, and a sentence on each thing that it did and that is not modelled: it is taken as not done."""
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
    told = ((name, one, header.ddp.get(name)) for name, one in ARGUMENTS.items() if one.metadata["recorded"])
    found: dict[str, Any] = {  # where not at their defaults, each by one name
        one.metadata["alias_of"] or name: value
        for name, one, value in told
        if value is not None and value != one.default
    }
    untold = []
    if header.comm_hook in _HOOKS:
        found["comm_hook"] = _HOOKS[header.comm_hook]
    elif header.comm_hook is not None:
        untold.append(
            f"comm_hook: {header.comm_hook!r} is not modelled here; modelled are {', '.join(_HOOKS)} and none"
        )
    count, reduced = accumulation(kept)
    if count > 1:
        found["accumulation_steps"] = count
        if reduced == count:
            found["no_sync"] = False
        elif reduced != 1:
            untold.append(
                f"accumulation: of {count} backwards a step {reduced} reduce; modelled are one or all of them"
            )
    buckets = layouts[-1].bucket_indices if layouts else ()
    everything = list(range(len(header.parameters)))
    is_whole = sorted(index for bucket in buckets for index in bucket) == everything
    return AsRun(switches=found, bucket_indices=buckets if is_whole else ()), tuple(untold)


def accumulation(kept: Sequence[Kept]) -> tuple[int, int]:
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
    kept = keep(recording)
    checked = check_recording(kept)
    plain = all(len(rank.plain) >= FEWEST_BACKWARDS for rank in kept)
    backwards = [rank.plain if plain else rank.synchronised for rank in kept]
    for rank, few in zip(kept, backwards, strict=True):
        if len(few) < FEWEST_BACKWARDS:
            raise InputError(
                f"{recording.name}: rank {rank.rank.header.rank} has {len(few)} synchronised backwards after "
                f"{warmup_steps(recording)} steps of warm-up; record at least {FEWEST_BACKWARDS} more steps"
            )
    lasted = [median_ns([backward.backward_ns for backward in each]) for each in backwards]
    place = lasted.index(max(lasted))
    chosen, used = kept[place], backwards[place]
    header = chosen.rank.header
    pace = checked.pace[header.rank] if plain else 1.0
    job, untold = job_of(kept)
    optimizer = [step.optimizer_ns for step in chosen.steps if step.optimizer_ns is not None]
    return workload_of_backwards(
        recording.name if header.module in _NO_NAMES else header.module,
        [
            Gradient(index=index, ready_ns=None, **{key: getattr(one, key) for key in _PARAMETER})
            for index, one in enumerate(header.parameters)
        ],
        used,
        pace=pace,
        fired=_firing_order(chosen.rank),
        forward_ns=median_ns([b.forward_ns for b in chosen.synchronised or used]),
        optimizer_ns=median_ns(optimizer) if optimizer else 0,
        ready_includes=() if plain else _OWN_EFFECTS,
        buffers=header.buffers,
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


def torn_ranks(recording: Recording) -> list[int]:
    """Ranks whose last line was cut off and left out."""
    return [rank.header.rank for rank in recording.ranks if rank.torn]


def _firing_order(rank: RecordedRank) -> Sequence[int]:
    """Parameters in the order in which gradients come, where the recording tells it; else nothing.

    A GPU's events are as far apart as kernels are: gradients that one kernel makes ready have one time. Older
    recordings have the order in DDP's buckets alone, which are by firing once DDP has rebuilt them; with
    unused parameters it never does.
    """
    if not rank.layouts:
        return ()
    last, ddp = rank.layouts[-1], rank.header.ddp
    if not last.fired and (ddp.get("static_graph") or not ddp.get("find_unused_parameters")):
        return [index for bucket in last.bucket_indices for index in bucket]
    return last.fired
