"""What the knobs ask for, what happens under it, and the one answer: what to set.

A new cap plays one assignment; only new inputs search and sweep again. What is remembered weighs as many
gradients as it tells of, or, as even a small job's results have texts and parts of their own, ``_LEAST``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import sim
from app.memo import digest, memo, one
from app.words import DDP_PICKS, PICK_WORDS, Pick, option_words
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, SLOWDOWNS, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.timeline import Span, Timeline
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.truth.recorded_job import RecordedJob, held_to
from sim.tuner.gain import DEFAULT_WORDS, BandPoint
from sim.tuner.sweep import WHAT_IFS, SweepRow
from sim.units import format_number

# How compute, copies and collectives disturb each other; two collectives beside one another are no such pair.
INTERFERING = tuple(name for name in SLOWDOWNS if name != "channel_slowdown")
_MICRO_BATCHES = ("accumulation_steps", "gradient_accumulation_steps", "num_microbatches")
_FOR_UNUSED = ("find_unused_parameters", "static_graph")
Options = tuple[tuple[str, Any], ...]
# By field of WhatIf, the key of its knob in the session and in the address.
KEYS = {
    "bandwidth": "bw",
    "latency": "lat",
    "backward": "bwd",
    "world_size": "ranks",
    "precision": "precision",
    "interference": "interference",
}


def micro_batches(settings: Mapping[str, Any]) -> int:
    """How many micro-batches a step has, by whichever name a system has for them."""
    return next((settings[name] for name in _MICRO_BATCHES if name in settings), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which assignment is looked at.

    ``cap_mb`` and ``first_mb`` count for an explicit cap only, ``caps`` for a list of caps, MiB as they were
    typed in. ``options`` are switches of the system, by its own names, as ``sim.assign`` takes them; only
    those that differ from their defaults. ``given`` is an uploaded assignment (pick ``given``).
    """

    pick: Pick
    cap_mb: float | None = None
    first_mb: float | None = None
    caps: str = ""
    options: Options = ()
    given: Assignment | None = None

    @property
    def words(self) -> str:
        """The choice in a few words."""
        named = PICK_WORDS[self.pick]
        if self.pick == "cap" and self.cap_mb is not None:
            first = "" if self.first_mb is None else f", first {format_number(self.first_mb, 6)} MiB"
            named = f"cap {format_number(self.cap_mb, 6)} MiB{first}"
        if self.pick == "cap-list":
            named = f"caps {self.caps if len(self.caps) <= 40 else f'{self.caps[:39]}…'} MiB"
        return ", ".join([named, *map(option_words, self.options)])

    def switches(self, workload: Workload) -> Options:
        """DDP's switches under which its buckets do the job of this choice, and are searched for.

        Of a system of its own: as many micro-batches a step, compiled or not, and, where a gradient is never
        ready, the switch without which DDP does not train it.
        """
        if self.pick in DDP_PICKS:
            return self.options
        steps = micro_batches(dict(self.options))
        same: dict[str, Any] = {"accumulation_steps": steps} if steps != 1 else {}
        same |= {name: value for name, value in self.options if name == "optimize_ddp"}
        knows = any(workload.switches.get(name) for name in _FOR_UNUSED)
        if not knows and any(gradient.ready_ns is None for gradient in workload.gradients):
            same["find_unused_parameters"] = True
        return tuple(sorted(same.items()))

    def told(self) -> dict[str, Any]:
        """The choice, for a provenance: the pick, its caps and every switch that is not at its default."""
        told = {
            "pick": self.pick,
            "bucket_cap_mb": self.cap_mb,
            "first_bucket_mb": self.first_mb,
            "bucket_cap_mb_list": self.caps or None,
            "assignment_sha256": None if self.given is None else digest(self.given),
        }
        return {name: value for name, value in told.items() if value is not None} | dict(self.options)

    def with_given(self, given: Assignment | None) -> "Choice":
        """The choice with what was uploaded, where that is what is looked at; else the choice itself."""
        return replace(self, given=given) if self.pick == "given" else self

    def assignment(self, workload: Workload, recommended: Callable[[], Assignment]) -> Assignment:
        """The buckets that were chosen; ``recommended`` is called only where it is what was asked for.

        Raises:
            InputError: caps that cannot be read, or no upload where one is looked at.
            NotModelledError: switches that are not modelled, or not with one another.
        """
        options = dict(self.options)
        if self.pick == "recommended":
            return as_the_job(workload, recommended(), **options)
        if self.pick in ("given", "as-run"):
            used = () if self.pick == "given" or workload.job is None else workload.job.bucket_indices
            given = Assignment(bucket_indices=used) if used else self.given
            if given is None:
                raise InputError(f"{PICK_WORDS[self.pick]}: in none of these files; upload one that has it")
            return as_the_job(workload, given, **options)
        if self.pick == "cap":
            return sim.assign(workload, bucket_cap_mb=self.cap_mb, first_bucket_mb=self.first_mb, **options)
        if self.pick == "cap-list":
            return sim.assign(workload, bucket_cap_mb_list=_caps_mb(self.caps), **options)
        return sim.assign(workload, "ddp" if self.pick == "default" else self.pick, **options)


