"""The textbook systems (A6, A7) on gloo ranks, as modules with buckets that are cut here as published.

A case is a dict: ``policy``, ``bucket_cap_mb`` and ``layers`` (models), whose collectives are told: then
gradients are zeroed in place and the first backward sends nothing: a hook that is early finds tensors,
and an answer also has ``buckets``. Or it is a ``task``, one of ``TASKS``, and its arguments; what a task
raises becomes ``error``: type and text.
"""

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sim.nouns.ddp_switches import split_switches
from sim.systems.textbook import STYLES, Style
from tests.systems.ddp_worker import register
from tests.systems.models import MODELS, Layer, Net, loss_of
from tests.systems.real_ranks import Answer, Run, answer_each, meet


class Bucket:
    """Parameters whose gradients travel together, in the order of ``indices``."""

    def __init__(self, number: int, indices: Sequence[int], trained: Sequence[nn.Parameter]) -> None:
        self.number, self.indices = number, list(indices)
        self.parameters = [trained[index] for index in indices]
        self.flat: Any = None  # what is, or was last, on the wire
        self.missing: set[int] = set()  # in this backward

    def gradients(self) -> list[Any]:
        """The gradients as they are now; None where one has not come yet."""
        return [parameter.grad for parameter in self.parameters]

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one a parameter, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


