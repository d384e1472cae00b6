"""``record``: run a training step some twenty times and write down what backward does, and when.

Steps in which every gradient is watched (when is it ready?) alternate with steps in which a few are, those
that come last (how long do forward, backward and optimizer take?), so that both see the same machine. The
cost of our own hooks is then taken out: ready times are scaled by plain backward over watched backward.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sim.errors import InputError, SimError
from sim.nouns.checks import at_least
from sim.nouns.recording import RecordedStep
from sim.nouns.workload import Gradient, Workload
from sim.recorder.clocks import Clock, clock_for, find_device
from sim.recorder.models import Pair, describe
from sim.recorder.training_step import buffers_in, build_step, facts, surroundings, trained
from sim.recorder.watch import StepWatch
from sim.recorder.watched_workload import workload_of_backwards
from sim.units import median_ns

_FEW = 4  # gradients that tell the end of backward: a step may skip a layer
_INDEX_BYTES = 8  # torch's sparse tensors have int64 indices


def record(
    pair: Pair,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    warmup: int = 3,
    repeats: int = 10,
    progress: Callable[[int, int], None] = lambda done, of: None,
    factory_spec: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Workload:
    """Record a training step of ``(model, batch)`` as a Workload.

    Both are moved to ``device`` and cast to ``dtype``; the model is put into training mode and trained by
    AdamW with a learning rate that is as good as zero.

    Args:
        pair: what ``load_factory`` returns.
        name: of the Workload; None: the class of the module.
        device: ``cpu`` or ``cuda``; on a GPU all times are those of its stream.
        dtype: for the module and its floating inputs; None leaves them.
        warmup: iterations that are run first and dropped, at least 1.
        repeats: iterations with hooks, and as many without, at least 1.
        progress: called with (iterations done, iterations in all).
        factory_spec: ``MODULE:FACTORY``, for the provenance; ``arguments`` are those of the factory.

    Returns:
        A Workload of medians, in ns; ``samples`` are the ready times of each hooked iteration, corrected by
        the same factor. Gradients that no backward reaches have ``ready_ns`` None.

    Raises:
        InputError: an illegal argument, or a step that cannot be recorded (it raises, has no
            backward or several, its loss is not finite).
        MachineError: a GPU that is not here.
    """
    at_least("warmup", warmup, 1)
    at_least("repeats", repeats, 1)
    place = find_device(device)
    step, clock = build_step(pair, device=place, dtype=dtype), clock_for(place)
    timed: dict[bool, list[RecordedStep]] = {True: [], False: []}  # by whether all gradients were watched
    total = warmup + 2 * repeats

    progress(0, total)
    _, fired = measure(step, step.model, Clock())
    if step.last_loss is not None and not bool(torch.isfinite(step.last_loss)):
        loss = step.last_loss.item()
        raise InputError(f"step: the loss is {loss}; its times would mislead; give a finite loss")
    for done in range(1, total):
        progress(done, total)
        # plain watched watched plain ...: a drifting machine favours neither
        is_watched = (done - warmup) % 4 in (1, 2)
        times, _ = measure(step, step.model, clock, hooked=None if is_watched else fired[-_FEW:])
        if done >= warmup:
            timed[is_watched].append(times)
    progress(total, total)

    provenance = {
        "source": "bucketsim record",
        **surroundings(place),
        "threads": torch.get_num_threads(),
        "warmup": warmup,
        "repeats": repeats,
        "dtype": dtype or "as built",
        "step": "built from (model, batch): train(), AdamW (SparseAdam for sparse gradients), lr 1e-12",
        "factory": factory_spec,
        "arguments": dict(arguments or {}),
    }
    return workload_of_steps(
        step.model, timed[False], timed[True], fired=fired, name=name, provenance=provenance
    )


def measure(
    step: Callable[[], object], model: nn.Module, clock: Clock, *, hooked: Sequence[int] | None = None
) -> tuple[RecordedStep, tuple[int, ...]]:
    """Run ``step`` once, which leaves its gradients on ``model``: its times on ``clock``, and the order in
    which gradients came. Only those ``hooked`` are watched, None: all.

    Raises:
        InputError: nothing requires grad, the step did not run one forward and one backward of ``model``, or
            it raised.
    """
    tensors = [tensor for _, tensor in trained(model)]
    if not tensors:
        raise InputError(f"step: {type(model).__name__} has no parameter that requires grad")
    watch = StepWatch(model, tensors, clock, hooked=hooked)
    clock.settle()
    watch.open()
    try:
        step()
        watch.step()
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"step: it raised {describe(error)}") from error
    finally:
        watch.close()
    clock.settle()
    count = sum(len(stamps.backwards) for stamps in watch.steps)
    if count != 1:
        raise InputError(f"step: backward of the module ran {count} times; it has to run once in each step")
    return watch.steps[0].recorded(clock, len(tensors)), watch.steps[0].fired()


def workload_of_steps(
    model: nn.Module,
    plain: Sequence[RecordedStep],
    watched: Sequence[RecordedStep],
    *,
    fired: Sequence[int],
    name: str | None,
    provenance: Mapping[str, Any],
) -> Workload:
    """A Workload of ``model``, which still has the gradients of its last step: medians of ``plain`` steps,
    and ready times of those that were ``watched``. ``fired`` is the order in which gradients came.

    Raises:
        InputError: forward or backward took no time.
    """
    named = trained(model)
    wires = [_sparse_bytes(tensor.grad) for _, tensor in named]
    forwards = [one.backwards[0].forward_ns for one in plain]
    backwards = [one.backwards[0].backward_ns for one in plain]
    hooked = [one.backwards[0].backward_ns for one in watched]
    forward_ns, backward_ns, watched_ns = map(median_ns, (forwards, backwards, hooked))
    for what, value in (("forward", forward_ns), ("backward", min(backward_ns, watched_ns))):
        if value <= 0:
            raise InputError(f"step: {what} took {value} ns; a step must take measurable time")
    spreads = {"plain_backward_ns": backwards, "hooked_backward_ns": hooked, "forward_ns": forwards}
    spreads["step_ns"] = [one.step_ns for one in plain]
    return workload_of_backwards(
        name or type(getattr(model, "_orig_mod", model)).__name__,
        [
            Gradient(index=k, **facts(*named[k]), ready_ns=None, sparse=wire is not None, wire_bytes=wire)
            for k, wire in enumerate(wires)
        ],
        [one.backwards[0] for one in watched],
        pace=watched_ns / backward_ns,
        fired=fired,
        forward_ns=forward_ns,
        optimizer_ns=median_ns([one.optimizer_ns or 0 for one in plain]),
        buffers=buffers_in(model.buffers()),
        provenance={
            **provenance,
            "module": type(model).__name__,
            "parameters": sum(tensor.numel() for _, tensor in named),
            "tensors": len(named),
            "backward_starts": "at the end of forward; a loss computed outside of the module is in it",
            **{
                what: {"min": min(times), "median": median_ns(times), "max": max(times)}
                for what, times in spreads.items()
            },
        },
    )


def _sparse_bytes(gradient: torch.Tensor | None) -> int | None:
    """What a sparse gradient would send, its coalesced indices and values; None for a dense one."""
    if gradient is None or not gradient.is_sparse:
        return None
    whole = gradient.detach().coalesce()
    return int(whole.indices().numel() * _INDEX_BYTES + whole.values().nbytes)
