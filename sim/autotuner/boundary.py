"""Whether a training loop is between two steps: the only place where its buckets may be changed.

Between forward and backward a change leaves gradients unreduced, and torch does not notice; within an
accumulated step it loses which parameters were used. So hooks look at every forward and every gradient.
"""

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sim.recorder.clocks import clock_for
from sim.recorder.training_step import trained
from sim.recorder.watch import Watch


class Boundary(Watch):
    """Hooks on ``ddp`` that follow its forwards and backwards until ``close``, and keep ``owner`` alive."""

    def __init__(self, ddp: DistributedDataParallel, owner: object) -> None:
        super().__init__(ddp, [(0, parameter) for _, parameter in trained(ddp)])
        self._ddp = ddp
        self._owner: object = owner
        self._clock = clock_for(ddp.device)
        self._waits = False  # a forward, for its backward
        self._armed = False  # and the Reducer waits for that backward
        self._reduced = False  # gradients were reduced since the last ``take_step``
        self._accumulates = False
        self.is_captured = False  # in a CUDA graph, whose replays run no hooks
        self.open()

    def take_step(self) -> bool:
        """Whether gradients were reduced since the last call, so that a step of all ranks has ended."""
        reduced, self._reduced = self._reduced, False
        return reduced

    @property
    def obstacle(self) -> str | None:
        """Why the buckets may not be changed now; None where they may."""
        if self._waits:
            return "a forward waits for its backward; call step() after optimizer.step()"
        if self._accumulates:
            return "gradients are being accumulated; call step() after optimizer.step()"
        try:
            self._ddp._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError:
            return "the last backward did not end"
        return None

    def close(self) -> None:
        """Take the hooks off."""
        super().close()
        self._owner = None

    def _after_forward(self, output: Any) -> None:
        self.is_captured = self.is_captured or self._clock.is_captured()
        self._waits = True
        self._armed = self._armed or self._ddp.require_backward_grad_sync

    def _after_backward(self) -> None:
        if not self._waits:
            return  # another part of the same backward
        self._waits = False
        self._accumulates = not self._armed
        self._reduced = self._reduced or self._armed
        self._armed = False
