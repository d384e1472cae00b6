"""Starts one of the tests' own workers as two ranks, and waits for both."""

import subprocess
import sys
from pathlib import Path

from tests.effort import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


def run_pair(worker: str, folder: Path, *cases: str) -> list[tuple[int, str]]:
    """Exit code and errors of each rank of ``python -m worker RANK FOLDER CASE…``."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", worker, str(rank), str(folder), *cases],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=PATIENCE_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, error) for process, error in zip(started, errors, strict=True)]
