"""One of some gloo ranks that tell each other things, or tune while one of them fails somewhere.

``python -m tests.autotune.unison_worker RANK FOLDER WORLD_SIZE``: every function of ``CASES`` is called once.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner import loop, prediction, unison
from sim.autotuner.prediction import LinkProbe
from sim.autotuner.switch import BucketSwitch
from sim.autotuner.unison import FailedSomewhereError, Unison
from sim.recorder.live_recording import LiveRecording
from tests.autotune.autotune_worker import NO_HOOKS, Net, Run
from tests.checked import check_each

RANK, FOLDER, WORLD = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
LAST = WORLD - 1  # the rank on which things fail


class Counted:
    """What is called of ``torch.distributed`` by others than DDP, and on which group."""

    def __init__(self) -> None:
        self.called: dict[str, int] = {}
        self._kept: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Counted":
        names = [
            *("all_reduce", "broadcast", "barrier", "all_gather", "gather", "send", "recv", "new_group"),
            *("all_gather_object", "gather_object", "broadcast_object_list", "monitored_barrier"),
        ]
        self._note(dist.distributed_c10d, "_get_object_coll_device")
        for name in names:
            self._note(dist, name)
        return self

    def __exit__(self, *_: object) -> None:
        for place, name, act in self._kept:
            setattr(place, name, act)

    def _note(self, place: Any, name: str) -> None:
        act = getattr(place, name)
        self._kept.append((place, name, act))

        def noting(*given: Any, **options: Any) -> Any:
            who = f"{Path(sys._getframe(1).f_code.co_filename).name}: {name}"
            self.called[who] = self.called.get(who, 0) + 1
            return act(*given, **options)

        setattr(place, name, noting)


def says() -> None:
    """All ranks hear the same, and nothing of it is asked of the job's group, or for the current device:
    ``_get_object_coll_device`` is where torch's object collectives take the current GPU."""
    ranks = Unison(DistributedDataParallel(Net()))
    assert ranks.rank == RANK
    with Counted() as counted:
        assert ranks.from_first(lambda: {"rank": RANK, "more": [1, 2.5]}) == {"rank": 0, "more": [1, 2.5]}
        assert ranks.gather("x" * RANK) == (["x" * k for k in range(WORLD)] if RANK == 0 else [])
        assert ranks.over_ranks([RANK, -RANK], longest=True) == [LAST, 0]
        assert ranks.over_ranks([RANK, -RANK], longest=False) == [0, -LAST]
        assert ranks.first_reason(None) is None
        assert ranks.first_reason("same") == "same"
        assert ranks.first_reason("mine" if RANK == LAST else None) == f"rank {LAST}: mine"
        assert ranks.first_reason(f"{RANK}" if RANK else None) == "rank 1: 1"
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
    for call in calls:
        ranks = Unison(DistributedDataParallel(Net()))
        try:
            said = ranks.fail("planted") if RANK == LAST else str(call(ranks))
        except FailedSomewhereError as error:
            said = str(error)
        ranks.close()  # parting as soon as the last word is said
        assert said == f"rank {LAST}: planted"


def unreachable() -> None:
    """The last rank has no address; all hear of it, and a tuning is refused while training goes on."""
    run = Run()
    without = {"GLOO_SOCKET_IFNAME": "nosuch0"} if RANK == LAST else {}
    with mock.patch.object(unison, "_CONNECTING", timedelta(seconds=2)), mock.patch.dict(os.environ, without):
        run.tune()
    result = run.tuner.result
    assert (result.outcome, result.steps, run.is_own) == ("refused", 1, True)
    assert result.why.startswith(f"rank {LAST}: no connection over gloo")
    assert "GLOO_SOCKET_IFNAME" in result.why


def of_some() -> None:
    """The model's group has the last two ranks only; no other rank takes part."""
    group = dist.new_group([LAST - 1, LAST])
    if RANK >= LAST - 1:
        ranks = Unison(DistributedDataParallel(Net(), process_group=group))
        assert ranks.rank == RANK - (LAST - 1)
        assert (ranks.from_first(lambda: RANK), ranks.over_ranks([RANK], longest=True)) == (LAST - 1, [LAST])


def only_probes() -> None:
    """Of a whole tuning, only the link's probes go over the group of the gradients besides DDP's own."""
    run = Run()
    run.slows = lambda: run.is_own
    with Counted() as counted:
        run.tune(max_verify_steps=40)
    assert run.tuner.result.outcome == "kept"
    assert set(counted.called) == {"prediction.py: all_reduce"}


def fail_at(place: Any, name: str, *, at: int = 0, rank: int = LAST, **options: Any) -> None:
    """A tuning in which ``place.name`` raises on one rank, at its call number ``at``, what nobody expects: it
    ends on all in the same step, and training goes on with DDP's own buckets."""
    run = Run()
    run.slows = lambda: run.is_own
    act = getattr(place, name)
    calls: list[int] = []

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(run.number)
        if len(calls) == at + 1 and rank == RANK:
            raise AttributeError("planted")
        return act(*given, **more)

    with mock.patch.object(place, name, failing):
        run.tune(max_verify_steps=40, **options)
    steps = [0] * WORLD
    dist.all_gather_object(steps, run.tuner.result.steps)
    assert len(set(steps)) == 1, steps
    answer = run.answer()
    assert answer["outcome"] == "refused", answer
    assert answer["why"].endswith("AttributeError: planted")
    assert answer["why"].startswith(("rank 0: ", f"rank {LAST}: "))
    assert (answer["own"], answer["hooks"], answer["reducers"], answer["threads"]) == (True, NO_HOOKS, 0, 1)
    assert WORLD > 2 or answer["differs"] == []  # with more, sums of other buckets round otherwise
    assert rank != RANK or calls[at] == steps[0]  # not late


FAILING: dict[str, Callable[[], None]] = {
    "room": partial(fail_at, loop.Room, "check"),
    "switch": partial(fail_at, BucketSwitch, "__init__"),
    "scratch": partial(fail_at, loop, "scratch_directory", at=1),
    "recorded": partial(fail_at, loop, "recorded"),
    "recording's step": partial(fail_at, LiveRecording, "step", at=3),
    "recording's file": partial(fail_at, Path, "read_bytes"),
    "probe": partial(fail_at, LinkProbe, "__init__"),
    "link": partial(fail_at, loop, "measure_link"),
    "amid the link": partial(fail_at, prediction, "_sizes"),
    "amid the link's sizes": partial(fail_at, LinkProbe, "time", at=3),
    "prediction": partial(fail_at, loop, "_answer", rank=0),
    "second Reducer": partial(fail_at, BucketSwitch, "make", at=1),
    "use": partial(fail_at, BucketSwitch, "use", at=6),
    "turn": partial(fail_at, loop, "is_candidate_turn", at=4),
    "look": partial(fail_at, loop, "judge", rank=0),
}


CASES = (says, fails, of_some, unreachable)

if __name__ == "__main__":
    cases: dict[str, Callable[[], None]] = {case.__name__: case for case in CASES}
    check_each(RANK, FOLDER, cases if LAST == 3 else {**cases, "only_probes": only_probes, **FAILING}, WORLD)
