"""``sim.autotune`` on real ranks: how it ends, what ranks tell each other, deaths and bad luck.

``python -m tests.autotune.test_tuning RANK FOLDER WHAT WORLD [SIGNAL]`` is one of the ranks, which check
themselves: WHAT is a key of ``CASES``, each function of which is called once, or of ``PHASES``, in which
rank 1 sends itself SIGNAL. Predictions, clock and order are planted, no more is.
"""

import gc
import io
import os
import pickle
import random
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
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
from sim.autotuner import loop, unison
from sim.autotuner.switch import BucketSwitch
from sim.autotuner.unison import FailedSomewhereError, LinkProbe, Unison
from sim.errors import InputError
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.recommendation import Setting
from sim.recorder.live_recording import LiveRecording
from sim.validator.ranks import reducer as injection
from tests.checked import assert_nothing_fails, check_each
from tests.effort import PATIENCE_S
from tests.ranks import run_together, start

pytestmark = pytest.mark.dist
WORKER = "tests.autotune.test_tuning"
STEP_NS, NOISE_NS, SLOW_NS = 10_000_000, 200_000, 1_000_000  # on the planted clock
STEPS = 120
GIVES_UP_S = 60  # a collective, where the other rank hangs
NO_HOOKS = [0, 0, 0, 0]
REVERTED = {"modules_buffers", "named_module_buffers", "_has_rebuilt_buckets", "_lazy_init_ran"}
SHORT = {"record_steps": 4, "verify_steps": 12, "max_verify_steps": 40}

made: weakref.WeakSet[Any] = weakref.WeakSet()  # Reducers of ours that live


class Net(nn.Module):
    """Six layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def small(net: nn.Module | None = None, **kwargs: Any) -> DistributedDataParallel:
    """Of many buckets."""
    return DistributedDataParallel(net or Net(), bucket_cap_mb=0.003, **kwargs)


def sgd(ddp: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)


def batch(number: int, rank: int) -> Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(2 * number + rank))


def prediction(ddp: DistributedDataParallel, gain_ns: int = 10) -> Any:
    """Of a recommendation what a tuning reads: odd and even parameters apart, as if worth a trial."""
    named = list(ddp.module.named_parameters())
    made_for = MadeFor(
        workload="planted",
        names=tuple(name for name, _ in named),
        num_bytes=tuple(parameter.nbytes for _, parameter in named),
        dtypes=("float32",) * len(named),
        world_size=2,
    )
    buckets = (tuple(range(1, len(named), 2)), tuple(range(0, len(named), 2)))
    best_ns, pick = 100 - gain_ns, "recommended" if gain_ns else "default"
    return SimpleNamespace(
        assignment=Assignment(bucket_indices=buckets, made_for=made_for),
        baseline=SimpleNamespace(step_ns=100, exposed_comm_ns=50),
        gain=SimpleNamespace(gain_ns=gain_ns, low_ns=None, high_ns=None, sentence="planted"),
        setting=Setting(pick=pick, step_ns=best_ns, saved_ns=gain_ns),
    )


class Run:
    """A training with a prediction that is planted, beside the same one without us."""

    def __init__(self, *, predicts: Any = None, **ddp_kwargs: Any) -> None:
        made.clear()
        self.ddp, self.plain = small(**ddp_kwargs), small(**ddp_kwargs)
        self.optimizers = [sgd(self.ddp), sgd(self.plain)]
        self.reducer = self.ddp.reducer
        self.dict = dict(self.ddp.__dict__)
        self.predicts = predicts
        self.differs: list[int] = []
        self.number = 0
        self.tuner: Any = None
        self.slows: Callable[[], int] = lambda: False
        self.chance = random.Random(dist.get_rank())
        self.clock_ns = 0
        self.raised = 0

    def tune(self, **options: Any) -> None:
        """With a Reducer of ours noted, a clock, and a prediction that are planted."""

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
        """Steps of both, until the tuning has ended and one more; a batch that fails is left out."""
        for _ in range(most):
            ended = self.tuner is not None and self.tuner.result is not None
            if self.predicts == "really":
                pickle.dumps(self.ddp)  # as a checkpoint at any step would
            try:
                for ddp, optimizer in zip((self.ddp, self.plain), self.optimizers, strict=True):
                    optimizer.zero_grad()
                    ddp(batch(self.number, dist.get_rank())).backward()
                    optimizer.step()
            except ZeroDivisionError:
                self.raised += 1
                self.number += 1
                continue
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

    def ended(self, outcome: str, why: str = "", steps: int | None = None, *, hooks: Any = NO_HOOKS) -> Any:
        """Check how it ended, that gradients were those without us, and what is left; the result."""
        result, after = self.tuner.result, dict(self.ddp.__dict__)
        assert (result.outcome, result.why.startswith(why)) == (outcome, True), result
        assert steps in (None, result.steps), result
        assert (
            self.differs == [] or dist.get_world_size() > 2
        )  # with more, sums of other buckets round otherwise
        found = [
            len(self.ddp._forward_hooks),
            len(self.ddp._forward_pre_hooks),
            sum(len(p._post_accumulate_grad_hooks or ()) for p in self.ddp.parameters()),
            len(self.ddp._comm_hooks),
        ]
        assert (found, threading.active_count()) == (hooks, 1)
        # Of what is pickled only the names: a storage's address is in it, of 14 digits or of 15.
        assert pickle.dumps(self.ddp)
        assert self.ddp.__getstate__().keys() == self.plain.__getstate__().keys()
        is_kept = outcome == "kept"
        gc.collect()
        assert (self.is_own, len(made)) == (not is_kept, is_kept)
        changed = {name for name in after if after[name] is not self.dict.get(name)}
        assert changed <= REVERTED | ({"reducer", "logger"} if is_kept else set())
        return result

    def joins(self) -> None:
        """``join()`` is afterwards what it is without us: rank 1 has two batches more."""
        for ddp in (self.ddp, self.plain):
            with ddp.join():
                for number in range(2 + 2 * dist.get_rank()):
                    ddp.zero_grad()
                    ddp(torch.full((1, 16), 0.1 * number)).backward()
        pairs = zip(self.ddp.parameters(), self.plain.parameters(), strict=True)
        assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


# ---- How a tuning ends, on two ranks.


def kept() -> None:
    """The model's own buckets are slowed down on one rank only: the slowest rank counts, and both keep."""
    run = Run()
    run.slows = lambda: run.is_own and dist.get_rank() == 1
    run.tune(max_verify_steps=80)
    result = run.ended("kept", "faster by +")
    assert result.ab.rounds == 10
    gain = float(result.why.removeprefix("faster by +").partition("%")[0])
    assert abs(gain - 9.1) < 4  # of 11 planted ms 1 goes, beside a scatter of 0.2
    run.joins()


