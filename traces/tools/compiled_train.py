"""A user's compiled training script: one model under DDP in several cases, by turns, each of them recorded.

Usage, as a rank: ``python -m traces.tools.compiled_train FACTORY FOLDER [--cases C] [--backend B] [--turns
N]``. A case is what ``sim.assign`` takes; without ``optimize_ddp`` nothing is compiled. FOLDER gets a
recording of each.
"""

import argparse
import random
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.recorder.models import load_factory
from sim.recorder.training_step import find_loss
from sim.units import MIB
from sim.validator.ranks.model import give_own_code

Cases = dict[str, dict[str, Any]]
_CUT: dict[str, Any] = {"optimize_ddp": "ddp_optimizer"}
CASES: Cases = {
    "eager, 25": {"bucket_cap_mb": 25},
    "eager, 4": {"bucket_cap_mb": 4},
    "cuts of 25, buckets of 25": {"bucket_cap_mb": 25, **_CUT, "compile_cap_mb": 25},
    "cuts of 25, buckets of 4": {"bucket_cap_mb": 4, **_CUT, "compile_cap_mb": 25},
    "cuts of 10, buckets of 10": {"bucket_cap_mb": 10, **_CUT, "compile_cap_mb": 10},
    "cuts of 1, buckets of 1": {"bucket_cap_mb": 1, **_CUT, "compile_cap_mb": 1},
    "cuts of 1, buckets of 25": {"bucket_cap_mb": 25, **_CUT, "compile_cap_mb": 1},
    "one graph, buckets of 25": {"bucket_cap_mb": 25, "optimize_ddp": "no_optimization"},
}
_STEPS = 4  # of a turn; every other has a plain backward before it, whose gradients are dropped


class Lane:
    """One case: a model of its own, with code of its own, so that Dynamo compiles it for itself."""

    def __init__(self, factory: str, options: dict[str, Any], number: int, backend: str) -> None:
        torch.manual_seed(0)
        model, self._batch = load_factory(factory)
        give_own_code(model, number)
        self._mode = options.get("optimize_ddp")
        inner: Any = torch.compile(model.train(), backend=backend) if self._mode else model.train()
        self.ddp = DistributedDataParallel(inner, bucket_cap_mb=options["bucket_cap_mb"])
        if "compile_cap_mb" in options:
            self.ddp.bucket_bytes_cap = options["compile_cap_mb"] * MIB
        self._optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-4)

    def recorded(self, folder: Path) -> AbstractContextManager[Any]:
        """What ``turn`` tells its steps to."""
        return sim.record(self.ddp, folder)

    def turn(self, recording: Any = None) -> None:
        """Some steps from a common start."""
        dist.barrier()
        with torch._dynamo.config.patch(optimize_ddp=self._mode or False):
            for step in range(_STEPS):
                if step % 2:
                    with self.ddp.no_sync():
                        find_loss(self._forward()).backward()
                    self._optimizer.zero_grad()
                find_loss(self._forward()).backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                if recording is not None:
                    recording.step()

    def _forward(self) -> Any:
        batch = self._batch
        return self.ddp(**batch) if isinstance(batch, dict) else self.ddp(*batch)


def main() -> None:
    """All cases by turns, in another order every time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("factory")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    lanes = {
        name: Lane(options.factory, case, number, options.backend)
        for number, (name, case) in enumerate(CASES.items())
    }
    for lane in lanes.values():
        lane.turn()
    names = list(CASES)
    drawn = random.Random(0)
    with ExitStack() as stack:
        recordings = {
            name: stack.enter_context(lane.recorded(options.folder / name)) for name, lane in lanes.items()
        }
        for _ in range(options.turns):
            for name in drawn.sample(names, len(names)):
                lanes[name].turn(recordings[name])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
