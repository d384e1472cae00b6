"""One of two gloo ranks that tune while they train; predictions, clock and order are planted, no more is.

``python -m tests.autotune.autotune_worker RANK FOLDER``: every function of ``CASES`` is called once.
"""

import os
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import loop
from sim.errors import InputError
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.recommendation import Setting
from sim.validator.ranks import reducer as injection
from sim.validator.ranks.reducer import FixedReducer
from tests.checked import check_each

STEP_NS, NOISE_NS, SLOW_NS = 10_000_000, 200_000, 1_000_000  # on the planted clock
STEPS = 120
NO_HOOKS = [0, 0, 0, 0]
REVERTED = {"modules_buffers", "named_module_buffers", "_has_rebuilt_buckets", "_lazy_init_ran"}

made: weakref.WeakSet[Any] = weakref.WeakSet()  # Reducers of ours that live


class Noted(FixedReducer):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        made.add(self)


injection.FixedReducer = Noted  # type: ignore[misc]


class Net(nn.Module):
    """Six layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def made_for(ddp: DistributedDataParallel) -> MadeFor:
    named = list(ddp.module.named_parameters())
    return MadeFor(
        workload="planted",
        names=tuple(name for name, _ in named),
        num_bytes=tuple(parameter.nbytes for _, parameter in named),
        dtypes=("float32",) * len(named),
        world_size=2,
    )


def prediction(ddp: DistributedDataParallel, gain_ns: int = 10) -> Any:
    """Of a recommendation what a tuning reads: odd and even parameters apart, as if worth a trial."""
    count = len(list(ddp.parameters()))
    buckets = (tuple(range(1, count, 2)), tuple(range(0, count, 2)))
    best_ns, pick = 100 - gain_ns, "recommended" if gain_ns else "default"
    return SimpleNamespace(
        assignment=Assignment(bucket_indices=buckets, made_for=made_for(ddp)),
        baseline=SimpleNamespace(step_ns=100, exposed_comm_ns=50),
        report=SimpleNamespace(step_ns=best_ns),
        gain=SimpleNamespace(gain_ns=gain_ns, low_ns=None, high_ns=None, sentence="planted"),
        setting=Setting(pick=pick, step_ns=best_ns, saved_ns=gain_ns),
    )


class Run:
    """A training with a prediction that is planted: odd and even parameters apart."""

    def __init__(self, *, predicts: Any = None, **ddp_kwargs: Any) -> None:
        made.clear()
        self.ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.003, **ddp_kwargs)
        self.plain = DistributedDataParallel(Net(), bucket_cap_mb=0.003, **ddp_kwargs)
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (self.ddp, self.plain)]
        self.reducer = self.ddp.reducer
        self.dict = dict(self.ddp.__dict__)
        self.predicts = predicts
        self.differs: list[int] = []
        self.number = 0
        self.tuner: Any = None
        self.slows: Callable[[], int] = lambda: False
        self.chance = random.Random(dist.get_rank())
        self.clock_ns = 0

    def tune(self, **options: Any) -> None:
        def planted(folder: Path, link: Any, in_use: Any) -> Any:
            if isinstance(self.predicts, Exception):
                raise self.predicts
            if self.predicts == "as of one host":
                for path in folder.glob("rank-*.jsonl"):  # each rank with a GPU of its own
                    gpu = path.stem.replace("rank-", "cuda:")
                    header, _, rest = path.read_text().partition("\n")
                    named = header.replace('"cpu"', f'"{gpu}"')
                    assert named.count(gpu) > 10
                    path.write_text(f"{named}\n{rest}")
            if self.predicts in ("really", "as of one host"):
                return predict(folder, link, in_use)
            return prediction(self.ddp, 0 if self.predicts == "nothing" else 10)

        predict = loop.predict
        with (
            mock.patch.object(loop, "predict", planted),
            mock.patch.object(loop, "randbits", random.Random(0).getrandbits),
            mock.patch.object(loop.Autotune, "_now", lambda _: self.clock_ns),  # noqa: PT008
        ):
            self.tuner = sim.autotune(self.ddp, record_steps=4, **options)
            self.train(STEPS)

    def train(self, most: int) -> None:
        """Steps of both, until the tuning has ended and one more."""
        for _ in range(most):
            ended = self.tuner is not None and self.tuner.result is not None
            if self.predicts == "really":
                pickle.dumps(self.ddp)  # as a checkpoint at any step would
            generator = torch.Generator().manual_seed(2 * self.number + dist.get_rank())
            batch = torch.randn(4, 16, generator=generator)
            for ddp, optimizer in zip((self.ddp, self.plain), self.optimizers, strict=True):
                optimizer.zero_grad()
                ddp(batch).backward()
                optimizer.step()
            self.clock_ns += STEP_NS + SLOW_NS * self.slows() + round(self.chance.gauss(0, NOISE_NS))
            pairs = zip(self.ddp.parameters(), self.plain.parameters(), strict=True)
            if not all(torch.equal(a, b) and torch.equal(a.grad, b.grad) for a, b in pairs):
                self.differs.append(self.number)
            self.number += 1
            if self.tuner is not None:
                self.tuner.step()
            if ended:
                return

    @property
    def is_own(self) -> bool:
        return self.ddp.reducer is self.reducer

    def answer(self) -> dict[str, Any]:
        """How it ended, and what is otherwise than before it."""
        result = self.tuner.result
        after = dict(self.ddp.__dict__)
        return {
            "outcome": result and result.outcome,
            "why": result and result.why,
            "steps": result and result.steps,
            "rounds": result and result.ab and result.ab.rounds,
            "differs": self.differs,
            "own": self.is_own,
            "hooks": [
                len(self.ddp._forward_hooks),
                len(self.ddp._forward_pre_hooks),
                sum(len(p._post_accumulate_grad_hooks or ()) for p in self.ddp.parameters()),
                len(self.ddp._comm_hooks),
            ],
            "changed": sorted(name for name in after if after[name] is not self.dict.get(name)),
            "threads": threading.active_count(),
            "reducers": len(made),
            # Of what is pickled only the names: a storage's address is in it, of 14 digits or of 15.
            "pickles": bool(pickle.dumps(self.ddp))
            and self.ddp.__getstate__().keys() == self.plain.__getstate__().keys(),
        }


def ended(run: Run, outcome: str, why: str = "", steps: int | None = None) -> dict[str, Any]:
    """Check how it ended, and that gradients were those without us."""
    answer = run.answer()
    assert answer["outcome"] == outcome, answer
    assert answer["why"].startswith(why), answer
    assert steps in (None, answer["steps"]), answer
    assert answer["differs"] == []
    return answer


def ended_as_before(run: Run, outcome: str, why: str, steps: int | None = None) -> dict[str, Any]:
    """And here the very Reducer, no hook, no thread, no attribute that was not there."""
    answer = ended(run, outcome, why, steps)
    assert answer["own"]
    assert set(answer["changed"]) <= REVERTED
    assert (answer["hooks"], answer["threads"], answer["reducers"]) == (NO_HOOKS, 1, 0)
    assert answer["pickles"]
    return answer


def kept() -> None:
    """The model's own buckets are slowed down on one rank only: the slowest rank counts, and both keep."""
    run = Run()
    run.slows = lambda: run.is_own and dist.get_rank() == 1
    run.tune(max_verify_steps=80)
    answer = ended(run, "kept", "faster by +")
    assert answer["rounds"] == 10
    gain = float(answer["why"].removeprefix("faster by +").partition("%")[0])
    assert abs(gain - 9.1) < 4  # of 11 planted ms 1 goes, beside a scatter of 0.2
    assert not answer["own"]
    assert set(answer["changed"]) == REVERTED | {"reducer", "logger"}
    assert (answer["hooks"], answer["threads"], answer["reducers"]) == (NO_HOOKS, 1, 1)
    assert answer["pickles"]
    joins(run)