def reverted() -> None:
    run = Run(gradient_as_bucket_view=True)
    run.slows = lambda: not run.is_own
    run.tune(verify_steps=12, max_verify_steps=40)
    assert run.ended("reverted", "no gain worth having: -").ab.rounds == 6
    run.joins()


def hooked() -> None:
    """The user's hook is back on whatever is in use."""
    run = Run()
    run.ddp.register_comm_hook(None, allreduce_hook)
    run.plain.register_comm_hook(None, allreduce_hook)
    run.slows = lambda: run.is_own
    run.tune(max_verify_steps=80)
    assert run.ddp._get_ddp_logging_data().get("comm_hook") == "allreduce_hook"
    run.ended("kept", hooks=[0, 0, 0, 1])


def nothing_predicted() -> None:
    run = Run(predicts="nothing")
    run.tune()
    run.ended("reverted", "nothing to gain is predicted", 14)


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
    run.ended("refused", "stopped before it was decided", 7)


def joined() -> None:
    """Rank 1 has two batches more: refused before any collective of ours."""
    run = Run()
    run.tuner = sim.autotune(run.ddp)
    with run.ddp.join():
        for _ in range(2 + 2 * dist.get_rank()):
            run.ddp(torch.ones(1, 16)).backward()
            run.tuner.step()
    result = run.tuner.result
    assert (result.outcome, result.steps, run.is_own) == ("refused", 1, True)
    assert result.why.startswith("join: a rank that ran out of inputs")
    assert not run.ddp._forward_hooks


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
    run.ended("refused", "step: never called between two steps: a forward waits", 103)


def really(predicts: str = "really") -> None:
    """Nothing planted: whatever it says, gradients were plain DDP's and nothing is left."""
    run = Run(predicts=predicts)
    run.tune(verify_steps=12, max_verify_steps=20)
    run.ended("kept" if run.tuner.result.outcome == "kept" else "reverted")


