"""One of two gloo ranks on which ``sim.apply`` and ``sim.record`` are tried, beside plain DDP.

``python -m tests.dist.worker RANK FOLDER [killed]``: ``killed``, or every function of ``APPLIED`` and, each
in a folder of its own, of ``RECORDED``, is called once; how it failed goes to a JSON file by its name.
"""

import copy
import errno
import json
import os
import pickle
import random
import re
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Reducer
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sim
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.workload import Gradient, Workload
from sim.recorder import live_recording
from sim.validator.ranks.reducer import InjectedDataParallel, observed_buckets
from tests.checked import check_each
from tests.effort import tries
from tests.this_torch import HERE, takes

WORLD = 2
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
HAS_LIST = takes({"bucket_cap_mb_list": [1]})
Gradients = list[list[Tensor | None]]  # after each step
Batch = Callable[[int], Tensor]


class Layers(nn.Module):
    """Layers in sequence; each casts its input to its own dtype; those in ``skipped`` are not used."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.skipped: set[int] = set()
        self.backwards = self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        places = [place for place in range(len(self.layers)) if place not in self.skipped]
        for place in reversed(places) if self.backwards else places:
            layer = self.layers[place]
            weight = next(layer.parameters())
            x = x if isinstance(layer, nn.Embedding) else x.to(weight.dtype)
            x = checkpoint(layer, x, use_reentrant=True) if self.checkpointed and not place else layer(x)
        return x.float().square().sum()


def linears(width: int, count: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> Layers:
    """``count`` square Linear layers, their dtypes in turn."""
    torch.manual_seed(width + count)
    return Layers([nn.Linear(width, width).to(dtypes[place % len(dtypes)]) for place in range(count)])


def floats(width: int, rows: int = 3) -> Batch:
    """Another batch for every rank and number."""

    def batch(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        return torch.randn(rows, width, generator=generator)

    return batch


def gradients(ddp: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in ddp.parameters()]


def train(ddp: nn.Module, batch: Batch, steps: int = 4, accumulates: bool = True) -> Gradients:
    """Gradients after each of ``steps`` steps; every second one accumulates two batches under no_sync."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        last = 2 if step % 2 and accumulates else 0
        for number in range(last + 1):
            with nullcontext() if number == last else ddp.no_sync():
                ddp(batch(10 * step + number)).backward()
        seen.append(gradients(ddp))
        optimizer.step()
    return seen


def same(one: Gradients, other: Gradients) -> bool:
    """Whether all gradients are equal to the bit."""
    pairs = [pair for steps in zip(one, other, strict=True) for pair in zip(*steps, strict=True)]
    return all(
        mine is theirs if mine is None or theirs is None else torch.equal(mine.to_dense(), theirs.to_dense())
        for mine, theirs in pairs
    )


def lists(buckets: Any) -> list[list[int]]:
    return [list(bucket) for bucket in buckets]


# ---- sim.apply: plain DDP's gradients in the buckets asked for


def workload_of(model: nn.Module) -> Workload:
    """A workload of the model's parameters, ready from the last to the first."""
    named = list(model.named_parameters())
    first = next(iter(getattr(model, "layers", [])), None)
    return Workload(
        name="tried",
        gradients=tuple(
            Gradient(
                index=index,
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                num_bytes=parameter.numel() * parameter.element_size(),
                ready_ns=len(named) - index,
                sparse=index == 0 and isinstance(first, nn.Embedding) and first.sparse,
            )
            for index, (name, parameter) in enumerate(named)
        ),
        forward_ns=0,
        backward_ns=len(named),
        optimizer_ns=0,
    )


def random_assignment(workload: Workload, chance: random.Random) -> Assignment:
    """Any partition within A8.3, in any order, with any order inside."""
    groups: dict[Any, list[int]] = {}
    parts = chance.randint(1, len(workload.gradients))
    for gradient in chance.sample(workload.gradients, len(workload.gradients)):
        key = gradient.index if gradient.sparse else (gradient.key, chance.randint(1, parts))
        groups.setdefault(key, []).append(gradient.index)
    buckets = [tuple(bucket) for bucket in groups.values()]
    chance.shuffle(buckets)
    indices, made = tuple(buckets), made_for(workload, WORLD)
    return Assignment(bucket_indices=indices, bucket_bytes=bucket_bytes(workload, indices), made_for=made)


