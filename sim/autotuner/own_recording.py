"""Recordings of a live DDP that leave no hook behind: each on a Reducer of its own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.boundary import OwnHook
from sim.autotuner.switch import Buckets, BucketSwitch
from sim.importer.recorded.kept_steps import warmup_by
from sim.recorder.live_clocks import live_clock_for
from sim.recorder.live_header import trained_parameters
from sim.recorder.live_recording import LiveRecording, record
from sim.recorder.tap import can_round_alike, forget

OwnRecording = Callable[[DistributedDataParallel, BucketSwitch, Path], AbstractContextManager[LiveRecording]]


def warmup_steps(ddp: DistributedDataParallel) -> int:
    """Steps of a recording that are dropped from its start."""
    return warmup_by(live_clock_for(ddp.device).name)


@contextmanager
def recorded(ddp: DistributedDataParallel, switch: BucketSwitch, folder: Path) -> Iterator[LiveRecording]:
    """Record the job as it is, into ``folder / "run"``; begins and ends at a step boundary, on all ranks.

    The user's own communication hook is wrapped. Where a hook cannot round gradients as DDP does, there is
    none, and buckets are not seen.
    """
    hooks = list(ddp._comm_hooks)
    hook, state = hooks[-1] if hooks else (None, None)
    if hook is None and not can_round_alike(ddp):
        with record(ddp, folder / "run", level="light") as recording:
            _keep_from_copies(ddp, recording)
            yield recording
        return
    try:
        switch.use(switch.make(switch.original.buckets, with_hooks=False))
        ddp._comm_hooks.clear()
        with record(ddp, folder / "run", wrap=hook, wrap_state=state) as recording:
            ddp._comm_hooks[:] = hooks
            _keep_from_copies(ddp, recording)
            yield recording
    finally:
        ddp._comm_hooks[:] = hooks
        forget(ddp)
        switch.revert()


@contextmanager
def recorded_alone(
    ddp: DistributedDataParallel, switch: BucketSwitch, folder: Path
) -> Iterator[LiveRecording]:
    """As ``recorded``, in backwards that no all-reduce runs beside: all of it follows the last gradient."""
    try:
        switch.use(switch.make(reduced_at_the_end(ddp, switch.original.buckets)))
        with record(ddp, folder / "run", level="light") as recording:
            _keep_from_copies(ddp, recording)
            yield recording
    finally:
        switch.revert()


def reduced_at_the_end(ddp: DistributedDataParallel, buckets: Buckets) -> list[tuple[int, ...]]:
    """One bucket, or one for each dtype: the first holds the last gradient, and all wait for it (A3.5)."""
    kinds = [(parameter.dtype, parameter.device) for _, parameter in trained_parameters(ddp)]
    whole: dict[object, tuple[int, ...]] = {}
    for bucket in reversed(buckets):
        whole[kinds[bucket[0]]] = bucket + whole.get(kinds[bucket[0]], ())
    return list(whole.values())


def _keep_from_copies(ddp: DistributedDataParallel, recording: LiveRecording) -> None:
    """A model that is copied or saved meanwhile takes no hook of the recording with it."""
    hooked: tuple[torch.nn.Module, ...] = (ddp, ddp.module)
    for hooks in (found for one in hooked for found in (one._forward_pre_hooks, one._forward_hooks)):
        for number, hook in hooks.items():
            if getattr(hook, "__self__", None) is recording:
                hooks[number] = OwnHook(hook)
