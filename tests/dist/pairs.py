"""Starts one of the tests' own workers as two ranks, and waits for both."""

from pathlib import Path

from tests.effort import PATIENCE_S
from tests.ranks import start

REPOSITORY = Path(__file__).parents[2]


def run_pair(worker: str, folder: Path, *cases: str) -> list[tuple[int, str]]:
    """Exit code and errors of each rank of ``python -m worker RANK FOLDER CASE…``."""
    said = [folder / f"said.{rank}" for rank in (0, 1)]
    ranks = [start(worker, [rank, folder, *cases], said[rank]) for rank in (0, 1)]
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
        rank.join()
    return [(rank.exitcode or 0, path.read_text()) for rank, path in zip(ranks, said, strict=True)]
