"""Tells computing and interference apart in recorded backwards that all had collectives beside them."""

from dataclasses import replace
from typing import Any

import numpy as np

from sim.metrics.intervals import union
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate

_NOTHING: dict[str, Any] = {"factors": [], "covariance": [], "about_bytes": 1}


def taken_apart(
    workload: Workload, hardware: Hardware, assignment: Assignment, expected: tuple[float, float]
) -> tuple[Workload, Hardware]:
    """The workload without the interference in its times, and the hardware with it as ``compute_slowdown``.

    With other buckets, other collectives would run beside backward. The recorded step does not tell the
    slow-down, as any value meets it: the expected one is taken, with its uncertainty in ``spread.own_step``.
    If no slow-down is expected, or the times contain none, both are returned as they are.

    Args:
        workload: recorded under ``assignment``.
        hardware: its link as it was in that step.
        assignment: the buckets that the job had.
        expected: ``compute_slowdown`` of ``expected_slowdowns``, its logarithm and sigma.
    """
    log, sigma = expected
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

    def plain(time: int) -> int:
        beside = sum(max(0, min(end, time) - start) for start, end in busy)
        return round(time - beside * (1 - 1 / compute_slowdown))

    return workload.retimed(
        lambda times: tuple(None if time is None else plain(time) for time in times),
        backward_ns=plain(workload.backward_ns),
        ready_order=workload.order(),
        ready_includes=tuple(effect for effect in workload.ready_includes if effect != "interference"),
    )