def every_second(model: nn.Module, **more: Any) -> Assignment:
    """Even and odd parameters apart: no keyword of DDP reaches it."""
    workload = workload_of(model)
    count = len(workload.gradients)
    indices = (tuple(range(1, count, 2)), tuple(range(0, count, 2)))
    return Assignment(bucket_indices=indices, made_for=made_for(workload, WORLD), **more)


def check(model: nn.Module, assignment: Assignment, batch: Batch, **ddp_kwargs: Any) -> None:
    """Buckets as asked for, and the gradients of the same training under plain DDP with the same switches."""
    ddp = sim.apply(copy.deepcopy(model), assignment, **ddp_kwargs)
    mine = train(ddp, batch)
    plain = DistributedDataParallel(copy.deepcopy(model), **ddp_kwargs)
    assert same(mine, train(plain, batch)), assignment.bucket_indices
    assert_holds(ddp, assignment)
    assert isinstance(ddp, InjectedDataParallel)


def assert_holds(ddp: Any, assignment: Assignment) -> None:
    assert observed_buckets(ddp) == lists(assignment.bucket_indices)


def under_both(make: Callable[[], Layers], run: Callable[[Any], Any], **ddp_kwargs: Any) -> list[Any]:
    """What ``run`` makes of the model under ``sim.apply`` with ``every_second``, and under plain DDP."""
    applied = sim.apply(model := make(), every_second(model), **ddp_kwargs)
    return [run(ddp) for ddp in (applied, DistributedDataParallel(make(), **ddp_kwargs))]


def random_assignments() -> None:
    """Partitions and orders, up to three dtypes or a sparse gradient, views, accumulation."""
    chance = random.Random(7)
    most = 0
    for number in range(tries(30, 10)):
        width, count = chance.randint(2, 24), chance.randint(1, 6)
        if number % 10 == 9:
            torch.manual_seed(number)
            model = Layers([nn.Embedding(50, width, sparse=True), *linears(width, count).layers])
            start = torch.tensor([[dist.get_rank(), number % 7, 3]])
            batch: Batch = lambda step, start=start: (start + step) % 50  # noqa: E731
            views = False  # torch: sparse gradients have no views of buckets
        else:
            model = linears(width, count, DTYPES[: 1 + number % 3])
            batch, views = floats(width), number % 2 == 1
        assignment = random_assignment(workload_of(model), chance)
        check(model, assignment, batch, gradient_as_bucket_view=views)
        most = max(most, len(assignment.bucket_indices))
    assert most >= 5


def find_unused_parameters() -> None:
    """Layer 1 is used on rank 0 only, layer 2 nowhere."""
    model = linears(6, 4)
    model.skipped = {2} if dist.get_rank() == 0 else {1, 2}
    check(model, every_second(model), floats(6), find_unused_parameters=True)


def used_under_no_sync_only() -> None:
    """A parameter that only the unsynchronised backward uses must still be reduced (A3.13)."""

    def run(ddp: Any) -> Gradients:
        with ddp.no_sync():
            ddp(floats(5)(0)).backward()
        ddp.module.skipped = {1}
        ddp(floats(5)(1)).backward()
        return [gradients(ddp)]

    assert same(*under_both(lambda: linears(5, 3), run, find_unused_parameters=True))


def two_forwards_before_one_backward() -> None:
    """The second forward, under no_sync, must not disarm the hooks of the first."""

    def run(ddp: Any) -> Gradients:
        for step in range(3):
            ddp.zero_grad()
            loss = ddp(floats(5)(step))
            with ddp.no_sync():
                loss = loss + ddp(floats(5)(step + 10))
            loss.backward()
        return [gradients(ddp)]

    assert same(*under_both(lambda: linears(5, 3), run))


def static_graph() -> None:
    def run(ddp: Any) -> Gradients:
        ddp.module.skipped = {2}
        return train(ddp, floats(6), accumulates=False)

    assert same(*under_both(lambda: linears(6, 4), run, static_graph=True))


def switches() -> None:
    """BatchNorm's buffers, a process group or mesh of our own, batched copies where torch has them."""
    torch.manual_seed(3)
    norms = Layers([layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6))])
    for ddp_kwargs in ({}, {"broadcast_buffers": False}):
        check(norms, every_second(norms), floats(6), **ddp_kwargs)
    model = linears(6, 4)
    more: list[dict[str, Any]] = [{"process_group": dist.new_group([0, 1])}, {"batched_grad_copy": True}]
    for ddp_kwargs in (*more, {"device_mesh": init_device_mesh("cpu", (2,))}):
        if takes(ddp_kwargs):
            check(model, every_second(model), floats(6), **ddp_kwargs)


