"""``record``: run a training step some twenty times and write down what backward does, and when.

Iterations with a hook on every parameter (when is each gradient ready?) alternate with iterations
without any (how long do forward, backward and optimizer take?), so that both see the same machine.
The cost of our own hooks is then taken out: ready times are scaled by plain backward over hooked
backward.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sim.errors import InputError
from sim.nouns.workload import Buffer, Gradient, Workload
from sim.recorder.clocks import clock_for, find_device
from sim.recorder.factory import Pair, Step
from sim.recorder.instruments import Iteration, Parameter, Survey, measure, survey
from sim.recorder.surroundings import surroundings
from sim.recorder.training_step import build_step, bytes_by_dtype, dtype_name
from sim.units import divide_half_even, median_ns

Progress = Callable[[int, int], None]
Sample = tuple[int | None, ...]


def record(
    step_or_pair: Step | Pair,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    warmup: int = 3,
    repeats: int = 10,
    progress: Progress | None = None,
    factory_spec: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    threads: int | None = None,
) -> Workload:
    """Record a training step as a Workload.

    ``(model, batch)`` is moved to ``device``, cast to ``dtype``, put into training mode and trained
    by AdamW with a learning rate that is as good as zero. A callable runs one training step of its
    own, on its own device and dtype; its outermost module with trainable parameters is found while
    it runs. Gradients that no backward reaches have ``ready_ns`` None.

    Args:
        step_or_pair: what ``load_factory`` returns.
        name: of the Workload; None: the class of the module.
        device: ``cpu``, ``cuda`` or ``cuda:N``; on a GPU all times are those of its stream.
        dtype: for the module and its floating inputs; None leaves them. Not for a callable.
        warmup: iterations that are run first and dropped, at least 1.
        repeats: iterations with hooks, and as many without, at least 1.
        progress: called with (iterations done, iterations in all).
        factory_spec: ``MODULE:FACTORY``, for the provenance.
        arguments: of the factory, for the provenance.
        threads: torch's intra-op threads while recording; None leaves them.

    Returns:
        A Workload whose times are medians, in ns, and whose ``samples`` are the ready times of each
        hooked iteration, corrected by the same factor.

    Raises:
        InputError: an illegal argument, or a step that cannot be recorded (it raises, has no
            backward or several, its loss is not finite, its parameters lie elsewhere).
        MachineError: a GPU that is not here.
    """
    for what, value in (("warmup", warmup), ("repeats", repeats), ("threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{what}: {value} is not legal; give an integer >= 1")
    place = find_device(device)
    step, root = build_step(step_or_pair, device=place, dtype=dtype)
    clock = clock_for(place)
    plain: list[Iteration] = []
    hooked: list[Iteration] = []
    total = warmup + 2 * repeats

    def report(done: int) -> None:
        if progress is not None:
            progress(done, total)

    with _torch_threads(threads):
        report(0)
        seen = survey(step, root=root)
        _check_module(seen, place)
        report(1)
        for done in range(1, warmup):
            measure(step, seen=seen, clock=clock, hooked=done % 2 == 1)
            report(done + 1)
        for done in range(2 * repeats):
            # plain hooked hooked plain ...: a drifting machine favours neither
            with_hooks = done % 4 in (1, 2)
            times = measure(step, seen=seen, clock=clock, hooked=with_hooks)
            (hooked if with_hooks else plain).append(times)
            report(warmup + done + 1)
        used_threads = torch.get_num_threads()

    provenance = {
        "source": "bucketsim record",
        **surroundings(place),
        "threads": used_threads,
        "warmup": warmup,
        "repeats": repeats,
        "dtype": dtype or "as built",
        "optimizer": ", ".join(seen.optimizers) or "none ran",
        "step": "callable" if root is None else "built from (model, batch): train(), AdamW, lr 1e-12",
        "module": type(seen.root).__name__,
        "factory": factory_spec,
        "arguments": dict(arguments or {}),
        "parameters": sum(parameter.tensor.numel() for parameter in seen.parameters),
    }
    return build_workload(seen, plain=plain, hooked=hooked, name=name, provenance=provenance)


def build_workload(
    seen: Survey,
    *,
    plain: Sequence[Iteration],
    hooked: Sequence[Iteration],
    name: str | None,
    provenance: Mapping[str, Any],
) -> Workload:
    """A Workload from timed iterations: medians of the plain ones, ready times of the hooked ones.

    Without a ``name`` it is called after the class of its module, within torch.compile's wrapper.

    Raises:
        InputError: forward or backward took no time, or no gradient became ready.
    """
    forward_ns = median_ns([times.forward_ns for times in plain])
    backward_ns = median_ns([times.backward_ns for times in plain])
    hooked_ns = median_ns([times.backward_ns for times in hooked])
    for what, value in (("forward", forward_ns), ("backward", min(backward_ns, hooked_ns))):
        if value <= 0:
            raise InputError(f"step: {what} took {value} ns; a step must take measurable time")
    samples = [
        tuple(
            None if time is None else divide_half_even(time * backward_ns, hooked_ns)
            for time in _last_firings(times, len(seen.parameters))
        )
        for times in hooked
    ]
    ready = _ready(samples, backward_ns)
    order, order_is = _ready_order(ready, [_firing_order(times) for times in hooked])
    if not order:
        raise InputError("step: no gradient became ready; backward must reach parameters of the module")
    return Workload(
        name=name or type(getattr(seen.root, "_orig_mod", seen.root)).__name__,
        gradients=tuple(
            _gradient(index, parameter, ready[index], _uses(index, hooked))
            for index, parameter in enumerate(seen.parameters)
        ),
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        optimizer_ns=median_ns([times.optimizer_ns for times in plain]),
        loss_ns=median_ns([times.loss_ns for times in plain]),
        ready_order=order,
        buffers=tuple(
            Buffer(dtype=dtype, num_bytes=size) for dtype, size in bytes_by_dtype(seen.root.buffers()).items()
        ),
        samples=tuple(samples),
        provenance={
            **provenance,
            "tensors": len(seen.parameters),
            "ready_order": order_is,
            "plain_backward_ns": spread([times.backward_ns for times in plain]),
            "hooked_backward_ns": spread([times.backward_ns for times in hooked]),
            "forward_ns": spread([times.forward_ns for times in plain]),
            "step_ns": spread([times.step_ns for times in plain]),
            "optimizer_step_only_ns": median_ns([times.inside_optimizer_ns for times in plain]),
        },
    )


def spread(times: Sequence[int]) -> dict[str, int]:
    """Least, median and greatest, in the same unit."""
    return {"min": min(times), "median": median_ns(times), "max": max(times)}


def _last_firings(times: Iteration, count: int) -> Sample:
    """By gradient, when its hook fired last in one backward; None: it did not."""
    last: list[int | None] = [None] * count
    for index, time in times.firings:
        last[index] = time
    return tuple(last)


def _firing_order(times: Iteration) -> tuple[int, ...]:
    """Gradients by their last firing in one backward, as the host saw them."""
    order: dict[int, None] = {}
    for index, _ in times.firings:
        order.pop(index, None)
        order[index] = None
    return tuple(order)


def _uses(index: int, hooked: Sequence[Iteration]) -> int:
    return max(1, *(sum(fired == index for fired, _ in times.firings) for times in hooked))


def _ready(samples: Sequence[Sample], backward_ns: int) -> list[int | None]:
    """Medians over the iterations in which a gradient became ready, at most ``backward_ns``."""
    ready: list[int | None] = []
    for column in zip(*samples, strict=True):
        times = [time for time in column if time is not None]
        ready.append(min(median_ns(times), backward_ns) if times else None)
    return ready


def _ready_order(
    ready: Sequence[int | None], orders: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], str]:
    """The order of firing where every iteration agrees on it, else that of the median times."""
    first = orders[0]
    if all(order == first for order in orders):
        times = [ready[index] or 0 for index in first]
        if times == sorted(times):
            return first, "order of firing, the same in all iterations"
        why = "by median ready time (hooks fired in one order on the host, in another on the device)"
    else:
        why = f"by median ready time ({len(set(orders))} orders of firing in {len(orders)} iterations)"
    places = {
        index: median_ns([order.index(index) for order in orders if index in order])
        for index, time in enumerate(ready)
        if time is not None
    }
    return tuple(sorted(places, key=lambda index: (ready[index] or 0, places[index], -index))), why


def _gradient(index: int, parameter: Parameter, ready_ns: int | None, uses: int) -> Gradient:
    tensor = parameter.tensor
    return Gradient(
        index=index,
        name=parameter.name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        num_bytes=tensor.numel() * tensor.element_size(),
        ready_ns=ready_ns,
        sparse=parameter.sparse,
        wire_bytes=parameter.wire_bytes,
        device=str(tensor.device),
        group=parameter.group,
        uses=uses,
    )


def _check_module(seen: Survey, place: torch.device) -> None:
    """The module is bare, trains something, and lies on the device whose clock is read."""
    if isinstance(seen.root, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise InputError(
            f"step: the module is wrapped in {type(seen.root).__name__}, whose copies and collectives would "
            f"be recorded as its own; give the bare module"
        )
    if not seen.parameters:
        raise InputError(f"step: {type(seen.root).__name__} has no parameter that requires grad")
    for parameter in seen.parameters:
        if parameter.tensor.device != place:
            raise InputError(
                f"step: parameter {parameter.name} lies on {parameter.tensor.device}, recorded is {place}; "
                f"keep all parameters on one device and name it as the device"
            )


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