def _caps_mb(text: str) -> list[float]:
    """``bucket_cap_mb_list`` as it is typed: MiB with commas between."""
    try:
        return [float(part) for part in text.strip().strip("[]").split(",")]
    except ValueError as error:
        raise InputError(f"bucket_cap_mb_list: {text[:40]!r} is not legal; give MiB: 1, 25, 100") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is not as it was measured; factors of 1 and None are as measured.

    ``interference`` k makes every slow-down s of ``INTERFERING`` 1 + (s - 1) k. ``world_size`` is the number
    of ranks, ``precision`` a torch dtype of all gradients. Provenances have the same names; ``KEYS`` has
    those of the address.
    """

    bandwidth: float = 1.0
    latency: float = 1.0
    backward: float = 1.0
    interference: float = 1.0
    world_size: int | None = None
    precision: str | None = None

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed."""
        return self == WhatIf()

    def beside(self, workload: Workload, hardware: Hardware) -> "WhatIf":
        """The same without what is so already: as many ranks, gradients that are all of this dtype."""
        is_of_it = all(gradient.dtype == self.precision for gradient in workload.gradients)
        ranks = None if self.world_size == hardware.world_size else self.world_size
        return replace(self, world_size=ranks, precision=None if is_of_it else self.precision)

    def told(self) -> dict[str, Any]:
        """What is changed, for a provenance: names and values of what is not as measured."""
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {
            name: float(value) if isinstance(default, float) else value
            for name, (value, default) in given.items()
            if value != default
        }

    def apply(self, workload: Workload, hardware: Hardware) -> tuple[Workload, Hardware]:
        """Workload and hardware as if the machine were another (``sim.scale``).

        Raises:
            InputError: a value out of range.
        """
        what_ifs: dict[str, Any] = {name: getattr(self, name) for name in WHAT_IFS}
        workload, hardware = sim.scale(workload, hardware, **what_ifs)
        factor = self.interference
        if factor == 1.0:
            return workload, hardware
        if not 0 <= factor <= 1e6:
            raise InputError(f"interference: a factor of {factor!r} is not legal; give a number 0 to 1e6")
        slowdowns = {name: 1.0 + (getattr(hardware, name) - 1.0) * factor for name in INTERFERING}
        return workload, replace(hardware, **slowdowns)


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
    path: tuple[Span, ...]

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
def held(inputs: Inputs, measured: Measurement) -> RecordedJob:
    """The job, held to the step that it took while it was recorded."""
    job = held_to(inputs.workload, inputs.hardware, measured)
    return replace(job, workload=one(job.workload), hardware=one(job.hardware))


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
    assignment = choice.assignment(inputs.workload, lambda: best(under(inputs, choice.options)))
    # The analytic engine gives simpy's timeline, to the nanosecond, sooner.
    timeline = sim.simulate(inputs.workload, inputs.hardware, assignment, "analytic")
    path = sim.critical_path(timeline)
    return Played(timeline=timeline, report=sim.summarize(timeline), path=path)


@memo(_GRADIENTS, _of_inputs)
def under(inputs: Inputs, options: Options = ()) -> Inputs:
    """The job with DDP's switches ``options``: what a search for buckets is made for."""
    return replace(inputs, workload=one(inputs.workload.with_switches(dict(options))))


def best(job: Inputs, progress: Progress | None = None) -> Assignment:
    """The assignment that ``tune`` recommends, without waiting for all else that it finds."""
    found = tune.known(job)
    return _best(job, progress) if found is None else found.assignment


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def _best(job: Inputs, progress: Progress | None) -> Assignment:
    return sim.best(job.workload, job.hardware, progress=progress)


@memo(_RECOMMENDED_GRADIENTS, _of_inputs)
def tune(job: Inputs, progress: Progress | None = None) -> Recommendation:
    """The best assignment, its proof, and what each knob reaches; ``progress`` is told of long searches."""
    return sim.tune(job.workload, job.hardware, progress=progress)


@memo(_GRADIENTS, _of_inputs)
def sweep(job: Inputs) -> tuple[SweepRow, ...]:
    """The step at each of a range of caps, and DDP's default."""
    return sim.sweep(job.workload, job.hardware)


@memo(_GRADIENTS, _of_inputs)
def band(job: Inputs, progress: Progress | None = None) -> tuple[BandPoint, ...]:
    """How far single steps range at each cap; empty: none varies."""
    caps = [row.bucket_cap_mb for row in sweep(job)]
    return sim.step_band(job.workload, job.hardware, caps, progress=progress)


def default(inputs: Inputs, choice: Choice) -> Played:
    """DDP's default, doing the job of ``choice``."""
    return play(inputs, Choice(pick="default", options=choice.switches(inputs.workload)))


def recommended(inputs: Inputs, choice: Choice, found: Recommendation) -> Played:
    """What ``found`` says to set for the job of ``choice``, played; or what it has already."""
    pick, options = pick_of(found), choice.switches(inputs.workload)
    cap_mb = found.setting.cap_mb if pick == "cap" else None
    return play(inputs, Choice(pick=pick, cap_mb=cap_mb, options=options))


def pick_of(found: Recommendation) -> Pick:
    """What ``found`` says to set, or what the job has already."""
    is_own = found.setting.pick == "default" and found.against != DEFAULT_WORDS
    return "as-run" if is_own else found.setting.pick


def round_cap_mb(inputs: Inputs, choice: Choice) -> float | None:
    """The round cap to set, the same on every page; where none is, the one that comes nearest to it."""
    job = under(inputs, choice.switches(inputs.workload))
    found = tune(job)
    if found.setting.cap_mb is not None:
        return found.setting.cap_mb
    row = sim.round_cap(sweep(job), found.plateau)
    return None if row is None else row.bucket_cap_mb