def communication_hook() -> None:
    """The hook sees the buckets asked for from iteration 1 on, in each of four synchronised backwards and in
    their order (A3.5), and a built-in one can be registered."""
    model = linears(6, 4)
    index = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    assignment = every_second(model)
    ddp = sim.apply(model, assignment)
    seen: list[list[int]] = []

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        seen.append([index[id(parameter)] for parameter in bucket.parameters()])
        future = dist.all_reduce(bucket.buffer().div_(WORLD), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)
    builtin = sim.apply(linears(6, 4), assignment)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    expected = train(DistributedDataParallel(linears(6, 4)), floats(6))
    assert all(same(train(one, floats(6)), expected) for one in (ddp, builtin))
    assert seen == 4 * lists(assignment.bucket_indices)


def an_unused_parameter() -> None:
    """torch's own error is kept."""
    model = linears(6, 3)
    model.skipped = {1}
    ddp = sim.apply(model, every_second(model))
    ddp(floats(6)(0)).backward()
    with pytest.raises(RuntimeError, match="did not receive grad for rank") as caught:
        ddp(floats(6)(1)).backward()
    assert all(words in str(caught.value) for words in ("Expected to have finished reduction", "2 3"))


def what_is_recorded_for_a_rebuild() -> None:
    """After many steps the C++ Reducer holds one backward's order: it asserts so when it rebuilds."""
    model = linears(6, 3)
    ddp: Any = sim.apply(model, every_second(model))
    train(ddp, floats(6), 20, accumulates=False)
    assert Reducer._rebuild_buckets(ddp.reducer)


def uneven_inputs() -> None:
    """Rank 1 has two batches more: torch's Join, which also asks the Reducer to rebuild."""

    def run(ddp: Any) -> tuple[Gradients, Any]:
        with Join([ddp]):
            train(ddp, floats(6), 2 + 2 * dist.get_rank(), accumulates=False)
        # As in what_is_recorded_for_a_rebuild: a joined rank piles up nothing either.
        rebuilt = isinstance(ddp, InjectedDataParallel) and Reducer._rebuild_buckets(ddp.reducer)
        return [[parameter.detach().clone() for parameter in ddp.parameters()]], rebuilt

    (mine, rebuilt), (plain, _) = under_both(lambda: linears(6, 3), run)
    assert same(mine, plain)
    assert rebuilt


def pickled_and_pasted() -> None:
    model = linears(6, 3)
    assignment = every_second(model)
    assert_holds(pickle.loads(pickle.dumps(sim.apply(model, assignment))), assignment)
    names: dict[str, Any] = {"model": (model := linears(6, 4))}
    workload = workload_of(model)
    assignment = random_assignment(workload, random.Random(1))
    exec(compile(sim.snippet(assignment, workload), "snippet", "exec"), names)
    assert_holds(names["ddp_model"], assignment)


def by_keywords() -> None:
    """Keywords are used where they reach the buckets; another order than the recorded one is warned of."""
    model = linears(64, 6)
    workload = workload_of(model)
    list_of_caps = sim.assign(workload, bucket_cap_mb_list=[0.02, 0.01, 0.03])
    asked = {
        "default": (sim.assign(workload), {}),
        "cap": (sim.assign(workload, bucket_cap_mb=0.02), {}),
        "cap 0": (sim.assign(workload, "per-parameter"), {}),
        "single": (sim.assign(workload, "single"), {}),
        "list": (list_of_caps, {}),
        "list, unused": (list_of_caps, {"find_unused_parameters": True}),
        "list, static": (list_of_caps, {"static_graph": True}),
        "other order": (list_of_caps, {}),
    }
    injected = {"list, unused", "list, static"}
    injected |= set() if HAS_LIST else {"list", "other order"}
    injected |= set() if HERE >= (2, 12) else {"cap 0"}
    for name, (assignment, ddp_kwargs) in asked.items():
        one = copy.deepcopy(model)
        one.backwards = name == "other order"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ddp = sim.apply(one, assignment, **ddp_kwargs)
            train(ddp, floats(64), 5, accumulates=False)
        assert isinstance(ddp, InjectedDataParallel) == (name in injected), name
        warned = [str(one.message) for one in caught if "bucketsim" in str(one.message)]
        observed = [set(bucket) for bucket in observed_buckets(ddp)]
        is_another = name == "other order" and HAS_LIST
        assert (observed != [set(b) for b in assignment.bucket_indices]) == is_another, name
        assert len(warned) == is_another, name
        assert all("ready in another order than the recorded one" in word for word in warned)


