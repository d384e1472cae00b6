"""Other buckets for a DistributedDataParallel that trains, and the way back to its own.

Which model may have them (``check_switchable``), when (``Boundary``), whether memory is enough (``Room``),
and the change itself: DDP's own Reducer lives on. Another one beside it has hooks on the same gradients; only
the one that DDP prepares at the end of forward is armed, so that to change buckets is to change two pointers.
The cost is one more copy of the gradients for as long as both live.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Reducer, _register_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.unison import gradient_bytes
from sim.errors import MachineError, NotModelledError
from sim.nouns.recording import Level
from sim.recorder.clocks import is_captured
from sim.recorder.live_recording import LiveRecording, record
from sim.recorder.training_step import sparse_tables, trained
from sim.recorder.watch import Watch, can_round_alike, ddp_log, taps
from sim.units import MIB, format_size
from sim.validator.ranks.reducer import fixed_reducer, missing_for_injection, observed_buckets

Buckets = tuple[tuple[int, ...], ...]

JOINED = "join: a rank that ran out of inputs makes no further steps"
SAFE_HOOKS = (allreduce_hook, fp16_compress_hook, bf16_compress_hook)  # they keep nothing between steps

# Of a GPU left alone: NCCL allocates beside PyTorch, for algorithms that sizes of ours are the first to use.
# How much is known by a GPU only.
_FOR_NCCL = 512 * MIB


def check_switchable(ddp: Any) -> None:
    """Raise ``NotModelledError`` with the reason where the buckets of ``ddp`` are not safe to change."""
    missing = [*missing_for_injection(), *(() if dist.is_gloo_available() else ("gloo",))]
    parameters = [parameter for _, parameter in trained(ddp.module)]
    hooks = [getattr(hook, "__qualname__", hook) for hook, _ in ddp._comm_hooks if hook not in SAFE_HOOKS]
    builtin = None if ddp._comm_hooks else ddp_log(ddp).get("comm_hook")
    steps_early = any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters)
    is_complex = any(parameter.is_complex() for parameter in parameters)
    details = os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
    is_given, kind = type(ddp.reducer) is not Reducer, type(ddp).__name__
    for is_on, why in (
        (ddp._join_config.enable, JOINED),
        (missing, f"torch {torch.__version__}: it has no {', '.join(missing)}"),
        (ddp.process_group.size() < 2, "world_size: one rank reduces nothing"),
        (ddp.mixed_precision is not None, "mixed_precision: its hooks belong to its first Reducer"),
        (ddp._delay_all_reduce_params, "delay_all_reduce_named_params: takes parameters out of the buckets"),
        (ddp.parameters_to_ignore, "_ddp_params_and_buffers_to_ignore: takes parameters out of the buckets"),
        (ddp.skip_all_reduce_unused_params, "skip_all_reduce_unused_params: never tried with other buckets"),
        (steps_early, "optimizer in backward: it steps as soon as a bucket has been reduced"),
        (sparse_tables(ddp.module), "sparse: an embedding's gradients change in size from step to step"),
        (is_complex, "complex: gradients of complex numbers"),
        (details, "TORCH_DISTRIBUTED_DEBUG: DETAIL adds collectives to every step"),
        (is_given, f"reducer: the buckets of this {kind} were given to it already"),
        (hooks, f"comm_hook: {', '.join(map(str, hooks))} may keep state by bucket"),
        (builtin, f"comm_hook: {builtin} is built in and cannot be given to another Reducer"),
    ):
        if is_on:
            raise NotModelledError(why)


class Boundary(Watch):
    """Whether a training loop is between two steps: the only place where its buckets may be changed.

    Between forward and backward a change leaves gradients unreduced, and torch does not notice; within an
    accumulated step it loses which parameters were used. So hooks look at every forward and every gradient
    until ``close``, and keep ``owner`` alive.
    """

    def __init__(self, ddp: DistributedDataParallel, owner: object) -> None:
        super().__init__(ddp, [(0, parameter) for _, parameter in trained(ddp)])
        self._ddp = ddp
        self._owner: object = owner
        self._waits = False  # a forward, for its backward
        self._armed = False  # and the Reducer waits for that backward
        self._reduced = False  # gradients were reduced since the last ``take_step``
        self._accumulates = False
        self._is_captured = False
        self.open()

    def take_step(self) -> bool:
        """Whether gradients were reduced since the last call, so that a step of all ranks has ended."""
        reduced, self._reduced = self._reduced, False
        return reduced

    @property
    def lost(self) -> str | None:
        """Why no steps of all ranks are seen here from now on; None where they are."""
        if self._is_captured:
            return "CUDA graph: a captured step is replayed without DDP's hooks and ours"
        return JOINED if self._ddp._join_config.enable else None

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
        self._is_captured = self._is_captured or is_captured()
        self._waits = True
        self._armed = self._armed or self._ddp.require_backward_grad_sync

    def _after_backward(self) -> None:
        if not self._waits:
            return  # another part of the same backward
        self._waits = False
        self._accumulates = not self._armed
        self._reduced = self._reduced or self._armed
        self._armed = False


@dataclass(slots=True, eq=False)
class TriedBuckets:
    """A Reducer, its buckets, and its logger, which keeps it alive too.

    ``is_past_first``: whether it has reduced a backward, after which a static graph is known to it.
    """

    buckets: Buckets
    reducer: Any
    logger: Any
    is_past_first: bool


class BucketSwitch:
    """Which Reducer a DDP uses. Call any method between two steps, and on all ranks after the same step.

    Args:
        ddp: past its first two synchronised steps, after which its buckets do not change by themselves.

    Raises:
        NotModelledError: a mode in which other buckets are not safe.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        check_switchable(ddp)
        self._ddp = ddp
        buckets = tuple(map(tuple, observed_buckets(ddp)))
        self.original = TriedBuckets(buckets, ddp.reducer, ddp.logger, is_past_first=True)
        self.active = self.original
        self._others: list[TriedBuckets] = []

    def make(self, buckets: Sequence[Sequence[int]], *, with_hooks: bool = True) -> TriedBuckets:
        """A new Reducer with these buckets, in launch order; ``use`` or ``drop`` it before the next backward.

        With ``static_graph`` a Reducer learns the graph in the first backward that its hooks see, and has to
        reduce that backward itself. ``with_hooks`` False leaves out the user's communication hook.
        """
        ddp = self._ddp
        parameters, expect_sparse_gradient = ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
        names = ddp._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
        reducer, logger = fixed_reducer(
            ddp, buckets, parameters, expect_sparse_gradient, names, ddp.static_graph
        )
        if ddp.static_graph:
            reducer._set_static_graph()
            logger._set_static_graph()
        for hook, state in ddp._comm_hooks if with_hooks else ():
            logger._set_comm_hook_name(hook.__qualname__)
            _register_comm_hook(reducer, state, hook)
        candidate = TriedBuckets(tuple(map(tuple, buckets)), reducer, logger, is_past_first=False)
        self._others.append(candidate)
        return candidate

    def use(self, candidate: TriedBuckets) -> None:
        """Reduce with ``candidate`` from the next forward on."""
        if candidate is self.active:
            return
        ddp = self._ddp
        ddp.reducer, ddp.logger = candidate.reducer, candidate.logger
        if ddp.static_graph:
            # In its first backward a Reducer counts how often each gradient fires, and reduces at the end.
            self.active.is_past_first = ddp._static_graph_delay_allreduce_enqueued
            ddp._static_graph_delay_allreduce_enqueued = candidate.is_past_first
        elif ddp.find_unused_parameters:
            candidate.reducer._reset_state()  # its hooks have marked as used what the other one reduced
        self.active = candidate

    def drop(self, candidate: TriedBuckets) -> None:
        """Give up ``candidate``, which is not in use: its hooks and its copy of the gradients go."""
        assert candidate is not self.active
        candidate.reducer._remove_autograd_hooks()
        candidate.reducer = candidate.logger = None
        self._others = [other for other in self._others if other is not candidate]

    def revert(self) -> None:
        """Back to DDP's own Reducer, the very object; all others are dropped."""
        self.use(self.original)
        for candidate in self._others:
            self.drop(candidate)

    def keep(self, candidate: TriedBuckets) -> None:
        """Use ``candidate`` for good: DDP's own Reducer is given up for it."""
        self.use(candidate)
        if candidate is not self.original:
            self.drop(self.original)
            self._others.remove(candidate)
            self.original = candidate


