"""Buckets that are sent by the hook of their last parameter: as published, and put right (A6)."""

from collections.abc import Sequence

from torch import Tensor

from sim.validator.ranks.systems.bucketed import Bucketed
from sim.validator.ranks.systems.buckets import Bucket, cut_reversed
from sim.validator.ranks.systems.reduced import ReducedModule, copy_back, flatten


class LastHook(ReducedModule):
    """The published pattern, faults and all: only ``bucket[-1]`` is watched, and taken for the last (A6.1).

    Where another gradient of the bucket comes later, flattening raises ``TypeError`` on gradients that were
    set to None, and sends stale values without a word on gradients that were zeroed in place; the late
    gradient is then overwritten (A6.4). A bucket whose watched parameter is not used is never sent. Buckets
    take dtypes as they come (A7.5).
    """

    def cut(self, cap_bytes: int) -> Sequence[Sequence[int]]:
        """By size alone."""
        return cut_reversed(self.trained, cap_bytes, keyed=False)

    def hooked(self) -> Sequence[int]:
        """The last parameter of each bucket."""
        return [bucket.indices[-1] for bucket in self.buckets]

    def begin(self) -> None:
        """Nothing is counted."""

    def arrived(self, index: int) -> None:
        """Flatten the whole bucket, ready or not, and send it off."""
        bucket = self.bucket_of[index]
        self.launch(bucket, flatten(bucket))

    def finish(self) -> None:
        """Wait for what was launched."""
        self.wait()

    def store(self, bucket: Bucket, buffer: Tensor, reduced: Tensor) -> None:
        """Copy the averages back into the gradients."""
        copy_back(bucket, reduced, self.divisor)


class LastHookSafe(Bucketed):
    """The same pattern put right: the gradient that completes a bucket sends it, whichever that is."""

    def on_bucket(self, bucket: Bucket) -> None:
        """Flatten the bucket and send it off."""
        self.launch(bucket, flatten(bucket))