def reverted() -> None:
    run = Run(gradient_as_bucket_view=True)
    run.slows = lambda: not run.is_own
    run.tune(verify_steps=12, max_verify_steps=40)
    assert ended_as_before(run, "reverted", "no gain worth having: -")["rounds"] == 6
    joins(run)


def joins(run: Run) -> None:
    """``join()`` is afterwards what it is without us: rank 1 has two batches more."""
    for ddp in (run.ddp, run.plain):
        with ddp.join():
            for number in range(2 + 2 * dist.get_rank()):
                ddp.zero_grad()
                ddp(torch.full((1, 16), 0.1 * number)).backward()
    pairs = zip(run.ddp.parameters(), run.plain.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def hooked() -> None:
    """The user's hook is back on whatever is in use."""
    run = Run()
    run.ddp.register_comm_hook(None, allreduce_hook)
    run.plain.register_comm_hook(None, allreduce_hook)
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=80)
    assert run.ddp._get_ddp_logging_data().get("comm_hook") == "allreduce_hook"
    assert ended(run, "kept")["hooks"] == [0, 0, 0, 1]


def nothing_predicted() -> None:
    run = Run(predicts="nothing")
    run.tune()
    ended_as_before(run, "reverted", "nothing to gain is predicted", 14)


def stopped() -> None:
    """In the middle of the recording, and between forward and backward not at all."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    run.train(7)
    loss = run.ddp(torch.ones(1, 16))
    with pytest.raises(InputError, match="stop: not legal here: a forward waits for its backward"):
        run.tuner.stop()
    loss.backward()
    run.plain(torch.ones(1, 16)).backward()
    run.tuner.stop()
    run.train(3)
    ended_as_before(run, "refused", "stopped before it was decided", 7)


def joined() -> None:
    """Rank 1 has two batches more: refused before any collective of ours."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    with run.ddp.join():
        for _ in range(2 + 2 * dist.get_rank()):
            run.ddp(torch.ones(1, 16)).backward()
            run.tuner.step()
    answer = ended(run, "refused", "join: a rank that ran out of inputs", 1)
    assert (answer["own"], answer["hooks"]) == (True, NO_HOOKS)


