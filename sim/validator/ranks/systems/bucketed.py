"""Buckets whose gradients are counted: sent after backward, or each when its last gradient has come."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sim.errors import ReplayError
from sim.validator.ranks.systems.buckets import Bucket, cut_reversed
from sim.validator.ranks.systems.reduced import CountedModule, average_in_place, copy_back, flatten


class Bucketed(CountedModule):
    """Buckets by size, one dtype and device each, walked from the last parameter to the first (A6.1)."""

    def cut(self, cap_bytes: int) -> Sequence[Sequence[int]]:
        """Parameter indices by bucket: cut by size within each dtype and device (A7.5)."""
        return cut_reversed(self.trained, cap_bytes, keyed=True)

    def store(self, bucket: Bucket, buffer: Tensor, reduced: Tensor) -> None:
        """Copy the averages back into the gradients."""
        copy_back(bucket, reduced, self.divisor)


class AfterBackward(Bucketed):
    """After backward, bucket by bucket: flatten, reduce, wait, copy back. Nothing is hidden (A7.2)."""

    def synchronise(self) -> None:
        """Reduce the buckets one after the other."""
        for bucket in self.buckets:
            self.launch(bucket, flatten(bucket))
            self.wait()


class Stored(Bucketed):
    """Buckets with flat storage of their own, in which every gradient has its place."""

    def __init__(self, module: nn.Module, cap_bytes: int) -> None:
        super().__init__(module, cap_bytes)
        self._flat = [bucket.empty() for bucket in self.buckets]
        self._views = {
            index: view
            for bucket, flat in zip(self.buckets, self._flat, strict=True)
            for index, view in zip(bucket.indices, bucket.split(flat), strict=True)
        }

    def on_bucket(self, bucket: Bucket) -> None:
        """Send the storage off."""
        self.launch(bucket, self._flat[bucket.number])


class ArrivalCounted(Stored):
    """Each gradient is copied into its bucket when it comes; the last to come sends the bucket (A7.3).

    No bucket waits for its turn. DDP's do (A3.5); here ranks with different ready orders launch differently,
    and their collectives do not match.
    """

    @torch.no_grad()
    def on_gradient(self, bucket: Bucket, index: int) -> None:
        """Copy the gradient of parameter ``index`` into its bucket."""
        gradient = self.trained[index].grad
        assert gradient is not None
        self._views[index].copy_(gradient)


class FlatViews(Stored):
    """Gradients are views of their bucket's storage: nothing is flattened or copied back (A7.4).

    Backward adds into the views, which ``forward`` puts in place, zeroed, where gradients were set to None.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's forward, after each gradient that is None has become a zeroed view again."""
        for index, view in self._views.items():
            if self.trained[index].grad is None:
                self.trained[index].grad = view.zero_()
        return super().forward(*inputs, **named)

    def on_gradient(self, bucket: Bucket, index: int) -> None:
        """Raise ``ReplayError`` if the gradient is no longer the view of the bucket's storage."""
        gradient = self.trained[index].grad
        if gradient is None or gradient.data_ptr() != self._views[index].data_ptr():
            raise ReplayError(
                f"parameter {index} ({self.names[index]}): its gradient is no longer a view of the bucket; "
                f"do not set gradients between forward and backward"
            )

    def store(self, bucket: Bucket, buffer: Tensor, reduced: Tensor) -> None:
        """Divide the sums in place: the gradients are views of them."""
        average_in_place(buffer, reduced, self.divisor)
