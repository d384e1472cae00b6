"""The textbook systems on gloo ranks of their own. A case is a dict: ``policy``, ``bucket_cap_mb`` and
``layers`` (ddp_models), whose collectives are told; or a ``task``, one of ``TASKS``, and its arguments. What
a task raises becomes ``error``: type and text.

In a told run gradients are zeroed in place and the first backward sends nothing: a hook that is early finds
tensors. An answer also has ``buckets``.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.systems.ddp_models import Layer, Net, batch
from tests.systems.last_hook_models import MODELS
from tests.systems.real_ranks import Answer, Run, answer_each, meet
from tests.systems.textbook_built import Bucket, build_system


class TextbookRun(Run):
    iterations = 3

    def build(self) -> nn.Module:
        return _net(self.case["layers"])

    def wrap(self) -> None:
        self.watch_hooks()
        self.system = build_system(self.case["policy"], self.net, self.case["bucket_cap_mb"])
        self.inputs = torch.Generator().manual_seed(self.rank)

    def micro_batch(self, *, is_last: bool) -> None:
        self.net.zero_grad(set_to_none=False)
        with nullcontext() if len(self.ready) > 1 else self.system.no_sync():
            self.backward(_loss(self.system, batch(self.case["layers"], self.inputs)))

    def more(self) -> Answer:
        return {"buckets": self.system.bucket_indices}


def _net(layers: list[Layer]) -> Net:
    torch.manual_seed(len(layers))
    return Net(layers, dist.get_rank())


def _loss(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    values = model(*inputs)
    return (values[0] if isinstance(values, tuple) else values).float().square().mean()


def _gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    assert not any(gradient is None for gradient in found)
    return found


def compare_gradients(policy: str, layers: list[Layer], bucket_cap_mb: float) -> Answer:
    """Four steps beside the plain module, whose gradients are averaged here; every second accumulates."""
    plain = _net(layers)
    system = build_system(policy, copy.deepcopy(plain), bucket_cap_mb)
    inputs = torch.Generator().manual_seed(dist.get_rank())
    equal = []
    for step in range(4):
        for model in (plain, system):
            model.zero_grad(set_to_none=step < 2)
        for last in (False, True) if step % 2 else (True,):
            drawn = batch(layers, inputs)
            _loss(plain, drawn).backward()
            with nullcontext() if last else system.no_sync():
                _loss(system, drawn).backward()
        for gradient in _gradients(plain):
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
        pairs = zip(_gradients(plain), _gradients(system), strict=True)
        equal.append(all(torch.equal(one, other) for one, other in pairs))
        with torch.no_grad():
            for model in (plain, system):
                for parameter in filter(lambda one: one.requires_grad, model.parameters()):
                    parameter.sub_(parameter.grad, alpha=0.01)
    return {"equal": equal}


def fail_late(policy: str, model: str, bucket_cap_mb: float, set_to_none: bool) -> Answer:
    """How many gradients of a known model are wrong after one backward, and how many there are."""
    plain, inputs = _known(model)
    system = build_system(policy, copy.deepcopy(plain), bucket_cap_mb)
    with system.no_sync():
        _loss(system, inputs).backward()
    for one in (plain, system):
        one.zero_grad(set_to_none=set_to_none)
        _loss(one, inputs).backward()
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
    _loss(plain, inputs).backward()
    true = _gradients(plain)
    invalid, buckets = [], []
    for cap in caps_mb:
        system = build_system("last-hook", _known(model)[0], cap)
        sent: dict[int, Tensor] = {}
        system.register_comm_hook(sent, _keep)
        with system.no_sync():
            _loss(system, inputs).backward()
        system.zero_grad(set_to_none=False)
        _loss(system, inputs).backward()
        whole = [torch.cat([true[index].flatten() for index in part]) for part in system.bucket_indices]
        invalid.append([number for number, flat in enumerate(whole) if not torch.equal(flat, sent[number])])
        buckets.append(system.bucket_indices)
    sizes = [parameter.nbytes for parameter in plain.parameters()]
    return {"num_bytes": sizes, "ready": ready, "buckets": buckets, "invalid": invalid}


def _known(model: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return MODELS[model]()


def _keep(sent: dict[int, Tensor], bucket: Bucket) -> torch.futures.Future[Tensor]:
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
    """Two Linear layers with bias, of which ``unused`` (a parameter's name) takes no part: whether ranks have
    the same gradients after a second backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    system = build_system(policy, model, bucket_cap_mb)
    kept = {name: one.detach() if name == unused else one for name, one in model.named_parameters()}
    inputs = torch.full((2, 4), 1.0 + dist.get_rank())
    with system.no_sync():
        system(inputs).sum().backward()
    model.zero_grad(set_to_none=False)
    torch.func.functional_call(model, kept, (inputs,)).square().sum().backward()
    same = []
    for gradient in _gradients(model):
        rows: list[Any] = [None, None]
        dist.all_gather_object(rows, gradient.tolist())
        same.append(rows[0] == rows[1])
    return {"same": same}


TASKS: dict[str, Callable[..., Answer]] = {
    task.__name__: task
    for task in (compare_gradients, fail_late, sweep_last_hook, take_views_away, leave_unused)
}


def answer(case: Any) -> Answer:
    if "task" not in case:
        return TextbookRun(case).answer()
    arguments = dict(case)
    try:
        return TASKS[arguments.pop("task")](**arguments)
    except (RuntimeError, ValueError, TypeError) as error:
        return {"error": [type(error).__name__, str(error)]}


if __name__ == "__main__":
    meet()
    answer_each(answer)
