"""Steps that may happen: recorded iterations, machines that the calibration allows, jitter of collectives.

Steps are drawn as a table: so many machines, each with the same iterations. A machine is one factor for each
measured point of the all-reduce curve (and one on all times of an estimated workload), since an error of the
calibration is there in every step. Jitter is drawn anew for every collective. What was not recorded does not
vary, and ``not_known`` says so.
"""

from dataclasses import dataclass, replace

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.errors import InputError
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.tuner.search import kernels
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import MOST, Machine, Problem
from sim.tuner.spread.left_open import read_left_open
from sim.tuner.spread.scatter import Scatter, read_scatter

FEWEST_MACHINES = 20  # fewer say too little of how machines differ for an interval
FEWEST_ITERATIONS = 2
UNRECORDED_ITERATIONS = 20  # a machine, where jitter is all that varies between steps
MOST_CELLS = 1 << 24  # draws times gradients, at most: an array of int64 has 128 MiB

NO_ITERATIONS = "how iterations vary"
NO_SCATTER = "how all-reduces vary"
NO_BAND = "how far the estimate may be off"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """``machines`` times ``iterations`` steps; step ``k * iterations + i`` is iteration i on machine k.

    ``works`` [draws, places] and ``tails`` [draws]: ns of the compute lane, along the nominal ready order, as
    in ``Problem``. ``paces`` [draws]: factor on the rest of the step. ``curve`` [machines, points]: factors
    of the all-reduce curve. ``slowed``: each machine with its own slow-downs; None where they are the
    problem's. ``luck`` [draws, places]: standard normal, by the place that a bucket waits for; None where
    there is no jitter. ``recorded``: iterations that went in, 0 where fewer than two were recorded.
    ``not_known``: what does not vary because nothing of it is recorded. ``times``: how many backwards of a
    step reduce.
    """

    problem: Problem
    seed: int
    machines: int
    iterations: int
    works: Ints
    tails: Ints
    paces: Floats
    scatter: Scatter
    curve: Floats
    luck: Floats | None
    slowed: tuple[Machine, ...] | None
    recorded: int
    not_known: tuple[str, ...]
    notes: tuple[str, ...]
    times: int = 1

    def __len__(self) -> int:
        return self.machines * self.iterations

    def services(self, stops: Ints, wires: Ints, *, jitters: bool = True) -> Ints:
        """Service times in ns of buckets of ``wires`` bytes that wait for places ``stops``: [draws, buckets].

        Buckets of two candidates that end at the same place have the same luck. ``jitters`` False: no jitter.
        """
        if self.problem.hardware.world_size == 1:
            return np.zeros((len(self), len(wires)), np.int64)
        curves = np.rint(self.problem.curve_ns * self.curve).astype(np.int64)
        alone = np.stack([kernels.services(self.problem.curve_bytes, curve, wires) for curve in curves])
        by_step = np.repeat(alone, self.iterations, axis=0)
        if self.luck is None or not jitters:
            return by_step
        factors = self.scatter.jitter(wires, self.luck[:, stops])
        return np.rint(np.minimum(by_step * factors, MOST)).astype(np.int64)

    def sync_ends(self, buckets: Buckets, *, jitters: bool = True) -> Ints:
        """``sync_end_ns`` of these buckets in every step, of all its backwards that reduce together:
        [machines, iterations].
        """
        problem = self.problem
        stops, wires, copied = problem.stops(buckets)
        services, back = self.services(stops, wires, jitters=jitters), problem.copies_back(copied)
        small = problem.small(wires)

        def play(machine: Machine, steps: slice) -> Ints:
            works, tails = self.works[steps], self.tails[steps]
            ends = kernels.play_many(
                machine, works, problem.copy_in, tails, stops, services[steps], small, back
            )
            return self.times * ends

        if self.slowed is None:
            return play(problem.machine, slice(None)).reshape(self.machines, self.iterations)
        starts = range(0, len(self), self.iterations)
        return np.stack(
            [
                play(machine, slice(start, start + self.iterations))
                for machine, start in zip(self.slowed, starts, strict=True)
            ]
        )

    def one(self, number: int) -> tuple[Workload, Hardware]:
        """One of the steps as a workload and a hardware, without jitter of single collectives."""
        problem, machine = self.problem, number // self.iterations
        workload, hardware = problem.workload, problem.hardware
        ready = np.cumsum(self.works[number])
        times = dict(zip(problem.order, ready.tolist(), strict=True))
        return (
            replace(
                workload,
                gradients=tuple(replace(g, ready_ns=times.get(g.index)) for g in workload.gradients),
                ready_order=problem.order,
                backward_ns=int(ready[-1] + self.tails[number]),
                samples=(),
            ),
            replace(
                hardware,
                all_reduce=tuple(
                    CurvePoint(num_bytes=point.num_bytes, duration_ns=round(point.duration_ns * factor))
                    for point, factor in zip(hardware.all_reduce, self.curve[machine].tolist(), strict=True)
                ),
            ),
        )


