"""One of two gloo ranks of which rank 1 dies or hangs while it is tuned, or both go on under bad luck.

``python -m tests.autotune.survival_worker RANK FOLDER PHASE SIGNAL``: rank 1 sends itself SIGNAL, and rank 0
checks how it ended. PHASE ``lucky``, without a signal, runs every function of ``CASES``.
"""

import io
import os
import re
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import loop
from sim.autotuner.switch import BucketSwitch
from tests.autotune.autotune_worker import NO_HOOKS, Net, Run, ended, prediction
from tests.checked import check_each

MOST_STEPS = 120
GIVES_UP_S = 60  # a collective, where the other rank hangs
# Where rank 1 dies or hangs: after how many whole steps of the other, whether that is in ``tuner.step``; in
# which call of what, at once or in a forward so many steps after it.
PHASES: dict[str, tuple[int, bool, tuple[Any, str, int, int]]] = {
    "recording": (6, False, (sim, "autotune", 1, 6)),
    "link": (9, True, (loop, "measure_link", 1, 0)),
    "prediction": (10, False, (loop, "measure_link", 1, 2)),
    "switch": (14, True, (BucketSwitch, "make", 2, 0)),
    "trial": (21, False, (loop, "is_candidate_turn", 1, 5)),
    "verdict": (29, True, (loop.Autotune, "_judged", 1, 0)),
}


def batch(number: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(2 * number + rank))


def die() -> None:
    os.kill(os.getpid(), getattr(signal, sys.argv[4]))


def plant(ddp: DistributedDataParallel) -> None:
    """Predict what is worth a trial."""
    found = prediction(ddp)
    loop.predict = lambda *_: found


class Death:
    """Rank 1 dies in a call of ``place.name``, or in a forward some ``steps`` after it."""

    def __init__(self, place: Any, name: str, call: int, steps: int) -> None:
        self.at_step, self.number, self.calls = MOST_STEPS, 0, 0
        act = getattr(place, name)

        def noting(*given: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == call:
                self.at_step = self.number + steps
                if not steps:
                    die()
            return act(*given, **options)

        if dist.get_rank() == 1:
            setattr(place, name, noting)


def survive(phase: str, folder: Path) -> None:
    """Train until the other rank is gone; the weights have to be those of the last whole step."""
    rank = dist.get_rank()
    (folder / f"{phase}.{rank}").write_text(str(os.getpid()))
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.003)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    plant(ddp)
    at, in_ours, where = PHASES[phase]
    death = Death(*where)
    tuner = sim.autotune(ddp, record_steps=4, verify_steps=12, max_verify_steps=40)
    whole, raised = 0, ""
    try:
        for number in range(MOST_STEPS):
            death.number = number
            optimizer.zero_grad()
            loss = ddp(batch(number, rank))
            if number == death.at_step:
                die()
            loss.backward()
            optimizer.step()
            whole += 1
            tuner.step()
    except RuntimeError as error:
        raised = str(error)
    with suppress(ProcessLookupError):  # it is there where it hangs
        os.kill(int((folder / f"{phase}.1").read_text()), signal.SIGKILL)
    assert whole == at, (whole, raised)
    same(ddp, by_hand(whole))
    # A connection that broke is named by whose it was; of one that hangs the group says that it timed out.
    assert re.search("gloo/transport" if sys.argv[4] == "SIGKILL" else "[Tt]ime(d )?out", raised), raised
    if in_ours:
        assert tuner.result.outcome == "refused"
        assert raised in tuner.result.why
    else:
        assert tuner.result is None
    os._exit(0)  # the group is broken


def same(one: nn.Module, other: nn.Module) -> None:
    """Both have the same weights."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def by_hand(steps: int) -> Net:
    """The same training without DDP: both ranks' gradients, halved and added."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(steps):
        halves = []
        for rank in (0, 1):
            net.zero_grad()
            net(batch(number, rank)).backward()
            halves.append([parameter.grad / 2 for parameter in net.parameters()])
        for parameter, *gradients in zip(net.parameters(), *halves, strict=True):
            parameter.grad = gradients[0] + gradients[1]
        optimizer.step()
    return net


def resumed() -> None:
    """A checkpoint while the candidate is in use; what goes on from it equals what was never stopped."""
    steps = 110
    saved, at = io.BytesIO(), 0

    def go(first: int, load: bool) -> tuple[DistributedDataParallel, Any]:
        nonlocal at
        ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.003)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        if load:
            saved.seek(0)
            model, state = torch.load(saved)
            ddp.load_state_dict(model)
            optimizer.load_state_dict(state)
        own = ddp.reducer
        plant(ddp)
        tuner = sim.autotune(ddp, record_steps=4, verify_steps=12, max_verify_steps=40)
        for number in range(first, steps):
            if not load and not at and number > 20 and ddp.reducer is not own and tuner.result is None:
                torch.save((ddp.state_dict(), optimizer.state_dict()), saved)
                at = number
            optimizer.zero_grad()
            ddp(batch(number, dist.get_rank())).backward()
            optimizer.step()
            tuner.step()
        return ddp, tuner

    unbroken, _ = go(0, load=False)
    assert 20 < at < 30
    again, tuner = go(at, load=True)
    assert tuner.result.outcome in ("kept", "reverted")
    same(unbroken, again)
    same(unbroken, by_hand(steps))


def raises_in_trial() -> None:
    """The user's loop raises between forward and backward of a trial, and goes on with the next batch."""
    run = Run()
    run.slows = lambda: run.is_own
    fails = iter([False] * 20 + [True] + [False] * 200)

    def failing(*_: Any) -> None:
        if next(fails):
            raise ZeroDivisionError

    handle = run.ddp.module.layers[2].register_forward_hook(failing)
    raised = 0
    train = run.train

    def going_on(most: int) -> None:
        nonlocal raised
        for _ in range(most):
            ended = run.tuner is not None and run.tuner.result is not None
            try:
                train(1)
            except ZeroDivisionError:
                raised += 1
                run.number += 1
            if ended:
                return

    run.train = going_on  # type: ignore[method-assign]
    run.tune(max_verify_steps=80)
    handle.remove()
    assert raised == 1
    answer = ended(run, "kept")
    assert (answer["hooks"], answer["threads"]) == (NO_HOOKS, 1)


def predicts_otherwise() -> None:
    """Rank 1 would raise if it were asked: only the first rank's word counts."""
    run = Run(predicts=None if dist.get_rank() == 0 else ArithmeticError("asked"))
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=80)
    alike(run.tuner.result.why)
    assert run.tuner.result.outcome == "kept", run.tuner.result.why


def slower_by_half() -> None:
    """Rank 1 takes half as long again for each step, and the candidate helps rank 0 alone: nobody gains."""
    run = Run()
    run.slows = lambda: 5 if dist.get_rank() == 1 else run.is_own  # of SLOW_NS, a tenth of a step
    run.tune(max_verify_steps=80)
    alike(run.tuner.result.why)
    assert (run.tuner.result.outcome, run.is_own) == ("reverted", True)


def alike(said: str) -> None:
    """Both ranks say so."""
    both = ["", ""]
    dist.all_gather_object(both, said)
    assert both == [said, said]


CASES = (resumed, raises_in_trial, predicts_otherwise, slower_by_half)


def main(rank: int, folder: Path, phase: str) -> None:
    limit = timedelta(seconds=GIVES_UP_S)
    if phase == "lucky":
        check_each(rank, folder, {case.__name__: case for case in CASES}, timeout=limit)
    store = dist.FileStore(str(folder / f"store-{phase}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    survive(phase, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
