"""A user's compiled training script: one model under DDP in several cases, by turns, each of them recorded.

Usage, as a rank: ``python -m tests.training.compiled_train FACTORY FOLDER [--cases C] [--backend B] [--turns
N]``. A case is what ``sim.assign`` takes; without ``optimize_ddp`` nothing is compiled. FOLDER gets a
recording of each; of the Python reducer, which ``sim.record`` does not take, ``stamped_steps``.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch.distributed as dist
from torch._dynamo.compiled_autograd import _enable
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.recorder.factory import load_factory
from sim.recorder.training_step import find_loss
from sim.systems.compile_cuts import PYTHON_REDUCER
from sim.units import MIB
from sim.validator.ranks.wrapping.compiling import give_own_code
from tests.training.stamped_steps import Stamps

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
PYTHON_CASES: Cases = {
    "eager, 25": {"bucket_cap_mb": 25},
    "eager, 4": {"bucket_cap_mb": 4},
    **{
        f"Python reducer, {cap_mb}": {"bucket_cap_mb": cap_mb, "optimize_ddp": PYTHON_REDUCER}
        for cap_mb in (25, 10, 4)
    },
}
SETS = {"reducer": CASES, "python_reducer": PYTHON_CASES}
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


class PythonReducerLane(Lane):
    """One case of the Python reducer."""

    def __init__(self, factory: str, options: dict[str, Any], number: int, backend: str) -> None:
        self._cap_mb = options["bucket_cap_mb"]
        with _python_reducer(self._cap_mb, backend):
            super().__init__(factory, options, number, backend)
        self._backend = backend

    def recorded(self, folder: Path) -> AbstractContextManager[Any]:
        """Stamps of its own."""
        return nullcontext(Stamps(folder / f"rank-{dist.get_rank()}.jsonl"))

    def turn(self, recording: Any = None) -> None:
        """As any lane's. Under ``no_sync`` torch compiles another backward, without all-reduces."""
        dist.barrier()
        with _python_reducer(self._cap_mb, self._backend):
            for step in range(_STEPS):
                plain_ns = None
                if step % 2:
                    with self.ddp.no_sync():
                        _, forward, backward = self._stamped()
                    plain_ns = backward - forward
                    self._optimizer.zero_grad()
                times = self._stamped()
                self._optimizer.step()
                if recording is not None:
                    recording.step(*times, time.time_ns(), plain_ns)
                self._optimizer.zero_grad()
        if recording is not None:
            recording.write()

    def _stamped(self) -> tuple[int, int, int]:
        """Forward and backward: when the one begins and ends, and when the other ends."""
        began = time.time_ns()
        output = self._forward()
        forward = time.time_ns()
        find_loss(output).backward()
        return began, forward, time.time_ns()


@contextmanager
def _python_reducer(cap_mb: float, backend: str) -> Iterator[None]:
    """As a script switches it on, with launches left where the fusion puts them (A11.8).

    DDP's constructor leaves its cap in a setting of the process, so that each of several has it set anew.
    """
    with (
        torch._dynamo.config.patch(optimize_ddp=PYTHON_REDUCER),
        torch._inductor.config.patch(
            _fuse_ddp_communication=True,
            _fuse_ddp_bucket_size=cap_mb,
            reorder_for_peak_memory=False,
            compile_threads=1,
        ),
        _enable(lambda graph: torch.compile(graph, backend=backend, fullgraph=True)),
    ):
        yield


def main() -> None:
    """All cases by turns, in another order every time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("factory")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", choices=SETS, default="reducer")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    dist.init_process_group("gloo")
    cases = SETS[options.cases]
    lanes = {
        name: (PythonReducerLane if case.get("optimize_ddp") == PYTHON_REDUCER else Lane)(
            options.factory, case, number, options.backend
        )
        for number, (name, case) in enumerate(cases.items())
    }
    for lane in lanes.values():
        lane.turn()
    names = list(cases)
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
