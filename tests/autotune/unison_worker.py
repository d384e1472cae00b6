"""One of some gloo ranks that tell each other things, or tune while one of them fails somewhere.

``python -m tests.autotune.unison_worker RANK FOLDER WORLD_SIZE``: every function of ``CASES`` is called once.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner import cache, job_link, loop, unison
from sim.autotuner.job_link import LinkProbe
from sim.autotuner.switch import BucketSwitch
from sim.autotuner.unison import FailedSomewhereError, Unison
from sim.recorder.live_recording import LiveRecording
from tests.autotune.autotune_worker import Net, Run

LAST = int(sys.argv[3]) - 1 if len(sys.argv) > 3 else 1  # the rank on which things fail


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


def says() -> dict[str, Any]:
    """Each method, with what each rank gets."""
    ranks = Unison(DistributedDataParallel(Net()))
    me = ranks.rank
    with Counted() as counted:
        answer = {
            "from_first": ranks.from_first({"rank": me, "more": [1, 2.5]}),
            "gather": ranks.gather("x" * me),
            "slowest": ranks.slowest([me, -me]),
            "quickest": ranks.quickest([me, -me]),
            "no_reason": ranks.first_reason(None),
            "all_reasons": ranks.first_reason("same"),
            "one_reason": ranks.first_reason("mine" if me == LAST else None),
            "many_reasons": ranks.first_reason(f"{me}" if me else None),
        }
    return {**answer, "called": counted.called}


def fails() -> dict[str, Any]:
    """The last rank fails in place of each call that the others are in."""
    said = {}
    for name, call in {
        "agree": Unison.agree,
        "first_reason": lambda ranks: ranks.first_reason("obstacle"),
        "from_first": lambda ranks: ranks.from_first(1),
        "gather": lambda ranks: ranks.gather(1),
        "slowest": lambda ranks: ranks.slowest([1, 2, 3]),
    }.items():
        ranks = Unison(DistributedDataParallel(Net()))
        try:
            said[name] = ranks.fail("planted") if ranks.rank == LAST else str(call(ranks))
        except FailedSomewhereError as error:
            said[name] = str(error)
        ranks.close()
    return said


def comes_and_goes() -> int:
    """Many tunings one after the other, that part as soon as the last word is said."""
    ddp = DistributedDataParallel(Net())
    total = 0
    for number in range(50):
        ranks = Unison(ddp)
        total += ranks.from_first(number) + len(ranks.gather(b"x" * 100_000))
        ranks.close()
    return total


def unreachable() -> list[Any]:
    """The last rank has no address; all hear of it, and a tuning is refused while training goes on."""
    kept, unison._CONNECTING = unison._CONNECTING, timedelta(seconds=2)
    if dist.get_rank() == LAST:
        os.environ["GLOO_SOCKET_IFNAME"] = "nosuch0"
    try:
        run = Run()
        run.tune()
    finally:
        unison._CONNECTING = kept
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
    return [run.tuner.result.outcome, run.tuner.result.why, run.tuner.result.steps, run.is_own]


def of_some() -> list[Any]:
    """The model's group has the last two ranks only; no other rank takes part."""
    group = dist.new_group([LAST - 1, LAST])
    if dist.get_rank() < LAST - 1:
        return []
    ranks = Unison(DistributedDataParallel(Net(), process_group=group))
    return [ranks.rank, ranks.from_first(dist.get_rank()), ranks.slowest([dist.get_rank()])]


def only_probes() -> dict[str, Any]:
    """Of a whole tuning, what goes over the group of the gradients besides DDP's own."""
    run = Run()
    run.slows = lambda: run.is_own
    with Counted() as counted:
        run.tune(max_verify_steps=40)
    return {"outcome": run.tuner.result.outcome, "called": counted.called}


def fail_at(place: Any, name: str, *, at: int = 0, rank: int = LAST, **options: Any) -> dict[str, Any]:
    """A tuning in which ``place.name`` raises on one rank, at its call number ``at``, what nobody expects."""
    run = Run()
    run.slows = lambda: run.is_own
    act = getattr(place, name)
    calls: list[int] = []

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(run.number)
        if len(calls) == at + 1 and dist.get_rank() == rank:
            raise AttributeError("planted")
        return act(*given, **more)

    setattr(place, name, failing)
    try:
        run.tune(max_verify_steps=40, **options)
    finally:
        setattr(place, name, act)
    result = run.tuner.result
    return {
        **run.answer(),
        "late": None if len(calls) <= at or dist.get_rank() != rank else result.steps - calls[at],
        "ended": result.steps,
    }


FAILING: dict[str, Callable[[Path], dict[str, Any]]] = {
    "room at the start": lambda _: fail_at(loop.Room, "look"),
    "room": lambda _: fail_at(loop.Room, "check"),
    "switch": lambda _: fail_at(BucketSwitch, "__init__"),
    "known": lambda folder: fail_at(cache, "load_kept", rank=0, cache=put(folder)),
    "scratch": lambda _: fail_at(loop, "scratch_directory", at=1),
    "recorded": lambda _: fail_at(loop, "recorded"),
    "recording's step": lambda _: fail_at(LiveRecording, "step", at=3),
    "recording's file": lambda _: fail_at(Path, "read_bytes"),
    "probe": lambda _: fail_at(LinkProbe, "__init__"),
    "link": lambda _: fail_at(loop, "measure_link"),
    "amid the link": lambda _: fail_at(job_link, "_sizes"),
    "amid the link's sizes": lambda _: fail_at(LinkProbe, "time", at=3),
    "prediction": lambda _: fail_at(loop, "_answer", rank=0),
    "second Reducer": lambda _: fail_at(BucketSwitch, "make", at=1),
    "use": lambda _: fail_at(BucketSwitch, "use", at=6),
    "turn": lambda _: fail_at(loop, "is_candidate_turn", at=4),
    "look": lambda _: fail_at(loop, "judge", rank=0),
    "file of what is kept": lambda folder: fail_at(cache, "save_kept", rank=0, cache=put(folder)),
}


def put(folder: Path) -> Path:
    return folder / "best.json"


CASES: dict[str, Callable[[Path], Any]] = {
    "says": lambda _: says(),
    "fails": lambda _: fails(),
    "comes_and_goes": lambda _: comes_and_goes(),
    "of_some": lambda _: of_some(),
    "unreachable": lambda _: unreachable(),
}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    store = dist.FileStore(str(folder / "store"), LAST + 1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=LAST + 1)
    torch.set_num_threads(1)
    cases = {**CASES}
    if LAST < 3:
        cases |= {"only_probes": lambda _: only_probes()}
        cases |= {f"failing {name}": partial(case) for name, case in FAILING.items()}
    answers = {name: case(folder) for name, case in cases.items()}
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
