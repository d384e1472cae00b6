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
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.loop import Autotune
from sim.recorder.watch import OwnHook


def attach(ddp: DistributedDataParallel) -> Autotune:
    """Tune ``ddp`` from its next forward on.

    The tuner steps at the start of each forward, which is between two steps as well; a forward without
    gradients is no step. Once the tuning has ended no hook is left.
    """
    tuner = Autotune(ddp)
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
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is a module's name")
    parser.add_argument("script", help="what trains, such as train.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    given = parser.parse_args(words)
    told: list[tuple[str, Autotune]] = []  # of each model, for its first rank
    make = DistributedDataParallel.__init__

    @wraps(make)
    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        group = self.process_group
        name = f"autotune of {type(self.module).__name__} on {group.size()} rank(s)"
        told.append((name if group.rank() == 0 else "", attach(self)))

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