def nothing_is_left() -> None:
    dist.barrier()
    assert not list(Path(os.environ["TMPDIR"]).glob("bucketsim-*"))


# ---- Bad luck that both survive.


def by_hand(steps: int) -> Net:
    """The same training without DDP: both ranks' gradients, halved and added."""
    net = Net()
    optimizer = sgd(net)
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


def same(one: nn.Module, other: nn.Module) -> None:
    """Both have the same weights."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def resumed() -> None:
    """A checkpoint while the candidate is in use; what goes on from it equals what was never stopped."""
    saved, at = io.BytesIO(), 0

    def go(first: int, load: bool) -> tuple[DistributedDataParallel, Any]:
        nonlocal at
        ddp = small()
        optimizer, own = sgd(ddp), ddp.reducer
        if load:
            saved.seek(0)
            model, state = torch.load(saved)
            ddp.load_state_dict(model)
            optimizer.load_state_dict(state)
        with mock.patch.object(loop, "predict", lambda *_: prediction(ddp)):  # noqa: PT008
            tuner = sim.autotune(ddp, **SHORT)
            for number in range(first, 110):
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
    same(unbroken, by_hand(110))


def raises_in_trial() -> None:
    """The user's loop raises between forward and backward of a trial, and goes on with the next batch."""
    run = Run()
    run.slows = lambda: run.is_own
    fails = iter([False] * 20 + [True] + [False] * 200)

    def failing(*_: Any) -> None:
        if next(fails):
            raise ZeroDivisionError

    handle = run.ddp.module.layers[2].register_forward_hook(failing)
    run.tune(max_verify_steps=80)
    handle.remove()
    assert run.raised == 1
    run.ended("kept")


def predicts_otherwise() -> None:
    """Only the first rank predicts: what that raises ends the tuning on all, what rank 1 would raise is not
    asked for."""
    for fails_on, outcome in ((1, "kept"), (0, "refused")):
        run = Run(predicts=ArithmeticError("planted") if dist.get_rank() == fails_on else None)
        run.slows = partial(getattr, run, "is_own")
        run.tune(max_verify_steps=80)
        alike(run.ended(outcome).why)


def slower_by_half() -> None:
    """Rank 1 takes half as long again for each step, and the candidate helps rank 0 alone: nobody gains."""
    run = Run()
    run.slows = lambda: 5 if dist.get_rank() == 1 else run.is_own  # of SLOW_NS, a tenth of a step
    run.tune(max_verify_steps=80)
    alike(run.ended("reverted").why)


def alike(said: object) -> None:
    """All ranks say so."""
    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, said)
    assert len(set(each)) == 1, each


# ---- What ranks tell each other, and a failure on one of them.


class Counted(ExitStack):
    """What is called of ``torch.distributed`` by others than DDP, and on which group."""

    def __enter__(self) -> "Counted":
        self.called: dict[str, int] = {}
        self._note(dist.distributed_c10d, "_get_object_coll_device")
        names = [
            *("all_reduce", "broadcast", "barrier", "all_gather", "gather", "send", "recv", "new_group"),
            *("all_gather_object", "gather_object", "broadcast_object_list", "monitored_barrier"),
        ]
        for name in names:
            self._note(dist, name)
        return self

    def _note(self, place: Any, name: str) -> None:
        act = getattr(place, name)

        def noting(*given: Any, **options: Any) -> Any:
            who = f"{Path(sys._getframe(1).f_code.co_filename).name}: {name}"
            self.called[who] = self.called.get(who, 0) + 1
            return act(*given, **options)

        self.enter_context(mock.patch.object(place, name, noting))


def says() -> None:
    """All ranks hear the same, and nothing of it is asked of the job's group, for the current device
    (``_get_object_coll_device`` is where torch's object collectives take the current GPU) or on the default
    one, which a script may have made its GPU."""
    ranks, rank, world = Unison(small()), dist.get_rank(), dist.get_world_size()
    last = world - 1
    with Counted() as counted, torch.device("meta"):
        assert ranks.from_first(lambda: {"rank": rank, "more": [1, 2.5]}) == {"rank": 0, "more": [1, 2.5]}
        assert ranks.gather("x" * rank) == (["x" * k for k in range(world)] if rank == 0 else [])
        assert ranks.over_ranks([rank, -rank], longest=True) == [last, 0]
        assert ranks.over_ranks([rank, -rank], longest=False) == [0, -last]
        assert ranks.first_reason(None) is None
        assert ranks.first_reason("same") == "same"
        assert ranks.first_reason("mine" if rank == last else None) == f"rank {last}: mine"
        assert ranks.first_reason(f"{rank}" if rank else None) == "rank 1: 1"
    assert counted.called == {}


