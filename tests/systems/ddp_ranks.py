"""Starts the ranks that run cases for real, and reads what they answer."""

import json
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.effort import PATIENCE_S
from tests.ranks import start

Case = dict[str, Any]
Answer = dict[str, Any]


def run_cases(
    cases: list[Case],
    *,
    worker: str = "ddp_worker",
    world_size: int = 2,
    limit_s: float = PATIENCE_S,
    fresh: bool = False,
    **environment: str,
) -> list[list[Answer]]:
    """What every rank of ``worker`` answers to every case, ``answers[case][rank]``; ``fresh``: see ``start``.

    Raises:
        AssertionError: a rank failed, or did not end within ``limit_s`` seconds; it names the case. Or ranks
            do not agree on which collectives there were, in which order.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answers = Path(folder) / "cases.json", Path(folder) / "answers"
        asked.write_text(json.dumps(cases))
        said = [Path(folder) / f"said.{rank}" for rank in range(world_size)]
        ranks = [
            start(
                f"tests.systems.{worker}",
                [asked, answers, f"{folder}/store"],
                said[rank],
                {"RANK": str(rank), "WORLD_SIZE": str(world_size), "GLOO_SOCKET_IFNAME": "lo"}
                | {"TORCH_FR_BUFFER_SIZE": "1000"}
                | environment,
                fresh=fresh,
            )
            for rank in range(world_size)
        ]
        _wait(ranks, limit_s)
        told = [_lines(Path(f"{answers}.{rank}")) for rank in range(world_size)]
        done = min(map(len, told))
        if done < len(cases):
            raise AssertionError(f"case {done} was not answered: {cases[done]}\n" + _ends(said))
    together = [list(by_rank) for by_rank in zip(*told, strict=True)]
    for case, by_rank in zip(cases, together, strict=True):
        _check_agreement(case, by_rank)
    return together


def _wait(ranks: list[BaseProcess], limit_s: float) -> None:
    """Until all have ended, or one has failed and the others had a moment to say what they saw."""
    deadline = time.monotonic() + limit_s
    try:
        while any(rank.exitcode is None for rank in ranks) and time.monotonic() < deadline:
            if any(rank.exitcode for rank in ranks):
                deadline = min(deadline, time.monotonic() + 5)
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _lines(path: Path) -> list[Answer]:
    """The answers written out in full."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _ends(said: list[Path]) -> str:
    return "\n".join(f"rank {rank}: {path.read_text()[-1500:]}" for rank, path in enumerate(said))


def _check_agreement(case: Case, by_rank: list[Answer]) -> None:
    """All ranks take part in the same collectives in the same order, by whatever hooks they launch them."""
    facts = [
        [(e["kind"], e["elements"], e["dtype"], e.get("root")) for e in answer["events"]]
        for answer in by_rank
    ]
    assert all(own == facts[0] for own in facts), f"ranks launched different collectives: {case}"
