"""``record``: run a training step some twenty times and write down what backward does, and when.

Steps in which every gradient is watched (when is it ready?) alternate with steps in which a few are, those
that come last (how long do forward, backward and optimizer take?), so that both see the same machine. The
cost of our own hooks is then taken out: ready times are scaled by plain backward over watched backward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sim.errors import InputError, SimError
from sim.nouns.checks import at_least
from sim.nouns.recording import RecordedStep
from sim.nouns.workload import Gradient, Workload
from sim.recorder.clocks import Clock, clock_for, find_device
from sim.recorder.factory import Pair, describe
from sim.recorder.training_step import buffers_in, build_step, facts, surroundings, trained
from sim.recorder.watch import StepStamps, StepWatch
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
    AdamW with a learning rate that is as good as zero. Gradients that no backward reaches have ``ready_ns``
    None.

    Args:
        pair: what ``load_factory`` returns.
        name: of the Workload; None: the class of the module.
        device: ``cpu``, ``cuda`` or ``cuda:N``; on a GPU all times are those of its stream.
        dtype: for the module and its floating inputs; None leaves them.
        warmup: iterations that are run first and dropped, at least 1.
        repeats: iterations with hooks, and as many without, at least 1.
        progress: called with (iterations done, iterations in all).
        factory_spec: ``MODULE:FACTORY``, for the provenance.
        arguments: of the factory, for the provenance.

    Returns:
        A Workload whose times are medians, in ns, and whose ``samples`` are the ready times of each
        hooked iteration, corrected by the same factor.

    Raises:
        InputError: an illegal argument, or a step that cannot be recorded (it raises, has no
            backward or several, its loss is not finite).
        MachineError: a GPU that is not here.
    """
    at_least("warmup", warmup, 1)
    at_least("repeats", repeats, 1)
    place = find_device(device)
    step, clock = build_step(pair, device=place, dtype=dtype), clock_for(place)
    plain: list[RecordedStep] = []
    watched: list[RecordedStep] = []
    total = warmup + 2 * repeats

    progress(0, total)
    seen = survey(step, step.model)
    if step.last_loss is not None and not bool(torch.isfinite(step.last_loss)):
        loss = step.last_loss.item()
        raise InputError(f"step: the loss is {loss}; its times would mislead; give a finite loss")
    for done in range(1, total):
        progress(done, total)
        # plain watched watched plain ...: a drifting machine favours neither
        is_watched = (done - warmup) % 4 in (1, 2)
        times = measure(step, seen, clock, hooked=None if is_watched else seen.fired[-_FEW:])
        if done >= warmup:
            (watched if is_watched else plain).append(times)
    progress(total, total)

    provenance = {
        "source": "bucketsim record",
        **surroundings(place),
        "threads": torch.get_num_threads(),
        "warmup": warmup,
        "repeats": repeats,
        "dtype": dtype or "as built",
        "step": "built from (model, batch): train(), AdamW (SparseAdam for sparse gradients), lr 1e-12",
        "module": type(seen.root).__name__,
        "factory": factory_spec,
        "arguments": dict(arguments or {}),
        "parameters": sum(tensor.numel() for tensor in seen.tensors),
    }
    return workload_of_steps(seen, plain, watched, name=name, provenance=provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a step trains: its module, and ``module.parameters()`` that require grad.

    ``fired``: the order in which their gradients came. ``gradients`` have no times yet; ``wire_bytes`` is
    what a sparse one would send (its coalesced indices and values), else None.
    """

    root: nn.Module
    tensors: tuple[nn.Parameter, ...]
    gradients: tuple[Gradient, ...]
    fired: tuple[int, ...]


def survey(step: Callable[[], object], model: nn.Module) -> Survey:
    """Run ``step``, which leaves its gradients on ``model``, and learn what it trains.

    Raises:
        InputError: no backward, or several, or nothing that requires grad.
    """
    named = trained(model)
    tensors = tuple(tensor for _, tensor in named)
    if not tensors:
        raise InputError(f"step: {type(model).__name__} has no parameter that requires grad")
    fired = _watched(step, StepWatch(model, tensors, Clock())).fired()
    wires = [_sparse_bytes(tensor.grad) for tensor in tensors]
    return Survey(
        root=model,
        tensors=tensors,
        gradients=tuple(
            Gradient(
                index=index,
                **facts(name, tensor),
                ready_ns=None,
                sparse=wires[index] is not None,
                wire_bytes=wires[index],
            )
            for index, (name, tensor) in enumerate(named)
        ),
        fired=tuple(fired),
    )


def measure(
    step: Callable[[], object], seen: Survey, clock: Clock, *, hooked: Sequence[int] | None
) -> RecordedStep:
    """Run ``step`` once and time it on ``clock``, watching gradients ``hooked``; None: all.

    Hooks are put on and taken off outside the timed region.

    Raises:
        InputError: the step did not run one forward and one backward of the module, or it raised.
    """
    clock.settle()
    stamps = _watched(step, StepWatch(seen.root, seen.tensors, clock, hooked=hooked))
    clock.settle()
    return stamps.recorded(clock, len(seen.tensors))


def _watched(step: Callable[[], object], watch: StepWatch) -> StepStamps:
    """The stamps of the one backward that ``step`` runs."""
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
    count = sum(len(stamps.backwards) for stamps in watch.steps)
    if count != 1:
        raise InputError(f"step: backward of the module ran {count} times; it has to run once in each step")
    return watch.steps[0]


def workload_of_steps(
    seen: Survey,
    plain: Sequence[RecordedStep],
    watched: Sequence[RecordedStep],
    *,
    name: str | None,
    provenance: Mapping[str, Any],
) -> Workload:
    """A Workload from timed steps: medians of the plain ones, ready times of the watched ones.

    Without a ``name`` it is called after the class of its module, within torch.compile's wrapper.

    Raises:
        InputError: forward or backward took no time.
    """
    forwards = [one.backwards[0].forward_ns for one in plain]
    backwards = [one.backwards[0].backward_ns for one in plain]
    hooked = [one.backwards[0].backward_ns for one in watched]
    backward_ns, watched_ns = median_ns(backwards), median_ns(hooked)
    for what, value in (("forward", median_ns(forwards)), ("backward", min(backward_ns, watched_ns))):
        if value <= 0:
            raise InputError(f"step: {what} took {value} ns; a step must take measurable time")
    return workload_of_backwards(
        name or type(getattr(seen.root, "_orig_mod", seen.root)).__name__,
        seen.gradients,
        [one.backwards[0] for one in watched],
        pace=watched_ns / backward_ns,
        fired=seen.fired,
        forward_ns=median_ns(forwards),
        optimizer_ns=median_ns([one.optimizer_ns or 0 for one in plain]),
        buffers=buffers_in(seen.root.buffers()),
        provenance={
            **provenance,
            "tensors": len(seen.tensors),
            "backward_starts": "at the end of forward; a loss computed outside of the module is in it",
            "plain_backward_ns": _spread(backwards),
            "hooked_backward_ns": _spread(hooked),
            "forward_ns": _spread(forwards),
            "step_ns": _spread([one.step_ns for one in plain]),
        },
    )


def _spread(times: Sequence[int]) -> dict[str, int]:
    """Least, median and greatest, in the same unit."""
    return {"min": min(times), "median": median_ns(times), "max": max(times)}


def _sparse_bytes(gradient: torch.Tensor | None) -> int | None:
    """Bytes of a sparse gradient's coalesced indices and values; None for a dense one."""
    if gradient is None or not gradient.is_sparse:
        return None
    whole = gradient.detach().coalesce()
    return int(whole.indices().numel() * _INDEX_BYTES + whole.values().nbytes)