@contextmanager
def recorded(ddp: DistributedDataParallel, switch: BucketSwitch, folder: Path) -> Iterator[LiveRecording]:
    """Record into ``folder / "run"``; begins and ends at a step boundary, on all ranks.

    The user's own communication hook is wrapped. Without one, the recording's averages gradients, on a
    Reducer of its own; if it cannot round them as DDP does, there is none, and buckets are not recorded.
    """
    hooks = list(ddp._comm_hooks)
    hook, state = hooks[-1] if hooks else (None, None)
    level: Level = "light" if hook is None and not can_round_alike(ddp) else "full"
    try:
        if level == "full":
            switch.use(switch.make(switch.original.buckets, with_hooks=False))
            ddp._comm_hooks.clear()
        with record(ddp, folder / "run", level=level, wrap=hook, wrap_state=state) as recording:
            ddp._comm_hooks[:] = hooks
            yield recording
    finally:
        ddp._comm_hooks[:] = hooks
        taps.pop(ddp, None)  # the Reducer that had the hook is gone
        switch.revert()


class Room:
    """The memory of ``ddp``'s GPU beside what its training takes.

    What PyTorch's allocator holds between two steps is none of it but for copies of ours that are gone: the
    activations of the next step lie there.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._device, self._copy = ddp.device, gradient_bytes(ddp)
        self._ours = 0  # of what the allocator holds

    def check(self) -> None:
        """Before a copy of the gradients is allocated.

        Raises:
            MachineError: this rank has no room for it beside its training.
        """
        if self._device.type != "cuda":
            return
        free = max(0, torch.cuda.mem_get_info(self._device)[0] - _FOR_NCCL) + self._ours
        if self._copy > free:
            raise MachineError(
                f"memory: {format_size(free)} are free beside what a step takes, and a second copy of the "
                f"gradients takes {format_size(self._copy)}"
            )
        self._ours = self._copy
