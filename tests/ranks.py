"""Ranks and commands as processes of their own, forked from one that has imported torch and bucketsim.

torch and what DistributedDataParallel imports when it is made take two of the three seconds that a small rank
lives, and imports all but a tenth of a small command, so that a test of either would wait for little else.
"""

import gc
import importlib
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from sim.validator.launch import reserved_port
from tests.effort import PATIENCE_S

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *("tests.ranks", "torch.distributed", "torch.nn.parallel.distributed", "torch._dynamo"),
        *("sim.cli.commands", "sim.cli.main", "sim.validator.launch", "pydantic.dataclasses"),
        *("sim.validator.worker", "sim.autotuner.loop", "sim.recorder.live_recording"),
    ]
)

_PORTS = ExitStack()
SETTINGS: dict[str, object] = {}  # constants, by module and name, that ranks find otherwise


def free_port() -> int:
    """A port at which a store may be served, nobody else's while this process lives."""
    return _PORTS.enter_context(reserved_port())


def start(
    worker: str,
    arguments: Sequence[object],
    said: Path,
    environment: Mapping[str, str] | None = None,
    *,
    out: Path = Path(os.devnull),
    fresh: bool = False,
) -> BaseProcess:
    """``python -m worker ARGUMENTS`` with more in its environment; its stdout goes to ``out``, its stderr to
    ``said``.

    ``fresh``: a process of its own from the start, which has that environment before it imports anything.
    """
    context = multiprocessing.get_context("spawn") if fresh else _SERVER
    given = (worker, [*map(str, arguments)], said, dict(environment or {}), out, SETTINGS)
    rank = context.Process(target=_run, args=given)
    # Streamlit's AppTest leaves the script of its page as ``__main__``, which each child would run anew.
    ours, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        with mock.patch.dict(os.environ, environment or {}) if fresh else nullcontext():
            rank.start()
    finally:
        sys.modules["__main__"] = ours
    return rank


def run_together(
    worker: str, folder: Path, *words: str, world_size: int = 2, environment: Mapping[str, str] | None = None
) -> list[tuple[int, str]]:
    """Exit code and errors of each rank of ``python -m worker RANK FOLDER WORD…``."""
    said = [folder / f"said.{rank}" for rank in range(world_size)]
    ranks = [start(worker, [rank, folder, *words], path, environment) for rank, path in enumerate(said)]
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
        rank.join()
    return [(rank.exitcode or 0, path.read_text()) for rank, path in zip(ranks, said, strict=True)]


def answered(worker: str, cases: object, environment: Mapping[str, str] | None = None) -> Any:
    """What a single rank, ``python -m worker CASES ANSWERS``, makes of a file of cases; both are JSON."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answers, said = (Path(folder) / name for name in ("asked", "answers", "said"))
        asked.write_text(json.dumps(cases))
        rank = start(worker, [asked, answers], said, environment)
        rank.join(PATIENCE_S)
        rank.kill()
        assert answers.exists(), said.read_text()[-2000:]
        return json.loads(answers.read_text())


def _run(
    worker: str, arguments: list[str], said: Path, environment: dict[str, str], out: Path, settings: Any
) -> None:
    gc.freeze()  # what was imported stays: workers collect garbage after every case
    os.environ.update(environment)
    for name, value in settings.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv[1:] = arguments
    runpy.run_module(worker, run_name="__main__", alter_sys=True)
