"""One of two gloo ranks on which ``sim.apply`` is tried: ``python -m tests.dist.apply_worker RANK FOLDER``.

Every function of ``CASES`` is called once; how it failed, if it did, goes to a JSON file by its name.
"""

import copy
import inspect
import json
import pickle
import random
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Reducer
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.workload import Gradient, Workload
from sim.validator.ranks.reducer import InjectedDataParallel, observed_buckets
from tests.checked import check_each

WORLD = 2
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
HAS_LIST = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


class Layers(nn.Module):
    """Layers in sequence; each casts its input to its own dtype; those in ``skipped`` are not used."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.skipped: set[int] = set()
        self.backwards = False

    def forward(self, x: Tensor) -> Tensor:
        places = [place for place in range(len(self.layers)) if place not in self.skipped]
        for place in reversed(places) if self.backwards else places:
            layer = self.layers[place]
            weight = next(layer.parameters())
            x = layer(x if isinstance(layer, nn.Embedding) else x.to(weight.dtype))
        return x.float().square().sum()


def linears(width: int, count: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> Layers:
    """``count`` square Linear layers, their dtypes in turn."""
    torch.manual_seed(width + count)
    return Layers([nn.Linear(width, width).to(dtypes[place % len(dtypes)]) for place in range(count)])


def workload_of(model: nn.Module) -> Workload:
    """A workload of the model's parameters, ready from the last to the first."""
    named = list(model.named_parameters())
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
                sparse=isinstance(model, Layers) and name == "layers.0.weight" and is_sparse(model),
            )
            for index, (name, parameter) in enumerate(named)
        ),
        forward_ns=0,
        backward_ns=len(named),
        optimizer_ns=0,
    )


def is_sparse(model: Layers) -> bool:
    first = model.layers[0]
    return isinstance(first, nn.Embedding) and first.sparse


def random_assignment(workload: Workload, chance: random.Random) -> Assignment:
    """Any partition within A8.3, in any order, with any order inside."""
    groups: dict[Any, list[int]] = {}
    parts = chance.randint(1, len(workload.gradients))
    for gradient in chance.sample(workload.gradients, len(workload.gradients)):
        key = gradient.index if gradient.sparse else (gradient.key, chance.randint(1, parts))
        groups.setdefault(key, []).append(gradient.index)
    buckets = [tuple(bucket) for bucket in groups.values()]
    chance.shuffle(buckets)
    indices = tuple(buckets)
    return Assignment(
        bucket_indices=indices,
        bucket_bytes=bucket_bytes(workload, indices),
        made_for=made_for(workload, WORLD),
    )


def every_second(model: nn.Module, **more: Any) -> Assignment:
    """Even and odd parameters apart: no keyword of DDP reaches it."""
    workload = workload_of(model)
    count = len(workload.gradients)
    indices = (tuple(range(1, count, 2)), tuple(range(0, count, 2)))
    return Assignment(bucket_indices=indices, made_for=made_for(workload, WORLD), **more)


Batch = Callable[[int], Tensor]


