"""Backwards that all had collectives beside them, taken apart: computing, and what these did to it."""

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from sim.metrics.intervals import union
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate

_SIGMA = 0.1  # of a slow-down's logarithm, where it was measured apart from the step
_MOST_SHARE = 0.75  # of a core, that communication takes from a rank that computes on it
_NOTHING: dict[str, Any] = {"factors": [], "covariance": [], "about_bytes": 1}


def expected_slowdowns(hardware: Hardware, *, computes_on_host: bool) -> dict[str, tuple[float, float]]:
    """``comm_slowdown`` and ``compute_slowdown`` in a step, by what was measured apart: logarithm and sigma.

    A rank that computes on its host shares cores with its all-reduces (``spread.host_share``,
    ``spread.comm_beside_compute``; medians over sizes). Where only the processor's time was measured, as
    beside a job that trains, all-reduces are taken to wait for a core as much as a rank does for them.
    """
    spread = hardware.spread
    measured = spread.get("host_share", spread.get("processor_share")), spread.get("comm_beside_compute")
    shares, slowdowns = (
        [one for one in known.values() if isinstance(one, float)] if isinstance(known, dict) else []
        for known in measured
    )
    found = {"comm_slowdown": hardware.comm_slowdown, "compute_slowdown": hardware.compute_slowdown}
    if not shares or not computes_on_host:
        return {name: (float(np.log(value)), _SIGMA) for name, value in found.items()}
    compute = 1 / (1 - min(_MOST_SHARE, max(0.0, median(shares))))
    found["compute_slowdown"] *= compute
    found["comm_slowdown"] *= max(1.0, median(slowdowns)) if slowdowns else compute
    return {name: (log := float(np.log(value)), max(_SIGMA, log / 2)) for name, value in found.items()}


def taken_apart(
    workload: Workload, hardware: Hardware, assignment: Assignment, *, computes_on_host: bool
) -> tuple[Workload, Hardware]:
    """A workload whose times contain interference without it, and the hardware that brings it in again.

    Other buckets would have other collectives beside backward. The recorded step is met by any slow-down, so
    what is expected of it stays as uncertain as it was: it is added to ``spread.own_step``. Where nothing is
    known to slow backward down, both stay.

    Args:
        workload: recorded under ``assignment``.
        hardware: its link as it was in that step.
        assignment: the buckets that the job had.
        computes_on_host: whether backward runs on the CPU.
    """
    log, sigma = expected_slowdowns(hardware, computes_on_host=computes_on_host)["compute_slowdown"]
    if "interference" not in workload.ready_includes or log <= 0:
        return workload, hardware
    slowdown = float(np.exp(log))
    known = hardware.spread.get("own_step", _NOTHING)
    count = len(known["factors"])
    covariance = np.pad(np.reshape(known["covariance"], (count, count)), (0, 1))
    covariance[-1, -1] = sigma**2
    own_step = known | {
        "factors": [*known["factors"], "compute_slowdown"],
        "covariance": covariance.tolist(),
    }
    return (
        without_interference(simulate(workload, hardware, assignment, "analytic"), slowdown),
        replace(hardware, compute_slowdown=slowdown, spread={**hardware.spread, "own_step": own_step}),
    )


def without_interference(timeline: Timeline, compute_slowdown: float) -> Workload:
    """The workload of ``timeline`` as its backward would have gone alone.

    While a collective is on the wire, 1 ns of recorded time is ``1 / compute_slowdown`` ns of computing.
    Played with that slow-down under the same buckets, what comes out is what was recorded.
    """
    workload = timeline.workload
    busy = union((bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets)

    def moved(times: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if time is None else plain(time) for time in times)

    def plain(time: int) -> int:
        beside = sum(max(0, min(end, time) - start) for start, end in busy)
        return round(time - beside * (1 - 1 / compute_slowdown))

    ready = moved(tuple(gradient.ready_ns for gradient in workload.gradients))
    return replace(
        workload,
        gradients=tuple(
            replace(gradient, ready_ns=time) for gradient, time in zip(workload.gradients, ready, strict=True)
        ),
        backward_ns=plain(workload.backward_ns),
        ready_order=workload.order(),
        ready_includes=tuple(effect for effect in workload.ready_includes if effect != "interference"),
        samples=tuple(map(moved, workload.samples)),
    )
