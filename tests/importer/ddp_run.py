"""What two real ranks under DDP write of themselves; run once in a session of tests."""

import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

from sim.nouns.workload import Workload
from tests.handmade import handmade
from tests.importer.ddp_run_worker import DIMS
from tests.ranks import run_together

BUCKETS = ((9, 8, 7, 6, 5, 4), (3, 2, 1, 0))
SIZES = (20448 * 4, 20704 * 4)
_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def folder_of_run() -> Path:
    """A folder with ``recorder_R.json``, ``log_R.json``, ``printed_R.txt`` and ``trace_R.json`` of rank R."""
    _kept.append(tempfile.TemporaryDirectory())
    folder = Path(_kept[0].name)
    kept = {"TORCH_FR_BUFFER_SIZE": "2000"}
    for code, errors in run_together("tests.importer.ddp_run_worker", folder, environment=kept):
        assert code == 0, errors
    return folder


def files(kind: str, ending: str = "json") -> list[Path]:
    """The two ranks' files of one kind."""
    return [folder_of_run() / f"{kind}_{rank}.{ending}" for rank in range(2)]


def model() -> Workload:
    """The model of the run, ready from the back, 1 us a gradient."""
    shapes = [shape for a, b in pairwise(DIMS) for shape in ((b, a), (b,))]
    return handmade(
        [1000 * (len(shapes) - index) for index in range(len(shapes))],
        name="mlp",
        names=[f"{index // 2}.{'bias' if index % 2 else 'weight'}" for index in range(len(shapes))],
        shapes=shapes,
        forward_ns=5000,
        optimizer_ns=2000,
        loss_ns=100,
    )
