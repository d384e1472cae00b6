"""Ranks of the tests' own workers, forked from a process that has imported torch already.

torch and what DistributedDataParallel imports when it is made take two of the three seconds that a small rank
lives, so that a test of a few steps would wait for little else.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed", "torch.nn.parallel.distributed", "torch._dynamo"])


def start(
    worker: str,
    arguments: Sequence[object],
    said: Path,
    environment: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
) -> BaseProcess:
    """``python -m worker ARGUMENTS`` with more in its environment; its stderr goes to ``said``.

    ``fresh``: a process of its own from the start, which has that environment before it imports anything.
    """
    context = multiprocessing.get_context("spawn") if fresh else _SERVER
    rank = context.Process(target=_run, args=(worker, [*map(str, arguments)], said, dict(environment or {})))
    with mock.patch.dict(os.environ, environment or {}) if fresh else nullcontext():
        rank.start()
    return rank


def _run(worker: str, arguments: list[str], said: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv[1:] = arguments
    runpy.run_module(worker, run_name="__main__", alter_sys=True)