def floats(width: int) -> Batch:
    """Another batch for every rank and number."""

    def batch(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        return torch.randn(3, width, generator=generator)

    return batch


def train(ddp: nn.Module, batch: Batch, steps: int = 4) -> list[list[Tensor | None]]:
    """Gradients after each of ``steps`` steps; every second one accumulates two batches under no_sync."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(3 if step % 2 else 1):
            last = number == (2 if step % 2 else 0)
            with nullcontext() if last else ddp.no_sync():
                ddp(batch(10 * step + number)).backward()
        seen.append(gradients(ddp))
        optimizer.step()
    return seen


def same(one: list[list[Tensor | None]], other: list[list[Tensor | None]]) -> bool:
    """Whether all gradients are equal to the bit."""
    for step, other_step in zip(one, other, strict=True):
        for mine, theirs in zip(step, other_step, strict=True):
            if mine is None or theirs is None:
                if mine is not theirs:
                    return False
            elif not torch.equal(mine.to_dense(), theirs.to_dense()):
                return False
    return True


def lists(buckets: Any) -> list[list[int]]:
    return [list(bucket) for bucket in buckets]


def check(model: nn.Module, assignment: Assignment, batch: Batch, steps: int = 4, **ddp_kwargs: Any) -> None:
    """Buckets as asked for, and the gradients of the same training under plain DDP with the same switches."""
    ddp = sim.apply(copy.deepcopy(model), assignment, **ddp_kwargs)
    mine = train(ddp, batch, steps)
    plain = DistributedDataParallel(copy.deepcopy(model), **ddp_kwargs)
    assert same(mine, train(plain, batch, steps)), assignment.bucket_indices
    assert_holds(ddp, assignment)
    assert isinstance(ddp, InjectedDataParallel)


def assert_holds(ddp: Any, assignment: Assignment) -> None:
    assert observed_buckets(ddp) == lists(assignment.bucket_indices)


def under_both(make: Callable[[], Layers], run: Callable[[Any], Any], **ddp_kwargs: Any) -> list[Any]:
    """What ``run`` makes of the model under ``sim.apply`` with ``every_second``, and under plain DDP."""
    mine, plain = make(), make()
    ddp = sim.apply(mine, every_second(mine), **ddp_kwargs)
    return [run(ddp), run(DistributedDataParallel(plain, **ddp_kwargs))]


def gradients(ddp: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in ddp.parameters()]


def random_assignments() -> None:
    """Partitions and orders, up to three dtypes or a sparse gradient, views, accumulation."""
    chance = random.Random(7)
    most = 0
    for number in range(30):
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

    def run(ddp: Any) -> list[list[Tensor | None]]:
        with ddp.no_sync():
            ddp(floats(5)(0)).backward()
        ddp.module.skipped = {1}
        ddp(floats(5)(1)).backward()
        return [gradients(ddp)]

    assert same(*under_both(lambda: linears(5, 3), run, find_unused_parameters=True))


def two_forwards_before_one_backward() -> None:
    """The second forward, under no_sync, must not disarm the hooks of the first."""

    def run(ddp: Any) -> list[list[Tensor | None]]:
        for step in range(3):
            ddp.zero_grad()
            loss = ddp(floats(5)(step))
            with ddp.no_sync():
                loss = loss + ddp(floats(5)(step + 10))
            loss.backward()
        return [gradients(ddp)]

    assert same(*under_both(lambda: linears(5, 3), run))


def static_graph() -> None:
    def run(ddp: Any) -> list[list[Tensor | None]]:
        ddp.module.skipped = {2}
        seen = []
        for step in range(4):
            ddp.zero_grad()
            ddp(floats(6)(step)).backward()
            seen.append(gradients(ddp))
        return seen

    assert same(*under_both(lambda: linears(6, 4), run, static_graph=True))


def switches() -> None:
    """BatchNorm's buffers, a process group or mesh of our own, batched copies where torch has them."""
    group = dist.new_group([0, 1])
    torch.manual_seed(3)
    norms = Layers([layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6))])
    model = linears(6, 4)
    check(norms, every_second(norms), floats(6))
    check(norms, every_second(norms), floats(6), broadcast_buffers=False)
    more = [{"process_group": group}, {"device_mesh": init_device_mesh("cpu", (2,))}]
    if "batched_grad_copy" in inspect.signature(DistributedDataParallel.__init__).parameters:
        more.append({"batched_grad_copy": True})
    for ddp_kwargs in more:
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
    mine = train(ddp, floats(6))
    plain = DistributedDataParallel(linears(6, 4))
    builtin = sim.apply(linears(6, 4), assignment)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    expected = train(plain, floats(6))
    assert same(mine, expected)
    assert same(train(builtin, floats(6)), expected)
    assert seen == 4 * lists(assignment.bucket_indices)


def an_unused_parameter() -> None:
    """torch's own error is kept."""
    model = linears(6, 3)
    model.skipped = {1}
    ddp = sim.apply(model, every_second(model))
    ddp(floats(6)(0)).backward()
    with pytest.raises(RuntimeError, match="did not receive grad for rank") as caught:
        ddp(floats(6)(1)).backward()
    for words in ("Expected to have finished reduction", "2 3"):
        assert words in str(caught.value)


