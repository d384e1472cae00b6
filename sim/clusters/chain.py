"""Jobs: chains of steps of all ranks, each rank beginning its next step where its own last one ended."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.program import BACKWARD, FORWARD, MOST_NS, OPTIMIZER
from sim.clock.ranks import Lanes, Together, make_lanes, play
from sim.clusters.ranks import Brought, Crew, Dice
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.tuner.machines import read_scatter

MOST_CELLS = 1 << 27  # ranks times collectives: 1 GiB an array
MOST_BYTES = 1 << 30  # of arrays that jobs which run at once may hold
_PARTS = (FORWARD, BACKWARD, OPTIMIZER)  # of what a model computes in a step
_BYTES_A_CELL = 64  # rank and collective: came and its kin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSteps:
    """What one job did.

    ``steps_ns`` [steps]: from where the last rank ended the step before to where the last ended this one.
    Sums over these steps: for each rank ``rank_waited_ns``, ``rank_paces``, and ``rank_last``, how often it
    came last to a collective of backward: where several did, each has its part of it, and where all came
    together nobody has; over all ranks ``computed_ns`` [before backward, backward with stalls, optimizer].
    ``stalled``: the number of steps in which any rank stalled.
    """

    steps_ns: Ints
    rank_waited_ns: Ints
    rank_last: Floats
    rank_paces: Floats
    computed_ns: Floats
    stalled: int


class VariedStep:
    """A step under one assignment, as each variant runs it: micro-batches, and what a stall interrupts."""

    def __init__(self, crew: Crew, hardware: Hardware, assignment: Assignment) -> None:
        written = [write(workload, hardware, assignment) for workload in crew.variants]
        self.crew = crew
        self.batches = [
            make_lanes(crew.variants, programs, number)
            for number, programs in enumerate(zip(*written, strict=True))
        ]
        if self.cells > MOST_CELLS:
            raise InputError(
                f"world_size: {len(crew):,} ranks with {self.cells // len(crew):,} collectives are more than "
                f"{MOST_CELLS:,} together; give fewer ranks or larger buckets"
            )
        self.works_ns = [_works(lanes) for lanes in self.batches]
        if crew.ranks.stall_probability and any((works[:, 1] == 0).any() for works in self.works_ns):
            raise InputError("stall_probability: a backward without work cannot be interrupted; give 0")
        self.scatter = read_scatter(hardware)
        self.jitters = self.scatter.known > 0 and hardware.world_size > 1
        self._places = [_places(lanes, crew.variants[0], assignment) for lanes in self.batches]

    @property
    def sent(self) -> int:
        """Collectives that are launched in backward, of all micro-batches."""
        slices = [lanes.programs[0].of_backward for lanes in self.batches]
        return sum(one.stop - one.start for one in slices)

    @property
    def cells(self) -> int:
        """Ranks times collectives, of the largest micro-batch."""
        return len(self.crew) * max(1, *(lanes.count for lanes in self.batches))

    def stalls(self, brought: Brought) -> list[Ints]:
        """The interrupted item of each rank's lane in each micro-batch, -1 where none is."""
        made = [np.full(len(self.crew), -1, dtype=np.int64) for _ in self.batches]
        for rank, share in zip(brought.stalled.tolist(), brought.where.tolist(), strict=True):
            variants = brought.variants[:, rank]
            untils = [one.until_ns[k] for one, k in zip(self.batches, variants, strict=True)]
            ends = np.cumsum([until[-1] for until in untils])
            done = int(share * ends[-1])
            batch = int(np.searchsorted(ends, done, side="right"))
            before = ends[batch] - untils[batch][-1]
            made[batch][rank] = np.searchsorted(untils[batch], done - before, side="right")
        return made

    def services(self, luck: Floats | None) -> list[list[Ints]]:
        """Service times of each micro-batch's collectives [steps][micro-batch], with the jitter of single
        all-reduces by ``luck`` [steps, micro-batches, gradients], where the calibration kept any."""
        steps = 1 if luck is None else len(luck)
        made: list[list[Ints]] = [[] for _ in range(steps)]
        for batch, (lanes, places) in enumerate(zip(self.batches, self._places, strict=True)):
            table = np.repeat(lanes.services_ns[None, :], steps, axis=0)
            jittered = places >= 0
            if luck is not None and jittered.any():
                wires = _wires(lanes)[jittered]
                factors = self.scatter.jitter(wires, luck[:, batch, places[jittered]])
                table[:, jittered] = np.rint(np.minimum(table[:, jittered] * factors, MOST_NS))
            for step in range(steps):
                made[step].append(table[step])
        return made


def _works(lanes: Lanes) -> Ints:
    """What variants compute [variants, 3], ns at pace 1: before backward, in it, and in the optimizer."""
    of = [np.where(lanes.sheet.kinds == kind, lanes.sheet.durations, 0).sum(axis=1) for kind in _PARTS]
    return np.stack(of, axis=1)


