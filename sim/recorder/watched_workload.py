"""A Workload out of what was watched of a model's steps, whoever watched them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.errors import InputError
from sim.nouns.recording import RecordedBackward
from sim.nouns.workload import Gradient, Workload
from sim.units import median_ns


def workload_of_backwards(
    name: str,
    gradients: Sequence[Gradient],
    backwards: Sequence[RecordedBackward],
    *,
    pace: float,
    fired: Sequence[int],
    **fields: Any,
) -> Workload:
    """A Workload of medians over the backwards of one rank, divided by ``pace``; with its other ``fields``.

    A gradient counts from its last firing, and is ready when ``backwards`` say so, at least one of which
    there is. Backward starts at the end of forward (A3.1), so that the loss is in it. ``fired`` is the order
    in which gradients come, for those with one time. Raises ``InputError`` where none became ready.
    """
    backward_ns = round(median_ns([backward.backward_ns for backward in backwards]) / pace)
    samples = [
        tuple(None if time is None else round(time / pace) for time in backward.ready_ns)
        for backward in backwards
    ]
    columns = [[time for time in column if time is not None] for column in zip(*samples, strict=True)]
    ready = [min(median_ns(times), backward_ns) if times else None for times in columns]
    places = {index: place for place, index in enumerate(fired)}
    order = sorted(
        (index for index, times in enumerate(columns) if times),
        key=lambda index: (ready[index] or 0, places.get(index, len(ready)), -index),
    )
    if not order:
        raise InputError(f"{name}: no gradient became ready in any backward")
    return Workload(
        name=name,
        gradients=tuple(
            replace(one, ready_ns=ready[one.index], uses=max(b.uses.get(one.index, 1) for b in backwards))
            for one in gradients
        ),
        backward_ns=backward_ns,
        ready_order=tuple(order),
        samples=tuple(samples),
        **fields,
    )
