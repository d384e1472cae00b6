"""Steps that may happen: recorded iterations, machines that are allowed (``machines``), jitter.

Steps are drawn as a table: so many machines, each with the same iterations, since an error of a calibration
is there in every step. Jitter is drawn anew for every collective. What was not recorded does not vary, and
``not_known`` says so.
"""

from statistics import NormalDist

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.program import MOST_NS, machine_of
from sim.errors import InputError
from sim.nouns.checks import at_least
from sim.nouns.hardware import SCALARS
from sim.tuner.machines import draw_machines, in_range, levels, read_scatter, unknown
from sim.tuner.problem import Buckets, Layout, Problem, curve_arrays, curve_of, play_many, services
from sim.units import format_number

FEWEST_MACHINES = 20  # fewer say too little of how machines differ for an interval
FEWEST_IN_RANGES = 40  # whose least and greatest hold 95 of 100 others
FITTED_MACHINES = 80  # of what a job's own step left open: fewer leave the ends of an interval to luck
FEWEST_ITERATIONS = 2
UNRECORDED_ITERATIONS = 20  # a machine, where jitter is all that varies between steps
MOST_CELLS = 1 << 24  # draws times gradients, at most: an array of int64 has 128 MiB

NO_ITERATIONS = "how iterations vary"
NO_BAND = "how far the estimate may be off"