class TextbookModule(nn.Module):
    """A module whose gradients are averaged over ranks when ``backward()`` returns, in the way of ``style``.

    Waiting and all that follows happens in a callback that autograd runs when backward's work is over. No
    bucket waits for its turn, as DDP's do (A3.5). By its last parameter's hook a bucket is sent as published,
    faults and all (A6.1): where another of its gradients comes later, flattening raises ``TypeError`` on
    gradients that were set to None, and sends stale values without a word on gradients that were zeroed in
    place (A6.4).

    ``kept``: where it is given, what is sent is kept in it by the bucket's number, and nothing is sent.
    """

    def __init__(
        self,
        module: nn.Module,
        style: Style,
        bucket_indices: Sequence[Sequence[int]],
        kept: dict[int, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.bucket_indices, self.kept = module, bucket_indices, kept
        self._style = style
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._buckets = [Bucket(number, part, self._trained) for number, part in enumerate(bucket_indices)]
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._views: dict[int, Tensor] = {}
        for bucket in self._buckets if style.by_size and style.copies != "launch" else ():
            numel = sum(parameter.numel() for parameter in bucket.parameters)
            bucket.flat = torch.empty(numel, dtype=bucket.parameters[0].dtype)
            self._views |= zip(bucket.indices, bucket.split(bucket.flat), strict=True)
        self._adds_into_views = bool(self._views) and style.copies is None
        self._synchronises, self._in_backward = True, False
        self._under_way: list[tuple[Bucket, Any]] = []
        for index in [bucket.indices[-1] for bucket in self._buckets] if style.by_last else self._bucket_of:
            watch = partial(self._on_gradient, index)
            self._trained[index].register_post_accumulate_grad_hook(watch)

    def forward(self, *inputs: Any) -> Any:
        """The module's. Where gradients are views of the storage, each that is None becomes a zeroed view
        again: backward adds into it (A7.4)."""
        self._in_backward = False
        self._under_way.clear()
        for index, view in self._views.items() if self._adds_into_views else ():
            if self._trained[index].grad is None:
                self._trained[index].grad = view.zero_()
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in this context accumulate gradients and send nothing."""
        self._synchronises = False
        yield
        self._synchronises = True

    @torch.no_grad()
    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if not self._synchronises:
            return
        if not self._in_backward:
            self._in_backward = True
            for bucket in self._buckets:
                bucket.missing = set(bucket.indices)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_end)
        bucket = self._bucket_of[index]
        if (self._style.by_last or self._is_complete(bucket, index)) and self._style.overlaps:
            self._send(bucket)

    def _is_complete(self, bucket: Bucket, index: int) -> bool:
        """Count a gradient that has come, and put it where it belongs; whether it was the bucket's last."""
        if self._style.copies == "arrival":
            self._views[index].copy_(self._trained[index].grad)
        bucket.missing.remove(index)
        return not bucket.missing

    @torch.no_grad()
    def _on_end(self) -> None:
        self._in_backward = False
        for bucket in () if self._style.overlaps else self._buckets:
            self._send(bucket)
            self._wait()
        self._wait()

    def _send(self, bucket: Bucket) -> None:
        """Start to sum a bucket over ranks: its storage, its gradients flattened, or its one gradient."""
        if self._style.copies == "launch":
            bucket.flat = torch._utils._flatten_dense_tensors(bucket.gradients())  # type: ignore[no-untyped-call]
        elif not self._views:
            (bucket.flat,) = bucket.gradients()
        if self.kept is None:
            self._under_way.append((bucket, dist.all_reduce(bucket.flat, async_op=True)))
        else:
            self.kept[bucket.number] = bucket.flat.clone()

    def _wait(self) -> None:
        """Wait for all that was launched, in that order, and make averages of each as soon as it is there."""
        for bucket, sent in self._under_way:
            sent.wait()
            if self._style.copies is not None:
                for part, gradient in zip(bucket.split(bucket.flat), bucket.gradients(), strict=True):
                    torch.div(part, dist.get_world_size(), out=gradient)
            else:
                bucket.flat.div_(dist.get_world_size())
            if not self._views:
                bucket.flat = None
        self._under_way.clear()


def build_system(policy: str, module: nn.Module, cap_mb: float = 25, **more: Any) -> TextbookModule:
    """The system that ``policy`` names, with a cap of MiB."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return TextbookModule(module, STYLES[policy], _cut(trained, STYLES[policy], int(cap_mb * 2**20)), **more)


def _cut(trained: list[nn.Parameter], style: Style, cap_bytes: int) -> list[list[int]]:
    """Walk from the last parameter to the first and close a bucket once ``cap_bytes`` are reached (A6.1).

    Every dtype has an open bucket of its own, except by the last parameter's hook (A7.5). Closed buckets come
    first, as they closed, then open ones as they were opened.
    """
    if not style.by_size:
        return [[index] for index in range(len(trained))]
    closed: list[list[int]] = []
    opened: dict[object, list[int]] = {}
    for index in reversed(range(len(trained))):
        key = None if style.by_last else trained[index].dtype
        bucket = opened.setdefault(key, [])
        bucket.append(index)
        if sum(trained[one].nbytes for one in bucket) >= cap_bytes:
            closed.append(opened.pop(key))
    return [*closed, *opened.values()]


class TextbookRun(Run):
    iterations = 3

    def wrap(self) -> TextbookModule:
        system = build_system(self.case["policy"], self.net, self.case["bucket_cap_mb"])
        self.also["buckets"] = system.bucket_indices
        return system

    def micro_batch(self, *, is_last: bool) -> None:
        self.net.zero_grad(set_to_none=False)
        super().micro_batch(is_last=len(self.ready) > 1)


def _net(layers: list[Layer]) -> Net:
    torch.manual_seed(len(layers))
    return Net(layers, dist.get_rank())


def _known(model: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return MODELS[model]()


def _gradients(model: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters() if parameter.requires_grad]


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
            drawn = plain.batch(inputs)
            loss_of(plain, drawn).backward()
            with nullcontext() if last else system.no_sync():
                loss_of(system, drawn).backward()
        for gradient in _gradients(plain):
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
        equal.append(all(map(torch.equal, _gradients(plain), _gradients(system))))
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
        loss_of(system, inputs).backward()
    for one in (plain, system):
        one.zero_grad(set_to_none=set_to_none)
        loss_of(one, inputs).backward()
    right = [*map(torch.equal, _gradients(plain), _gradients(system))]
    return {"wrong": right.count(False), "count": len(right)}


def sweep_last_hook(model: str, caps_mb: list[float]) -> Answer:
    """Which buckets of a known model are sent with other gradients than backward arrives at, for each cap.

    What is sent is looked at, not when: gradients are zeroed in place, so that a late one is sent as zeros.
    """
    plain, inputs = _known(model)
    ready: list[int] = []
    for index, parameter in enumerate(plain.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: ready.append(index))
    loss_of(plain, inputs).backward()
    true = _gradients(plain)
    invalid, buckets = [], []
    for cap in caps_mb:
        sent: dict[int, Tensor] = {}
        system = build_system("last-hook", _known(model)[0], cap, kept=sent)
        with system.no_sync():
            loss_of(system, inputs).backward()
        system.zero_grad(set_to_none=False)
        loss_of(system, inputs).backward()
        whole = [torch.cat([true[index].flatten() for index in part]) for part in system.bucket_indices]
        invalid.append([number for number, flat in enumerate(whole) if not torch.equal(flat, sent[number])])
        buckets.append(system.bucket_indices)
    sizes = [parameter.nbytes for parameter in plain.parameters()]
    return {"num_bytes": sizes, "ready": ready, "buckets": buckets, "invalid": invalid}


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


# Memory: on one rank, with glibc told to map every tensor by itself, so that the process's resident memory
# follows what is allocated, whichever thread frees it.

STEPS = 4  # buckets are rebuilt before the second
LOOKS = 6  # a thread of gloo's may let go of what it reduced last only after backward has returned


class Scalars(nn.Module):
    """Nothing but parameters, and gradients that need no memory until they are accumulated."""

    def __init__(self, sizes: list[list[int]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.ones(*size)) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([parameter.sum() for parameter in self.all]).sum() * x


def hold_memory(sizes: list[list[int]], policy: str, cap_mb: float, options: dict[str, Any]) -> Answer:
    """``peak``: bytes beside parameters and gradients (of shapes ``sizes``) at the worst of a backward, the
    least that one of some steps had. Of two runs the second counts: the first loads libraries.

    ``options``: as ``sim.assign`` takes them.
    """
    peak: list[int] = []
    ddp_kwargs, settings = split_switches(options)
    for looks in (1, LOOKS):
        net = Scalars(sizes)
        gc.collect()
        dist.destroy_process_group()  # its threads may still hold what they reduced last; they end here
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        before = _resident("VmRSS") + sum(parameter.nbytes for parameter in net.parameters())
        if policy == "ddp":
            model: Any = DistributedDataParallel(net, bucket_cap_mb=cap_mb, **ddp_kwargs)
            if "comm_hook" in settings:
                register(model, settings["comm_hook"])
        else:
            model = build_system(policy, net, cap_mb or 25)
        x = torch.ones(())
        peak.clear()
        for _ in range(STEPS - 1 + looks):
            model.zero_grad(set_to_none=settings.get("set_to_none", True))
            for _ in range(settings.get("accumulation_steps", 1) - 1):
                with model.no_sync():
                    model(x).backward()
            loss = model(x)
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
            loss.backward()
            del loss
            peak.append(_resident("VmHWM") - before)
        del model, net
    return {"peak": min(peak[-LOOKS:])}


def _resident(name: str) -> int:
    """Resident memory of this process in bytes: ``VmRSS`` now, ``VmHWM`` at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


TASKS: dict[str, Callable[..., Answer]] = {
    task.__name__: task for task in (compare_gradients, fail_late, sweep_last_hook, leave_unused, hold_memory)
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
