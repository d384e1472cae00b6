"""``python -m sim.tuned train.py ARGS``: a training script that nobody edits tunes its own buckets.

Under a launcher: ``torchrun --nproc-per-node 2 -m sim.tuned train.py --lr 1e-3``. The script runs in this
process, as under a profiler. Each DistributedDataParallel that it makes gets a tuner; when the script ends
the first rank says on stderr how each tuning did.
"""

import argparse
import runpy
import sys
from collections.abc import Sequence
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.loop import Autotune, autotune
from sim.errors import SimError
from sim.formats.files import check_writable, make_directory
from sim.recorder.watch import OwnHook

_made = count()


def attach(ddp: DistributedDataParallel, live: Path | None = None, cache: Path | None = None) -> Autotune:
    """Tune ``ddp`` from its next forward on, with these options of ``sim.autotune``.

    The tuner steps at the start of each forward, which is between two steps as well; a forward without
    gradients is no step. Only the first model of a process has the cache and writes to ``live`` itself, if
    all ranks share it; others write to a folder in ``live``. Once the tuning has ended no hook is left.
    """
    number = next(_made)
    place = f"model-{number}" if number else ""
    if ddp.process_group.size() != dist.get_world_size():
        place = f"model-{number}-rank-{dist.get_rank()}"
    tuner = autotune(ddp, live=None if live is None else live / place, cache=None if place else cache)
    handles: list[Any] = []

    def before_forward(module: torch.nn.Module, *_: Any) -> None:
        if module is not ddp or not handles:
            return
        if torch.is_grad_enabled():
            tuner.step()
        handles.pop().remove()
        go_first()

    def go_first() -> None:
        """Register the hook ahead of those that a recording has registered meanwhile."""
        if tuner.result is None:
            handles.append(ddp.register_forward_pre_hook(OwnHook(before_forward), prepend=True))

    go_first()
    return tuner


def main(words: Sequence[str]) -> None:
    """Run the script that ``words`` name, with a tuner on each model that it makes; it ends as it would."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.tuned", description="Run a training script, unedited: it tunes its own buckets."
    )
    parser.add_argument("--cache", type=Path, help="a file for what is kept: the next run begins with it")
    parser.add_argument("--live", type=Path, help="a directory for what it is doing; dash --watch shows it")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is a module's name")
    parser.add_argument("script", help="what trains, such as train.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    given = parser.parse_args(words)
    try:
        if given.cache is not None:
            check_writable(given.cache, "--cache")
        if given.live is not None:
            make_directory(given.live, "--live")
    except SimError as error:
        parser.error(str(error))
    told: list[tuple[str, Autotune]] = []  # of each model, for its first rank
    make = DistributedDataParallel.__init__

    @wraps(make)
    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        group = self.process_group
        name = f"autotune of {type(self.module).__name__} on {group.size()} rank(s)"
        told.append((name if group.rank() == 0 else "", attach(self, given.live, given.cache)))

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign]
    sys.argv = [given.script, *given.arguments]
    try:
        if given.is_module:
            sys.path[0] = ""
            runpy.run_module(given.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(given.script).resolve().parent)
            runpy.run_path(given.script, run_name="__main__")
    finally:
        lines = [f"{name}: {tuner}" for name, tuner in told if name]
        if not told:
            lines = ["autotune: nothing was tuned: the script made no DistributedDataParallel"]
        sys.stderr.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
