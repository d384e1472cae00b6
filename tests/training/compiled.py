"""Measures DDP under torch.compile: ``python -m tests.training.compiled DIRECTORY``, as root, in a box.

First the wire is calibrated. Then the cases of ``compiled_train`` run by turns, each recorded. The record has
their steps beside the workload of the job that was not compiled; ``own`` has the workload that each recording
gave. The table that is printed holds the one and the other to what was measured.
"""

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import sim
from sim.formats.record_files import load_record, recorded_step, save_measurements, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Agreement
from sim.truth.recorded_step import hooked
from tests.training.compiled_train import CASES
from tests.training.measure import run

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


def measure(factory: str, backend: str, turns: int, hardware: Path, folder: Path) -> None:
    """One job on two hosts; the record is ``folder``."""
    recordings = folder.with_suffix(".recordings")
    train = (sys.executable, "-m", "tests.training.compiled_train", factory, str(recordings))
    run("box", *BOX[1:], "--", *train, "--backend", backend, "--turns", str(turns))
    workloads, measured = {}, []
    for name in CASES:
        imported = recordings / f"{name} imported"
        run("import", "recording", str(recordings / name), "-o", str(imported))
        workloads[name] = sim.load_workload(imported / "workload.json")
        step = recorded_step(imported / "workload.json")
        assert step is not None, name
        measured.append(replace(step, name=name, asked=sim.assign(workloads[EAGER], **CASES[name])))
    start_record(folder, workloads[EAGER], sim.load_hardware(hardware))
    save_measurements(folder, measured)
    (folder / "own").mkdir()
    for name, workload in workloads.items():
        (folder / "own" / f"{name}.json").write_text(sim.to_text(workload))
    shutil.rmtree(recordings)


def scored(folder: Path) -> Agreement:
    """Every case as it is predicted from the recording of the job that was not compiled."""
    record = load_record(folder)
    (eager,) = (one for one in record.candidates if one.name == EAGER)
    workload, hardware = hooked(record.workload, record.hardware, eager)
    return sim.agreement(replace(record, workload=workload, hardware=hardware), attributed=False)


def table(directory: Path = TRACES) -> list[str]:
    """A row a case."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    for folder in sim.find_records(directory):
        record = load_record(folder)
        for row, measured in zip(scored(folder).rows, record.candidates, strict=True):
            asked, observed = measured.asked, measured.observed
            assert asked is not None
            assert observed is not None
            own = sim.load_workload(folder / "own" / f"{row.name}.json")
            said = sim.simulate(record.workload, record.hardware, asked, "analytic").workload
            job = hooked(own, record.hardware, measured)
            held = sim.simulate(*job, Assignment(bucket_indices=observed), "analytic")
            cells = (
                row.name,
                f"{row.measured_step_ns / 1e6:.0f}",
                f"{row.step_low_ns / 1e6:.0f} to {row.step_high_ns / 1e6:.0f}",
                "as said" if said.order() == own.order() else "another",
                "as said" if asked.bucket_indices == observed else "others",
                f"{row.step_error:+.1%}",
                f"{sim.summarize(held).step_ns / row.measured_step_ns - 1:+.1%}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return lines


JOBS = {"chain-box-2x1gbit": ("tests.training.paced_chain:chain", "aot_eager")}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure DDP under torch.compile in a cluster in a box.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    hardware = options.directory / "wire.json"
    if not hardware.exists():
        run("calibrate", *BOX, "--largest", "64MiB", "-o", str(hardware))
    for name, (factory, backend) in JOBS.items():
        measure(factory, backend, options.turns, hardware, options.directory / name)
    print("\n".join(table(options.directory)))


if __name__ == "__main__":
    main()
