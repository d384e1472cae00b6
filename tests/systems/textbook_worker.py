"""The textbook systems on gloo ranks of their own: cases in, gradients compared and collectives seen out.

Usage: ``python -m tests.systems.textbook_worker CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the
answers of a rank go to ``ANSWERS.<rank>``, one a line. A case is a dict: ``task`` (a function of ``TASKS``)
and its arguments. What a task raises becomes ``{"error": [type, text]}``.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sim.validator.ranks.paced import PacedModule
from sim.validator.ranks.step import Recorder, run_step, sharpen_sleep
from sim.validator.ranks.textbook import ReducedBucket, build_system
from tests.systems.answering import answer_each, meet
from tests.systems.ddp_models import Layer, Net, batch
from tests.systems.ddp_observing import Diary
from tests.systems.last_hook_models import MODELS

Answer = dict[str, Any]
MS = 1_000_000


def main() -> None:
    """Answer every case, in the order given."""
    meet()
    answer_each(lambda case: {"events": []} | _answer(**case))


def _answer(task: str, **arguments: Any) -> Answer:
    try:
        return TASKS[task](**arguments)
    except (RuntimeError, ValueError, TypeError) as error:
        return {"error": [type(error).__name__, str(error)]}


def _net(layers: list[Layer]) -> Net:
    torch.manual_seed(len(layers))
    return Net(layers, dist.get_rank())


def _batches(layers: list[Layer]) -> Callable[[], tuple[Tensor, Tensor]]:
    return partial(batch, layers, torch.Generator().manual_seed(dist.get_rank()))


def _loss(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    values, _ = model(*inputs)
    loss: Tensor = values.float().square().mean()
    return loss


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in _trained(model):
        assert parameter.grad is not None
        found.append(parameter.grad)
    return found


def compare_gradients(policy: str, layers: list[Layer], bucket_cap_mb: float) -> Answer:
    """Four steps beside the plain module, whose gradients are averaged here; every second accumulates."""
    plain = _net(layers)
    system = build_system(policy, copy.deepcopy(plain), {"bucket_cap_mb": bucket_cap_mb})
    draw = _batches(layers)
    equal = []
    for step in range(4):
        for model in (plain, system):
            model.zero_grad(set_to_none=step < 2)
        for last in (False, True) if step % 2 else (True,):
            inputs = draw()
            _loss(plain, inputs).backward()
            with nullcontext() if last else system.no_sync():
                _loss(system, inputs).backward()
        for expected in _gradients(plain):
            dist.all_reduce(expected)
            expected.div_(dist.get_world_size())
        pairs = zip(_gradients(plain), _gradients(system), strict=True)
        equal.append(all(torch.equal(one, other) for one, other in pairs))
        with torch.no_grad():
            for model in (plain, system):
                for parameter in _trained(model):
                    parameter.sub_(parameter.grad, alpha=0.01)
    return {"equal": equal, "buckets": system.bucket_indices}


def watch_events(policy: str, layers: list[Layer], bucket_cap_mb: float) -> Answer:
    """The collectives of the third backward, its ready order, and the parameters that it was about.

    Gradients are zeroed in place and the first backward sends nothing: a hook that is early finds tensors.
    """
    model = _net(layers)
    trained = _trained(model)
    diary, ready = Diary(), list[int]()

    def began(_: Tensor, *, gradient: int) -> None:
        ready.append(gradient)
        diary.at("backward", gradient=gradient)

    for gradient, parameter in enumerate(trained):
        parameter.register_post_accumulate_grad_hook(partial(began, gradient=gradient))
    system = build_system(policy, model, {"bucket_cap_mb": bucket_cap_mb})
    draw = _batches(layers)
    for number in range(3):
        model.zero_grad(set_to_none=False)
        ready.clear()
        if number == 2:
            diary.start()
        diary.enter("before forward", 1, 1)
        with nullcontext() if number else system.no_sync():
            loss = _loss(system, draw())
            loss.register_hook(lambda _: _at_end(diary))
            loss.backward()
        diary.at("after backward")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return {
        "parameters": [
            {"name": name, "dtype": str(p.dtype).removeprefix("torch."), "num_bytes": p.nbytes}
            for name, p in named
        ],
        "ready": ready,
        "buckets": system.bucket_indices,
        "events": diary.events(),
    }


def _at_end(diary: Diary) -> None:
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: diary.at("end of backward"))


def pace(policy: str, count: int, spacing_ms: float, bucket_cap_mb: float) -> Answer:
    """One step of a paced module: gradients of 64 KiB, the last first, ``spacing_ms`` apart."""
    sharpen_sleep()
    tensors = [torch.zeros(1 << 14) for _ in range(count)]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    due = [round(spacing_ms * MS * (place + 1)) for place in range(count + 1)]
    module = PacedModule(tensors, gradients, range(count - 1, -1, -1), due, MS, (), MS)
    system, recorder = build_system(policy, module, {"bucket_cap_mb": bucket_cap_mb}), Recorder()
    system.register_comm_hook(None, recorder.hook)
    row = run_step(system, module, recorder)
    return {"row": row, "buckets": system.bucket_indices, "due": due}


def fail_late(policy: str, model: str, bucket_cap_mb: float, set_to_none: bool) -> Answer:
    """How many gradients of a known model are wrong after one backward, and how many there are."""
    plain, inputs = _known(model)
    system = build_system(policy, copy.deepcopy(plain), {"bucket_cap_mb": bucket_cap_mb})
    with system.no_sync():
        system(*inputs).square().mean().backward()
    for one in (plain, system):
        one.zero_grad(set_to_none=set_to_none)
    plain(*inputs).square().mean().backward()
    system(*inputs).square().mean().backward()
    pairs = list(zip(_gradients(plain), _gradients(system), strict=True))
    return {"wrong": sum(not torch.equal(one, other) for one, other in pairs), "count": len(pairs)}


def sweep_last_hook(model: str, caps_mb: list[float]) -> Answer:
    """Which buckets of a known model are sent with other gradients than backward arrives at, for each cap.

    What is sent is looked at, not when: gradients are zeroed in place, so that a late one is sent as zeros.
    """
    plain, inputs = _known(model)
    ready: list[int] = []
    for index, parameter in enumerate(plain.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: ready.append(index))
    plain(*inputs).square().mean().backward()
    true = _gradients(plain)
    invalid, buckets = [], []
    for cap in caps_mb:
        system = build_system("last-hook", _known(model)[0], {"bucket_cap_mb": cap})
        sent: dict[int, Tensor] = {}
        system.register_comm_hook(sent, _keep)
        with system.no_sync():
            system(*inputs).square().mean().backward()
        system.zero_grad(set_to_none=False)
        system(*inputs).square().mean().backward()
        whole = [torch.cat([true[index].flatten() for index in part]) for part in system.bucket_indices]
        invalid.append([number for number, flat in enumerate(whole) if not torch.equal(flat, sent[number])])
        buckets.append(system.bucket_indices)
    parameters = [
        {"name": name, "dtype": "float32", "num_bytes": p.nbytes} for name, p in plain.named_parameters()
    ]
    return {"parameters": parameters, "ready": ready, "buckets": buckets, "invalid": invalid}


def _known(model: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return MODELS[model]()


def _keep(sent: dict[int, Tensor], bucket: ReducedBucket) -> torch.futures.Future[Tensor]:
    """A communication hook that keeps what it is asked to send, and sends nothing."""
    sent[bucket.index()] = bucket.buffer().clone()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def take_views_away() -> Answer:
    """Gradients are set to None between forward and backward."""
    system = build_system("flat-views", nn.Linear(4, 4))
    loss = system(torch.ones(2, 4)).sum()
    system.zero_grad(set_to_none=True)
    loss.backward()
    return {}


def leave_unused(policy: str, unused: str, bucket_cap_mb: float) -> Answer:
    """Two Linear layers with bias, of which ``unused`` (a parameter's name) takes no part.

    Says how many all-reduces there were and whether ranks have the same gradients now.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    system = build_system(policy, model, {"bucket_cap_mb": bucket_cap_mb})
    kept = {
        name: parameter.detach() if name == unused else parameter
        for name, parameter in model.named_parameters()
    }
    diary = Diary()
    diary.start()
    diary.enter("backward", 1, 1)
    inputs = torch.full((2, 4), 1.0 + dist.get_rank())
    with system.no_sync():
        system(inputs).sum().backward()
    model.zero_grad(set_to_none=False)
    torch.func.functional_call(model, kept, (inputs,)).square().sum().backward()
    same = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        rows: list[Any] = [None, None]
        dist.all_gather_object(rows, parameter.grad.tolist())
        same.append(rows[0] == rows[1])
    reduced = [event for event in diary.events() if event["kind"] == "all_reduce"]
    return {"elements": [event["elements"] for event in reduced], "same": same}


TASKS: dict[str, Callable[..., Answer]] = {
    task.__name__: task
    for task in (
        compare_gradients,
        watch_events,
        pace,
        fail_late,
        sweep_last_hook,
        take_views_away,
        leave_unused,
    )
}

if __name__ == "__main__":
    main()
