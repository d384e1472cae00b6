"""One of two gloo ranks on which ``sim.apply`` is tried; its answers go to a JSON file by name of the case.

``python -m tests.dist.apply_worker RANK FOLDER``: every function of ``CASES`` is called once; what it
raises becomes ``{"error": ...}``.
"""

import copy
import gc
import inspect
import json
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
from sim.validator.ranks.wrapping.injection import InjectedDataParallel
from sim.validator.ranks.wrapping.wrap import observed_buckets

WORLD = 2
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
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


def compare(
    model: nn.Module, assignment: Assignment, batch: Batch, steps: int = 4, **ddp_kwargs: Any
) -> dict[str, Any]:
    """The same training under sim.apply and under plain DDP with the same switches."""
    ddp = sim.apply(copy.deepcopy(model), assignment, **ddp_kwargs)
    mine = train(ddp, batch, steps)
    plain = DistributedDataParallel(copy.deepcopy(model), **ddp_kwargs)
    return {
        "equal": same(mine, train(plain, batch, steps)),
        "observed": observed_buckets(ddp),
        "asked": lists(assignment.bucket_indices),
        "injected": isinstance(ddp, InjectedDataParallel),
    }


def under_both(make: Callable[[], Layers], run: Callable[[Any], Any], **ddp_kwargs: Any) -> list[Any]:
    """What ``run`` makes of the model under ``sim.apply`` with ``every_second``, and under plain DDP."""
    mine, plain = make(), make()
    ddp = sim.apply(mine, every_second(mine), **ddp_kwargs)
    return [run(ddp), run(DistributedDataParallel(plain, **ddp_kwargs))]


def gradients(ddp: nn.Module) -> list[Tensor | None]:
    return [None if one.grad is None else one.grad.clone() for one in ddp.parameters()]


def random_assignments() -> list[dict[str, Any]]:
    chance = random.Random(7)
    answers = []
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
        answers.append(compare(model, assignment, batch, gradient_as_bucket_view=views))
    return answers


def find_unused_parameters() -> dict[str, Any]:
    """Layer 1 is used on rank 0 only, layer 2 nowhere."""
    model = linears(6, 4)
    model.skipped = {2} if dist.get_rank() == 0 else {1, 2}
    return compare(model, every_second(model), floats(6), find_unused_parameters=True)


def used_under_no_sync_only() -> dict[str, Any]:
    """A parameter that only the unsynchronised backward uses must still be reduced (A3.13)."""

    def run(ddp: Any) -> list[list[Tensor | None]]:
        with ddp.no_sync():
            ddp(floats(5)(0)).backward()
        ddp.module.skipped = {1}
        ddp(floats(5)(1)).backward()
        return [gradients(ddp)]

    return {"equal": same(*under_both(lambda: linears(5, 3), run, find_unused_parameters=True))}


def two_forwards_before_one_backward() -> dict[str, Any]:
    """The second forward, under no_sync, must not disarm the hooks of the first."""

    def run(ddp: Any) -> list[list[Tensor | None]]:
        for step in range(3):
            ddp.zero_grad()
            loss = ddp(floats(5)(step))
            with ddp.no_sync():
                loss = loss + ddp(floats(5)(step + 10))
            loss.backward()
        return [gradients(ddp)]

    return {"equal": same(*under_both(lambda: linears(5, 3), run))}


def static_graph() -> dict[str, Any]:
    def run(ddp: Any) -> list[list[Tensor | None]]:
        ddp.module.skipped = {2}
        seen = []
        for step in range(4):
            ddp.zero_grad()
            ddp(floats(6)(step)).backward()
            seen.append(gradients(ddp))
        return seen

    return {"equal": same(*under_both(lambda: linears(6, 4), run, static_graph=True))}


