"""What a recording says of the job: how it ran, and its Workload."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from sim.errors import InputError, NotModelledError
from sim.importer.samples import left_out, quiet_numbers
from sim.metrics.intervals import median_interval
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS
from sim.nouns.devices import serialised_by
from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording
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
    steps left out as ``loud_steps`` says, and ``lengths_ns`` what they and their likes took, by step number.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    dropped: int
    loud: frozenset[int] = frozenset()
    lengths_ns: dict[int, int] = field(default_factory=dict)


def warmup_steps(recording: Recording) -> int:
    """Steps dropped from the start: the rebuild on a CPU (A2.6), and DDP's host syncs on a GPU (A4.3)."""
    return warmup_by(recording.ranks[0].header.clock)


def warmup_by(clock: str) -> int:
    """As ``warmup_steps``, of a recording on this clock."""
    return 2 if clock == "host" else 11


def keep(recording: Recording) -> tuple[Kept, ...]:
    """By rank, what is left without warm-up steps, those that ``loud_steps`` names, and backwards that belong
    to several forwards.
    """
    loud, lengths = loud_steps(recording)
    return tuple(_kept(rank, warmup_steps(recording), loud, lengths) for rank in recording.ranks)


def loud_steps(recording: Recording) -> tuple[frozenset[int], dict[int, int]]:
    """Numbers of steps that no median is to be taken over, and how long they and their likes took.

    Steps that ran the same forwards and backwards are compared, each by the rank that took longest. A median
    stands as long as most of them are quiet; where half of them or more take a multiple of the quiet ones,
    those are left out. Where no two are alike, or too few are quiet for a workload, all stay.
    """
    longest: dict[tuple[tuple[int, bool], ...], dict[int, int]] = defaultdict(dict)
    for step in (
        step for rank in recording.ranks for step in rank.steps if step.step > warmup_steps(recording)
    ):
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


def _kept(rank: RecordedRank, warmup: int, loud: frozenset[int], lengths_ns: dict[int, int]) -> Kept:
    steps = tuple(step for step in rank.steps if step.step > warmup and step.step not in loud)
    backwards = [backward for step in steps for backward in step.backwards]
    alone = [backward for backward in backwards if backward.forwards == 1]
    return Kept(
        rank=rank,
        steps=steps,
        plain=tuple(backward for backward in alone if not backward.synchronised),
        synchronised=tuple(backward for backward in alone if backward.synchronised),
        dropped=len(backwards) - len(alone),
        loud=loud,
        lengths_ns=lengths_ns,
    )


# ---- whether its times can be true

