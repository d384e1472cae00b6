"""Measures real training: ``python -m traces.tools.measure DIRECTORY``, as root, in a cluster in a box.

For each rate a calibration; then for each model of ``traces.tools.models`` one recording at DDP's default
and a replay of the model itself in shuffled rounds, the default twice. Only public commands are run. The
project's records lie in ``traces/training``; the package's extra ``models`` installs the models.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import sim

MODELS = ("gpt2", "bert", "resnet18")
RATES = ("500mbit", "2gbit")
AGAIN = "default again"
# A process that holds one model gives freed memory back to the kernel in every step, to get it page by page;
# one that holds ten, as a replay does, keeps it. Kept in both, the two compute alike (sim/DECISIONS.md).
_KEPT = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


def run(*arguments: str, stdout: int | None = None) -> str:
    """``bucketsim ARGUMENTS``, with ranks of one thread that keep their memory; what it said, if piped."""
    environment = {**os.environ, **_KEPT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sim", *arguments]
    return subprocess.run(command, check=True, env=environment, stdout=stdout, text=True).stdout


def measure(model: str, rate: str, hardware: Path, folder: Path, rounds: int, steps: int) -> None:
    """One recording, one replay; the record is ``folder``."""
    factory, box = f"traces.tools.models:{model}", ["--box", "2", "--rate", rate]
    recording, imported = folder.with_suffix(".recording"), folder.with_suffix(".imported")
    train = [sys.executable, "-m", "traces.tools.train", factory, "--record", str(recording)]
    run("box", "2", "--rate", rate, "--", *train, "--steps", str(steps))
    run("import", "recording", str(recording), "-o", str(imported))
    workload = imported / "workload.json"
    again = imported / f"{AGAIN}.json"
    again.write_text(sim.to_text(sim.assign(sim.load_workload(workload))))
    run(
        *("validate", str(workload), "--hardware", str(hardware), *box, "--model", factory),
        *("--caps", "1,4,10", "--assignment", str(again)),
        *("--rounds", str(rounds), "-o", str(folder)),
    )
    shutil.rmtree(recording)
    shutil.rmtree(imported)


def main() -> None:
    """Measure all that is asked for, one after the other."""
    parser = argparse.ArgumentParser(description="Measure real training in a cluster in a box.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rates", default=",".join(RATES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=60, help="recorded steps, every other with a plain backward"
    )
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    for rate in options.rates.split(","):
        hardware = options.directory / f"wire-{rate}.json"
        if not hardware.exists():
            run("calibrate", "--box", "2", "--rate", rate, "--largest", "64MiB", "-o", str(hardware))
        for model in options.models.split(","):
            folder = options.directory / f"{model}-{rate}"
            if not folder.exists():
                measure(model, rate, hardware, folder, options.rounds, options.steps)


if __name__ == "__main__":
    main()