def what_is_recorded_for_a_rebuild() -> None:
    """After many steps the C++ Reducer holds one backward's order: it asserts so when it rebuilds."""
    model = linears(6, 3)
    ddp: Any = sim.apply(model, every_second(model))
    for step in range(20):
        ddp(floats(6)(step)).backward()
    assert Reducer._rebuild_buckets(ddp.reducer)


def uneven_inputs() -> None:
    """Rank 1 has two batches more: torch's Join, which also asks the Reducer to rebuild."""

    def run(ddp: Any) -> tuple[list[list[Tensor | None]], Any]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
        with Join([ddp]):
            for step in range(2 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                ddp(floats(6)(step)).backward()
                optimizer.step()
        # As in what_is_recorded_for_a_rebuild: a joined rank piles up nothing either.
        rebuilt = isinstance(ddp, InjectedDataParallel) and Reducer._rebuild_buckets(ddp.reducer)
        return [[parameter.detach().clone() for parameter in ddp.parameters()]], rebuilt

    (mine, rebuilt), (plain, _) = under_both(lambda: linears(6, 3), run)
    assert same(mine, plain)
    assert rebuilt


def pickled() -> None:
    model = linears(6, 3)
    assignment = every_second(model)
    assert_holds(pickle.loads(pickle.dumps(sim.apply(model, assignment))), assignment)


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
    injected |= set() if TORCH >= (2, 12) else {"cap 0"}
    for name, (assignment, ddp_kwargs) in asked.items():
        one = copy.deepcopy(model)
        one.backwards = name == "other order"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ddp = sim.apply(one, assignment, **ddp_kwargs)
            for step in range(5):
                ddp(floats(64)(step)).backward()
        assert isinstance(ddp, InjectedDataParallel) == (name in injected), name
        warned = [str(one.message) for one in caught if "bucketsim" in str(one.message)]
        if name == "other order" and HAS_LIST:
            assert observed_buckets(ddp) != lists(assignment.bucket_indices)
            (word,) = warned
            assert "ready in another order than the recorded one" in word
        else:
            assert [set(b) for b in observed_buckets(ddp)] == [set(b) for b in assignment.bucket_indices], (
                name
            )
            assert warned == [], name


def pasted_snippet() -> None:
    model = linears(6, 4)
    workload = workload_of(model)
    assignment = random_assignment(workload, random.Random(1))
    names: dict[str, Any] = {"model": model}
    exec(compile(sim.snippet(assignment, workload), "snippet", "exec"), names)
    assert_holds(names["ddp_model"], assignment)


def another_world_size() -> None:
    """A warning with both, where the user calls."""
    model = linears(6, 2)
    indices = every_second(model).bucket_indices
    tuned = Assignment(bucket_indices=indices, made_for=made_for(workload_of(model), 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sim.apply(model, tuned)
    (warned,) = caught
    assert "tuned for 8 ranks and runs on 2" in str(warned.message)
    assert warned.filename.endswith("apply_worker.py")


def compiled_names() -> None:
    """torch.compile, checkpointing and a module around it insert into names; the model is the same."""
    model = linears(6, 3)
    assignment = every_second(model)
    sim.apply(torch.compile(model), assignment)
    sim.apply(nn.ModuleDict({"with_loss": linears(6, 3)}), assignment)


def refused(words: str, *given: Any, **ddp_kwargs: Any) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError)) as caught:
        sim.apply(*given, **ddp_kwargs)
    said = f"{caught.type.__name__}: {caught.value}"
    assert re.search(words, said), (words, said)


def refusals() -> None:
    model = linears(6, 3)
    fitting = every_second(model)
    renamed = nn.ModuleDict({"other": linears(6, 1), "others": linears(6, 2)})
    mesh = init_device_mesh("cpu", (2,))

    def sharded(name: str, part: nn.Module, mesh: Any) -> None:
        for key, parameter in list(part.named_parameters(recurse=False)):
            part.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh)))

    mixed = Assignment(bucket_indices=(tuple(range(6)),))
    refused("AssignmentError: .*another model .'tried'.*gradient 0: 'layers.0.*'other", renamed, fitting)
    refused(r"AssignmentError: .*6 gradients there, 6 here.*144 .* there.*196 bytes", linears(7, 3), fitting)
    refused(
        r"AssignmentError: .*first of 6.*float32, 144 .* there.*float16, 72 by", linears(6, 3).half(), fitting
    )
    refused("AssignmentError: .*6 gradients there, 4 here; 'layers.2.* only there", linears(6, 2), fitting)
    refused("AssignmentError: .*6 gradients there, 8 here; 'layers.3.* only here", linears(6, 4), fitting)
    refused("AssignmentError: .*hold 6 gradients .*this model has 8", linears(6, 4), mixed)
    refused(r"AssignmentError: bucket_indices.0: mixes .*bfloat16.*A8\.3", linears(6, 3, DTYPES), mixed)
    refused(
        "AssignmentError: bucket_indices.0: 'layers.0.weight' has a sparse gradient",
        Layers([nn.Embedding(5, 6, sparse=True), nn.Linear(6, 6)]),
        Assignment(bucket_indices=((0, 1, 2),)),
    )
    refused("InputError: bucket_cap_mb: 4 is not legal; the assignment says", model, fitting, bucket_cap_mb=4)
    refused(
        "InputError: gradient_as_bucket_view: False is not legal; .*made for True",
        model,
        every_second(model, ddp_kwargs={"gradient_as_bucket_view": True}),
        gradient_as_bucket_view=False,
    )
    refused("InputError: bucket_caps: .* has no such keyword in torch", model, fitting, bucket_caps=4)
    refused(
        "InputError: delay_all_reduce_named_params: .*out of the buckets",
        model,
        fitting,
        delay_all_reduce_named_params=list(model.named_parameters())[:1],
        param_to_hook_all_reduce=model.layers[1].weight,
    )
    refused("NotModelledError: mixed_precision: not supported", model, fitting, mixed_precision=object())
    refused(
        "InputError: find_unused_parameters: leave it out",
        model,
        fitting,
        static_graph=True,
        find_unused_parameters=True,
    )
    refused("NotModelledError: policy: 'zero1'", model, Assignment(policy="zero1", bucket_indices=((0,),)))
    refused(
        "InputError: model: is wrapped or sharded by DistributedDataParallel",
        DistributedDataParallel(linears(6, 3)),
        fitting,
    )
    refused(
        "InputError: model: module '1' is wrapped or sharded by DistributedDataParallel",
        nn.Sequential(nn.Linear(6, 6), DistributedDataParallel(linears(6, 3))),
        fitting,
    )
    refused(
        "InputError: model: is wrapped or sharded by FullyShardedDataParallel",
        FullyShardedDataParallel(linears(6, 3), device_id=torch.device("cpu")),
        fitting,
    )
    refused(
        "InputError: model: is wrapped or sharded by FSDPModule",
        fully_shard(linears(6, 3), mesh=mesh),
        fitting,
    )
    refused(
        "InputError: model: parameter 'layers.0.weight' is a DTensor",
        distribute_module(linears(6, 3), mesh, sharded),
        fitting,
    )
    refused("InputError: model: 'layers.0.weight' is on the meta device", linears(6, 3).to("meta"), fitting)
    refused(
        "InputError: assignment: a dict is not legal; give an As", model, json.loads(sim.to_text(fitting))
    )
    refused("InputError: none.json: cannot be read: No such file or directory", model, "none.json")
    refused("InputError: model: str is not legal", "model", fitting)


CASES: tuple[Callable[[], None], ...] = (
    random_assignments,
    find_unused_parameters,
    used_under_no_sync_only,
    two_forwards_before_one_backward,
    static_graph,
    switches,
    communication_hook,
    an_unused_parameter,
    what_is_recorded_for_a_rebuild,
    uneven_inputs,
    pickled,
    by_keywords,
    pasted_snippet,
    another_world_size,
    compiled_names,
    refusals,
)


if __name__ == "__main__":
    check_each(int(sys.argv[1]), Path(sys.argv[2]), {case.__name__: case for case in CASES})
