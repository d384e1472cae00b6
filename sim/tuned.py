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

from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.attached import Attached, attach
from sim.errors import SimError
from sim.formats.files import check_writable, make_directory


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
    attached: list[Attached] = []
    make = DistributedDataParallel.__init__

    @wraps(make)
    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        attached.append(attach(self, given.live, given.cache))

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
        if not attached:
            sys.stderr.write("autotune: nothing was tuned: the script made no DistributedDataParallel\n")
        for one in attached:
            if one.rank == 0:
                sys.stderr.write(f"{one}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
