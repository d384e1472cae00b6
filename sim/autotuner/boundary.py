"""Whether a training loop is between two steps: the only place where its buckets may be changed.

Between forward and backward a change leaves gradients unreduced, and torch does not notice; within an
accumulated step it loses which parameters were used. So hooks look at every forward and every gradient.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class OwnHook:
    """A hook that acts on its own module only: copying or pickling makes it a function that does nothing.

    So a copied module is not followed, and a pickled one can be loaded where bucketsim is not installed.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def __call__(self, *given: Any) -> Any:
        """As torch calls a hook, before or after the forward."""
        return self._act(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext, "__exit__")  # which takes anything, and returns None


class Boundary:
    """Hooks on ``ddp`` that follow its forwards and backwards until ``close``, and keep ``owner`` alive."""

    def __init__(self, ddp: DistributedDataParallel, owner: object) -> None:
        self._ddp = ddp
        self._owner: object = owner
        self._open = False  # a forward waits for its backward
        self._armed = False  # and the Reducer waits for that backward
        self._reduced = False  # gradients were reduced since the last ``take_step``
        self._accumulates = False
        self.is_captured = False  # in a CUDA graph, whose replays run no hooks
        self._task: int | None = None
        untraced: Any = torch.compiler.disable(self._after_forward)  # type: ignore[no-untyped-call]
        self._handles: list[Any] = [ddp.register_forward_hook(OwnHook(untraced))]
        for parameter in ddp.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))  # type: ignore[no-untyped-call]

    def take_step(self) -> bool:
        """Whether gradients were reduced since the last call, so that a step of all ranks has ended."""
        reduced, self._reduced = self._reduced, False
        return reduced

    @property
    def obstacle(self) -> str | None:
        """Why the buckets may not be changed now; None where they may."""
        if self._open:
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
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._owner = None

    def _after_forward(self, module: torch.nn.Module, *_: Any) -> None:
        if module is self._ddp and torch.is_grad_enabled():
            if self._ddp.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                self.is_captured = True
            self._open = True
            self._armed = self._armed or self._ddp.require_backward_grad_sync

    def _on_gradient(self, _: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task:  # a re-entrant checkpoint runs its part of backward as a task of its own
            self._task = task
            _queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        if not self._open:
            return  # another part of the same backward
        self._open = False
        self._accumulates = not self._armed
        self._reduced = self._reduced or self._armed
        self._armed = False
