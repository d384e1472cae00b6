"""What the systems have in common: hooks on parameters, reductions under way, and the end of backward."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sim.errors import InputError, ReplayError
from sim.validator.ranks.systems.buckets import Bucket

Hook = Callable[[Any, Any], torch.futures.Future[Any]]


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


class _UnderWay(NamedTuple):
    bucket: Bucket
    buffer: Tensor
    future: torch.futures.Future[Any]


class ReducedModule(nn.Module, ABC):
    """A module whose gradients are averaged over ranks when ``backward()`` returns.

    Waiting and all that follows happens in a callback that autograd runs when backward's work is over, as in
    DistributedDataParallel (A3.9). ``.buckets`` are in the order in which they were cut.

    Args:
        module: what is trained; parameters that do not require grad are left alone.
        cap_bytes: the bucket cap; systems without buckets by size ignore it.

    Raises:
        InputError: nothing to train.
    """

    def __init__(self, module: nn.Module, cap_bytes: int) -> None:
        super().__init__()
        self.module = module
        self.names = [name for name, tensor in module.named_parameters() if tensor.requires_grad]
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.trained:
            raise InputError(f"{type(module).__name__}: it has no parameter that requires grad")
        self.divisor = dist.get_world_size()
        self.buckets = [
            Bucket(number=number, indices=tuple(part), parameters=tuple(self.trained[i] for i in part))
            for number, part in enumerate(self.cut(cap_bytes))
        ]
        self.bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}
        self._hook: tuple[Hook, Any] | None = None
        self._synchronises = True
        self._in_backward = False
        self._under_way: list[_UnderWay] = []
        for index in self.hooked():
            watch = partial(self._on_gradient, index)
            self.trained[index].register_post_accumulate_grad_hook(watch)  # type: ignore[no-untyped-call]

    @abstractmethod
    def cut(self, cap_bytes: int) -> Sequence[Sequence[int]]:
        """The parameter indices of each bucket."""

    @abstractmethod
    def hooked(self) -> Sequence[int]:
        """The parameters whose gradients are watched."""

    @abstractmethod
    def begin(self) -> None:
        """The first watched gradient of a backward has come."""

    @abstractmethod
    def arrived(self, index: int) -> None:
        """A watched gradient has been accumulated."""

    @abstractmethod
    def finish(self) -> None:
        """Backward's work is over."""

    @abstractmethod
    def store(self, bucket: Bucket, buffer: Tensor, reduced: Tensor) -> None:
        """Make gradients of the sum over ranks, ``reduced``: ``buffer`` itself, or what a hook gave back."""

    @property
    def bucket_indices(self) -> list[list[int]]:
        """The buckets by parameter index."""
        return [list(bucket.indices) for bucket in self.buckets]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's; whatever a backward that failed has left behind is forgotten."""
        self._in_backward = False
        self._under_way.clear()
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
        self.divisor = 1

    def launch(self, bucket: Bucket, buffer: Tensor) -> None:
        """Start to sum ``buffer`` over ranks, in place."""
        future: torch.futures.Future[Any]
        if self._hook is None:
            future = dist.all_reduce(buffer, async_op=True).get_future()
        else:
            hook, state = self._hook
            future = hook(state, ReducedBucket(bucket=bucket, flat=buffer))
        self._under_way.append(_UnderWay(bucket, buffer, future))

    def wait(self) -> None:
        """Wait for all that was launched, in that order, and store each as soon as it is there."""
        for bucket, buffer, future in self._under_way:
            reduced = future.wait()
            self.store(bucket, buffer, reduced[0] if isinstance(reduced, list) else reduced)
        self._under_way.clear()

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if not self._synchronises:
            return
        if not self._in_backward:
            self._in_backward = True
            self.begin()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_end)
        self.arrived(index)

    @torch.no_grad()
    def _on_end(self) -> None:
        self._in_backward = False
        self.finish()


class CountedModule(ReducedModule):
    """A system that watches every gradient and knows when a bucket has all of its own.

    ``backward()`` raises ``ReplayError`` for a parameter that was not used (A3.21) or was ready twice (A8.5),
    ``InputError`` for a sparse gradient.
    """

    def hooked(self) -> Sequence[int]:
        """All of them."""
        return range(len(self.trained))

    def begin(self) -> None:
        """Every bucket waits for all of its gradients."""
        self._missing = [set(bucket.indices) for bucket in self.buckets]

    def arrived(self, index: int) -> None:
        """Count the gradient; ``on_bucket`` where it was its bucket's last."""
        bucket = self.bucket_of[index]
        missing = self._missing[bucket.number]
        gradient = self.trained[index].grad
        if index not in missing:
            raise ReplayError(f"parameter {index} ({self.names[index]}) was ready twice in one backward")
        if gradient is None or gradient.layout != torch.strided:
            raise InputError(f"parameter {index} ({self.names[index]}): its gradient is not dense")
        self.on_gradient(bucket, index)
        missing.remove(index)
        if not missing:
            self.on_bucket(bucket)

    def on_gradient(self, bucket: Bucket, index: int) -> None:
        """A gradient of ``bucket`` is there."""

    def on_bucket(self, bucket: Bucket) -> None:
        """All gradients of ``bucket`` are there."""

    def finish(self) -> None:
        """``synchronise``, once it is sure that no gradient is missing."""
        unused = sorted(index for missing in self._missing for index in missing)
        if unused:
            raise ReplayError(
                f"parameter {unused[0]} ({self.names[unused[0]]}) was not used in this backward; "
                f"{len(unused)} of {len(self.trained)} parameters have no gradient to average"
            )
        self.synchronise()

    def synchronise(self) -> None:
        """Wait for what was launched during backward."""
        self.wait()


def average_in_place(buffer: Tensor, reduced: Tensor, divisor: int) -> None:
    """Divide a sum that already lies where gradients are."""
    if divisor != 1 or reduced is not buffer:
        torch.div(reduced, divisor, out=buffer)


def copy_back(bucket: Bucket, reduced: Tensor, divisor: int) -> None:
    """Divide a bucket's sum on the way back into its gradients."""
    for part, gradient in zip(bucket.split(reduced), bucket.gradients(), strict=True):
        torch.div(part, divisor, out=gradient)


def flatten(bucket: Bucket) -> Tensor:
    """A bucket's gradients, one behind the other, in a new tensor."""
    flat: Tensor = torch._utils._flatten_dense_tensors(bucket.gradients())  # type: ignore[no-untyped-call]
    return flat
