"""What is remembered between two moves of a knob.

Keys are our own digests of files and the what-ifs on them. A new cap plays one assignment; only new inputs
search and sweep again. Results are frozen and handed out as they are, without pickling. They weigh as many
gradients as they tell of, or, as even a small job's have texts and parts of their own, ``_LEAST``: without it
100 kB of a recommendation for 20 gradients would weigh as 20, and thousands be kept.
"""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st

import sim
from app.choosing import Choice, Options, WhatIf
from app.remembering import Remembered
from sim.nouns.assignment import Assignment
from sim.nouns.band import BandPoint
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.path import PathSpan
from sim.nouns.recommendation import Recommendation
from sim.nouns.records import Record
from sim.nouns.report import Report
from sim.nouns.rows import SweepRow
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.truth.recorded_job import held_to

Stamp = tuple[tuple[str, int, int], ...]
Progress = Callable[[str], None]

_GRADIENTS = 128_000  # 125 MB of timelines at most
_RECOMMENDED_GRADIENTS = 64_000  # 70 MB of recommendations
_DRAWN_GRADIENTS = 650_000  # for the band of each cap: some 4 s in all, however many a step has
_FEWEST_DRAWS, _MOST_DRAWS = 400, 4_000
_LEAST = 1_000  # so that at most 128 timelines are kept, and 64 recommendations


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A workload and a machine, with the digests of the files that they come from.

    ``what_if`` is the key of what was changed in them since, "" where nothing was. ``slowest`` is the
    workload as the slowest other rank runs it, None where all ranks are alike; ``straggler`` its key.
    """

    workload: Workload
    hardware: Hardware
    workload_digest: str
    hardware_digest: str
    what_if: str = ""
    slowest: Workload | None = None
    straggler: str = ""

    @property
    def search_key(self) -> str:
        """What searches are remembered by, which know of no slowest rank."""
        return " ".join([self.workload_digest, self.hardware_digest, *filter(None, [self.what_if])])

    @property
    def key(self) -> str:
        """What results are remembered by."""
        return " ".join([self.search_key, *filter(None, [self.straggler])])

    @property
    def alike(self) -> "Inputs":
        """The same with ranks that are alike: what searches are made for."""
        return replace(self, slowest=None, straggler="")

    @property
    def weight(self) -> int:
        """What a result of these inputs weighs, in gradients."""
        return max(len(self.workload.gradients), _LEAST)


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


_WORKLOADS: Remembered[tuple[Workload, str]] = Remembered(_GRADIENTS)
_HARDWARE: Remembered[tuple[Hardware, str]] = Remembered(256)
_SCALED: Remembered[Inputs] = Remembered(_GRADIENTS)
_AS_MEASURED: Remembered[Inputs] = Remembered(_GRADIENTS)
_PLAYED: Remembered[Played] = Remembered(_GRADIENTS)
_BEST: Remembered[Assignment] = Remembered(_RECOMMENDED_GRADIENTS)
_TUNED: Remembered[Recommendation] = Remembered(_RECOMMENDED_GRADIENTS)
_SWEPT: Remembered[tuple[SweepRow, ...]] = Remembered(256)
_BANDS: Remembered[tuple[BandPoint, ...]] = Remembered(256)


def stamp(path: Path) -> Stamp:
    """What changes when a file, or a file right in a directory, does; empty where there is none."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)


def load_workload(path: Path) -> tuple[Workload, str]:
    """A workload from a file, with its digest."""

    def load() -> tuple[Workload, str]:
        workload = sim.load_workload(path)
        return workload, sim.digest(workload)

    return _WORKLOADS.get((str(path), stamp(path)), load, lambda loaded: len(loaded[0].gradients))


def load_hardware(path: Path) -> tuple[Hardware, str]:
    """A hardware from a file, with its digest."""

    def load() -> tuple[Hardware, str]:
        hardware = sim.load_hardware(path)
        return hardware, sim.digest(hardware)

    return _HARDWARE.get((str(path), stamp(path)), load)


@st.cache_data(max_entries=8, show_spinner="Reading the upload …")
def parse_hardware(content: bytes, name: str) -> tuple[Hardware, str]:
    """A hardware from an upload, with its digest."""
    hardware = sim.parse_hardware(content, name)
    return hardware, sim.digest(hardware)


def as_measured(key: Hashable, read: Callable[[], Record]) -> Inputs:
    """The inputs from which the steps of a record are predicted, in the box and with the ranks it was run on.

    ``key`` stands for what ``read`` reads.

    Raises:
        SimError: as ``read`` and ``sim.as_measured``.
    """

    def make() -> Inputs:
        record = sim.as_measured(read())
        return Inputs(
            workload=record.workload,
            hardware=record.hardware,
            workload_digest=sim.digest(record.workload),
            hardware_digest=sim.digest(record.hardware),
        )

    return _AS_MEASURED.get(key, make, lambda made: made.weight)


def held(inputs: Inputs, measured: Measurement) -> Inputs:
    """The inputs as the job ran, held to the step that it took while it was recorded."""

    def make() -> Inputs:
        job = held_to(inputs.workload, inputs.hardware, measured)
        return replace(
            inputs,
            workload=job.workload,
            hardware=job.hardware,
            workload_digest=sim.digest(job.workload),
            hardware_digest=sim.digest(job.hardware),
        )

    return _AS_MEASURED.get((inputs.key, sim.digest(measured)), make, inputs.weight)


