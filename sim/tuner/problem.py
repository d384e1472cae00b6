"""One workload on one machine, as arrays; what one DDP step and any partition take on it, in 5 us.

Places are those of the ready order. Times are int64 ns and sizes int64 bytes. A step is played by the
compiled clock.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.clock.play import play_alone
from sim.clock.program import (
    BACKWARD,
    COPY_BACK,
    COPY_IN,
    FULL_SPEED,
    LAUNCH,
    MOST_NS,
    WAIT,
    Machine,
    check_length,
    machine_of,
)
from sim.costs import service_time
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from sim.systems.ddp import copied_bytes
from sim.units import transfer_ns

MOST_BYTES = 1 << 52
NEVER = 1 << 62

Buckets = tuple[tuple[int, ...], ...]


def run_keys(ordered: Sequence[Gradient]) -> list[int]:
    """For each gradient in ready order the number of its run: one per dtype and device; a sparse gradient is
    a run alone. Runs are numbered by their first gradient."""
    keys = [("sparse", gradient.index) if gradient.sparse else gradient.key for gradient in ordered]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys] if len(numbers) > 1 else [0] * len(keys)


def gather(indices: Ints, bucket_of: Ints) -> Buckets:
    """The buckets, from the number of each gradient's bucket; within one, gradients stay in order."""
    members = indices[np.argsort(bucket_of, kind="stable")].tolist()
    stops = np.cumsum(np.bincount(bucket_of)).tolist()
    return tuple(tuple(members[start:stop]) for start, stop in pairwise([0, *stops]))


class Tables(NamedTuple):
    """A ``Problem``'s arrays, by the same names, as kernels take them."""

    run: Ints
    wire: Ints
    work: Ints
    copy_in: Ints
    copy_back: Ints
    tail: int
    curve_bytes: Ints
    curve_ns: Ints


def _ints(what: str, values: Sequence[int], most: int) -> Ints:
    if max(values, default=0) > most:
        raise InputError(f"{what}: {max(values)} is more than the tuner can count with; give at most {most}")
    return np.array(values, dtype=np.int64)


@lru_cache(maxsize=16)  # machines that are drawn copy alike
def _transfers_ns(sizes: tuple[int, ...], bytes_per_s: float | None) -> tuple[int, ...]:
    return tuple(transfer_ns(size, bytes_per_s) for size in sizes)


def _curve_of(hardware: Hardware) -> Curve:
    return hardware.all_reduce if hardware.world_size > 1 else (CurvePoint(num_bytes=0, duration_ns=0),)


