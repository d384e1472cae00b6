"""The textbook systems (A6, A7) as modules, with buckets that are cut here as they were published.

The rows of ``STYLES`` are those that the simulator plays; how a system does it is here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sim.errors import InputError, ReplayError
from sim.systems.textbook import STYLES, Style


class Bucket:
    """Parameters whose gradients travel together, in the order of ``indices``.

    A communication hook is handed it: it has the part of torch's ``GradBucket`` that hooks use.
    """

    def __init__(self, number: int, indices: Sequence[int], trained: Sequence[nn.Parameter]) -> None:
        self.number, self.indices = number, list(indices)
        self._parameters = [trained[index] for index in indices]
        self.flat: Tensor | None = None  # what is, or was last, on the wire
        self.missing: set[int] = set()  # in this backward

    def index(self) -> int:
        """The bucket's number."""
        return self.number

    def buffer(self) -> Tensor:
        """What is to be reduced, in place."""
        assert self.flat is not None
        return self.flat

    def parameters(self) -> list[nn.Parameter]:
        """Whose gradients these are."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """The gradients as they are now; None, against the annotation, where one has not come yet."""
        return [parameter.grad for parameter in self._parameters]  # type: ignore[misc]

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one a parameter, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


Hook = Callable[[Any, Any], torch.futures.Future[Any]]


class TextbookModule(nn.Module):
    """A module whose gradients are averaged over ranks when ``backward()`` returns.

    Waiting and all that follows happens in a callback that autograd runs when backward's work is over, as in
    DistributedDataParallel (A3.9). No bucket waits for its turn; DDP's do (A3.5): here ranks with different
    ready orders launch differently, and their collectives do not match.

    By its last parameter's hook a bucket is sent as published, faults and all (A6.1). Where another of its
    gradients comes later, flattening raises ``TypeError`` on gradients that were set to None, and sends stale
    values without a word on gradients that were zeroed in place; the late one is then overwritten (A6.4). A
    bucket whose watched parameter is not used is never sent. In all other styles ``backward()`` raises
    ``ReplayError`` for a parameter that was not used (A3.21) or was ready twice (A8.5), ``InputError`` for a
    sparse gradient.

    Args:
        module: what is trained; parameters that do not require grad are left alone.
        style: how.
        bucket_indices: which parameters, of those that are trained, travel together.
    """

    def __init__(self, module: nn.Module, style: Style, bucket_indices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.module = module
        self._style = style
        named = [(name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad]
        self._names, self._trained = zip(*named, strict=True)
        self._buckets = [Bucket(number, part, self._trained) for number, part in enumerate(bucket_indices)]
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._views: dict[int, Tensor] = {}
        for bucket in self._buckets if style.by_size and style.copies != "launch" else ():
            first = bucket.parameters()[0]
            numel = sum(parameter.numel() for parameter in bucket.parameters())
            bucket.flat = torch.empty(numel, dtype=first.dtype, device=first.device)
            self._views |= zip(bucket.indices, bucket.split(bucket.flat), strict=True)
        self._adds_into_views = bool(self._views) and style.copies is None
        self._divisor = dist.get_world_size()
        self._hook: tuple[Hook, Any] | None = None
        self._synchronises, self._in_backward = True, False
        self._under_way: list[tuple[Bucket, Tensor, torch.futures.Future[Any]]] = []
        lasts = [bucket.indices[-1] for bucket in self._buckets]
        for index in lasts if style.by_last else self._bucket_of:
            watch = partial(self._on_gradient, index)
            self._trained[index].register_post_accumulate_grad_hook(watch)

    @property
    def bucket_indices(self) -> list[list[int]]:
        """The buckets by parameter index, in the order in which they were cut."""
        return [bucket.indices for bucket in self._buckets]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's; whatever a backward that failed has left behind is forgotten.

        Where gradients are views of the storage, each that is None becomes a zeroed view again: backward
        adds into it (A7.4).
        """
        self._in_backward = False
        self._under_way.clear()
        for index, view in self._views.items() if self._adds_into_views else ():
            if self._trained[index].grad is None:
                self._trained[index].grad = view.zero_()
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in this context accumulate gradients and send nothing."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` reduce buckets; as in DDP, nothing is divided then (A3.17).

        The hook returns a future of the reduced tensor, or of a list that begins with it.
        """
        self._hook = (hook, state)
        self._divisor = 1

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
        gradient, named = self._trained[index].grad, f"parameter {index} ({self._names[index]})"
        if index not in bucket.missing:
            raise ReplayError(f"{named} was ready twice in one backward")
        if gradient is None or gradient.layout != torch.strided:
            raise InputError(f"{named}: its gradient is not dense")
        if self._style.copies == "arrival":
            self._views[index].copy_(gradient)
        elif self._adds_into_views and gradient.data_ptr() != self._views[index].data_ptr():
            raise ReplayError(
                f"{named}: its gradient is no longer a view of the bucket; do not set gradients between "
                f"forward and backward"
            )
        bucket.missing.remove(index)
        return not bucket.missing

    @torch.no_grad()
    def _on_end(self) -> None:
        self._in_backward = False
        unused = sorted(index for bucket in self._buckets for index in bucket.missing)
        if unused and not self._style.by_last:
            raise ReplayError(
                f"parameter {unused[0]} ({self._names[unused[0]]}) was not used in this backward; "
                f"{len(unused)} of {len(self._names)} parameters have no gradient to average"
            )
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
        buffer = bucket.buffer()
        if self._hook is None:
            future: torch.futures.Future[Any] = dist.all_reduce(buffer, async_op=True).get_future()
        else:
            hook, state = self._hook
            future = hook(state, bucket)
        self._under_way.append((bucket, buffer, future))

    def _wait(self) -> None:
        """Wait for all that was launched, in that order, and make averages of each as soon as it is there."""
        for bucket, buffer, future in self._under_way:
            summed = future.wait()
            reduced = summed[0] if isinstance(summed, list) else summed
            if self._style.copies is not None:
                for part, gradient in zip(bucket.split(reduced), bucket.gradients(), strict=True):
                    torch.div(part, self._divisor, out=gradient)
            elif self._divisor != 1 or reduced is not buffer:
                torch.div(reduced, self._divisor, out=buffer)
            if not self._views:
                bucket.flat = None
        self._under_way.clear()


def build_system(policy: str, module: nn.Module, cap_mb: float = 25) -> TextbookModule:
    """The system that ``policy`` names, with a cap of MiB."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return TextbookModule(module, STYLES[policy], _cut(trained, STYLES[policy], int(cap_mb * 2**20)))


def _cut(trained: list[nn.Parameter], style: Style, cap_bytes: int) -> list[list[int]]:
    """Walk from the last parameter to the first and close a bucket once ``cap_bytes`` are reached (A6.1).

    Every dtype and device has an open bucket of its own, except by the last parameter's hook (A7.5).
    Closed buckets come first, as they closed, then open ones as they were opened.
    """
    if not style.by_size:
        return [[index] for index in range(len(trained))]
    closed: list[list[int]] = []
    opened: dict[object, list[int]] = {}
    for index in reversed(range(len(trained))):
        key = None if style.by_last else (trained[index].dtype, trained[index].device)
        bucket = opened.setdefault(key, [])
        bucket.append(index)
        if sum(trained[one].nbytes for one in bucket) >= cap_bytes:
            closed.append(opened.pop(key))
    return [*closed, *opened.values()]
