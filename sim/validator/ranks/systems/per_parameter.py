"""One all-reduce for each parameter, in place in its gradient: nothing is copied (A7.1)."""

from collections.abc import Sequence

from torch import Tensor

from sim.validator.ranks.systems.buckets import Bucket
from sim.validator.ranks.systems.reduced import CountedModule, average_in_place


class PerParameter(CountedModule):
    """Every gradient is its own bucket, in parameter order."""

    def cut(self, cap_bytes: int) -> Sequence[Sequence[int]]:
        """One parameter each, whatever the cap."""
        return [[index] for index in range(len(self.trained))]

    def store(self, bucket: Bucket, buffer: Tensor, reduced: Tensor) -> None:
        """Divide in place."""
        average_in_place(buffer, reduced, self.divisor)


class PerParameterSync(PerParameter):
    """After backward, in parameter order: reduce a gradient, wait, go on to the next."""

    def synchronise(self) -> None:
        """One after the other."""
        for bucket in self.buckets:
            self.launch(bucket, *bucket.gradients())
            self.wait()


class PerParameterAsync(PerParameter):
    """Each gradient is sent off by its own hook, in ready order; all are waited for at the end."""

    def on_bucket(self, bucket: Bucket) -> None:
        """The gradient is there: off it goes."""
        self.launch(bucket, *bucket.gradients())