class Problem:
    """One workload on one machine, one array entry for each place in the ready order.

    ``order``, ``indices``: index of the gradient; ``run``: number of its run (``run_keys``); ``wire``,
    ``dense``: its bytes on the wire, by DDP's caps; ``work``, ``copy_in``: ns of the compute lane for it,
    with its hook; ``copy_back``: ns of copying it out of its bucket; ``ready``: ns at which it is copied in
    if nothing stretches or blocks the lane; ``tail``: ns of backward after the last; ``lane_end``: ns, the
    end of that lane; ``machine``: what the machine does; ``asked``: the workload with its job's
    switches that DDP cuts, where ``workload`` stands for it. ``curve``, and as arrays ``curve_bytes``,
    ``curve_ns``: the all-reduce curve, zero for world size 1.

    Raises:
        InputError: sizes beyond 2**52 bytes, or a step that is too long to be played.
    """

    def __init__(self, workload: Workload, hardware: Hardware, asked: Workload | None = None) -> None:
        self.workload, self.hardware = workload, hardware
        self.asked = workload if asked is None else asked
        self.order = workload.order()
        self.indices = np.array(self.order, dtype=np.int64)
        self._place = np.full(len(workload.gradients), len(self))  # an unused gradient has none
        self._place[self.indices] = np.arange(len(self))
        gradients = [workload.gradients[index] for index in self.order]
        ready = [gradient.ready_ns or 0 for gradient in gradients]
        self.run = np.array(run_keys(gradients), dtype=np.int64)
        dense = [gradient.num_bytes for gradient in gradients]
        wire = [gradient.on_wire for gradient in gradients]
        _ints("num_bytes of all gradients", [max(sum(dense), sum(wire))], MOST_BYTES)
        self.dense, self.wire = _ints("num_bytes", dense, MOST_BYTES), _ints("wire_bytes", wire, MOST_BYTES)
        self.work = np.diff(_ints("ready_ns", ready, MOST_NS), prepend=0)
        self.copy_in, self.copy_back = self.copies(hardware, workload.backward_ns)
        self.ready = np.cumsum(self.work + self.copy_in)
        self.tail = workload.backward_ns - (ready[-1] if ready else 0)
        self.lane_end = int(self.ready[-1]) + self.tail if ready else self.tail
        self.curve = _curve_of(hardware)
        sizes, times = ([p.num_bytes for p in self.curve], [p.duration_ns for p in self.curve])
        self.curve_bytes = _ints("all_reduce.num_bytes", sizes, MOST_BYTES)
        self.curve_ns = _ints("all_reduce.duration_ns", times, MOST_NS)
        self.machine = machine_of(workload, hardware)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def tables(self) -> Tables:
        """The arrays, for a kernel."""
        return Tables(*(getattr(self, name) for name in Tables._fields))

    @property
    def together(self) -> int:
        """The rate at which all channels pass work together, at most; ``FULL_SPEED`` is that of one alone."""
        return max(FULL_SPEED, self.machine.channels * self.machine.idle.shared)

    @property
    def has_one_run(self) -> bool:
        """Whether all gradients have one dtype and device, and none is sparse unless it is the only one."""
        return not self.run.any()

    @property
    def copies_out(self) -> bool:
        """Whether copies back take time."""
        return bool(self.copy_back.any())

    def stops(self, buckets: Buckets) -> tuple[Ints, Ints, Ints]:
        """Per bucket in launch order: the last place it waits for, its bytes on the wire, ns to copy it back.

        A bucket waits for those before it too (A3.5).
        """
        places, firsts = self._members(buckets)
        stops = np.maximum.accumulate(np.maximum.reduceat(places, firsts))
        return stops, np.add.reduceat(self.wire[places], firsts), self.copies_back(buckets, self.copy_back)

    def copies_back(self, buckets: Buckets, copy_back: Ints) -> Ints:
        """Ns to copy each bucket back, if those of each place take ``copy_back``."""
        places, firsts = self._members(buckets)
        made: Ints = np.add.reduceat(copy_back[places], firsts)
        return made

    def copies(self, hardware: Hardware, backward_ns: int) -> tuple[Ints, Ints]:
        """Ns of each gradient's hook and copy into its bucket, and of its copy out of it, on ``hardware``.

        Raises:
            InputError: a step with such a backward could be longer than can be played.
        """
        copied = tuple(copied_bytes(self.workload.gradients[index]) for index in self.order)
        included = "copy_in" in self.workload.ready_includes
        into, hook_ns = (None, 0) if included else (hardware.copy_in_bytes_per_s, hardware.hook_cost_ns)
        copies_in = [hook_ns + took for took in _transfers_ns(copied, into)]
        copies_back = _transfers_ns(copied, hardware.copy_out_bytes_per_s)
        # No message takes longer than by the line that lies on the curve, as steep as it goes on.
        curve = _curve_of(hardware)
        rise, run = service_time.rise_beyond(curve)
        first = max(0, *(point.duration_ns - rise * point.num_bytes // run for point in curve))
        sent = len(self) * (first + 1) + rise * int(self.wire.sum()) // run
        lane = backward_ns + sum(copies_in) + len(self) * hardware.launch_cost_ns
        check_length(hardware.name, lane + sent + sum(copies_back))
        return np.array(copies_in, np.int64), np.array(copies_back, np.int64)

    def closes(self, buckets: Buckets) -> NDArray[np.bool_] | None:
        """At which places a bucket ends; None unless this alone makes ``buckets``, in this order."""
        closes = np.zeros(len(self.order), dtype=np.bool_)
        closes[np.maximum.reduceat(*self._members(buckets))] = True
        made = self.buckets(closes)
        return closes if made == buckets or list(map(set, made)) == list(map(set, buckets)) else None

    def _members(self, buckets: Buckets) -> tuple[Ints, Ints]:
        """The place of each gradient, bucket after bucket, and where in this row each bucket begins."""
        places = self._place[np.fromiter(chain.from_iterable(buckets), np.int64)]
        return places, np.cumsum([0, *map(len, buckets[:-1])])

    def buckets(self, closes: NDArray[Any]) -> Buckets:
        """The buckets that end at ``closes``, in launch order: by when their last gradient is ready."""
        if self.has_one_run:
            return gather(self.indices, np.cumsum(closes) - closes)
        made: list[tuple[int, ...]] = []
        open_buckets: dict[int, list[int]] = {}
        for index, run, ends in zip(self.order, self.run.tolist(), closes.tolist(), strict=True):
            open_buckets.setdefault(run, []).append(index)
            if ends:
                made.append(tuple(open_buckets.pop(run)))
        assert not open_buckets, "a run's last gradient ends a bucket"
        return tuple(made)

    def singles(self) -> Buckets:
        """One bucket a gradient."""
        return tuple(zip(self.order))

    def run_ends(self) -> NDArray[np.bool_]:
        """The last place of each run: there a bucket ends in every partition."""
        ends = np.zeros(len(self.order), dtype=np.bool_)
        ends[[int(np.flatnonzero(self.run == run)[-1]) for run in np.unique(self.run)]] = True
        return ends


@compiled
def add_share(base: int, a: int, b: int, c: int) -> int:
    """``base + a * b / c`` rounded half to even, for a, b >= 0 and 0 < c < 2**61, without overflow."""
    if a < 1 << 31 and b < 1 << 31:
        quotient, rest = base + a * b // c, a * b % c
    else:
        whole_a, part_a = a // c, a % c
        whole_b, part_b = b // c, b % c
        low, rest = 0, 0
        for bit in range(61, -1, -1):
            low, rest = 2 * low, 2 * rest + (part_a if part_b >> bit & 1 else 0)
            while rest >= c:
                low, rest = low + 1, rest - c
        quotient = base + whole_a * b + whole_b * part_a + low
    if 2 * rest > c or (2 * rest == c and quotient & 1):
        quotient += 1
    return quotient


@compiled
def service(curve_bytes: Ints, curve_ns: Ints, num_bytes: int) -> int:
    """Service time of one all-reduce: ``costs.service_time.service_ns``, compiled."""
    at = int(np.searchsorted(curve_bytes, num_bytes, side="right"))
    if at == 0:
        return int(curve_ns[0])
    if at == curve_bytes.size:
        rise, run = rise_beyond(curve_bytes, curve_ns)
    else:
        rise, run = curve_ns[at] - curve_ns[at - 1], curve_bytes[at] - curve_bytes[at - 1]
    if rise >= 0:
        return add_share(curve_ns[at - 1], rise, num_bytes - curve_bytes[at - 1], run)
    return add_share(curve_ns[at], -rise, curve_bytes[at] - num_bytes, run)


@compiled
def rise_beyond(curve_bytes: Ints, curve_ns: Ints) -> tuple[int, int]:
    """By how many ns time rises in how many bytes beyond the curve: ``costs.service_time.rise_beyond``."""
    last = curve_bytes.size - 1
    empty_ns = curve_ns[0] if curve_bytes[0] == 0 else 0
    rise, run = max(0, curve_ns[last] - empty_ns), max(1, curve_bytes[last])
    if last > 0:
        step_ns, step = curve_ns[last] - curve_ns[last - 1], curve_bytes[last] - curve_bytes[last - 1]
        if step_ns / step >= rise / run:
            return step_ns, step
    return rise, run


@compiled
def services(curve_bytes: Ints, curve_ns: Ints, wires: Ints) -> Ints:
    """Service time in ns of each of ``wires`` bytes."""
    made = np.empty(wires.size, np.int64)
    for k in range(wires.size):
        made[k] = service(curve_bytes, curve_ns, wires[k])
    return made


@compiled
def play_step(
    machine: Machine,
    work: Ints,
    copy_in: Ints,
    tail: int,
    stops: Ints,
    wires: Ints,
    services: Ints,
    copies_back: Ints,
) -> int:
    """``sync_end_ns`` of one DDP step.

    Args:
        machine: see ``program.Machine``.
        work: ns of backward before each place; ``copy_in``: ns of its copy.
        tail: ns of backward after the last place.
        stops: per bucket in launch order, the place it waits for; the last is the last place.
        wires: bytes of each bucket on the wire; ``services``: ns of its all-reduce alone; ``copies_back``: ns
            to copy it back.
    """
    count, places = stops.size, work.size
    # The lane, item by item where collectives stretch it, else as one item for each bucket.
    fine = machine.computing.lane != FULL_SPEED or machine.copying_in.lane != FULL_SPEED
    most = 3 * count + 1 + 2 * places
    kinds, durations, numbers = np.empty(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.int64)
    item = place = computing = 0
    for bucket in range(count):
        while place <= stops[bucket]:
            if fine:
                kinds[item], durations[item] = BACKWARD, work[place]
                kinds[item + 1], durations[item + 1] = COPY_IN, copy_in[place]
                item += 2
            computing += work[place] + copy_in[place]
            place += 1
        if not fine:
            kinds[item], durations[item] = BACKWARD, computing
            computing = 0
            item += 1
        kinds[item], numbers[item] = LAUNCH, bucket
        item += 1
    kinds[item], durations[item] = BACKWARD, tail
    item += 1
    for bucket in range(count):
        kinds[item], numbers[item] = WAIT, bucket
        kinds[item + 1], durations[item + 1] = COPY_BACK, copies_back[bucket]
        item += 2
    small = (wires < machine.small_bytes).astype(np.int64)
    return play_alone(machine, kinds[:item], durations[:item], numbers[:item], services, small)


@compiled
def play_many(
    machine: Machine,
    works: Ints,
    copy_in: Ints,
    tails: Ints,
    stops: Ints,
    wires: Ints,
    services: Ints,
    copies_back: Ints,
) -> Ints:
    """``play_step`` of each draw.

    ``works`` [draws, places], ``tails`` [draws], ``services`` [draws, buckets].
    """
    ends = np.empty(tails.size, np.int64)
    for k in range(tails.size):
        ends[k] = play_step(machine, works[k], copy_in, tails[k], stops, wires, services[k], copies_back)
    return ends


@compiled
def score(machine: Machine, tables: Tables, closes: Flags) -> int:
    """``play_step`` of the partition whose buckets end at ``closes``: one accumulator a run, as in torch."""
    places = tables.run.size
    filled, held = np.zeros(places, np.int64), np.zeros(places, np.int64)  # of what is open, by run
    count = 0
    for place in range(places):
        count += closes[place]
    stops, wires, back = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for place in range(places):
        key = tables.run[place]
        filled[key] += tables.wire[place]
        held[key] += tables.copy_back[place]
        if closes[place]:
            stops[count], wires[count], back[count] = place, filled[key], held[key]
            filled[key] = held[key] = 0
            count += 1
    sent = services(tables.curve_bytes, tables.curve_ns, wires)
    return play_step(machine, tables.work, tables.copy_in, tables.tail, stops, wires, sent, back)


@compiled
def score_all(machine: Machine, tables: Tables, run_ends: Flags, places: Ints) -> Ints:
    """``score`` of every partition: bit b of its number says that a bucket ends at ``places[b]``."""
    ends = np.empty(1 << places.size, np.int64)
    closes = run_ends.copy()
    for number in range(1 << places.size):
        for bit in range(places.size):
            closes[places[bit]] = number >> bit & 1
        ends[number] = score(machine, tables, closes)
    return ends


class Scorer:
    """Scores partitions for a search, remembering each."""

    def __init__(self, workload: Workload, hardware: Hardware, asked: Workload | None = None) -> None:
        self.problem = Problem(workload, hardware, asked)
        self._known: dict[Buckets, int] = {}

    @cached_property
    def for_search(self) -> "Scorer":
        """Scores what a search tries: without the rule for small messages (``shared_connection``).

        With it a search cuts dozens of tiny buckets off, for half a percent of a step, less than the rule is
        known to. What is found, and all that it is compared with, is scored with the rule.
        """
        problem = self.problem
        if not problem.hardware.shared_connection:
            return self
        return Scorer(problem.workload, replace(problem.hardware, shared_connection=False), problem.asked)

    def sync_end_ns(self, buckets: Sequence[Sequence[int]]) -> int:
        """When all gradients are available under these buckets, in ns from the start of backward."""
        key = tuple(map(tuple, buckets))
        end = self._known.get(key)
        if end is None:
            problem = self.problem
            stops, wires, back = problem.stops(key)
            sent = services(problem.curve_bytes, problem.curve_ns, wires)
            end = self._known[key] = play_step(
                problem.machine, problem.work, problem.copy_in, problem.tail, stops, wires, sent, back
            )
        return end