# Shares of a median: two phases of one job differ by less from run to run anyway.
_LITTLE = 0.03
_DRIFT = 0.05
_ASIDE = (
    "gradients were copied into buckets on another stream than forward ran on, under which DDP had been made "
    "(Lightning up to 2026-05 does so): the copies ran beside backward, and are simulated within it; make "
    "DDP outside of torch.cuda.stream(...) and record again"
)
_FEWEST = 3  # times in a group that is compared
_Number = TypeVar("_Number", int, float)
# By sentence, with places for three numbers: of each rank that shows it, a time in ns, another that it is
# held against, and the ratio that mends it (0: none).
_Findings = dict[str, list[tuple[int, int, int, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``pace``: by rank, what the times of its plain backwards are to be divided by. ``doubtful``: sentences
    on what was found and done.
    """

    pace: dict[int, float]
    doubtful: tuple[str, ...]


def check_recording(kept: Sequence[Kept]) -> Checked:
    """Compare what a rank did under ``no_sync`` with what it did beside communication, and early with late.

    Forward has no communication beside it either way: where it took longer in steps with plain backwards the
    machine was slower then, and the times of these backwards are divided by the ratio. A synchronised
    backward does all that a plain one does, and more: a plain one that still takes longer is taken to be as
    long. What several ranks show is told once, with the ranks.
    """
    found: _Findings = defaultdict(list)
    pace = {one.rank.header.rank: _pace(one, found) for one in kept}
    for one in kept:
        _find_drift(one, found)
    said = left_out(kept[0].lengths_ns, kept[0].lengths_ns.keys() - kept[0].loud)
    told = [said] if said else []
    for sentence, rows in found.items():
        ranks, ones, others, ratios = zip(*rows, strict=True)
        one_ns, other_ns = _span(ones, format_ms), _span(others, format_ms)
        numbers = sentence.format(one=one_ns, other=other_ns, ratio=_span(ratios, "{:.2f}".format))
        told.append(f"{format_ranks(ranks)}: {numbers}")
    told += [_ASIDE] if any(step.aside for one in kept for step in one.steps) else []
    told += dict.fromkeys(line for one in kept for line in serialised_by(one.rank.header.environment))
    return Checked(pace=pace, doubtful=tuple(told))


def _span(values: Sequence[_Number], shown: Callable[[_Number], str]) -> str:
    ends = dict.fromkeys(shown(end) for end in (min(values), max(values)))
    return " to ".join(ends)


def _pace(one: Kept, found: _Findings) -> float:
    """What the times of a rank's plain backwards are to be divided by; why is added to ``found``."""
    pace, rank = 1.0, one.rank.header.rank
    if min(len(one.plain), len(one.synchronised)) < _FEWEST:
        return pace
    plain, beside = ([b.forward_ns for b in backwards] for backwards in (one.plain, one.synchronised))
    if _apart(plain, beside, _LITTLE):
        pace = median_ns(plain) / max(1, median_ns(beside))
        sentence = (
            "forward took {one} before plain backwards and {other} before synchronised ones: the machine was "
            f"{'slower' if pace > 1 else 'faster'} then, and the plain times are divided by {{ratio}}"
        ) + _when(one)
        found[sentence].append((rank, median_ns(plain), median_ns(beside), pace))
    plain = [round(b.backward_ns / pace) for b in one.plain]
    beside = [b.backward_ns for b in one.synchronised]
    if median_ns(plain) > median_ns(beside) and _apart(plain, beside, 0):
        extra = median_ns(plain) / max(1, median_ns(beside))
        pace *= extra
        sentence = (
            "a plain backward took {one}, one beside communication {other}, which cannot be: the plain times "
            "are divided by {ratio}, so that what communication costs computation is not known"
        ) + _when(one)
        found[sentence].append((rank, median_ns(plain), median_ns(beside), extra))
    return pace


def _when(one: Kept) -> str:
    """What to do about plain backwards recorded apart from the others; empty where they were not."""
    kinds = [all(b.synchronised for b in step.backwards) for step in one.steps]
    changes = sum(before != after for before, after in pairwise(kinds))
    return "" if changes > 2 else "; record plain backwards between the others, not before or after them"


def _find_drift(one: Kept, found: _Findings) -> None:
    """Add what later steps take, if it is another time than that of earlier ones, of those like the last."""
    manner = [b.synchronised for b in one.steps[-1].backwards] if one.steps else []
    alike = [step for step in one.steps if [b.synchronised for b in step.backwards] == manner]
    half = len(alike) // 2
    if half < _FEWEST:
        return
    early, late = ([step.step_ns for step in part] for part in (alike[:half], alike[-half:]))
    if not _apart(early, late, _DRIFT):
        return
    sentence = (
        f"steps {alike[0].step} to {alike[half - 1].step} took {{one}}, steps {alike[-half].step} to "
        f"{alike[-1].step} {{other}}: the machine changed meanwhile, and a median is of neither; record again"
    )
    found[sentence].append((one.rank.header.rank, median_ns(early), median_ns(late), 0.0))


def _apart(ones: Sequence[int], others: Sequence[int], least: float) -> bool:
    """Whether medians differ by more than ``least`` of the smaller, with 95 % intervals that are apart."""
    smaller, larger = sorted((median_ns(ones), median_ns(others)))
    if larger <= (1 + least) * smaller:
        return False
    (low, high), (other_low, other_high) = median_interval(ones), median_interval(others)
    return low > other_high or other_low > high


# ---- how the job ran

_HOOKS = {f"{one.name}_hook": one.name for one in HOOKS.values() if one.sends}
_MANY = 0.2  # of all steps


def job_of(kept: Sequence[Kept]) -> tuple[AsRun, tuple[str, ...]]:
    """The job, and a sentence on each thing that it did and that is not modelled: it is taken as not done."""
    header, layouts = kept[0].rank.header, kept[0].rank.layouts
    found, untold = switches_told(header.ddp, header.comm_hook), []
    if header.comm_hook is not None and "comm_hook" not in found:
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


def switches_told(ddp: Mapping[str, Any], hook: str | None) -> dict[str, Any]:
    """Switches that DDP told of itself, where not at their defaults, each by one name; a hook if modelled."""
    found: dict[str, Any] = {}
    for name, one in ARGUMENTS.items():
        value = ddp.get(name)
        if one.metadata["recorded"] and value is not None and value != one.default:
            found[one.metadata["alias_of"] or name] = value
    return found | ({"comm_hook": _HOOKS[hook]} if hook in _HOOKS else {})


# ---- the workload

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
    job, untold = job_of(kept)
    optimizer = [step.optimizer_ns for step in chosen.steps if step.optimizer_ns is not None]
    return workload_of_backwards(
        recording.name if header.module in _NO_NAMES else header.module,
        [
            Gradient(
                index=index,
                name=parameter.name,
                shape=parameter.shape,
                dtype=parameter.dtype,
                num_bytes=parameter.num_bytes,
                ready_ns=None,
                sparse=parameter.sparse,
                device=parameter.device,
            )
            for index, parameter in enumerate(header.parameters)
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
