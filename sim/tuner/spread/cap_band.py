"""How far single steps range at each cap, over the same draws, so that caps differ by their buckets alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sim.clock.arrays import Floats
from sim.metrics.step import step_ns
from sim.nouns.band import BandPoint
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.tuner.progress import listened_to, tell
from sim.tuner.search.as_searched import Searched
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem
from sim.tuner.spread.draws import FEWEST_IN_RANGES, Draws, draw

LEVELS = (0.025, 0.975)
# A further step lies between the shortest and the longest of n recorded ones (n - 1) times in n + 1. So 39
# steps are the fewest whose shortest and longest enclose 95 of 100 further ones.
ENOUGH_ITERATIONS = 39
FEWEST_ITERATIONS = 4  # Student's t of fewer has no variance: they show no range
MOST_ITERATIONS = 400  # so many are drawn of more: the band then holds 94 to 96 of 100 steps


def step_band(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float | None],
    *,
    draws: int = 4000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> tuple[BandPoint, ...]:
    """Where 95 of 100 single steps lie under each cap (MiB; None is DDP's default); empty: nothing varies.

    Steps vary as ``samples`` of the workload, its band and ``spread`` of the hardware say, as those that
    ``tune`` draws, at least ``draws`` of them and the same for every cap. All recorded iterations go in, or
    400 of them if they are more; fewer than 39 do not show the range, and are taken to be normal.
    ``progress`` as in ``tune``.

    Raises:
        InputError: an argument that is not legal, or samples or a spread that cannot be read.
    """
    with listened_to(progress):
        return tuple(_points(workload, hardware, caps_mb, draws, seed))


def _points(
    workload: Workload, hardware: Hardware, caps_mb: Sequence[float | None], draws: int, seed: int
) -> list[BandPoint]:
    """A point for each cap: the range of a further step, on machines that the calibration allows.

    With ``ENOUGH_ITERATIONS`` recorded or more, the further step falls with the same chance between any two
    that follow each other by length. With fewer, steps are taken to be normal, and its distance from their
    mean is drawn by Student's t. Fewer than ``FEWEST_ITERATIONS`` count as none.
    """
    recorded = sum(None not in sample for sample in workload.samples)
    if recorded < FEWEST_ITERATIONS:
        workload = replace(workload, samples=())
    count = max(draws, FEWEST_IN_RANGES * min(recorded, MOST_ITERATIONS))
    asked = Searched(workload, hardware)
    drawn = replace(draw(Problem(*asked.equivalent), count, seed), times=asked.times)
    if len(drawn) == 1:
        return []
    nominal = simulate(workload, hardware, assign(workload), "analytic")
    rest = drawn.paces * (step_ns(nominal) - asked.times * nominal.sync_end_ns)
    repeats = -(-draws // len(drawn))
    luck = _luck(drawn, repeats, seed) if drawn.recorded else None
    known: dict[Buckets, tuple[int, int]] = {}
    points = []
    for cap in caps_mb:
        buckets = assign(workload, bucket_cap_mb=cap).bucket_indices
        if buckets not in known:
            tell("playing steps as they vary")
            steps = drawn.sync_ends(buckets) + rest.reshape(drawn.machines, drawn.iterations)
            if luck is not None:
                steps = _further(steps, luck)
            low, high = np.quantile(steps, LEVELS).tolist()
            known[buckets] = max(0, round(low)), round(high)
        points.append(
            BandPoint(
                cap_mb=cap,
                low_ns=known[buckets][0],
                high_ns=known[buckets][1],
                draws=len(drawn) if luck is None else luck.size,
                iterations=drawn.recorded,
            )
        )
    is_still = not drawn.recorded and all(point.low_ns == point.high_ns for point in points)
    return [] if is_still else points


def _luck(drawn: Draws, repeats: int, seed: int) -> Floats:
    """Where further iterations lie among those recorded: [repeats, machines, iterations].

    A number is a position in their order, from 1; where few were recorded, a distance from their mean in
    standard deviations.
    """
    generator, count = np.random.default_rng([seed, drawn.recorded]), drawn.recorded
    shape = (repeats, drawn.machines, drawn.iterations)
    if count >= ENOUGH_ITERATIONS:
        return np.asarray(generator.random(shape) * (count + 1))
    return np.asarray(generator.standard_t(count - 1, shape) * (1 + 1 / count) ** 0.5)


def _further(steps: Floats, luck: Floats) -> Floats:
    """``steps`` [machines, iterations] with further iterations in place of those recorded, by their luck."""
    recorded = steps.mean(axis=0)
    if len(recorded) >= ENOUGH_ITERATIONS:
        further = np.interp(luck, np.arange(1, len(recorded) + 1), np.sort(recorded))
    else:
        further = recorded.mean() + recorded.std(ddof=1) * luck
    return np.asarray(further + (steps - recorded))
