"""Inputs, what happens to them under the assignment that was chosen, and the one answer: what to set.

A new cap plays one assignment; only new inputs search and sweep again. What is remembered weighs as many
gradients as it tells of, or, as even a small job's results have texts and parts of their own, ``_LEAST``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import sim
from app.choosing import Choice, Options, WhatIf
from app.memo import memo, one
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.timeline import PathSpan, Timeline
from sim.nouns.workload import Workload
from sim.truth.recorded_job import held_to
from sim.tuner.gain import DEFAULT_WORDS, BandPoint
from sim.tuner.sweep import SweepRow

Progress = Callable[[str], None]

_GRADIENTS = 128_000  # 125 MB of timelines at most
_RECOMMENDED_GRADIENTS = 64_000  # 70 MB of recommendations
_LEAST = 1_000  # so that at most 128 timelines are kept, and 64 recommendations


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A workload and a machine.

    ``origin`` is what they were before a what-if changed them, None where nothing did.
    """

    workload: Workload
    hardware: Hardware
    origin: "Inputs | None" = field(default=None, compare=False)


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
    workload, hardware = what_if.apply(inputs.workload, inputs.hardware)
    return Inputs(workload=workload, hardware=hardware, origin=inputs)


@memo(_GRADIENTS, _of_inputs)
def play(inputs: Inputs, choice: Choice) -> Played:
    """What happens under the chosen assignment."""
    assignment = choice.assignment(inputs.workload, lambda: best(inputs, choice.options))
    # The analytic engine gives simpy's timeline, to the nanosecond, sooner.
    timeline = sim.simulate(inputs.workload, inputs.hardware, assignment, "analytic")
    path = sim.critical_path(timeline)
    return Played(timeline=timeline, report=sim.summarize(timeline), path=path)


@memo(_GRADIENTS, _of_inputs)
def searched(inputs: Inputs, options: Options = ()) -> Inputs:
    """What a search for buckets is made for: a job with DDP's switches ``options``."""
    return replace(inputs, workload=one(inputs.workload.with_switches(dict(options))))


def best(inputs: Inputs, options: Options = (), progress: Progress | None = None) -> Assignment:
    """The assignment that ``tune`` recommends, without waiting for all else that it finds."""
    of = searched(inputs, options)
    found = _tuned.known(of)
    return _best(of, progress) if found is None else found.assignment


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def _best(inputs: Inputs, progress: Progress | None) -> Assignment:
    return sim.best(inputs.workload, inputs.hardware, progress=progress)


def tune(inputs: Inputs, options: Options = (), progress: Progress | None = None) -> Recommendation:
    """The best assignment, its proof, and what each knob reaches; ``progress`` is told of long searches."""
    return _tuned(searched(inputs, options), progress)


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def _tuned(inputs: Inputs, progress: Progress | None = None) -> Recommendation:
    return sim.tune(inputs.workload, inputs.hardware, progress=progress)


def is_tuned(inputs: Inputs, options: Options) -> bool:
    """Whether ``tune`` has been asked, so that it makes nobody wait."""
    return _tuned.known(searched(inputs, options)) is not None


@memo(_GRADIENTS, _of_inputs)
def sweep(inputs: Inputs, options: Options = ()) -> tuple[SweepRow, ...]:
    """The step at each of a range of caps, and DDP's default."""
    of = searched(inputs, options)
    return sim.sweep(of.workload, of.hardware)


@memo(_GRADIENTS, _of_inputs)
def band(inputs: Inputs, options: Options = (), progress: Progress | None = None) -> tuple[BandPoint, ...]:
    """How far single steps range at each cap; empty: none varies."""
    of, caps = searched(inputs, options), [row.bucket_cap_mb for row in sweep(inputs, options)]
    return sim.step_band(of.workload, of.hardware, caps, progress=progress)


def default(inputs: Inputs, choice: Choice) -> Played:
    """DDP's default, doing the job of ``choice``."""
    return play(inputs, Choice(pick="default", options=choice.switches(inputs.workload)))


def recommended(inputs: Inputs, choice: Choice, found: Recommendation) -> Played:
    """What ``found`` says to set for the job of ``choice``, played; or what it has already."""
    options, setting, job = choice.switches(inputs.workload), found.setting, inputs.workload.job
    if setting.pick == "recommended":
        return play(inputs, Choice(pick="recommended", options=options))
    if setting.pick == "cap":
        return play(inputs, Choice(pick="cap", cap_mb=setting.cap_mb, options=options))
    if found.against != DEFAULT_WORDS and job is not None:
        in_use = one(Assignment(bucket_indices=job.bucket_indices))
        return play(inputs, Choice(pick="given", given=in_use, options=options))
    return default(inputs, choice)


def round_cap_mb(inputs: Inputs, choice: Choice) -> float | None:
    """The round cap to set, the same on every page; where none is, the one that comes nearest to it."""
    options = choice.switches(inputs.workload)
    found = tune(inputs, options)
    if found.setting.cap_mb is not None:
        return found.setting.cap_mb
    row = sim.round_cap(sweep(inputs, options), found.plateau)
    return None if row is None else row.bucket_cap_mb
