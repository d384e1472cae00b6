"""Real DeepSpeed ZeRO-1 or ZeRO-2 around a paced module (A5), on the CPU.

On the CPU DeepSpeed has no streams: the host waits for a flush where it makes it, in a gradient's hook or
after backward. DeepSpeed is imported only when a lane needs it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.ranks.pacing.paced_module import PacedModule, Schedule, sleep_until
from sim.validator.ranks.pacing.replay_lane import Lane
from sim.validator.ranks.pacing.stepping import clear_gradients, common_start

STAGES = {"zero1": 1, "zero2": 2}
# Settings that stand beside ``zero_optimization`` in DeepSpeed's configuration.
_TOP = (
    "communication_data_type",
    "gradient_clipping",
    "gradient_predivide_factor",
    "prescale_gradients",
)
_BLOCKING = ("all_reduce",)


class _PacedOptimizer(torch.optim.Optimizer):
    """Sleeps in place of the recorded optimizer step, in proportion to the elements that it is given."""

    def __init__(self, groups: list[dict[str, Any]], ns_per_element: float) -> None:
        super().__init__(groups, {"lr": 0.0})
        self._ns_per_element = ns_per_element

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Sleep; DeepSpeed calls it for one group at a time, with this rank's partition of it."""
        elements = sum(tensor.numel() for group in self.param_groups for tensor in group["params"])
        sleep_until(time.monotonic_ns() + round(elements * self._ns_per_element))


def zero_lane(
    candidate: dict[str, Any], module: PacedModule, groups: Sequence[int], optimizer_ns: int
) -> Lane:
    """A candidate of ``zero1`` or ``zero2``; ``groups`` has the optimizer group of each parameter."""
    engine = _start(candidate, module, groups, optimizer_ns)
    flushed: list[list[int]] = []
    _watch_flushes(engine.optimizer, module, flushed)
    return Lane(
        name=candidate["name"],
        step=partial(_step, engine, module, flushed),
        observe=partial(_buckets, flushed, len(groups)),
    )


def _start(candidate: dict[str, Any], module: PacedModule, groups: Sequence[int], optimizer_ns: int) -> Any:
    """DeepSpeed's engine, in the process group that is there."""
    deepspeed = import_module("deepspeed")
    # Without this DeepSpeed compiles reductions through shared memory, which cannot join several machines.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist.get_backend())
    numel = sum(weight.numel() for weight in module.weights)
    made: dict[int, list[Any]] = {}
    for weight, group in zip(module.weights, groups, strict=True):
        made.setdefault(group, []).append(weight)
    optimizer = _PacedOptimizer(
        [{"params": made[group]} for group in sorted(made)], optimizer_ns / max(1, numel)
    )
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=_config(candidate, module))
    return engine


def _config(candidate: dict[str, Any], module: PacedModule) -> dict[str, Any]:
    """DeepSpeed's configuration from an assignment's settings."""
    settings = {name: value for name, value in candidate["settings"].items() if name != "accelerator"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **{name: settings.pop(name) for name in _TOP if name in settings},
    }
    if module.weights[0].dtype == torch.bfloat16:
        overflow = {name: settings.pop(name) for name in ("check_grad_overflow",) if name in settings}
        config["bf16"] = {"enabled": True, **overflow}
    config["zero_optimization"] = {"stage": STAGES[candidate["policy"]], **settings}
    return config


def _watch_flushes(optimizer: Any, module: PacedModule, flushed: list[list[int]]) -> None:
    """Write down in ``flushed`` which parameters each flush reduces."""
    index = {id(weight): place for place, weight in enumerate(module.weights)}
    flush: Callable[..., None] = optimizer.reduce_ipg_grads

    def watched(*arguments: Any, **named: Any) -> None:
        for bucket in optimizer.ipg_buckets.values():
            members = [index[id(optimizer.bit16_groups[group][at])] for group, at, _ in bucket.params]
            if members:
                flushed.append(members)
        flush(*arguments, **named)

    optimizer.reduce_ipg_grads = watched


def _buckets(flushed: list[list[int]], count: int) -> list[list[int]]:
    """What the last step flushed, in order, and what it did not flush in a bucket of its own."""
    left = sorted(set(range(count)).difference(*flushed))
    return [*flushed, left] if left else list(flushed)


def _step(engine: Any, module: PacedModule, flushed: list[list[int]]) -> dict[str, Any]:
    """One step from a common start; times as of ``run_step``.

    ``sync_end`` is when ``engine.backward()`` returns; norm, optimizer and all-gather follow in the step.
    """
    clear_gradients(module, set_to_none=True)
    flushed.clear()
    carry = torch.zeros(1, dtype=module.weights[0].dtype, requires_grad=True)
    start = common_start()
    sleep_until(start)
    module.forward_start_ns = start
    loss = engine(carry).sum()
    module.begin_backward()
    with _standing_still(module.schedule):
        engine.backward(loss)
    sync_end = time.monotonic_ns()
    engine.step()
    return {
        "step": time.monotonic_ns() - start,
        "backward_end": module.schedule.ready_ns[-1],
        "sync_end": sync_end - module.schedule.start,
    }


@contextmanager
def _standing_still(schedule: Schedule) -> Iterator[None]:
    """Within it, the schedule of backward stands still for as long as the host waits for a collective.

    Processor time within the call is not waiting; the schedule counts the processor time of hooks itself.
    """
    real = {name: getattr(dist, name) for name in _BLOCKING}

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began, worked = time.monotonic_ns(), time.thread_time_ns()
            returned = function(*arguments, **named)
            waited = time.monotonic_ns() - began - (time.thread_time_ns() - worked)
            schedule.shift += waited
            return returned

        return call

    for name, function in real.items():
        setattr(dist, name, counted(function))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