def misplaced() -> None:
    """``step`` between forward and backward: nothing is switched there."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    loss = None
    for number in range(130):
        after = run.ddp(torch.full((1, 16), float(number)))
        if loss is not None:
            run.tuner.step()
        loss = after
        loss.backward()
        if number % 2 == 0:
            loss = run.ddp(torch.ones(1, 16))
            run.tuner.step()
            loss.backward()
    ended_as_before(run, "refused", "step: never called between two steps: a forward waits", 103)


def really() -> None:
    """Nothing planted: whatever it says, gradients were plain DDP's and nothing is left."""
    run = Run(predicts="really")
    run.tune(verify_steps=12, max_verify_steps=20)
    answer = ended(run, "kept" if run.tuner.result.outcome == "kept" else "reverted")
    assert (answer["hooks"], answer["threads"]) == (NO_HOOKS, 1)


def of_one_host() -> None:
    """As ``really``, with a recording as several GPUs of one host write it."""
    run = Run(predicts="as of one host")
    run.tune(verify_steps=12, max_verify_steps=20)
    assert run.tuner.result.outcome in ("kept", "reverted"), run.tuner.result.why


def nothing_is_left() -> None:
    dist.barrier()
    assert not list(Path(os.environ["TMPDIR"]).glob("bucketsim-*"))


CASES: tuple[Callable[[], None], ...] = (
    kept,
    reverted,
    hooked,
    nothing_predicted,
    stopped,
    misplaced,
    really,
    of_one_host,
    joined,
    nothing_is_left,
)

if __name__ == "__main__":
    os.environ["TMPDIR"] = sys.argv[2]
    check_each(int(sys.argv[1]), Path(sys.argv[2]), {case.__name__: case for case in CASES})