def switches() -> dict[str, Any]:
    """BatchNorm's buffers, a process group or mesh of our own, batched copies where torch has them."""
    group = dist.new_group([0, 1])
    torch.manual_seed(3)
    norms = Layers([layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6))])
    model = linears(6, 4)
    answers = {
        "buffers": compare(norms, every_second(norms), floats(6)),
        "no buffers": compare(norms, every_second(norms), floats(6), broadcast_buffers=False),
        "group": compare(model, every_second(model), floats(6), process_group=group),
        "mesh": compare(model, every_second(model), floats(6), device_mesh=init_device_mesh("cpu", (2,))),
    }
    if "batched_grad_copy" in inspect.signature(DistributedDataParallel.__init__).parameters:
        answers["batched"] = compare(model, every_second(model), floats(6), batched_grad_copy=True)
    return answers


def communication_hook() -> dict[str, Any]:
    """The hook sees the buckets asked for from iteration 1 on, and a built-in one can be registered."""
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
    return {
        "equal": same(mine, expected) and same(train(builtin, floats(6)), expected),
        "seen": seen,
        "asked": lists(assignment.bucket_indices),
    }


def an_unused_parameter() -> dict[str, Any]:
    model = linears(6, 3)
    model.skipped = {1}
    ddp = sim.apply(model, every_second(model))
    ddp(floats(6)(0)).backward()
    ddp(floats(6)(1)).backward()
    return {}


def what_is_recorded_for_a_rebuild() -> dict[str, Any]:
    """After many steps the C++ Reducer holds one backward's order: it asserts so when it rebuilds."""
    model = linears(6, 3)
    ddp: Any = sim.apply(model, every_second(model))
    for step in range(20):
        ddp(floats(6)(step)).backward()
    return {"rebuilt": Reducer._rebuild_buckets(ddp.reducer)}


def uneven_inputs() -> dict[str, Any]:
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
    return {"equal": same(mine, plain), "rebuilt": rebuilt}


def pickled() -> dict[str, Any]:
    model = linears(6, 3)
    assignment = every_second(model)
    ddp = pickle.loads(pickle.dumps(sim.apply(model, assignment)))
    return {"observed": observed_buckets(ddp), "asked": lists(assignment.bucket_indices)}


def by_keywords() -> dict[str, Any]:
    """Assignments that DDP's own keywords reach: how it was done, which buckets, and what was warned."""
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
        "last cap": (sim.assign(workload, bucket_cap_mb=0.02, set_last_bucket_cap=True), {}),
        "other order": (list_of_caps, {}),
    }
    answers = {}
    for name, (assignment, ddp_kwargs) in asked.items():
        one = copy.deepcopy(model)
        one.backwards = name == "other order"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ddp = sim.apply(one, assignment, **ddp_kwargs)
            for step in range(5):
                ddp(floats(64)(step)).backward()
        answers[name] = {
            "injected": isinstance(ddp, InjectedDataParallel),
            "observed": observed_buckets(ddp),
            "asked": lists(assignment.bucket_indices),
            "warned": [str(one.message) for one in caught if "bucketsim" in str(one.message)],
        }
    return answers


def pasted_snippet() -> dict[str, Any]:
    model = linears(6, 4)
    workload = workload_of(model)
    assignment = random_assignment(workload, random.Random(1))
    names: dict[str, Any] = {"model": model}
    exec(compile(sim.snippet(assignment, workload), "snippet", "exec"), names)
    return {"observed": observed_buckets(names["ddp_model"]), "asked": lists(assignment.bucket_indices)}


