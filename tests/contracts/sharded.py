"""The manual's table of sharded systems, from ``traces/systems``: ``python -m tests.contracts.sharded``."""

from pathlib import Path

from sim.nouns.comparison import CandidateAgreement
from tests.scoring import scored

SYSTEMS = Path(__file__).parents[2] / "traces" / "systems"
_COLUMNS = ("record", "system", "error", "measured step, ms", "95 % interval", "predicted, ms")


def records() -> list[Path]:
    """The records of sharded systems."""
    return sorted(SYSTEMS.glob("sharded-*"))


def table() -> list[str]:
    """The table, a line each."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for directory in records():
        rows = scored(directory).rows
        lines += ["| " + " | ".join([f"`{directory.name}`", *_cells(row)]) + " |" for row in rows]
    return lines


def _cells(row: CandidateAgreement) -> list[str]:
    low, high = row.step_low_ns / 1e6, row.step_high_ns / 1e6
    return [
        f"`{row.name}`",
        f"{row.step_error:+.1%}".replace("%", " %"),
        f"{row.measured_step_ns / 1e6:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{row.predicted_step_ns / 1e6:.1f}",
    ]


if __name__ == "__main__":
    print("\n".join(table()))
