"""Measures what ``sim.autotune`` gains: ``python -m traces.tools.autotuned DIRECTORY``, as root, in a box.

Each job trains in a cluster in a box until its tuning has ended. What it kept is then compared with DDP's
default by ``bucketsim ab``, which has seen nothing of the tuning.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from traces.tools.measure import MODELS, run

RESULTS = Path("autotuned.json")
TRACES = Path(__file__).parents[2] / "traces" / "autotuned"
OURS = "sim.recorder.models:gpt"
CASES = (
    *((f"traces.tools.models:{model}", "2gbit") for model in MODELS),
    ("traces.tools.models:gpt2", "20gbit"),  # a wire on which nothing is to be gained
    (OURS, "1gbit"),
    *((f"traces.tools.models:{model}", "500mbit") for model in MODELS),
)


def measure(factory: str, rate: str, folder: Path, rounds: int) -> dict[str, Any]:
    """How the tuning of one job ended, and what an A/B of its own says of what was kept."""
    folder.mkdir(parents=True, exist_ok=True)
    box = ("--box", "2", "--rate", rate)
    train = (sys.executable, "-m", "traces.tools.train", factory, "--autotune", str(folder))
    run("box", "2", "--rate", rate, "--", *train)
    row: dict[str, Any] = {"factory": factory, "rate": rate}
    row |= json.loads((folder / "result.json").read_text())
    assignment = folder / "assignment.json"
    if row["outcome"] == "kept":
        asked = ("--assignment", str(assignment), "--rounds", str(rounds), "--json")
        said = run("ab", factory, *box, *asked, stdout=subprocess.PIPE)
        row["independent"] = json.loads(said)
    return row


def table(directory: Path) -> str:
    """A row a job, as the manual has it."""
    lines = [
        "| job | wire | outcome | until it ended | predicted gain | its own trial | independent A/B |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in json.loads((directory / RESULTS).read_text()):
        gain, low, high = (round(row[f"predicted_{name}_ns"] / 1e6) for name in ("gain", "low", "high"))
        lines.append(
            f"| `{row['factory'].partition(':')[2]}` | {row['rate']} | {row['outcome']} "
            f"| {row['steps']} steps, {row['seconds']:.0f} s | {gain} ms [{low} to {high}] "
            f"| {_gain(row.get('ab'))} | {_gain(row.get('independent'))} |"
        )
    return "\n".join(lines)


def _gain(ab: dict[str, Any] | None) -> str:
    if ab is None:
        return "-"
    names = ("gain_low_ns", "gain_ns", "gain_high_ns", "default_step_ns")
    low, gain, high, step = (round(ab[name] / 1e6) for name in names)
    return f"{gain} ms [{low} to {high}] of {step}"


def main() -> None:
    """Measure what is asked for, one job after the other; what was measured is kept."""
    parser = argparse.ArgumentParser(description="Measure what autotune gains in a cluster in a box.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=30, help="of the independent A/B")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for factory, rate in CASES:
        folder = options.directory / f"{factory.partition(':')[2]}-{rate}"
        rows.append(measure(factory, rate, folder, options.rounds))
        (options.directory / RESULTS).write_text(json.dumps(rows, indent=1))
    print(table(options.directory))


if __name__ == "__main__":
    main()
