"""Measures DDP under torch.compile: ``python -m traces.tools.compiled DIRECTORY``, as root, in a box.

First the wire is calibrated. Then the cases of ``compiled_train`` run by turns, each recorded. The record has
their steps beside the workload of the job that was not compiled; ``own`` has the workload that each recording
gave. The tables that are printed hold the one and the other to what was measured.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import sim
from sim.formats.record_files import load_record, recorded_step, save_measurements, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Measurement, Record
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.truth.fit import hooked
from sim.truth.scoring import Agreement, agree
from traces.tools.compiled_train import CASES
from traces.tools.measure import run

TRACES = Path(__file__).parents[2] / "traces" / "compiled"
EAGER = "eager, 25"
BOX = ("--box", "2", "--rate", "1gbit")
_HEAD = (
    "case",
    "measured step, ms",
    "95 % interval",
    "order",
    "buckets",
    "error, from the eager recording",
    "error, from its own recording",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model's factory and the backend of torch.compile."""

    factory: str
    backend: str


JOBS = {"chain-box-2x1gbit": Job(factory="traces.tools.paced_chain:chain", backend="aot_eager")}


def measure(job: Job, turns: int, hardware: Path, folder: Path) -> None:
    """One job on two hosts; the record is ``folder``."""
    recordings = folder.with_suffix(".recordings")
    train = (sys.executable, "-m", "traces.tools.compiled_train", job.factory, str(recordings))
    how = ("--backend", job.backend, "--turns", str(turns))
    run("box", *BOX[1:], "--", *train, *how)
    workloads: dict[str, Workload] = {}
    steps: list[Measurement] = []
    for name, options in CASES.items():
        imported = recordings / f"{name} imported"
        run("import", "recording", str(recordings / name), "-o", str(imported))
        workloads[name] = sim.load_workload(imported / "workload.json")
        step = recorded_step(imported / "workload.json")
        assert step is not None, name
        steps.append(replace(step, name=name, asked=sim.assign(workloads[EAGER], **options)))
    start_record(folder, workloads[EAGER], sim.load_hardware(hardware))
    save_measurements(folder, steps)
    (folder / "own").mkdir()
    for name, workload in workloads.items():
        (folder / "own" / f"{name}.json").write_text(sim.to_text(workload))
    shutil.rmtree(recordings)


def played(record: Record) -> dict[str, Timeline]:
    """By name, every case as it is predicted from the recording of the job that was not compiled."""
    (eager,) = (one for one in record.candidates if one.name == EAGER)
    timelines = {}
    for one in record.candidates:
        assert one.asked is not None
        job = hooked(record.workload, record.hardware, eager)
        timelines[one.name] = sim.simulate(*job, one.asked, "analytic")
    return timelines


def scored(record: Record) -> Agreement:
    """The record against these predictions."""
    return agree(record, {name: sim.summarize(timeline) for name, timeline in played(record).items()})


def table(folder: Path) -> list[str]:
    """A row a case of the record."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    record = load_record(folder)
    said = played(record)
    for row, one in zip(scored(record).rows, record.candidates, strict=True):
        assert one.asked is not None
        assert one.observed is not None
        own = sim.load_workload(folder / "own" / f"{row.name}.json")
        job = hooked(own, record.hardware, one)
        held = sim.simulate(*job, Assignment(bucket_indices=one.observed), "analytic")
        order = "as said" if said[row.name].workload.order() == own.order() else "another"
        cells = (
            row.name,
            f"{row.measured_step_ns / 1e6:.0f}",
            f"{row.step_low_ns / 1e6:.0f} to {row.step_high_ns / 1e6:.0f}",
            order,
            "as said" if one.asked.bucket_indices == one.observed else "others",
            f"{row.step_error:+.1%}",
            f"{sim.summarize(held).step_ns / row.measured_step_ns - 1:+.1%}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure what is not in DIRECTORY yet, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure DDP under torch.compile in a cluster in a box.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=[*JOBS])
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    hardware = options.directory / "wire.json"
    if not hardware.exists():
        run("calibrate", *BOX, "--largest", "64MiB", "-o", str(hardware))
    for name in options.jobs:
        folder = options.directory / name
        if not folder.exists():
            measure(JOBS[name], options.turns, hardware, folder)
        print("\n".join([name, "", *table(folder), ""]))


if __name__ == "__main__":
    main()