def another_world_size() -> None:
    """A warning with both, where the user calls."""
    model = linears(6, 2)
    tuned = replace(every_second(model), made_for=made_for(workload_of(model), 8))
    with pytest.warns(match="tuned for 8 ranks and runs on 2") as caught:
        sim.apply(model, tuned)
    assert [warned.filename for warned in caught] == [__file__]


def compiled_names() -> None:
    """torch.compile, checkpointing and a module around it insert into names; the model is the same."""
    model = linears(6, 3)
    assignment = every_second(model)
    sim.apply(torch.compile(model, backend="eager"), assignment)
    sim.apply(nn.ModuleDict({"with_loss": linears(6, 3)}), assignment)


def refusals() -> None:
    model = linears(6, 3)
    fitting = every_second(model)
    mesh = init_device_mesh("cpu", (2,))

    def sharded(name: str, part: nn.Module, mesh: Any) -> None:
        for key, parameter in list(part.named_parameters(recurse=False)):
            part.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh)))

    renamed = nn.ModuleDict({"other": linears(6, 1), "others": linears(6, 2)})
    mixed = Assignment(bucket_indices=(tuple(range(6)),))
    sparse = Layers([nn.Embedding(5, 6, sparse=True), nn.Linear(6, 6)])
    within = nn.Sequential(nn.Linear(6, 6), DistributedDataParallel(linears(6, 3)))
    fsdp1 = FullyShardedDataParallel(linears(6, 3), device_id=torch.device("cpu"))
    viewed = every_second(model, ddp_kwargs={"gradient_as_bucket_view": True})
    delayed = {
        "delay_all_reduce_named_params": list(model.named_parameters())[:1],
        "param_to_hook_all_reduce": model.layers[1].weight,
    }
    by_assignment: tuple[tuple[Any, Any, str], ...] = (
        (renamed, fitting, "another model .'tried'.*gradient 0: 'layers.0.*'other"),
        (linears(7, 3), fitting, r".*6 gradients there, 6 here.*144 .* there.*196 bytes"),
        (linears(6, 3).half(), fitting, r".*first of 6.*float32, 144 .* there.*float16, 72 by"),
        (linears(6, 2), fitting, "6 gradients there, 4 here; 'layers.2.* only there"),
        (linears(6, 4), fitting, "6 gradients there, 8 here; 'layers.3.* only here"),
        (linears(6, 4), mixed, "hold 6 gradients .*this model has 8"),
        (linears(6, 3, DTYPES), mixed, r"bucket_indices.0: mixes .*bfloat16.*A8\.3"),
        (
            sparse,
            Assignment(bucket_indices=((0, 1, 2),)),
            "bucket_indices.0: 'layers.0.weight' has a sparse gradient",
        ),
    )
    by_model: tuple[tuple[Any, str], ...] = (
        (DistributedDataParallel(linears(6, 3)), "is wrapped or sharded by DistributedDataParallel"),
        (within, "'1' in it is wrapped or sharded by DistributedDataParallel"),
        (fsdp1, "is wrapped or sharded by FullyShardedDataParallel"),
        (fully_shard(linears(6, 3), mesh=mesh), "is wrapped or sharded by FSDPModule"),
        (distribute_module(linears(6, 3), mesh, sharded), "'layers.0.weight' in it is wrapped or sharded by"),
        (linears(6, 3).to("meta"), "'layers.0.weight' is on the meta device"),
        ("model", "str is not legal"),
    )
    both = {"static_graph": True, "find_unused_parameters": True}
    view = {"gradient_as_bucket_view": False}
    by_keyword: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (fitting, {"bucket_cap_mb": 4}, "InputError: bucket_cap_mb: 4 is not legal; the assignment says"),
        (viewed, view, "InputError: gradient_as_bucket_view: False is not legal; .*made for True"),
        (fitting, {"bucket_caps": 4}, "InputError: bucket_caps: .* has no such keyword in torch"),
        (fitting, delayed, "InputError: delay_all_reduce_named_params: .*out of the buckets"),
        (fitting, {"mixed_precision": object()}, "NotModelledError: mixed_precision: not supported"),
        (fitting, both, "InputError: find_unused_parameters: leave it out"),
        (Assignment(policy="zero1", bucket_indices=((0,),)), {}, "NotModelledError: policy: 'zero1'"),
        (json.loads(sim.to_text(fitting)), {}, "InputError: assignment: a dict is not legal; give an As"),
        ("none.json", {}, "InputError: none.json: cannot be read: No such file or directory"),
    )
    for one, assignment, ddp_kwargs, words in (
        *((one, made, {}, f"AssignmentError: .*{words}") for one, made, words in by_assignment),
        *((one, fitting, {}, f"InputError: model: {words}") for one, words in by_model),
        *((model, *row) for row in by_keyword),
    ):
        with pytest.raises((ValueError, RuntimeError, TypeError)) as caught:
            sim.apply(one, assignment, **ddp_kwargs)
        said = f"{caught.type.__name__}: {caught.value}"
        assert re.search(words, said), (words, said)


