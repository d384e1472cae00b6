"""The textbook way to merge tensors: a dynamic programme over prefixes, in plain numpy."""

import numpy as np
from numpy.typing import NDArray

from sim.costs.service_time import empty_ns, rise_beyond
from sim.nouns.hardware import CurvePoint
from sim.tuner.problem import Buckets, Problem, curve_of


def earliest_finish(problem: Problem) -> Buckets:
    """Buckets whose last all-reduce ends earliest on one channel, one dtype; copies back are not thought of.

    ``end[j] = min over i < j of max(end[i], ready[j - 1] + launch) + service(bytes i to j)``, one row of
    numpy a prefix: O(n**2) in time, O(n) in memory.
    """
    count = len(problem)
    sizes, times = _without_end(curve_of(problem.hardware))
    wire = np.concatenate([[0], np.cumsum(problem.wire)]).astype(np.float64)
    first = (problem.ready + problem.machine.launch_cost_ns).astype(np.float64)
    ends, came_from = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        services = np.interp(wire[stop] - wire[:stop], sizes, times)
        tried = np.maximum(ends[:stop], first[stop - 1]) + services
        came_from[stop] = np.argmin(tried)
        ends[stop] = tried[came_from[stop]]
    buckets, stop = [], count
    while stop:
        buckets.append(problem.order[came_from[stop] : stop])
        stop = int(came_from[stop])
    return tuple(reversed(buckets))


def _without_end(curve: tuple[CurvePoint, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A curve's points from no bytes on, and one more, far beyond the last."""
    points = {0: empty_ns(curve)} | {point.num_bytes: point.duration_ns for point in curve}
    sizes, times = list(map(float, points)), list(map(float, points.values()))
    rise, run = rise_beyond(curve)
    times.append(times[-1] + rise / run * (2.0**52 - sizes[-1]))
    sizes.append(2.0**52)
    return np.array(sizes), np.array(times)