class Draws:
    """``machines`` times ``iterations`` steps; step ``k * iterations + i`` is iteration i on machine k.

    About ``count`` steps: 20 machines or more (40 in ranges), each with the same iterations. Where a job's
    own step left something open, there are 80 machines, and up to four times as many steps. All recorded
    iterations are drawn, or as many as there is room for. One rank without a band has one machine; without
    samples, too, there is one step, the nominal one. An iteration counts as recorded if its sample saw every
    gradient.

    Every drawn step keeps the nominal ready order: where a gradient was ready before one that precedes it in
    that order, it is taken to be ready together with it. That moves no launch of buckets that are contiguous
    in ready order (A3.5); it only delays the copy of such a gradient into its bucket. From the last gradient
    to the end of backward it takes as long as in the nominal step. An estimate's band stretches all times of
    the step, or, where the length of backward is known, ready times up to its end.

    ``hardwares`` are the machines. ``works`` [draws, places] and ``tails`` [draws]: ns of the compute lane,
    along the nominal ready order, as in ``Problem``. ``paces`` [draws]: factor on the rest of the step.
    ``luck`` [draws, places]: standard normal, by the place that a bucket waits for; None where there is no
    jitter. ``recorded``: iterations that went in, 0 where fewer than two were recorded. ``not_known``: what
    does not vary because nothing of it is recorded. ``is_ranged``: whether machines or times lie in ranges;
    in words, these are ``rests_on``.

    Raises:
        InputError: ``count`` below 1, a negative ``seed``, a ``spread`` that cannot be read, or a step that
            is too long to be played.
    """

    def __init__(self, problem: Problem, count: int, seed: int) -> None:
        at_least("draws", count, 1)
        at_least("seed", seed, 0)
        workload, hardware, places = problem.workload, problem.hardware, len(problem)
        count = min(count, MOST_CELLS // places)
        choosing, calibrating, jittering = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
        self.problem, self.scatter = problem, read_scatter(hardware)
        has_link = hardware.world_size > 1 and bool(problem.wire.any())
        jitters, is_fitted = self.scatter.known > 0 and has_link, "own_step" in hardware.spread and has_link
        band = workload.band if workload.estimated else None
        works = _recorded(problem)
        self.recorded = recorded = len(works) if len(works) >= 2 else 0
        sent = (int(problem.wire[problem.wire > 0].min()), int(problem.wire.sum())) if has_link else (0, 0)
        known = unknown(hardware, sent, varies=recorded > 0 or band is not None)
        self.rests_on = known.words if has_link else ()
        self.is_ranged = band is not None or bool(self.rests_on)
        differ = is_fitted or (has_link and self.scatter.knows)
        fewest = FEWEST_IN_RANGES if self.is_ranged else FEWEST_MACHINES if differ else 1
        most = max(FEWEST_ITERATIONS, count // fewest)
        if not recorded:
            works = np.repeat(
                problem.work[None, :], min(UNRECORDED_ITERATIONS, most) if jitters else 1, axis=0
            )
        elif recorded > most:
            works, self.recorded = works[np.sort(choosing.choice(recorded, size=most, replace=False))], most
        self.iterations = len(works)
        machines = max(fewest, count // self.iterations) if fewest > 1 else 1
        if is_fitted:  # more of them, and as many iterations on each
            machines = max(machines, min(FITTED_MACHINES, MOST_CELLS // (self.iterations * places)))
        self.hardwares, shares = (hardware,) * machines, [machines]
        if has_link:
            self.hardwares, shares = draw_machines(hardware, machines, calibrating, known)
        self.machines = len(self.hardwares)
        self.works, self.tails = np.tile(works, (self.machines, 1)), np.full(len(self), problem.tail)
        self.paces = np.ones(len(self))
        if band is not None:
            if workload.backward_ns * band[1] > MOST_NS:
                raise InputError(f"band: {[*band]} is not legal; it makes backward longer than {MOST_NS} ns")
            # One factor a machine: their median is 1, their limits the band's ends.
            self._stretch(np.repeat(in_range(band, 1.0, levels(shares, calibrating)), self.iterations))
            what = "ready times" if workload.band_on == "ready" else "times"
            told = f"{what} of the estimate, {' to '.join(map(format_number, band))} times"
            self.rests_on = (*self.rests_on, told)
        self.luck = _luck(jittering, self.machines, self.iterations, places) if jitters else None
        self.not_known = (
            *([] if recorded else [NO_ITERATIONS]),
            *(self.scatter.not_known if hardware.world_size > 1 else ()),
            *([NO_BAND] if workload.estimated and band is None else []),
        )
        longest_ns, most_bytes = int((self.works.sum(axis=1) + self.tails).max()), int(problem.wire.sum())
        self._curves = [curve_arrays(curve_of(one), most_bytes) for one in self.hardwares]
        # Machines that differ in their curves alone are played in one go.
        fields = ("launch_blocks_compute", *SCALARS)
        kinds = {tuple(getattr(one, name) for name in fields) for one in self.hardwares}
        # What counts as a small message is told by the nominal curve.
        self._played_on = [
            (machine_of(workload, one, hardware), *problem.copies(one, longest_ns))
            for one in (self.hardwares[:1] if len(kinds) == 1 else self.hardwares)
        ]

    def __len__(self) -> int:
        return self.machines * self.iterations

    def services(self, layout: Layout) -> Ints:
        """Service times in ns of what is sent: [draws, messages].

        Buckets of two candidates that end at the same place have the same luck.
        """
        alone = np.stack([services(*curve, layout.wires) for curve in self._curves])
        by_step = np.repeat(alone, self.iterations, axis=0)
        if self.luck is None:
            return by_step
        places = np.append(layout.stops, layout.stops[-1])[: len(layout.wires)]
        factors = self.scatter.jitter(layout.wires, self.luck[:, places])
        return np.rint(np.minimum(by_step * factors, MOST_NS)).astype(np.int64)

    def steps(self, buckets: Buckets, rest_ns: int) -> Floats:
        """Every step in ns, [machines, iterations], if the nominal one has ``rest_ns`` beside backwards that
        reduce, each with these buckets."""
        problem, each = self.problem, len(self) // len(self._played_on)  # steps that are played in one go
        sent, ends = self.services(problem.lay_out(buckets)), []
        for number, (machine, copy_in, copy_back) in enumerate(self._played_on):
            some, layout = slice(number * each, (number + 1) * each), problem.lay_out(buckets, copy_back)
            ends.append(play_many(machine, self.works[some], copy_in, self.tails[some], layout, sent[some]))
        steps: Floats = problem.times * np.concatenate(ends) + self.paces * rest_ns
        return steps.reshape(self.machines, self.iterations)

    def _stretch(self, factors: Floats) -> None:
        """Times of each draw times a factor. Where the length of backward is known, only where it begins, and
        the less the nearer its end is: what is done of it over what is left is what is multiplied, so that no
        gradient comes after the end."""
        if self.problem.workload.band_on != "ready":
            self.paces = factors
            self.works = np.rint(self.works * factors[:, None]).astype(np.int64)
            self.tails = np.rint(self.tails * factors).astype(np.int64)
            return
        ready, ends, factor = (
            np.cumsum(self.works, axis=1),
            self.works.sum(axis=1) + self.tails,
            factors[:, None],
        )
        done = ready / np.maximum(ends, 1)[:, None]
        moved = np.rint(ready * factor / np.maximum(1 + (factor - 1) * done, 1e-9)).astype(np.int64)
        self.works = np.diff(np.minimum(moved, ends[:, None]), axis=1, prepend=0)
        self.tails = ends - self.works.sum(axis=1)


def _luck(generator: np.random.Generator, machines: int, iterations: int, places: int) -> Floats:
    """Standard normal scores [machines * iterations, places], on each machine the same at each place, in an
    order of its own: so that what differs between machines' means is theirs, and no luck."""
    even = (np.arange(iterations) + 0.5) / iterations
    scores = np.array([NormalDist().inv_cdf(one) for one in even])
    orders = generator.random((machines, iterations, places)).argsort(axis=1)
    return scores[orders].reshape(machines * iterations, places)


def _recorded(problem: Problem) -> Ints:
    """Work of the compute lane in each recorded iteration that saw every gradient: [iterations, places]."""
    used = np.flatnonzero(~problem.unused)  # the others are marked with the first of them
    rows = [[sample[problem.order[place]] for place in used] for sample in problem.workload.samples]
    whole = [row[:1] * used[0] + row for row in rows if None not in row]
    ready = np.array(whole, dtype=np.int64).reshape(len(whole), len(problem.order))
    if ready.size and ready.max() > MOST_NS:
        raise InputError(
            f"samples: {ready.max()} ns is more than the tuner can count with; give at most {MOST_NS}"
        )
    ready = np.maximum.accumulate(ready, axis=1) - problem.ready_ns  # later than in the nominal step
    return np.diff(ready, axis=1, prepend=0) + problem.work