# ---- sim.record: what it sees, and that training never notices it

STEPS = 6
ROWS = floats(32, 8)
plainly = partial(train, batch=ROWS, steps=STEPS, accumulates=False)


def build(**kwargs: Any) -> DistributedDataParallel:
    """Four layers that may be checkpointed, a batch norm, whose buffers are broadcast, and a head."""
    torch.manual_seed(3)
    body = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    model = Layers([body, nn.BatchNorm1d(32), nn.Linear(32, 1)])
    return DistributedDataParallel(model, **{"bucket_cap_mb": 0.008, **kwargs})


def optimizer_of(ddp: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), lr=1e-3)


def lines(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    """Lines of a kind in this rank's file."""
    path = folder / f"rank-{dist.get_rank()}.jsonl"
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == kind]


def layouts(folder: Path) -> list[list[list[int]]]:
    return [line["bucket_indices"] for line in lines(folder, "buckets")]


def logged(ddp: DistributedDataParallel) -> list[list[int]]:
    """The buckets in DDP's own log."""
    text = str(ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"])
    return [[int(index) for index in bucket.split()] for bucket in text.split(",")]


def unrecorded(words: str, *given: Any, error: type = sim.errors.InputError, **options: Any) -> None:
    """``sim.record`` refuses with these words."""
    with pytest.raises(error, match=words), sim.record(*given, **options):
        pass


def to_the_bit(folder: Path) -> None:
    """During a recording, after one that ended on its own, and in a second one on the same model: the
    gradients of plain DDP, to the bit; the recorded buckets are those in DDP's log (A2.6)."""
    for name, kwargs in {
        "plain": {},
        "view": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
        "batched": {"batched_grad_copy": True},
    }.items():
        if not takes(kwargs):
            continue
        expected = plainly(build(**kwargs), steps=3 * STEPS)
        ddp = build(**kwargs)
        with sim.record(ddp, folder / name):
            assert same(plainly(ddp, steps=3 * STEPS), expected), name
        ddp, reference = build(**kwargs), build(**kwargs)
        with sim.record(ddp, folder / f"{name} 1", max_steps=4) as recording:
            apart = plainly(ddp)
            assert recording.steps_recorded == 4
        apart += plainly(ddp)
        with sim.record(ddp, folder / f"{name} 2"):
            apart += plainly(ddp)
        assert same(apart, [each for _ in range(3) for each in plainly(reference)]), name
        assert (len(lines(folder / name)), len(lines(folder / f"{name} 2"))) == (18, 6)
        in_order(folder / name)
        if name != "unused":  # there is no rebuild and so nothing in the log
            buckets = logged(ddp)
            assert len(buckets) > 1
            assert layouts(folder / name)[-1] == layouts(folder / f"{name} 2")[-1] == buckets
            parameters = lines(folder / name, "recording")[0]["parameters"]
            sizes = [one["num_bytes"] for one in parameters]
            sent = lines(folder / name)[-1]["backwards"][0]["buckets"]
            assert [one["num_bytes"] for one in sent] == [sum(sizes[i] for i in one) for one in buckets]


def in_order(folder: Path) -> None:
    """A3.2, A3.5, A3.10: gradient, bucket, launch in order, end, end of backward."""
    layout = layouts(folder)[-1]
    for step in lines(folder)[2:]:
        (backward,) = step["backwards"]
        assert 0 == backward["started_ns"] <= backward["forward_start_ns"] < backward["forward_end_ns"]
        assert 0 < max(backward["ready_ns"]) <= backward["backward_ns"] <= backward["sync_end_ns"]
        launches = [bucket["launch_ns"] for bucket in backward["buckets"]]
        assert launches == sorted(launches)
        for bucket, parameters in zip(backward["buckets"], layout, strict=True):
            assert max(backward["ready_ns"][index] for index in parameters) <= bucket["ready_ns"]
            assert bucket["ready_ns"] <= bucket["launch_ns"]
            assert bucket["ready_ns"] <= bucket["end_ns"] <= backward["sync_end_ns"]
        spent = backward["forward_end_ns"] + backward["sync_end_ns"] + step["optimizer_ns"]
        assert abs(step["step_ns"] - spent) <= 3


def light(folder: Path) -> None:
    """No hook is registered."""
    ddp = build()
    with sim.record(ddp, folder, level="light"):
        assert same(plainly(ddp), plainly(build()))
    assert ddp._get_ddp_logging_data().get("comm_hook") is None
    assert layouts(folder) == [logged(ddp)]
    assert len(lines(folder)) == 6
    for step in lines(folder):
        (backward,) = step["backwards"]
        assert backward["buckets"] == []
        assert None not in backward["ready_ns"]


def accumulation(folder: Path) -> None:
    """Two backwards under no_sync and one without, evaluation after each step, no ``step()`` anywhere
    (A3.12); a forward with gradients and without backward arms the Reducer for the next backward."""

    def run(ddp: DistributedDataParallel) -> Gradients:
        seen, optimizer = [], optimizer_of(ddp)
        for batch in map(ROWS, range(STEPS)):
            optimizer.zero_grad()
            with ddp.no_sync():
                for part in (batch[:4], batch[4:]):
                    ddp(part).backward()
            ddp(batch).backward()
            seen.append(gradients(ddp))
            optimizer.step()
            ddp.eval()
            with torch.no_grad():
                ddp(batch)
            ddp(batch)  # gradients enabled, and no backward
            ddp.train()
        return seen

    ddp = build()
    with sim.record(ddp, folder):
        assert same(run(ddp), run(build()))
    first, *others = (
        [(one["synchronised"], len(one["buckets"]), one["forwards"]) for one in step["backwards"]]
        for step in lines(folder)
    )
    assert first == [(False, 0, 1), (False, 0, 1), (True, 1, 1)]
    assert others == 5 * [[(True, 2, 2), (False, 0, 1), (True, 2, 1)]]
    assert all(step["backwards"][0]["started_ns"] == 0 for step in lines(folder))


def scaled(folder: Path) -> None:
    """autocast and a GradScaler that skips a step; a second optimizer of another model in between."""
    ddp = build()
    optimizer, other = optimizer_of(ddp), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with sim.record(ddp, folder) as recording:
        for number in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = ddp(ROWS(number))
            scaler.scale(loss * (float("inf") if number == 3 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            other.step()
            recording.step()
    rows = [(row["step"], row["optimizer_ns"] is None, len(row["backwards"])) for row in lines(folder)]
    assert rows == [(number, number == 4, 1) for number in range(1, 7)]


def checkpointed(folder: Path) -> None:
    """A reentrant checkpoint ends before DDP waits."""
    ddp = build(static_graph=True)
    ddp.module.checkpointed = True
    with sim.record(ddp, folder):
        plainly(ddp, batch=lambda number: ROWS(number).requires_grad_())
    for row in lines(folder)[2:]:
        (backward,) = row["backwards"]
        assert max(backward["ready_ns"]) <= backward["backward_ns"]
        assert max(bucket["end_ns"] for bucket in backward["buckets"]) <= backward["sync_end_ns"]
        last = backward["buckets"][-1]["ready_ns"]
        assert backward["backward_ns"] - last < backward["sync_end_ns"] - last


def failing(folder: Path) -> None:
    """An exception in the loop flushes and propagates; a loop may also be left."""
    for how, numbers in (("loop", [1, 2, 3]), ("break", [1, 2, 3, 4])):
        ddp = build()
        optimizer = optimizer_of(ddp)
        raised = pytest.raises(KeyError, match="the user's own") if how == "loop" else nullcontext()
        with raised, sim.record(ddp, folder / how):
            for number in range(STEPS):
                if number == 4:
                    break
                optimizer.zero_grad()
                ddp(ROWS(number)).backward()
                if number == 3 and how == "loop":
                    raise KeyError("the user's own")
                optimizer.step()
        assert not any(p._post_accumulate_grad_hooks for p in ddp.parameters())
        assert [step["step"] for step in lines(folder / how)] == numbers


def hooks(folder: Path) -> None:
    """fp16 compression, alone and wrapped; what is in the way is refused."""
    ddp, builtin, wrapped = build(), build(), build()
    ddp.register_comm_hook(None, fp16_compress_hook)
    expected = plainly(ddp)
    unrecorded("fp16_compress_hook.*level='light'.*wrap=", ddp, folder / "refused")
    with sim.record(ddp, folder / "light", level="light"):
        plainly(ddp)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    unrecorded("FP16_COMPRESS.*level='light'.*wrap=", builtin, folder / "refused")
    with sim.record(wrapped, folder / "wrapped", wrap=fp16_compress_hook):
        assert same(plainly(wrapped), expected)
    unrecorded("one communication hook", wrapped, folder / "other", wrap=lambda state, bucket: None)
    assert os.listdir(folder / "refused") == []
    names = [lines(folder / level, "recording")[0]["comm_hook"] for level in ("light", "wrapped")]
    assert names == ["fp16_compress_hook"] * 2
    sent = [len(step["backwards"][0]["buckets"]) for step in lines(folder / "wrapped")]
    assert sent == [1, 2, 2, 2, 2, 2]


def arguments(folder: Path) -> None:
    """What cannot be recorded is refused by name."""
    ddp, frozen = build(), build()
    next(iter(frozen.parameters())).requires_grad_(False)
    unrecorded("a Layers has no buckets", ddp.module, folder, error=sim.errors.NotModelledError)
    unrecorded("full, light", ddp, folder, level="deep")
    unrecorded("integer >= 1", ddp, folder, max_steps=True)
    unrecorded("level='full' only", ddp, folder, level="light", wrap=fp16_compress_hook)
    unrecorded("11 parameters require grad, DDP was made with 12", frozen, folder)
    with sim.record(ddp, folder / "twice", level="light"):
        unrecorded("being recorded already", ddp, folder / "nested", level="light")
        plainly(ddp, steps=1)
    unrecorded("exists already", ddp, folder / "twice", level="light")


def full_disk(folder: Path) -> None:
    """The disk is full after three lines, then from the start; training goes on with equal gradients."""
    real = os.write
    taken = 0

    def write(handle: int, text: bytes) -> int:
        nonlocal taken
        taken += 1
        if taken == 4:
            return real(handle, text[:20])
        if taken > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, text)

    warned: list[str] = []
    live_recording._log.addFilter(lambda record: bool(warned.append(record.getMessage())))
    ddp = build()
    with mock.patch("os.write", write), sim.record(ddp, folder):
        seen = plainly(ddp)
    assert same(seen, plainly(build()))
    (said,) = warned
    assert f"rank-{dist.get_rank()}.jsonl: recording stops here" in said


def killed(folder: Path) -> None:
    """Rank 1 is killed in the middle of a backward of its fifth step."""
    ddp = build()
    if dist.get_rank() == 1:
        count = 0

        def die(_: Tensor) -> None:
            nonlocal count
            count += 1
            if count == 5:
                os.kill(os.getpid(), signal.SIGKILL)

        ddp.module.layers[0][1].weight.register_post_accumulate_grad_hook(die)
    with pytest.raises(RuntimeError, match="by peer"), sim.record(ddp, folder):
        plainly(ddp)
    os._exit(0)  # the group is broken


APPLIED: tuple[Callable[[], None], ...] = (
    *(random_assignments, find_unused_parameters, used_under_no_sync_only, two_forwards_before_one_backward),
    *(static_graph, switches, communication_hook, an_unused_parameter, what_is_recorded_for_a_rebuild),
    *(uneven_inputs, pickled_and_pasted, by_keywords, another_world_size, compiled_names, refusals),
)
RECORDED = (to_the_bit, light, accumulation, scaled, checkpointed, failing, hooks, arguments, full_disk)

if __name__ == "__main__":
    place, is_killed = Path(sys.argv[2]), sys.argv[3:] == ["killed"]
    tried = (killed,) if is_killed else RECORDED
    cases = {one.__name__: partial(one, place / one.__name__) for one in tried}
    applied = {} if is_killed else {one.__name__: one for one in APPLIED}
    check_each(int(sys.argv[1]), place, applied | cases)
