"""What ranks leave in the folder of their job: beats, and the reason of a failure."""

import os
from pathlib import Path

from sim.validator.ranks.process.beats import Beat

EVENTS = "events.jsonl"
_FAILED, _ALONE, _BEAT = "failed-rank-", "alone-rank-", "beat-rank-"


def clear(folder: Path) -> None:
    """Remove what an earlier run of the same job left."""
    for pattern in (EVENTS, f"{_FAILED}*.txt", f"{_ALONE}*.txt", f"{_BEAT}*.json"):
        for path in folder.glob(pattern):
            path.unlink()


def post_beat(folder: Path, rank: int, beat: Beat) -> None:
    """Write a rank's latest beat, atomically."""
    path = folder / f"{_BEAT}{rank}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(beat.to_text())
    os.replace(fresh, path)


def read_beats(folder: Path) -> dict[int, Beat]:
    """The latest beat of each rank that has posted one."""
    return {_rank(path, _BEAT): Beat.from_text(path.read_text()) for path in folder.glob(f"{_BEAT}*.json")}


def post_failure(folder: Path, rank: int, reason: str) -> None:
    """Say that ``rank`` failed; the first reason stays, whoever gave it."""
    try:
        with open(folder / f"{_FAILED}{rank}.txt", "x") as stream:
            stream.write(reason)
    except FileExistsError:
        return


def post_alone(folder: Path, rank: int, reason: str) -> None:
    """Say that ``rank`` stopped because others did not answer, and does not know which."""
    (folder / f"{_ALONE}{rank}.txt").write_text(reason)


def failures(folder: Path) -> dict[int, str]:
    """Ranks that failed and why, the earliest first."""
    return _read(folder, _FAILED)


def left_alone(folder: Path) -> dict[int, str]:
    """Ranks that lost touch with others and what they saw of it, the earliest first."""
    return _read(folder, _ALONE)


def _read(folder: Path, stem: str) -> dict[int, str]:
    paths = sorted(folder.glob(f"{stem}*.txt"), key=lambda path: path.stat().st_mtime_ns)
    said = {_rank(path, stem): path.read_text(errors="replace").strip() for path in paths}
    return {rank: reason for rank, reason in said.items() if reason}


def _rank(path: Path, stem: str) -> int:
    return int(path.stem.removeprefix(stem))
