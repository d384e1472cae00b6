"""A recording of a live DDP that leaves no hook behind: on a Reducer of its own, with the same buckets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.switch import BucketSwitch
from sim.importer.recorded.recorded_workload import warmup_by
from sim.recorder.clocks import clock_for
from sim.recorder.live_recording import LiveRecording, record
from sim.recorder.tap import can_round_alike, forget


def warmup_steps(ddp: DistributedDataParallel) -> int:
    """Steps of a recording that are dropped from its start."""
    return warmup_by(clock_for(ddp.device).name)


@contextmanager
def recorded(ddp: DistributedDataParallel, switch: BucketSwitch, folder: Path) -> Iterator[LiveRecording]:
    """Record into ``folder / "run"``; begins and ends at a step boundary, on all ranks.

    The user's own communication hook is wrapped. Without one, a hook of the recording averages gradients; if
    it cannot round them as DDP does, there is no hook, and buckets are not recorded.
    """
    hooks = list(ddp._comm_hooks)
    hook, state = hooks[-1] if hooks else (None, None)
    if hook is None and not can_round_alike(ddp):
        with record(ddp, folder / "run", level="light") as recording:
            yield recording
        return
    try:
        switch.use(switch.make(switch.original.buckets, with_hooks=False))
        ddp._comm_hooks.clear()
        with record(ddp, folder / "run", wrap=hook, wrap_state=state) as recording:
            ddp._comm_hooks[:] = hooks
            yield recording
    finally:
        ddp._comm_hooks[:] = hooks
        forget(ddp)
        switch.revert()