def _wires(lanes: Lanes) -> Ints:
    return np.array([one.num_bytes for one in lanes.programs[0].collectives], dtype=np.int64)


def _places(lanes: Lanes, workload: Workload, assignment: Assignment) -> Ints:
    """For each collective the place, in ready order, of the gradient that it waits for, whose luck it has.

    -1 where nothing is known of how the collective varies.
    """
    place = {index: at for at, index in enumerate(workload.order())}
    made = []
    for one in lanes.programs[0].collectives:
        is_known = one.kind == "all_reduce" and one.bucket is not None
        members = assignment.bucket_indices[one.bucket] if is_known and one.bucket is not None else ()
        made.append(max((place.get(index, 0) for index in members), default=-1))
    return np.array(made, dtype=np.int64)


def play_job(
    step: VariedStep,
    seed: np.random.SeedSequence,
    steps: int,
    played: Callable[[], None] = lambda: None,
) -> JobSteps:
    """``steps`` steps of a job, after a first one that is not counted since all ranks begin it together.

    ``played`` is called after each step.
    """
    crew = step.crew
    rolling, lucky = seed.spawn(2)
    dice = Dice(crew, rolling, len(step.batches))
    luck = None
    if step.jitters:
        gradients = len(crew.variants[0].gradients)
        shape = (steps + 1, len(step.batches), gradients)
        luck = np.random.default_rng(lucky).standard_normal(shape)
    services = step.services(luck)
    rank_waited, rank_last = np.zeros(len(crew), np.int64), np.zeros(len(crew))
    ends, finished = np.zeros(len(crew), np.int64), [0]
    rank_paces, computed, stalled_steps = np.zeros(len(crew)), np.zeros(3), 0
    for number in range(steps + 1):
        brought = dice.step()
        stalls, times = step.stalls(brought), services[number % len(services)]
        for batch, lanes in enumerate(step.batches):
            bringing = Together(
                variants=brought.variants[batch],
                paces=brought.paces,
                stalled=stalls[batch],
                stall_ns=crew.ranks.stall_ns,
                begins_ns=ends,
            )
            met = play(lanes.with_services(times[batch]), bringing)
            ends, sent = met.lane_ends_ns, lanes.programs[0].of_backward
            if number:
                computed += brought.paces @ step.works_ns[batch][bringing.variants]
                waits = met.last_ns[sent] - met.came_ns[:, sent]
                rank_waited += waits.sum(axis=1)
                was_last = waits == 0
                sharing = was_last.sum(axis=0)
                rank_last += was_last @ np.where(sharing < len(crew), 1 / sharing, 0.0)
        finished.append(int(ends.max()))
        if number:
            rank_paces += brought.paces
            computed[1] += brought.stalled.size * crew.ranks.stall_ns
            stalled_steps += brought.stalled.size > 0
        played()
    times_ns = np.array(finished, dtype=np.int64)
    return JobSteps(
        steps_ns=times_ns[2:] - times_ns[1:-1],
        rank_waited_ns=rank_waited,
        rank_last=rank_last,
        rank_paces=rank_paces,
        computed_ns=computed,
        stalled=stalled_steps,
    )


def play_even(step: VariedStep, means_ns: Floats) -> int:
    """The step in ns if every rank were the workload as it is, but computed ``means_ns`` [3] in a step:
    before backward, in it, and in the optimizer; no all-reduce varies."""
    works = np.sum([works[0] for works in step.works_ns], axis=0)
    paces = np.where(works > 0, means_ns / np.maximum(works, 1), 1.0)
    end, variant = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for lanes in step.batches:
        durations = lanes.sheet.durations.copy()
        for kind, pace in zip(_PARTS, paces, strict=True):
            of = lanes.sheet.kinds == kind
            durations[of] = np.rint(durations[of] * pace)
        own = replace(lanes, sheet=lanes.sheet._replace(durations=durations))
        alone = Together(variants=variant, paces=np.ones(1), stalled=variant - 1, stall_ns=0, begins_ns=end)
        end = play(own, alone).lane_ends_ns
    return int(end[0]) + round(float(means_ns[works == 0].sum()))  # of which the workload has nothing


def play_jobs(
    step: VariedStep,
    seed: int,
    steps: Sequence[int],
    played: Callable[[], None] = lambda: None,
) -> list[JobSteps]:
    """Jobs of so many steps each, in threads (the loops hold no lock); results do not depend on how many.

    ``played`` is called after each step, by any thread.
    """
    seeds = np.random.SeedSequence(seed).spawn(len(steps))
    workers = max(1, min(os.cpu_count() or 1, len(steps), MOST_BYTES // (step.cells * _BYTES_A_CELL)))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(play_job, repeat(step), seeds, steps, repeat(played)))
