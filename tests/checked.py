"""Ranks that check themselves: each tries cases, and writes how those that failed did."""

import gc
import json
import os
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_together


def check_each(
    rank: int,
    folder: Path,
    cases: Mapping[str, Callable[[], None]],
    world_size: int = 2,
    timeout: timedelta | None = None,
) -> None:
    """Call every case on one of some gloo ranks, and end the process: how cases failed is in a JSON file."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    failed: dict[str, str] = {}
    for name, case in cases.items():
        try:
            case()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001
            failed[name] = traceback.format_exc()
        gc.collect()
    (folder / f"failed-{rank}.json").write_text(json.dumps(failed))
    dist.barrier()
    gc.collect()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


def assert_nothing_fails(worker: str, folder: Path, *words: str, world_size: int = 2) -> None:
    """Every case of ranks of ``python -m worker RANK FOLDER WORD…``, which check themselves."""
    ended = run_together(worker, folder, *words, world_size=world_size)
    assert not any(code for code, _ in ended), "".join(errors[-2000:] for _, errors in ended)
    failed = [json.loads((folder / f"failed-{rank}.json").read_text()) for rank in range(world_size)]
    assert not any(failed), "\n".join(said for one in failed for said in one.values())
