"""Inputs, what happens to them under the assignment that was chosen, and the one answer: what to set.

A new cap plays one assignment; only new inputs search and sweep again. What is remembered weighs as many
gradients as it tells of, or, as even a small job's results have texts and parts of their own, ``_LEAST``.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import sim
from app.choosing import Choice, Options, WhatIf
from app.memo import memo, one
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.recommendation import Recommendation, Setting
from sim.nouns.report import Report
from sim.nouns.timeline import PathSpan, Timeline
from sim.nouns.workload import Workload
from sim.truth.recorded_job import held_to
from sim.tuner.gain import DEFAULT_WORDS, BandPoint
from sim.tuner.setting import find_setting
from sim.tuner.sweep import SweepRow

Progress = Callable[[str], None]

_GRADIENTS = 128_000  # 125 MB of timelines at most
_RECOMMENDED_GRADIENTS = 64_000  # 70 MB of recommendations
_DRAWN_GRADIENTS = 650_000  # for the band of each cap: some 4 s in all, however many a step has
_FEWEST_DRAWS, _MOST_DRAWS = 400, 4_000
_LEAST = 1_000  # so that at most 128 timelines are kept, and 64 recommendations


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A workload and a machine.

    ``slowest`` is the workload as the slowest other rank runs it, None where all are alike. ``origin`` is
    what they were before a what-if changed them, None where nothing did.
    """

    workload: Workload
    hardware: Hardware
    slowest: Workload | None = None
    origin: "Inputs | None" = field(default=None, compare=False)

    @property
    def alike(self) -> "Inputs":
        """The same with ranks that are alike: what searches are made for."""
        return replace(self, slowest=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One assignment, what happens under it, and what that means; ``path`` decides the end of the step."""

    timeline: Timeline
    report: Report
    path: tuple[PathSpan, ...]

    @property
    def assignment(self) -> Assignment:
        """The assignment that was played."""
        return self.timeline.assignment

    @property
    def untimed_bytes(self) -> int:
        """What it sends that no time is known of, since the hardware has no curve of it: in no timeline."""
        unknown = {kind for kind in CURVES if getattr(self.timeline.hardware, kind) is None}
        sent = sim.collectives(self.timeline) if unknown else ()
        return sum(one.num_bytes for one in sent if one.kind in unknown)


def _of_inputs(_: object, inputs: Inputs, *__: object) -> int:
    return max(len(inputs.workload.gradients), _LEAST)


@memo(_GRADIENTS, lambda workload, *_: len(workload.gradients))
def load_workload(path: Path) -> Workload:
    """A workload from a file."""
    return one(sim.load_workload(path))


@memo(256)
def load_hardware(path: Path) -> Hardware:
    """A hardware from a file."""
    return one(sim.load_hardware(path))


@memo(_GRADIENTS, lambda made, *_: _of_inputs(None, made))
def as_measured(record: Record) -> Inputs:
    """The inputs from which a record's steps are predicted; raises as ``sim.as_measured``."""
    measured = sim.as_measured(record)
    return Inputs(workload=one(measured.workload), hardware=one(measured.hardware))


@memo(_GRADIENTS, _of_inputs)
def held(inputs: Inputs, measured: Measurement) -> Inputs:
    """The inputs as the job ran, held to the step that it took while it was recorded."""
    job = held_to(inputs.workload, inputs.hardware, measured)
    return replace(inputs, workload=one(job.workload), hardware=one(job.hardware))


@memo(_GRADIENTS, _of_inputs)
def scale(inputs: Inputs, what_if: WhatIf) -> Inputs:
    """The inputs with the what-ifs applied; themselves where there are none."""
    if what_if.is_none:
        return inputs
    if what_if.slowest_rank != 1.0:
        machine = scale(inputs, replace(what_if, slowest_rank=1.0))
        return replace(machine, slowest=what_if.slowest(machine.workload), origin=inputs)
    workload, hardware = what_if.apply(inputs.workload, inputs.hardware)
    return Inputs(workload=workload, hardware=hardware, origin=inputs)


@memo(_GRADIENTS, _of_inputs)
def play(inputs: Inputs, choice: Choice) -> Played:
    """What happens under the chosen assignment."""
    return play_assignment(inputs, choice.assignment(inputs.workload, lambda: best(inputs)))


def play_assignment(inputs: Inputs, assignment: Assignment) -> Played:
    """What happens under an assignment, played anew."""
    # The analytic engine gives simpy's timeline, to the nanosecond, sooner.
    timeline = sim.simulate(inputs.workload, inputs.hardware, assignment, "analytic", slowest=inputs.slowest)
    path = sim.critical_path(timeline)
    return Played(timeline=timeline, report=sim.summarize(timeline), path=path)


def best(inputs: Inputs, progress: Progress | None = None) -> Assignment:
    """The assignment that ``tune`` recommends, without waiting for all else that it finds."""
    found = _tuned.known(inputs.alike)
    return _best(inputs.alike, progress) if found is None else found.assignment


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def _best(inputs: Inputs, progress: Progress | None) -> Assignment:
    return sim.best(inputs.workload, inputs.hardware, progress=progress)


def tune(inputs: Inputs, progress: Progress | None = None) -> Recommendation:
    """The best assignment, its proof, and what each knob reaches; ``progress`` is told of long searches."""
    return _tuned(inputs.alike, progress)


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def _tuned(inputs: Inputs, progress: Progress | None = None) -> Recommendation:
    return sim.tune(inputs.workload, inputs.hardware, progress=progress)


def is_searched(inputs: Inputs, options: Options) -> bool:
    """Whether ``tune`` and ``sweep`` have been asked, so that neither makes one wait."""
    return _tuned.known(inputs.alike) is not None and sweep.known(inputs, options) is not None


@memo(_GRADIENTS, _of_inputs)
def sweep(inputs: Inputs, options: Options = (), progress: Progress | None = None) -> tuple[SweepRow, ...]:
    """The step at each of a range of caps, and DDP's default: under ``options``, beside the slowest rank."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(f"trying caps{' under the switches' if options else ''}, {done} of {total}")

    if not options and inputs.slowest is None:
        return sim.sweep(inputs.workload, inputs.hardware, progress=tell)
    # The sweep of equal ranks without switches, each cap of it played anew.
    plain = sweep(inputs.alike, progress=progress)
    known: dict[tuple[tuple[int, ...], ...], SweepRow] = {}
    rows: list[SweepRow] = []
    sizes = [gradient.num_bytes for gradient in inputs.workload.gradients]
    for row in plain:
        tell(len(rows), len(plain))
        assignment = sim.assign(inputs.workload, bucket_cap_mb=row.bucket_cap_mb, **dict(options))
        buckets = assignment.bucket_indices
        if buckets not in known:
            report = play_assignment(inputs, assignment).report
            known[buckets] = replace(
                row,
                num_buckets=len(buckets),
                largest_bucket_bytes=max(sum(sizes[index] for index in bucket) for bucket in buckets),
                step_ns=report.step_ns,
                sync_end_ns=report.sync_end_ns,
                exposed_comm_ns=report.exposed_comm_ns,
                overlap_ratio=report.overlap_ratio,
            )
        rows.append(replace(known[buckets], label=row.label, bucket_cap_mb=row.bucket_cap_mb))
    return tuple(rows)


@memo(_GRADIENTS, _of_inputs)
def band(inputs: Inputs, progress: Progress | None = None) -> tuple[BandPoint, ...]:
    """How far single steps range at each cap, without switches and on equal ranks; empty: none varies."""
    caps = [row.bucket_cap_mb for row in sweep(inputs, progress=progress)]
    draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, _DRAWN_GRADIENTS // len(inputs.workload.gradients)))
    return sim.step_band(inputs.workload, inputs.hardware, caps, draws=draws, progress=progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to set, as ``setting`` says, and the steps of it.

    ``played`` is that, ``default`` what it is held against, in words ``against``: DDP's default for the same
    job, or the buckets that a recorded job had. ``best`` is the best buckets that were found, None where
    they cannot be had under the switches; ``capped`` that of the setting's round cap. ``why_none``: why no
    gain can be told, under any switches; empty where one can.
    """

    setting: Setting
    played: Played
    default: Played
    best: Played | None = None
    capped: Played | None = None
    against: str = DEFAULT_WORDS
    why_none: str = ""


def find_answer(
    inputs: Inputs, choice: Choice, found: Recommendation, default: Played, *, is_plain: bool
) -> Answer:
    """What to set for the job of ``choice``, from the sweep over caps under its switches.

    ``is_plain``: neither switches nor a slowest rank are in force, so that ``found`` says of this very job
    what to set.
    """
    best, against, options = None, DEFAULT_WORDS, choice.options_under_ddp
    with suppress(SimError):
        best = play(inputs, choice.recommended)
    if is_plain and found.against != DEFAULT_WORDS and inputs.workload.job is not None:
        in_use = one(Assignment(bucket_indices=inputs.workload.job.bucket_indices))
        default, against = play(inputs, Choice(pick="given", given=in_use)), found.against
    setting = found.setting if is_plain or found.gain.refuted else None
    if setting is None:
        best_ns = None if best is None else best.report.step_ns
        rows = {row.bucket_cap_mb: row.step_ns for row in sweep(inputs, options) if row.bucket_cap_mb}
        setting = find_setting(rows, default_ns=default.report.step_ns, best_ns=best_ns)
    cap_mb = setting.cap_mb
    capped = None if cap_mb is None else play(inputs, Choice(pick="cap", cap_mb=cap_mb, options=options))
    return Answer(
        setting=setting,
        played={"cap": capped, "recommended": best}.get(setting.pick) or default,
        default=default,
        best=best,
        capped=capped,
        against=against,
        why_none=found.gain.sentence if found.gain.refuted else "",
    )


def round_cap_mb(inputs: Inputs, choice: Choice, found: Recommendation | None) -> float | None:
    """The round cap to set, the same on every page; where none is to be set the one that comes nearest to it.

    ``found``: where it tells of this very job.
    """
    if found is not None and found.setting is not None and found.setting.cap_mb is not None:
        return found.setting.cap_mb
    rows = sweep(inputs, choice.options_under_ddp)
    row = sim.round_cap(rows, None if found is None else found.plateau)
    return None if row is None else row.bucket_cap_mb