def fails() -> None:
    """The last rank fails in place of each call that the others are in: all hear of it, whatever it is."""
    calls: tuple[Callable[[Unison], Any], ...] = (
        Unison.agree,
        lambda ranks: ranks.first_reason("obstacle"),
        lambda ranks: ranks.from_first(int),
        lambda ranks: ranks.gather(1),
        lambda ranks: ranks.over_ranks([1, 2, 3], longest=True),
    )
    last = dist.get_world_size() - 1
    for call in calls:
        ranks = Unison(small())
        try:
            said = ranks.fail("planted") if dist.get_rank() == last else str(call(ranks))
        except FailedSomewhereError as error:
            said = str(error)
        ranks.close()  # parting as soon as the last word is said
        assert said == f"rank {last}: planted"


def unreachable() -> None:
    """The last rank has no address; all hear of it, and a tuning is refused while training goes on."""
    run, last = Run(), dist.get_world_size() - 1
    without = {"GLOO_SOCKET_IFNAME": "nosuch0"} if dist.get_rank() == last else {}
    with mock.patch.object(unison, "_CONNECTING", timedelta(seconds=2)), mock.patch.dict(os.environ, without):
        run.tune()
    result = run.tuner.result
    assert (result.outcome, result.steps, run.is_own) == ("refused", 1, True)
    assert result.why.startswith(f"rank {last}: no connection over gloo")
    assert "GLOO_SOCKET_IFNAME" in result.why


def of_some() -> None:
    """The model's group has the last two ranks only; no other rank takes part."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    group = dist.new_group([last - 1, last])
    if rank >= last - 1:
        ranks = Unison(small(process_group=group))
        assert ranks.rank == rank - (last - 1)
        assert (ranks.from_first(lambda: rank), ranks.over_ranks([rank], longest=True)) == (last - 1, [last])


def only_probes() -> None:
    """Of a whole tuning, only the link's probes go over the group of the gradients besides DDP's own."""
    run = Run()
    run.slows = lambda: run.is_own
    with Counted() as counted:
        run.tune(max_verify_steps=40)
    assert run.tuner.result.outcome == "kept"
    assert set(counted.called) == {"unison.py: all_reduce"}


def fail_at(place: Any, name: str, *, at: int = 0, rank: int | None = None) -> None:
    """A tuning in which ``place.name`` raises on one rank (None: the last), at its call number ``at``, what
    nobody expects: it ends on all in the same step, and training goes on with DDP's own buckets."""
    rank = dist.get_world_size() - 1 if rank is None else rank
    run = Run()
    run.slows = lambda: run.is_own
    act, calls = getattr(place, name), list[int]()

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(run.number)
        if len(calls) == at + 1 and rank == dist.get_rank():
            raise AttributeError("planted")
        return act(*given, **more)

    with mock.patch.object(place, name, failing):
        run.tune(max_verify_steps=40)
    result = run.ended("refused", f"rank {rank}: ")
    alike(result.steps)
    assert result.why.endswith("AttributeError: planted")
    assert rank != dist.get_rank() or calls[at] == result.steps  # not late


FAILING: dict[str, Callable[[], None]] = {
    "room": partial(fail_at, loop.Room, "check"),
    "switch": partial(fail_at, BucketSwitch, "__init__"),
    "scratch": partial(fail_at, loop, "scratch_directory", at=1),
    "recorded": partial(fail_at, loop, "recorded"),
    "recording's step": partial(fail_at, LiveRecording, "step", at=3),
    "recording's file": partial(fail_at, Path, "read_bytes"),
    "probe": partial(fail_at, LinkProbe, "__init__"),
    "link": partial(fail_at, loop, "measure_link"),
    "amid the link": partial(fail_at, unison, "_sizes"),
    "amid the link's sizes": partial(fail_at, LinkProbe, "time", at=3),
    "second Reducer": partial(fail_at, BucketSwitch, "make", at=1),
    "use": partial(fail_at, BucketSwitch, "use", at=6),
    "turn": partial(fail_at, loop, "is_candidate_turn", at=4),
    "look": partial(fail_at, loop, "judge", rank=0),
}
_ENDS = (kept, reverted, hooked, nothing_predicted, stopped, misplaced, really, joined)
_LUCK = (resumed, raises_in_trial, predicts_otherwise, slower_by_half)
_TELLING = (says, fails, of_some, unreachable)
_HOST: dict[str, Callable[[], None]] = {"of one host": partial(really, "as of one host")}
CASES: dict[str, dict[str, Callable[[], None]]] = {
    "ends": {one.__name__: one for one in _ENDS} | _HOST | {"nothing is left": nothing_is_left},
    "luck": {one.__name__: one for one in _LUCK},
    "telling": {one.__name__: one for one in _TELLING},
    "failing": {"only_probes": only_probes, **FAILING},
}


