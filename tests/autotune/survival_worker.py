"""One of two gloo ranks of which rank 1 dies or hangs while it is tuned, or both go on under bad luck.

``python -m tests.autotune.survival_worker RANK FOLDER PHASE SIGNAL``: rank 1 sends itself SIGNAL, and rank 0
writes how it ended. PHASE ``lucky``, without a signal, runs every function of ``CASES``.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import loop
from sim.autotuner.prediction import Prediction
from sim.autotuner.switch import BucketSwitch
from sim.autotuner.unison import Unison
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Setting
from tests.autotune.autotune_worker import Net, Run, made_for

MOST_STEPS = 120
GIVES_UP_S = 60  # a collective, where the other rank hangs


def batch(number: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(2 * number + rank))


def die() -> None:
    os.kill(os.getpid(), getattr(signal, sys.argv[4]))


def plant(ddp: DistributedDataParallel) -> None:
    """Predict odd and even parameters apart, as if it were worth a trial."""
    count = len(list(ddp.parameters()))
    buckets = (tuple(range(1, count, 2)), tuple(range(0, count, 2)))
    assignment = Assignment(bucket_indices=buckets, made_for=made_for(ddp))
    found = Prediction(
        assignment=assignment,
        in_use_ns=100,
        best_ns=90,
        plain_step_ns=50,
        setting=Setting(pick="recommended", step_ns=90, saved_ns=10),
    )
    loop.predict = lambda *_: found


class Death:
    """Where rank 1 dies: at once in a call of ours, or in a forward some steps after it."""

    def __init__(self, phase: str) -> None:
        self.at_step = MOST_STEPS
        self.number = 0
        if dist.get_rank() == 0:
            return
        if phase == "recording":
            self.at_step = 6
        elif phase == "link":
            loop.measure_link = self._now
        elif phase == "prediction":
            self._soon_after(loop, "measure_link", 2)
        elif phase == "switch":
            recorded: list[Any] = []
            make = BucketSwitch.make

            def second(switch: BucketSwitch, *given: Any, **options: Any) -> Any:
                recorded.append(switch)
                return self._now() if len(recorded) == 2 else make(switch, *given, **options)

            BucketSwitch.make = second  # type: ignore[method-assign]
        elif phase == "trial":
            self._soon_after(loop, "is_candidate_turn", 5)
        elif phase == "verdict":
            Unison.slowest = self._now  # type: ignore[assignment]

    def _now(self, *_: Any, **__: Any) -> Any:
        die()

    def _soon_after(self, place: Any, name: str, steps: int) -> None:
        act = getattr(place, name)

        def noting(*given: Any, **options: Any) -> Any:
            self.at_step = min(self.at_step, self.number + steps)
            return act(*given, **options)

        setattr(place, name, noting)


def survive(phase: str, folder: Path) -> None:
    """Train until the other rank is gone; the weights have to be those of the last whole step."""
    rank = dist.get_rank()
    (folder / f"{phase}.{rank}").write_text(str(os.getpid()))
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.003)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    plant(ddp)
    death = Death(phase)
    tuner = sim.autotune(ddp, record_steps=4, verify_steps=12, max_verify_steps=40)
    whole, error = 0, None
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
    except RuntimeError as raised:
        error = raised
    pairs = zip(ddp.parameters(), by_hand(whole).parameters(), strict=True)
    answer = {
        "raised": str(error),
        "whole": whole,
        "same": all(torch.equal(mine, theirs) for mine, theirs in pairs),
        "result": tuner.result and [tuner.result.outcome, tuner.result.why],
    }
    (folder / f"{phase}.json").write_text(json.dumps(answer))
    with suppress(ProcessLookupError):  # it is there where it hangs
        os.kill(int((folder / f"{phase}.1").read_text()), signal.SIGKILL)
    os._exit(0)  # the group is broken


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


def resumed() -> dict[str, Any]:
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
    again, tuner = go(at, load=True)
    pairs = zip(unbroken.parameters(), again.parameters(), strict=True)
    hand = zip(unbroken.parameters(), by_hand(steps).parameters(), strict=True)
    return {
        "at": at,
        "tuned again": tuner.result and tuner.result.outcome,
        "same": all(torch.equal(one, other) for one, other in pairs),
        "by hand": all(torch.equal(one, other) for one, other in hand),
    }


def raises_in_trial() -> dict[str, Any]:
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
    return {**run.answer(), "raised": raised}


def predicts_otherwise() -> dict[str, Any]:
    """Rank 1 would raise if it were asked: only the first rank's word counts."""
    run = Run(predicts=None if dist.get_rank() == 0 else ArithmeticError("asked"))
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=80)
    return run.answer()


def slower_by_half() -> dict[str, Any]:
    """Rank 1 takes half as long again for each step, and the candidate helps rank 0 alone: nobody gains."""
    run = Run()
    run.slows = lambda: 5 if dist.get_rank() == 1 else run.is_own  # of SLOW_NS, a tenth of a step
    run.tune(max_verify_steps=80)
    return run.answer()


def costs_nothing() -> dict[str, Any]:
    """Calls of Python and C in one ``step()`` after the end, and in a training step beside plain DDP's."""
    found = {}
    for keeps in (True, False):
        run = Run()
        run.slows = lambda run=run, keeps=keeps: run.is_own == keeps
        run.tune(verify_steps=12, max_verify_steps=40)
        steps = [counted(lambda ddp=ddp: ddp(batch(0, 0)).backward()) for ddp in (run.ddp, run.plain)]
        name = run.tuner.result.outcome
        found[name] = {"step": counted(run.tuner.step), "more": len(steps[0]) - len(steps[1])}
    return found


def counted(act: Callable[[], Any]) -> list[str]:
    """The names of what is called in ``act``."""
    names: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(argument.__name__)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return [name for name in names if name != "setprofile"]


CASES: tuple[Callable[[], dict[str, Any]], ...] = (
    resumed,
    raises_in_trial,
    predicts_otherwise,
    slower_by_half,
    costs_nothing,
)


def main() -> None:
    rank, folder, phase = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    store = dist.FileStore(str(folder / f"store-{phase}"), 2)
    limit = timedelta(seconds=GIVES_UP_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    if phase != "lucky":
        survive(phase, folder)
    answers = {case.__name__: case() for case in CASES}
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
