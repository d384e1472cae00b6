"""Recognises traces of other ways to train, or of no training, and refuses them with a reason."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median_low

from sim.errors import NotModelledError
from sim.importer.kineto.events import TraceEvents
from sim.importer.kineto.seen import SeenCollective, SeenStep

_FSDP = re.compile(r"FullyShardedDataParallel|FSDP::|fsdp", re.IGNORECASE)
_PARTS = ("all_gather", "reduce_scatter")
_STATISTICS = "SyncBatchNorm"
# All-reduces of activations are taken to be a metric's if a step has fewer of them, or if their elements are
# a smaller share of the elements that all-reduces of gradients have.
_FEWEST_ACTIVATIONS = 4
_SHARE = 0.05


def decline(trace: TraceEvents, steps: tuple[SeenStep, ...]) -> None:
    """Raise ``NotModelledError`` where gradients were not reduced as replicated data parallelism does."""
    sharded = next((one.name for one in trace.operators if _FSDP.match(one.name)), None)
    if sharded is not None:
        raise NotModelledError(
            f"{trace.source}: {sharded!r} in it: trained by FSDP, which gathers parameters and scatters "
            f"gradients; its traces are not read; record or estimate the model without it, and "
            f"`bucketsim simulate --policy fully_shard` predicts FSDP2's step"
        )
    step = steps[len(steps) // 2]
    if step.other_backwards:
        raise NotModelledError(
            f"{trace.source}: step {step.number} has {step.micro_batches} backwards of different gradients, "
            f"or with an optimizer's step between them: several models in turn (a GAN), which is not "
            f"modelled; if each is a step of one model, call prof.step() after it"
        )
    counts = [Counter(one.kind for one in each.collectives if one.role != "before") for each in steps]
    # The median over the steps: a single one may hold collectives that belong to no step.
    kinds = Counter({kind: median_low([each[kind] for each in counts]) for kind in set().union(*counts)})
    if all(kinds[kind] >= 2 for kind in _PARTS) and not step.reductions:
        raise NotModelledError(
            f"{trace.source}: {kinds['all_gather']} all-gathers, {kinds['reduce_scatter']} reduce-scatters "
            f"a step and no all-reduce of gradients: sharded (FSDP, ZeRO-3), which is not modelled"
        )
    points = kinds["send"] + kinds["recv"] + kinds["send_recv"]
    if points:
        raise NotModelledError(
            f"{trace.source}: {points} sends and receives a step: pipeline parallelism, which is not modelled"
        )
    _decline_tensor_parallel(trace, steps)
    if kinds["reduce_scatter"] and not step.reductions:
        raise NotModelledError(
            f"{trace.source}: gradients are reduce-scattered, {kinds['reduce_scatter']} times a step: a "
            f"sharded optimizer; `bucketsim simulate --policy zero2` predicts DeepSpeed's from a workload"
        )


def _decline_tensor_parallel(trace: TraceEvents, steps: Sequence[SeenStep]) -> None:
    """Raise ``NotModelledError`` if all-reduces of activations run before the last gradient is ready.

    Those after it are metrics. SyncBatchNorm's are statistics, and few or small ones are let pass, too.
    """
    others = [_activations(step) for step in steps]
    count = median_low([len(each) for each in others])
    if count < _FEWEST_ACTIVATIONS or any(_STATISTICS in one.name for one in trace.operators):
        return
    sizes = [one.num_elements for each in others for one in each]
    gradients = [one.num_elements for step in steps for one in step.reductions]
    told = gradients and None not in sizes and None not in gradients
    if told and sum(size or 0 for size in sizes) < _SHARE * sum(size or 0 for size in gradients):
        return
    raise NotModelledError(
        f"{trace.source}: {count} all-reduces a step in forward or within backward's operators, not of "
        f"gradients: tensor parallelism, which is not modelled"
    )


def _activations(step: SeenStep) -> list[SeenCollective]:
    last = step.gradients[-1].hooked_at_ns
    return [
        one
        for one in step.collectives
        if one.kind == "all_reduce" and one.role == "other" and one.launched_ns < last
    ]