@pytest.mark.parametrize(
    ("cases", "world"),
    [
        *(("ends", 2), ("telling", 3), ("failing", 2)),
        *(
            pytest.param(cases, world, marks=pytest.mark.slow)
            for cases, world in (("luck", 2), ("telling", 2), ("telling", 4), ("failing", 3))
        ),
    ],
)
def test_all_ranks_end_alike_with_the_right_gradients_and_nothing_is_left(
    cases: str, world: int, tmp_path: Path
) -> None:
    assert_nothing_fails(WORKER, tmp_path, cases, str(world), world_size=world)


# ---- A rank that dies or hangs.

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


def survive(phase: str, folder: Path, with_signal: str) -> None:
    """Train until the other rank is gone; the weights have to be those of the last whole step."""
    rank = dist.get_rank()
    (folder / f"{phase}.{rank}").write_text(str(os.getpid()))
    ddp = small()
    optimizer, found = sgd(ddp), prediction(ddp)
    loop.predict = lambda *_: found
    at, in_ours, (place, name, call, after) = PHASES[phase]
    whole, raised, calls, dies_at = 0, "", 0, STEPS
    act = getattr(place, name)

    def die() -> None:
        os.kill(os.getpid(), getattr(signal, with_signal))

    def noting(*given: Any, **options: Any) -> Any:
        nonlocal calls, dies_at
        calls += 1
        if calls == call:
            dies_at = whole + after - (place is not sim)  # a call between two steps is of the last one
            if not after:
                die()
        return act(*given, **options)

    if rank == 1:
        setattr(place, name, noting)
    tuner = sim.autotune(ddp, **SHORT)
    try:
        for number in range(STEPS):
            optimizer.zero_grad()
            loss = ddp(batch(number, rank))
            if number == dies_at:
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
    assert re.search("gloo/transport" if with_signal == "SIGKILL" else "[Tt]ime(d )?out", raised), raised
    assert (tuner.result is not None) == in_ours
    assert not in_ours or (tuner.result.outcome == "refused" and raised in tuner.result.why)
    os._exit(0)  # the group is broken


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_dies_ends_the_other_with_whole_weights(phase: str, tmp_path: Path) -> None:
    (code, error), (killed, _) = run_together(WORKER, tmp_path, phase, "2", "SIGKILL")
    assert (code, killed) == (0, -9), error


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_by_the_process_group(tmp_path: Path) -> None:
    """In every phase, all at once: after the time that the group was given the other rank raises."""
    ranks = [
        (rank, start(WORKER, [rank, tmp_path, phase, 2, "SIGSTOP"], tmp_path / f"said.{phase}.{rank}"))
        for phase in PHASES
        for rank in (0, 1)
    ]
    for _, process in ranks:
        process.join(PATIENCE_S)
        process.kill()
        process.join()
    said = "".join(path.read_text()[-2000:] for path in tmp_path.glob("said.*.0"))
    assert [process.exitcode for rank, process in ranks if rank == 0] == [0] * len(PHASES), said


def main(rank: int, folder: Path, what: str, world: int, with_signal: str = "") -> None:
    limit = timedelta(seconds=GIVES_UP_S)
    if what in CASES:

        class Noted(injection.FixedReducer):
            def __init__(self, **given: Any) -> None:
                super().__init__(**given)
                made.add(self)

        injection.FixedReducer = Noted  # type: ignore[misc]
        os.environ["TMPDIR"] = str(folder)
        check_each(rank, folder, CASES[what], world, limit if what == "luck" else None)
    store = dist.FileStore(str(folder / f"store-{what}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    survive(what, folder, with_signal)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
