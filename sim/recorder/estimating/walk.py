"""One training step on a clock of work: what autograd makes ready, and after how much work.

Torch's own engine runs backward, so the order of gradients is the engine's, not a model of it.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from sim.errors import InputError, NotModelledError
from sim.nouns.gpus import GpuSheet
from sim.recorder.estimating.autocast import gpu_autocast
from sim.recorder.estimating.costs import CountingMode, OperatorWork, WorkClock
from sim.recorder.estimating.stand_ins import ScalarReads
from sim.recorder.factory import Pair, Step
from sim.recorder.instruments import Iteration, Survey, measure, survey
from sim.recorder.training_step import ModelStep, build_step


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWalk:
    """What one step did: what it trains, its times in picoseconds of the roofline, its work.

    ``scalar_reads`` counts values of stand-ins that the step read, and that read as 1.0.
    """

    seen: Survey
    times: Iteration
    work: OperatorWork
    from_pair: bool
    scalar_reads: int


class _Walked:
    """A step without its optimizer: zero_grad, forward under autocast, backward."""

    def __init__(self, inner: ModelStep, autocast: str | None) -> None:
        self._inner = inner
        self._autocast = autocast

    def __call__(self) -> None:
        self._inner.model.zero_grad(set_to_none=True)
        with gpu_autocast(self._autocast):
            loss = self._inner.loss()
        loss.backward()  # type: ignore[no-untyped-call]


def walk(given: Step | Pair, *, device: GpuSheet, dtype: str | None, autocast: str | None) -> ModelWalk:
    """Run a step, once to see what it trains and once on the clock of work.

    Raises:
        InputError: what ``record`` raises for a step that cannot be recorded.
        NotModelledError: a compiled module.
    """
    step, root = build_step(given, device=torch.device("cpu"), dtype=dtype)
    reads = ScalarReads()
    counting = CountingMode(device)
    if isinstance(step, ModelStep):
        ordered: Step = _Walked(step, autocast)
    else:
        ordered = _cast_step(step, autocast)

    def run_step() -> None:
        reads.answers_all = False
        try:
            ordered()
        finally:
            reads.answers_all = True  # what looks at the loss afterwards

    with reads:
        seen = survey(run_step, root=root)
        _check(seen)
        with counting:
            times = measure(run_step, seen=seen, clock=WorkClock(counting), hooked=True)
    return ModelWalk(
        seen=seen, times=times, work=counting.work, from_pair=root is not None, scalar_reads=reads.count
    )


def _cast_step(step: Step, autocast: str | None) -> Step:
    def run() -> None:
        with gpu_autocast(autocast):
            step()

    return run


def _check(seen: Survey) -> None:
    if isinstance(seen.root, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise InputError(f"step: the module is wrapped in {type(seen.root).__name__}; give the bare module")
    if any(hasattr(module, "_orig_mod") for module in seen.root.modules()):
        raise NotModelledError(
            "step: torch.compile joins operators, and gradients become ready by graph; estimate the module "
            "before it is compiled, or record it"
        )
    for parameter in seen.parameters:
        if parameter.sparse and isinstance(parameter.tensor, FakeTensor):
            what = f"how much of {parameter.name}'s sparse gradient there is depends on the lookups"
            raise InputError(f"step: {what}") from NotImplementedError(what)
    if not seen.parameters:
        raise InputError(f"step: {type(seen.root).__name__} has no parameter that requires grad")