def scale(inputs: Inputs, what_if: WhatIf) -> Inputs:
    """The inputs with the what-ifs applied; themselves where there are none."""
    if what_if.is_none:
        return inputs
    machine = replace(what_if, slowest_rank=1.0)

    def make() -> Inputs:
        workload, hardware = machine.apply(inputs.workload, inputs.hardware)
        return replace(
            inputs,
            workload=workload,
            hardware=hardware,
            what_if="" if machine.is_none else machine.key,
            slowest=what_if.slowest(workload),
            straggler="" if what_if.slowest_rank == 1.0 else f"slowest x {what_if.slowest_rank!r}",
        )

    return _SCALED.get((inputs.key, what_if.key), make, inputs.weight)


def play(inputs: Inputs, choice: Choice) -> Played:
    """What happens under the chosen assignment."""

    def make() -> Played:
        assignment = choice.assignment(inputs.workload, lambda: best(inputs))
        return play_assignment(inputs, assignment)

    return _PLAYED.get((inputs.key, choice.key), make, inputs.weight)


def play_assignment(inputs: Inputs, assignment: Assignment) -> Played:
    """What happens under an assignment, played anew."""
    # The analytic engine gives simpy's timeline, to the nanosecond, sooner.
    timeline = sim.simulate(inputs.workload, inputs.hardware, assignment, "analytic", slowest=inputs.slowest)
    return played_of(timeline)


def played_of(timeline: Timeline) -> Played:
    """What a timeline means."""
    path = sim.critical_path(timeline)
    return Played(timeline=timeline, report=sim.summarize(timeline, path), path=path)


def best(inputs: Inputs, progress: Progress | None = None) -> Assignment:
    """The assignment that ``tune`` recommends, without waiting for all else that it finds."""
    found = tuned(inputs)
    if found is not None:
        return found.assignment

    def make() -> Assignment:
        return sim.best(inputs.workload, inputs.hardware, progress=progress)

    return _BEST.get(inputs.search_key, make, inputs.weight)


def tune(inputs: Inputs, progress: Progress | None = None) -> Recommendation:
    """The best assignment, its proof, and what each knob reaches; ``progress`` is told of long searches."""

    def make() -> Recommendation:
        return sim.tune(inputs.workload, inputs.hardware, progress=progress)

    return _TUNED.get(inputs.search_key, make, inputs.weight)


def tuned(inputs: Inputs) -> Recommendation | None:
    """What ``tune`` found, if it was asked before."""
    return _TUNED.find(inputs.search_key)


def is_searched(inputs: Inputs, options: Options) -> bool:
    """Whether ``tune`` and ``sweep`` have been asked, so that neither makes one wait."""
    return tuned(inputs) is not None and _SWEPT.find(_sweep_key(inputs, options)) is not None


def sweep(inputs: Inputs, options: Options = (), progress: Progress | None = None) -> tuple[SweepRow, ...]:
    """The step at each of a range of caps, and DDP's default: under ``options``, beside the slowest rank."""
    key = _sweep_key(inputs, options)
    if key != inputs.search_key:
        return _SWEPT.get(key, lambda: _swept_under(inputs, options, progress))

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(f"trying caps, {done} of {total}")

    def make() -> tuple[SweepRow, ...]:
        return sim.sweep(inputs.workload, inputs.hardware, progress=tell)

    return _SWEPT.get(key, make)


def _sweep_key(inputs: Inputs, options: Options) -> str:
    if not options and inputs.slowest is None:
        return inputs.search_key
    return f"{inputs.key} {json.dumps(options, sort_keys=True)}"


def _swept_under(inputs: Inputs, options: Options, progress: Progress | None) -> tuple[SweepRow, ...]:
    """The sweep of equal ranks without switches, each cap of it played anew."""
    plain = sweep(inputs.alike, progress=progress)
    known: dict[tuple[tuple[int, ...], ...], SweepRow] = {}
    rows: list[SweepRow] = []
    for row in plain:
        if progress is not None:
            progress(f"trying caps under the switches, {len(rows)} of {len(plain)}")
        assignment = sim.assign(inputs.workload, bucket_cap_mb=row.bucket_cap_mb, **dict(options))
        buckets = assignment.bucket_indices
        if buckets not in known:
            report = play_assignment(inputs, assignment).report
            sizes = [gradient.num_bytes for gradient in inputs.workload.gradients]
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


def band(inputs: Inputs, progress: Progress | None = None) -> tuple[BandPoint, ...]:
    """How far single steps range at each cap, without switches and on equal ranks; empty: none varies."""

    def make() -> tuple[BandPoint, ...]:
        caps = [row.bucket_cap_mb for row in sweep(inputs.alike, progress=progress)]
        draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, _DRAWN_GRADIENTS // len(inputs.workload.gradients)))
        return sim.step_band(inputs.workload, inputs.hardware, caps, draws=draws, progress=progress)

    return _BANDS.get(inputs.search_key, make)


def banded(inputs: Inputs) -> tuple[BandPoint, ...] | None:
    """What ``band`` found, if it was asked before."""
    return _BANDS.find(inputs.search_key)