def another_world_size() -> dict[str, Any]:
    model = linears(6, 2)
    indices = every_second(model).bucket_indices
    tuned = Assignment(bucket_indices=indices, made_for=made_for(workload_of(model), 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sim.apply(model, tuned)
    return {"warned": [str(one.message) for one in caught], "file": [one.filename for one in caught]}


def compiled_names() -> dict[str, Any]:
    """torch.compile, checkpointing and a module around it insert into names; the model is the same."""
    model = linears(6, 3)
    assignment = every_second(model)
    sim.apply(torch.compile(model), assignment)
    sim.apply(nn.ModuleDict({"with_loss": linears(6, 3)}), assignment)
    return {}


def refusals() -> dict[str, str]:
    """What each refusal says."""
    model = linears(6, 3)
    fitting = every_second(model)
    renamed = nn.ModuleDict({"other": linears(6, 1), "others": linears(6, 2)})
    mesh = init_device_mesh("cpu", (2,))

    def sharded(name: str, part: nn.Module, mesh: Any) -> None:
        for key, parameter in list(part.named_parameters(recurse=False)):
            part.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh)))

    mixed = Assignment(bucket_indices=(tuple(range(6)),))
    tries: dict[str, Callable[[], object]] = {
        "names": lambda: sim.apply(renamed, fitting),
        "size": lambda: sim.apply(linears(7, 3), fitting),
        "dtype": lambda: sim.apply(linears(6, 3).half(), fitting),
        "fewer": lambda: sim.apply(linears(6, 2), fitting),
        "more": lambda: sim.apply(linears(6, 4), fitting),
        "count, old file": lambda: sim.apply(linears(6, 4), mixed),
        "bytes, old file": lambda: sim.apply(
            linears(7, 3), Assignment(bucket_indices=(tuple(range(6)),), bucket_bytes=(504,))
        ),
        "mixed dtypes": lambda: sim.apply(linears(6, 3, DTYPES), mixed),
        "sparse": lambda: sim.apply(
            Layers([nn.Embedding(5, 6, sparse=True), nn.Linear(6, 6)]),
            Assignment(bucket_indices=((0, 1, 2),)),
        ),
        "cap": lambda: sim.apply(model, fitting, bucket_cap_mb=4),
        "switch": lambda: sim.apply(
            model,
            every_second(model, ddp_kwargs={"gradient_as_bucket_view": True}),
            gradient_as_bucket_view=False,
        ),
        "unknown": lambda: sim.apply(model, fitting, bucket_caps=4),
        "delayed": lambda: sim.apply(
            model,
            fitting,
            delay_all_reduce_named_params=list(model.named_parameters())[:1],
            param_to_hook_all_reduce=model.layers[1].weight,
        ),
        "mixed precision": lambda: sim.apply(model, fitting, mixed_precision=object()),
        "both": lambda: sim.apply(model, fitting, static_graph=True, find_unused_parameters=True),
        "policy": lambda: sim.apply(model, Assignment(policy="zero1", bucket_indices=((0,),))),
        "ddp": lambda: sim.apply(DistributedDataParallel(linears(6, 3)), fitting),
        "ddp inside": lambda: sim.apply(
            nn.Sequential(nn.Linear(6, 6), DistributedDataParallel(linears(6, 3))), fitting
        ),
        "fsdp": lambda: sim.apply(
            FullyShardedDataParallel(linears(6, 3), device_id=torch.device("cpu")), fitting
        ),
        "fsdp2": lambda: sim.apply(fully_shard(linears(6, 3), mesh=mesh), fitting),
        "tensor parallel": lambda: sim.apply(distribute_module(linears(6, 3), mesh, sharded), fitting),
        "meta": lambda: sim.apply(linears(6, 3).to("meta"), fitting),
        "a dict": lambda: sim.apply(model, json.loads(sim.to_text(fitting))),
        "no file": lambda: sim.apply(model, "none.json"),
        "no module": lambda: sim.apply("model", fitting),  # type: ignore[arg-type]
    }
    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
            said[name] = "not refused"
        except (ValueError, RuntimeError, TypeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


CASES: tuple[Callable[[], Any], ...] = (
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


def main(rank: int, folder: Path) -> None:
    """Run every case and write the answers."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    answers: dict[str, Any] = {"torch": torch.__version__, "has_list": HAS_LIST}
    for case in CASES:
        try:
            answers[case.__name__] = case()
        except RuntimeError as error:
            answers[case.__name__] = {"error": str(error)}
    (folder / f"answers-{rank}.json").write_text(json.dumps(answers))
    # gloo's threads must not hold Python callbacks when the interpreter ends.
    dist.barrier()
    gc.collect()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