def draw(problem: Problem, count: int, seed: int) -> Draws:
    """About ``count`` steps: at least 20 machines, each with the same iterations.

    All recorded iterations are drawn, or as many as ``count`` over 20 leaves room for. A workload with
    samples but without a spread or a band has one machine; without samples, too, there is one step, the
    nominal one. An iteration counts as recorded if its sample saw every gradient.

    Every drawn step keeps the nominal ready order: where a gradient was ready before one that precedes it in
    that order, it is taken to be ready together with it. That moves no launch of buckets that are contiguous
    in ready order (A3.5); it only delays the copy of such a gradient into its bucket. From the last gradient
    to the end of backward it takes as long as in the nominal step.

    Raises:
        InputError: ``count`` below 1, a negative ``seed``, a ``spread`` that cannot be read, or times beyond
            2**52 in ``samples`` or by the ``band``.
    """
    if count < 1:
        raise InputError(f"draws: {count} is not legal; give at least 1")
    if seed < 0:
        raise InputError(f"seed: {seed} is not legal; give an integer >= 0")
    workload, hardware, places = problem.workload, problem.hardware, len(problem)
    count = min(count, MOST_CELLS // max(1, places))
    choosing, calibrating, jittering = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
    scatter = read_scatter(hardware)
    has_scatter = scatter.known > 0 and hardware.world_size > 1
    band = workload.band if workload.estimated else None
    left_open = read_left_open(hardware)
    is_uncertain = has_scatter or band is not None or left_open is not None
    most = max(FEWEST_ITERATIONS, count // FEWEST_MACHINES if is_uncertain else count)

    works, notes = _recorded(problem)
    recorded = len(works) if len(works) >= 2 else 0
    if not recorded:
        repeats = min(UNRECORDED_ITERATIONS, most) if has_scatter else 1
        works = np.repeat(problem.work[None, :], repeats, axis=0)
    elif recorded > most:
        works, recorded = works[np.sort(choosing.choice(recorded, size=most, replace=False))], most
        notes.append(f"{most} of the recorded iterations were drawn")
    iterations = len(works)
    machines = max(FEWEST_MACHINES, count // iterations) if is_uncertain else 1

    lanes, paces = np.tile(works, (machines, 1)), np.ones(machines * iterations)
    if band is not None:
        paces = np.repeat(_paces(workload, band, machines, calibrating), iterations)
        lanes = np.rint(lanes * paces[:, None]).astype(np.int64)
    curve, slowed = scatter.repeat_calibrations(machines, calibrating), None
    if left_open is not None:
        ratios, slowed = left_open.draw(problem, machines, np.random.default_rng([seed, 4]))
        curve = curve * ratios
    return Draws(
        problem=problem,
        seed=seed,
        machines=machines,
        iterations=iterations,
        works=lanes,
        tails=np.rint(problem.tail * paces).astype(np.int64),
        paces=paces,
        scatter=scatter,
        curve=curve,
        slowed=slowed,
        luck=jittering.standard_normal((machines * iterations, places)) if has_scatter else None,
        recorded=recorded,
        not_known=_not_known(workload, hardware, scatter, recorded),
        notes=tuple(notes),
    )


def _paces(
    workload: Workload, band: tuple[float, float], machines: int, generator: np.random.Generator
) -> Floats:
    """Drawn factors on estimated times, one a machine: their median is 1, their limits the band's ends."""
    low, high = band
    if workload.backward_ns * high > MOST:
        raise InputError(f"band: {list(band)} is not legal; it makes backward longer than {MOST} ns")
    middle = min(max(1.0, low), high)
    return np.interp(generator.random(machines), (0.0, 0.5, 1.0), (low, middle, high))


def _not_known(workload: Workload, hardware: Hardware, scatter: Scatter, recorded: int) -> tuple[str, ...]:
    """What counts as exact because nothing was recorded of how it varies."""
    missing, sizes = len(scatter.counts) - scatter.known, len(scatter.counts)
    unknown = [] if recorded else [NO_ITERATIONS]
    if missing and hardware.world_size > 1:
        unknown.append(NO_SCATTER + (f" at {missing} of {sizes} sizes" if scatter.known else ""))
    if workload.estimated and workload.band is None:
        unknown.append(NO_BAND)
    return tuple(unknown)


def _recorded(problem: Problem) -> tuple[Ints, list[str]]:
    """Work of the compute lane in each recorded iteration [iterations, places], and what was done to them."""
    samples = problem.workload.samples
    rows = [[sample[index] for index in problem.order] for sample in samples]
    whole = [row for row in rows if None not in row]
    notes = []
    if len(whole) < len(rows):
        notes.append(
            f"{len(rows) - len(whole)} of {len(rows)} recorded iterations left out: a gradient missed"
        )
    ready = np.array(whole, dtype=np.int64).reshape(len(whole), len(problem.order))
    if ready.size and ready.max() > MOST:
        raise InputError(
            f"samples: {ready.max()} ns is more than the tuner can count with; give at most {MOST}"
        )
    sorted_ready = np.maximum.accumulate(ready, axis=1)
    moved = int((sorted_ready != ready).any(axis=1).sum())
    if moved:
        notes.append(f"{moved} recorded iterations had another order; taken in the nominal one")
    return np.diff(sorted_ready, axis=1, prepend=0), notes
