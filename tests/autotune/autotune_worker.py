"""One of two gloo ranks that tune while they train; predictions, clock and order are planted, no more is.

``python -m tests.autotune.autotune_worker RANK FOLDER``: every function of ``CASES`` is called once.
"""

import gc
import json
import os
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import loop
from sim.autotuner.prediction import Prediction
from sim.autotuner.switch import BucketSwitch
from sim.formats.recordings import find_autotunes
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.recommendation import Setting
from sim.validator.ranks.wrapping import injection
from sim.validator.ranks.wrapping.injection import FixedReducer

STEP_NS, NOISE_NS, SLOW_NS = 10_000_000, 200_000, 1_000_000  # on the planted clock
STEPS = 120


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
        def planted(folder: Path, link: Any, in_use: Any) -> Prediction:
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
            count = len(list(self.ddp.parameters()))
            buckets = (tuple(range(1, count, 2)), tuple(range(0, count, 2)))
            assignment = Assignment(bucket_indices=buckets, made_for=made_for(self.ddp))
            gain = 0 if self.predicts == "nothing" else 10
            return Prediction(
                assignment=assignment,
                in_use_ns=100,
                best_ns=100 - gain,
                plain_step_ns=50,
                setting=Setting(pick="recommended" if gain else "default", step_ns=100 - gain, saved_ns=gain),
            )

        predict, loop.predict = loop.predict, planted
        drawn, loop.Random = loop.Random, partial(random.Random, 0)  # type: ignore[assignment, misc]
        now, loop._Tuning._now = loop._Tuning._now, lambda _: self.clock_ns  # type: ignore[method-assign]
        try:
            self.tuner = sim.autotune(self.ddp, record_steps=4, **options)
            self.train(STEPS)
        finally:
            loop.predict = predict
            loop.Random = drawn  # type: ignore[misc]
            loop._Tuning._now = now  # type: ignore[method-assign]

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
        result = self.tuner.result
        after = dict(self.ddp.__dict__)
        changed = sorted(name for name in after if after[name] is not self.dict.get(name))
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
            "changed": changed,
            "threads": threading.active_count(),
            "reducers": len(made),
            # Of what is pickled only the names: a storage's address is in it, of 14 digits or of 15.
            "pickles": bool(pickle.dumps(self.ddp))
            and self.ddp.__getstate__().keys() == self.plain.__getstate__().keys(),
        }


def kept() -> dict[str, Any]:
    """The model's own buckets are slowed down on one rank only: the slowest rank counts, both keep."""
    run = Run()
    run.slows = lambda: run.is_own and dist.get_rank() == 1
    live = Path(os.environ["TMPDIR"]) / f"live-{dist.get_rank()}"
    run.tune(max_verify_steps=80, live=live)
    told = [asdict(one) for one in find_autotunes(live).values()]
    return {**run.answer(), "told": told, "joins": joins(run)}


def reverted() -> dict[str, Any]:
    run = Run(gradient_as_bucket_view=True)
    run.slows = lambda: not run.is_own
    run.tune(verify_steps=12, max_verify_steps=40)
    return {**run.answer(), "joins": joins(run)}


def joins(run: Run) -> bool:
    """Whether ``join()`` is afterwards what it is without us: rank 1 has two batches more."""
    for ddp in (run.ddp, run.plain):
        with ddp.join():
            for number in range(2 + 2 * dist.get_rank()):
                ddp.zero_grad()
                ddp(torch.full((1, 16), 0.1 * number)).backward()
    pairs = zip(run.ddp.parameters(), run.plain.parameters(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in pairs)


def hooked() -> dict[str, Any]:
    """The user's hook is back on whatever is in use."""
    run = Run()
    run.ddp.register_comm_hook(None, allreduce_hook)
    run.plain.register_comm_hook(None, allreduce_hook)
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=80)
    logged = run.ddp._get_ddp_logging_data().get("comm_hook")
    return {**run.answer(), "comm_hook": logged}


def nothing_predicted() -> dict[str, Any]:
    run = Run(predicts="nothing")
    run.tune()
    return run.answer()


def prediction_fails() -> dict[str, Any]:
    """On the first rank alone, and with an error that nobody expects."""
    run = Run(predicts=TypeError("planted"))
    run.tune()
    return run.answer()


