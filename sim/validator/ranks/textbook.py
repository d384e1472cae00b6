"""Gradient averaging that is not DDP's, for real: the systems of A6 and A7, each a row of ``STYLES``.

The rows are those that the simulator plays; how a system does it is here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sim.errors import InputError, ReplayError
from sim.nouns.ddp_switches import DEFAULT_BUCKET_CAP_BYTES
from sim.systems.textbook import STYLES, Style
from sim.units import cap_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Parameters whose gradients travel together; ``indices`` are theirs, in the order of the buffer."""

    number: int
    indices: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]

    def gradients(self) -> list[Tensor]:
        """The gradients as they are now; None, against the annotation, where one has not come yet."""
        return [parameter.grad for parameter in self.parameters]  # type: ignore[misc]

    def empty(self) -> Tensor:
        """A flat tensor of the bucket's size, dtype and device."""
        first = self.parameters[0]
        numel = sum(parameter.numel() for parameter in self.parameters)
        return torch.empty(numel, dtype=first.dtype, device=first.device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one a parameter, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedBucket:
    """What a communication hook is handed: the part of torch's ``GradBucket`` that hooks use."""

    bucket: Bucket
    flat: Tensor

    def index(self) -> int:
        """The bucket's number."""
        return self.bucket.number

    def buffer(self) -> Tensor:
        """What is to be reduced, in place."""
        return self.flat

    def parameters(self) -> list[nn.Parameter]:
        """Whose gradients these are."""
        return list(self.bucket.parameters)


Hook = Callable[[Any, ReducedBucket], torch.futures.Future[Any]]


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
        cap_bytes: the bucket cap, where buckets are by size.

    Raises:
        InputError: nothing to train.
    """

    def __init__(self, module: nn.Module, style: Style, cap_bytes: int) -> None:
        super().__init__()
        self.module = module
        self.names = [name for name, tensor in module.named_parameters() if tensor.requires_grad]
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.trained:
            raise InputError(f"{type(module).__name__}: it has no parameter that requires grad")
        self._style = style
        self._buckets = [
            Bucket(number=number, indices=tuple(part), parameters=tuple(self.trained[i] for i in part))
            for number, part in enumerate(self._cut(cap_bytes))
        ]
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        stored = style.by_size and style.copies != "launch"
        self._flats = [bucket.empty() for bucket in self._buckets] if stored else []
        self._views = {
            index: view
            for bucket, flat in zip(self._buckets, self._flats, strict=False)
            for index, view in zip(bucket.indices, bucket.split(flat), strict=True)
        }
        self._divisor = dist.get_world_size()
        self._hook: tuple[Hook, Any] | None = None
        self._synchronises = True
        self._in_backward = False
        self._missing: list[set[int]] = []
        self._under_way: list[tuple[Bucket, Tensor, torch.futures.Future[Any]]] = []
        lasts = [bucket.indices[-1] for bucket in self._buckets]
        for index in lasts if style.by_last else range(len(self.trained)):
            watch = partial(self._on_gradient, index)
            self.trained[index].register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]

    def _cut(self, cap_bytes: int) -> list[list[int]]:
        """Walk from the last parameter to the first and close a bucket once ``cap_bytes`` are reached (A6.1).

        Every dtype and device has an open bucket of its own, except by the last parameter's hook (A7.5).
        Closed buckets come first, as they closed, then open ones as they were opened.
        """
        if not self._style.by_size:
            return [[index] for index in range(len(self.trained))]
        closed: list[list[int]] = []
        opened: dict[object, list[int]] = {}
        sizes: dict[object, int] = {}
        for index in reversed(range(len(self.trained))):
            parameter = self.trained[index]
            key = None if self._style.by_last else (parameter.dtype, parameter.device)
            opened.setdefault(key, []).append(index)
            sizes[key] = sizes.get(key, 0) + parameter.nbytes
            if sizes[key] >= cap_bytes:
                closed.append(opened.pop(key))
                del sizes[key]
        return [*closed, *opened.values()]

    @property
    def bucket_indices(self) -> list[list[int]]:
        """The buckets by parameter index, in the order in which they were cut."""
        return [list(bucket.indices) for bucket in self._buckets]

    @property
    def _adds_into_views(self) -> bool:
        return bool(self._flats) and self._style.copies is None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's; whatever a backward that failed has left behind is forgotten.

        Where gradients are views of the storage, each that is None becomes a zeroed view again: backward
        adds into it (A7.4).
        """
        self._in_backward = False
        self._under_way.clear()
        if self._adds_into_views:
            for index, view in self._views.items():
                if self.trained[index].grad is None:
                    self.trained[index].grad = view.zero_()
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
            self._missing = [set(bucket.indices) for bucket in self._buckets]
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_end)
        bucket = self._bucket_of[index]
        if not self._style.by_last and self._is_incomplete(bucket, index):
            return
        if self._style.overlaps:
            self._send(bucket)

    def _is_incomplete(self, bucket: Bucket, index: int) -> bool:
        """Count a gradient that has come, and put it where it belongs; whether others are still to come."""
        missing, gradient = self._missing[bucket.number], self.trained[index].grad
        named = f"parameter {index} ({self.names[index]})"
        if index not in missing:
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
        missing.remove(index)
        return bool(missing)

    @torch.no_grad()
    def _on_end(self) -> None:
        self._in_backward = False
        unused = sorted(index for missing in self._missing for index in missing)
        if unused and not self._style.by_last:
            raise ReplayError(
                f"parameter {unused[0]} ({self.names[unused[0]]}) was not used in this backward; "
                f"{len(unused)} of {len(self.trained)} parameters have no gradient to average"
            )
        for bucket in () if self._style.overlaps else self._buckets:
            self._send(bucket)
            self._wait()
        self._wait()

    def _send(self, bucket: Bucket) -> None:
        """Start to sum a bucket over ranks: its storage, its gradients flattened, or its one gradient."""
        if self._flats:
            buffer = self._flats[bucket.number]
        elif self._style.copies == "launch":
            buffer = torch._utils._flatten_dense_tensors(bucket.gradients())  # type: ignore[no-untyped-call]
        else:
            (buffer,) = bucket.gradients()
        if self._hook is None:
            future: torch.futures.Future[Any] = dist.all_reduce(buffer, async_op=True).get_future()
        else:
            hook, state = self._hook
            future = hook(state, ReducedBucket(bucket=bucket, flat=buffer))
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
        self._under_way.clear()


def build_system(policy: str, module: nn.Module, settings: dict[str, Any] | None = None) -> TextbookModule:
    """The system that ``policy`` names, around ``module``.

    Of ``settings`` only ``bucket_cap_mb`` is legal, in MiB (torch's name); without it, it is 25, as in DDP.
    Raises ``InputError`` for any other setting, and for a value that is no cap.
    """
    unknown = sorted(set(settings or {}) - {"bucket_cap_mb"})
    if unknown:
        raise InputError(f"settings: {unknown[0]!r} is not legal for {policy!r}; give bucket_cap_mb")
    cap_mb = (settings or {}).get("bucket_cap_mb")
    return TextbookModule(
        module, STYLES[policy], DEFAULT_BUCKET_CAP_BYTES if cap_mb is None else cap_bytes(cap_mb)
    )
