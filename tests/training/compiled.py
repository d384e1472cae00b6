"""Measures DDP under torch.compile: ``python -m tests.training.compiled DIRECTORY``, as root, in a box.

First the wire is calibrated. Then the cases of ``compiled_train`` run by turns, each recorded. The record has
their steps beside the workload of the job that was not compiled; ``own`` has the workload that each recording
gave. The tables that are printed hold the one and the other to what was measured. The Python reducer's steps
are stamped by the job itself: of its own workload no more is known than how long a plain backward takes.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import sim
from sim.formats.record_files import load_record, recorded_step, save_measurements, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Agreement
from sim.nouns.measurement import Measurement
from sim.nouns.records import Record
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.compile_cuts import PYTHON_REDUCER
from sim.systems.python_reducer import as_traced
from sim.truth.recorded_step import hooked
from sim.truth.scoring import agree
from tests.training.compiled_train import SETS
from tests.training.measure import run
from tests.training.stamped_steps import measured

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
    """A model's factory, the backend of torch.compile, and which cases of ``compiled_train``."""

    factory: str
    backend: str
    cases: str


_CHAIN = "tests.training.paced_chain:chain"
JOBS = {
    "chain-box-2x1gbit": Job(factory=_CHAIN, backend="aot_eager", cases="reducer"),
    "chain-python-reducer-box-2x1gbit": Job(factory=_CHAIN, backend="inductor", cases="python_reducer"),
}


def measure(job: Job, turns: int, hardware: Path, folder: Path) -> None:
    """One job on two hosts; the record is ``folder``."""
    recordings = folder.with_suffix(".recordings")
    train = (sys.executable, "-m", "tests.training.compiled_train", job.factory, str(recordings))
    how = ("--cases", job.cases, "--backend", job.backend, "--turns", str(turns))
    run("box", *BOX[1:], "--", *train, *how)
    workloads: dict[str, Workload] = {}
    steps: list[Measurement] = []
    for name, options in SETS[job.cases].items():
        if options.get("optimize_ddp") == PYTHON_REDUCER:
            asked = sim.assign(workloads[EAGER], **options)
            sent = as_traced(workloads[EAGER])
            steps.append(measured(name, recordings / name, asked, sent, steps[0]))
            continue
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
    """By name, every case as it is predicted from the recording of the job that was not compiled.

    The recorder's hook is in the steps that it saw, and not in those that a job stamped itself.
    """
    (eager,) = (one for one in record.candidates if one.name == EAGER)
    timelines = {}
    for one in record.candidates:
        assert one.asked is not None
        seen_by = eager if one.provenance["source"] == eager.provenance["source"] else one
        job = hooked(record.workload, record.hardware, seen_by)
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
        if (own_file := folder / "own" / f"{row.name}.json").exists():
            own = sim.load_workload(own_file)
            job = hooked(own, record.hardware, one)
            held = sim.simulate(*job, Assignment(bucket_indices=one.observed), "analytic")
            order = "as said" if said[row.name].workload.order() == own.order() else "another"
        else:
            order = "not seen"
            held = sim.simulate(_lasting(record.workload, one), record.hardware, one.asked, "analytic")
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


def _lasting(workload: Workload, one: Measurement) -> Workload:
    """The workload with a backward as long as the plain ones of ``one``, and as much beside it."""
    ratio = one.plain_backward_ns / workload.backward_ns
    return workload.retimed(
        lambda times: tuple(None if time is None else round(time * ratio) for time in times),
        backward_ns=one.plain_backward_ns,
        forward_ns=one.plain_step_ns - one.plain_backward_ns - workload.optimizer_ns,
    )


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
