"""Real ranks tell their collectives: cases are started on them, and held to what the simulation says.

``run`` starts ranks of a system (``real_ranks`` and its worker) and collects what each answers; ``check``
holds the collectives and buckets of every iteration to those of the program, in order, with all that is
known of them. A further system is a worker, a row of ``SYSTEMS``, and cases.
"""

import importlib.util
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Event, Explanation
from sim.nouns.workload import Buffer, Gradient, Workload
from sim.systems.textbook import BY_SIZE
from tests.effort import PATIENCE_S
from tests.ranks import start

Case = dict[str, Any]
Answer = dict[str, Any]
FACTS = ("kind", "elements", "dtype", "phase", "gradient", "root", "iteration", "micro_batch")
_HOOKS = {
    "fp16_wrapped_allreduce": "fp16_compress",
    "builtin_allreduce": "allreduce",
    "builtin_fp16_compress": "fp16_compress",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A worker, which package it needs, and what a case asks of the simulation: policy and options.

    ``first``: the iteration from which on collectives are compared; 0 is what comes before the first.
    """

    worker: str
    asked: Callable[[Case], dict[str, Any]]
    package: str = "torch"
    first: int = 0


def _ddp(case: Case) -> dict[str, Any]:
    """``asked``, where torch says it otherwise."""
    names = {"micro_batches": "accumulation_steps", "zero_grad_to_none": "set_to_none"}
    names |= {"no_sync": "no_sync", "create_graph": "create_graph"}
    options = {ours: case[theirs] for theirs, ours in names.items() if theirs in case}
    hook = {"comm_hook": _HOOKS.get(case["hook"], case["hook"])} if "hook" in case else {}
    return {"policy": "ddp"} | case.get("asked", case.get("ddp", {})) | options | hook


def _zero(case: Case) -> dict[str, Any]:
    """DeepSpeed's nested configuration as flat settings."""
    flat = dict(case["config"])
    flat |= flat.pop("zero_optimization")
    flat["policy"] = f"zero{flat.pop('stage')}"
    if flat.pop("offload_optimizer", None) is not None:
        flat["cpu_offload"] = True
    flat |= {k: v for k, v in flat.pop("bf16", {}).items() if k == "check_grad_overflow"}
    flat.pop("fp16", None)
    return flat


def _megatron(case: Case) -> dict[str, Any]:
    micro_batches = {"num_microbatches": case["micro_batches"]} if "micro_batches" in case else {}
    return {"policy": "megatron"} | case["config"] | micro_batches


def _textbook(case: Case) -> dict[str, Any]:
    cap = {"bucket_cap_mb": case["bucket_cap_mb"]} if case["policy"] in BY_SIZE else {}
    return {"policy": case["policy"]} | cap


SYSTEMS = {
    "ddp": System(worker="ddp_worker", asked=_ddp),
    "zero": System(worker="zero_worker", asked=_zero, package="deepspeed"),
    "megatron": System(worker="megatron_worker", asked=_megatron, package="megatron", first=1),
    "fsdp2": System(
        worker="fsdp2_worker",
        asked=lambda case: {"policy": "fully_shard", "units": case["units"]} | case["settings"],
        first=1,
    ),
    "textbook": System(worker="textbook_worker", asked=_textbook, first=2),
}
_INSTALL = {
    "deepspeed": "DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed",
    "megatron": "pip install --no-deps megatron-core==0.16.1",
}


def run(
    name: str, cases: list[Case], *, world_size: int = 2, fresh: bool = False, **environment: str
) -> list[list[Answer]]:
    """What every rank answers to every case, ``answers[case][rank]``, of a system of ``SYSTEMS`` or any other
    worker; skips without the system, or fails where it is demanded. ``fresh``: see ``tests.ranks.start``.

    Raises:
        AssertionError: a rank failed, or did not end; it names the case. Or ranks do not agree on which
            collectives there were, in which order.
    """
    package = SYSTEMS[name].package if name in SYSTEMS else "torch"
    if importlib.util.find_spec(package) is None:
        missing = f"no {package}: {_INSTALL[package]}"
        if os.environ.get(f"BUCKETSIM_REQUIRE_{package.upper()}") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as folder:
        asked, answers = Path(folder) / "cases.json", Path(folder) / "answers"
        asked.write_text(json.dumps(cases))
        said = [Path(folder) / f"said.{rank}" for rank in range(world_size)]
        common = {"WORLD_SIZE": f"{world_size}", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "300"}
        if package == "megatron":
            common["TORCHDYNAMO_DISABLE"] = "1"  # it compiles functions that are not called
        ranks = [
            start(
                f"tests.systems.{SYSTEMS[name].worker if name in SYSTEMS else name}",
                [asked, answers, f"{folder}/store"],
                path,
                common | {"RANK": f"{rank}", "DS_ACCELERATOR": "cpu"} | environment,
                fresh=fresh,
            )
            for rank, path in enumerate(said)
        ]
        _wait(ranks)
        told = [_lines(Path(f"{answers}.{rank}")) for rank in range(world_size)]
        if (done := min(map(len, told))) < len(cases):
            ends = [f"rank {rank}: {path.read_text()[-1500:]}" for rank, path in enumerate(said)]
            raise AssertionError("\n".join([f"case {done} was not answered: {cases[done]}", *ends]))
    together = [list(by_rank) for by_rank in zip(*told, strict=True)]
    for case, by_rank in zip(cases, together, strict=True):
        facts = [
            [(one["kind"], one["elements"], one["dtype"], one["root"]) for one in answer.get("events", ())]
            for answer in by_rank
        ]
        assert all(own == facts[0] for own in facts), f"ranks launched different collectives: {case}"
    return together


def _wait(ranks: list[BaseProcess]) -> None:
    """Until all have ended, or one has failed and the others had a moment to say what they saw."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while any(rank.exitcode is None for rank in ranks) and time.monotonic() < deadline:
            if any(rank.exitcode for rank in ranks):
                deadline = min(deadline, time.monotonic() + 5)
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _lines(path: Path) -> list[Answer]:
    """The answers written out in full."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def workload_of(answer: Answer, iteration: int = -1) -> Workload:
    """The model that ran, with the ready order of an iteration's last backward: by default the last one's.

    What fired no hook is never ready.
    """
    fired = answer["ready"][iteration if iteration < 0 else iteration - 1][-1] if answer["ready"] else []
    last = {gradient: place for place, gradient in enumerate(fired, start=1)}
    return Workload(
        name="seen",
        gradients=tuple(
            Gradient(
                index=index,
                name=one["name"],
                shape=tuple(one["shape"]),
                dtype=one["dtype"],
                num_bytes=one["num_bytes"],
                ready_ns=last.get(index),
                sparse=one["sparse"],
                uses=max(1, fired.count(index)),
                group=one.get("group", 0),
            )
            for index, one in enumerate(answer["parameters"])
        ),
        forward_ns=0,
        backward_ns=len(fired),
        optimizer_ns=0,
        buffers=tuple(Buffer(dtype=b["dtype"], num_bytes=b["num_bytes"]) for b in answer["buffers"]),
    )


def assigned(name: str, case: Case, workload: Workload, **more: Any) -> Assignment:
    return sim.assign(workload, **SYSTEMS[name].asked(case), **more)


def expected(name: str, case: Case, answer: Answer, **more: Any) -> list[dict[str, Any]]:
    """Every collective of the run, as the simulator tells it from each iteration's own ready order."""
    options, count = SYSTEMS[name].asked(case) | more, len(answer["ready"])

    @cache
    def explained(order: tuple[int, ...], iteration: int) -> Explanation:
        return sim.explain(workload_of(answer, iteration), iterations=count, **options)

    seen = {tuple(of[-1]): number for number, of in reversed([*enumerate(answer["ready"], start=1)])}
    told = [explained(tuple(of[-1]), seen[tuple(of[-1])]) for of in answer["ready"]]
    events: list[tuple[int, Event]] = [(0, event) for event in told[0].construction]
    for number, one in enumerate(told, start=1):
        events += [(number, event) for event in one.iterations[number - 1].events]
    return [
        {fact: getattr(event, fact, number) for fact in FACTS}  # an event says no iteration
        | {"micro_batch": event.micro_batch * (number > 0)}
        for number, event in events
        if number >= first_of(name, answer)
    ]


def first_of(name: str, answer: Answer) -> int:
    """The iteration from which on collectives are compared: ZeRO sends frozen parameters one by one."""
    return max(SYSTEMS[name].first, name == "zero" and bool(answer["frozen"]))


def told(name: str, answer: Answer) -> list[dict[str, Any]]:
    """What a rank launched, without frozen parameters, which constructors send along and no workload has."""
    frozen, first = Counter[str](), first_of(name, answer)
    for one in answer["frozen"]:
        frozen[one["dtype"]] += one["numel"]
    events = []
    for event in answer["events"]:
        of_the_model = event["kind"] == "broadcast" and event["phase"] == "construction"
        elements = event["elements"] - (frozen[event["dtype"]] if of_the_model else 0)
        if event["iteration"] >= first and (elements > 0 or elements == event["elements"]):
            events.append({fact: event[fact] for fact in FACTS} | {"elements": elements})
    return events


def check(name: str, case: Case, by_rank: list[Answer], **more: Any) -> None:
    """Every rank did what the simulation says, from first to last; ``more`` options of ``sim.explain``."""
    for answer in by_rank:
        assert answer["error"] is None, (case, answer["error"])
        ours, theirs = expected(name, case, answer, world_size=len(by_rank), **more), told(name, answer)
        for place, (mine, seen) in enumerate(zip(ours, theirs, strict=False)):
            assert mine == seen, (f"collective {place}", case)
        assert len(ours) == len(theirs), case
