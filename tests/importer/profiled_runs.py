"""Starts real gloo ranks that torch.profiler watches; each set of cases runs once in a session of tests."""

import json
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.ranks import run_together

DIMS = (64, 128, 96, 80, 112, 32)
SHAPES = tuple(shape for a, b in pairwise(DIMS) for shape in ((b, a), (b,)))
STEPS = 4
EVERYDAY = (
    *("default", "small", "static", "unused", "hook", "accumulation", "no-steps", "no-shapes", "view"),
    *("shuffled", "loss", "loss-before", "clip", "norm", "metrics", "zero", "after-backward"),
    *("inference", "send"),
)
SHARDED = ("fsdp1", "fsdp2", "tensor", "pipeline")
ALONE = ("alone", "alone-ddp")
_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _run(world_size: int, cases: tuple[str, ...]) -> Path:
    _kept.append(tempfile.TemporaryDirectory())
    folder = Path(_kept[-1].name)
    worker = "tests.importer.profiled_worker"
    for code, errors in run_together(worker, folder, str(world_size), *cases, world_size=world_size):
        assert code == 0, errors
    return folder


def _folder(case: str) -> Path:
    cases = next(cases for cases in (EVERYDAY, SHARDED, ALONE) if case in cases)
    return _run(1 if cases is ALONE else 2, cases)


def traces(case: str) -> list[Path]:
    """The traces of a case, by rank."""
    return sorted(_folder(case).glob(f"{case}_[0-9].json"))


def log(case: str) -> dict[str, Any]:
    """What rank 0's DDP says of itself."""
    found: dict[str, Any] = json.loads((_folder(case) / f"{case}_log_0.json").read_text())
    return found