def memory_lacks() -> dict[str, Any]:
    """One rank has no room: both go on as they were."""
    run = Run()
    check = loop.Room.check
    if dist.get_rank() == 1:
        loop.Room.check = raise_memory  # type: ignore[method-assign]
    try:
        run.tune()
    finally:
        loop.Room.check = check  # type: ignore[method-assign]
    return run.answer()


def raise_memory(_: object) -> None:
    raise MemoryError("planted")


def link_lacks_memory() -> dict[str, Any]:
    """One rank has no room for what the link is measured with; no rank waits for it."""
    run = Run()
    probe = loop.LinkProbe
    if dist.get_rank() == 1:
        loop.LinkProbe = lambda *_: raise_memory(_)  # type: ignore[assignment, misc]
    try:
        run.tune()
    finally:
        loop.LinkProbe = probe  # type: ignore[misc]
    return run.answer()


def make_fails() -> dict[str, Any]:
    """One rank cannot make the candidate's Reducer; the other one's goes again."""
    run = Run()
    make = BucketSwitch.make

    def failing(self: BucketSwitch, buckets: Any, **options: Any) -> Any:
        if buckets[0][:2] == (1, 3) and dist.get_rank() == 1:  # the planted ones
            raise RuntimeError("planted")
        return make(self, buckets, **options)

    BucketSwitch.make = failing  # type: ignore[method-assign]
    try:
        run.tune()
    finally:
        BucketSwitch.make = make  # type: ignore[method-assign]
    return run.answer()


def stopped() -> dict[str, Any]:
    """In the middle of the recording, and between forward and backward not at all."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    run.train(7)
    loss = run.ddp(torch.ones(1, 16))
    said = ""
    try:
        run.tuner.stop()
    except sim.errors.InputError as error:
        said = str(error)
    loss.backward()
    run.plain(torch.ones(1, 16)).backward()
    run.tuner.stop()
    run.train(3)
    return {**run.answer(), "said": said}


def loop_raises() -> dict[str, Any]:
    """An exception between forward and backward, in the middle of the recording; then training goes on."""
    run = Run()
    run.tuner = sim.autotune(run.ddp, record_steps=4)
    try:
        run.train(6)
        raise ZeroDivisionError
    except ZeroDivisionError:
        reducer = type(run.ddp.reducer).__name__
    run.train(4)
    run.tuner.stop()
    return {**run.answer(), "while": reducer}


def joined() -> dict[str, Any]:
    """Rank 1 has two batches more: refused before any collective of ours."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    with run.ddp.join():
        for _ in range(2 + 2 * dist.get_rank()):
            run.ddp(torch.ones(1, 16)).backward()
            run.tuner.step()
    return run.answer()


def misplaced() -> dict[str, Any]:
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
    return run.answer()


def cached(folder: Path) -> list[dict[str, Any]]:
    """Kept; then tried at once, and again with nothing to gain; a file of another model is not used."""
    file = folder / "best.json"
    answers = []
    for slows_own in (True, True, False):
        run = Run()
        run.slows = lambda run=run, slows_own=slows_own: run.is_own == slows_own
        run.tune(max_verify_steps=40, cache=str(file))
        answers.append(run.answer())
    if dist.get_rank() == 0:
        text = file.read_text()
        answers.append({"file": json.loads(text)["provenance"]})
        file.write_text(text.replace("layers.0.0.weight", "other"))
    dist.barrier()
    run = Run()
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=40, cache=str(file))
    return [*answers, run.answer()]


def really() -> dict[str, Any]:
    """Nothing planted: whatever it says, gradients were plain DDP's and nothing is left."""
    run = Run(predicts="really")
    run.tune(verify_steps=12, max_verify_steps=20)
    return run.answer()


def of_one_host() -> dict[str, Any]:
    """As ``really``, with a recording as several GPUs of one host write it."""
    run = Run(predicts="as of one host")
    run.tune(verify_steps=12, max_verify_steps=20)
    return run.answer()


CASES: tuple[Callable[..., Any], ...] = (
    kept,
    reverted,
    hooked,
    nothing_predicted,
    prediction_fails,
    memory_lacks,
    link_lacks_memory,
    make_fails,
    stopped,
    loop_raises,
    misplaced,
    really,
    of_one_host,
    joined,
)


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ["TMPDIR"] = str(folder)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    answers: dict[str, Any] = {}
    for case in CASES:
        answers[case.__name__] = case()
    answers["cached"] = cached(folder)
    answers["left"] = sorted(path.name for path in folder.glob("bucketsim-*"))
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
