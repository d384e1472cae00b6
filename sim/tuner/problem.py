"""A job as the search plays it: one backward of DDP on a machine, as arrays; a partition is played in 5 us.

Places are those of the ready order. Times are int64 ns and sizes int64 bytes. A step is played by the
compiled clock, with all that the switches of the job and its communication hook make of a gradient or of a
whole bucket: it takes what the engines say.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.clock.play import (
    AFTER,
    DURATION,
    END,
    KIND,
    NEVER,
    NUMBER,
    QUEUED,
    ROOT,
    SERVICE,
    SETTLE,
    SMALL,
    Sheet,
    advance,
    assemble,
)
from sim.clock.program import (
    BACKWARD,
    COPY_BACK,
    COPY_IN,
    FULL_SPEED,
    HOOK,
    LAUNCH,
    MOST_NS,
    READY,
    WAIT,
    Machine,
    check_length,
    machine_of,
)
from sim.costs.service_time import empty_ns, rise_beyond
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import split_switches
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems import ddp
from sim.systems.cut import number_keys
from sim.systems.ddp_assignment import as_the_job
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.units import NS_PER_S, transfer_ns

MOST_BYTES = 1 << 52
PLAYED_AT_ONCE = 256  # layouts: some milliseconds

Buckets = tuple[tuple[int, ...], ...]


class Copies(NamedTuple):
    """What copying takes on one machine: ns of each place's hook and copy in, and of its copy back; and of a
    byte of each of the ``passes`` over whole buckets, as numerator and denominator."""

    into: Ints
    back: Ints
    a_byte: tuple[tuple[int, int], ...]


class Tables(NamedTuple):
    """What kernels take of a ``Problem``, by the same names."""

    machine: Machine
    run: Ints
    run_ends: Flags
    wire: Ints
    sends: Flags
    passes: Ints
    has_passes: bool
    work: Ints
    copies: Copies
    unused: Flags
    map_bytes: int
    tail: int
    curve_bytes: Ints
    curve_ns: Ints


class Layout(NamedTuple):
    """Buckets as a step plays them, in launch order: the last place that each waits for, which is none before
    that of an earlier bucket (A3.5), bytes on the wire, whether it is sent, ns of its passes, and ns to copy
    it back.

    ``copies_in``: by place, ns of its hook and copy in, and of the bucket that it completes. Where unused
    parameters are searched for, the last of ``wires`` is the map of the used ones (A3.9); ``mapped`` is the
    first bucket with an unused one, from which on copies back wait for the map (A3.10).
    """

    stops: Ints
    wires: Ints
    is_sent: Flags
    passes: Ints
    copies_in: Ints
    copies_back: Ints
    mapped: int


def _ints(what: str, values: Sequence[int], most: int) -> Ints:
    if max(values, default=0) > most:
        raise InputError(f"{what}: {max(values)} is more than the tuner can count with; give at most {most}")
    return np.array(values, dtype=np.int64)


@lru_cache(maxsize=16)  # machines that are drawn copy alike
def _transfers_ns(sizes: tuple[int, ...], bytes_per_s: float | None) -> tuple[int, ...]:
    return tuple(transfer_ns(size, bytes_per_s) for size in sizes)


def _ns_a_byte(bytes_per_s: float | None) -> tuple[int, int]:
    """Ns that a byte takes, as numerator and denominator that kernels can count with: all digits, but of
    rates that no machine has."""
    ns = Fraction(NS_PER_S) / Fraction(bytes_per_s) if bytes_per_s else Fraction(0)
    beyond = max(0, max(ns.numerator, ns.denominator).bit_length() - 61)
    return ns.numerator >> beyond, max(1, ns.denominator >> beyond)


def curve_of(hardware: Hardware) -> Curve:
    """The all-reduce curve; of one rank a point without bytes or time."""
    return hardware.all_reduce if hardware.world_size > 1 else (CurvePoint(num_bytes=0, duration_ns=0),)


def curve_arrays(curve: Curve, most_bytes: int) -> tuple[Ints, Ints]:
    """Sizes and times of a curve, from a message without bytes on, and one point more, further on, if
    ``most_bytes`` lie beyond its last."""
    points = {0: empty_ns(curve)} | {point.num_bytes: point.duration_ns for point in curve}
    sizes = _ints("all_reduce.num_bytes", list(points), MOST_BYTES)
    times = _ints("all_reduce.duration_ns", list(points.values()), MOST_NS)
    if most_bytes > sizes[-1]:
        rise, run = rise_beyond(curve)
        count = -(-(most_bytes - int(sizes[-1])) // run)  # whole runs: the same slope, to the ns
        sizes, times = np.append(sizes, sizes[-1] + count * run), np.append(times, times[-1] + count * rise)
    return sizes, times


class Problem:
    """A job on a machine, one array entry for each place in the ready order.

    ``job``, ``hardware``: as they are given; ``workload``: the job as DDP sees it, under torch.compile too;
    ``switches`` those of the job. ``order``: index of the gradient, and by index its ``place``; ``run``:
    number of its run, of its dtype and device, or of a sparse gradient alone; ``run_ends``: whether it is the
    last of its run, where a bucket ends in every partition; ``wire``: its bytes on the wire; ``sends``:
    whether a bucket with it is sent; ``ready_ns``: when its own backward is done, ``work``: ns of the compute
    lane for it, with what the switches add; ``copied``: bytes into its bucket, and out of it, ``copies``: ns
    of that, and of its hook; ``passes``: bytes of it in passes over a whole bucket, a row for the one that
    copies it in at once (A3.4), and one each for those of a communication hook before its launch and behind
    its end (A3.17), ``has_passes``: whether there are any; ``unused``: whether it is never ready, and marked
    with the first that is; ``ready``: ns before which no bucket with it is launched, if nothing stretches or
    blocks the lane; ``tail``: ns of backward after the last; ``lane_end``: ns before which that lane does not
    end; ``machine``: what the machine does. ``curve_bytes``, ``curve_ns``: the curve of all-reduces, as far
    as all bytes reach. ``map_bytes``: of the map of used parameters, 0 where none is sent. ``times``: how
    many backwards of a step reduce, each with the buckets and as the last does. ``tell``: told what comes
    next, between the parts of a search, of some milliseconds each; what it raises ends the search.

    Raises:
        InputError: sizes beyond 2**52 bytes, or a step that is too long to be played.
        NotModelledError: torch takes no buckets under the switches of the job.
    """

    def __init__(self, job: Workload, hardware: Hardware, tell: Callable[[str], None] | None = None) -> None:
        self.job, self.hardware, self.tell = job, hardware, tell or (lambda words: None)
        kwargs, settings = split_switches(job.switches)
        whole = Assignment(
            bucket_indices=(tuple(range(len(job.gradients))),), ddp_kwargs=kwargs, settings=settings
        )
        plan = ddp.plan(job, whole, hardware.world_size)
        self.switches, self.workload = plan.switches, plan.workload
        self.times = self.switches.accumulation_steps if self.switches.syncs_each else 1
        # Unused ones that are searched for are marked, and so ready, when the first gradient is (A3.13).
        unused = [one.index for one in self.workload.gradients if one.ready_ns is None]
        self.order = (*unused, *self.workload.order())
        self._indices = np.array(self.order, dtype=np.int64)
        self.place = np.empty(len(self), np.int64)
        self.place[self._indices] = np.arange(len(self))
        gradients = [self.workload.gradients[index] for index in self.order]
        self.unused = np.arange(len(self)) < len(unused)
        self.map_bytes = len(self) * DTYPE_BYTES["int32"] if self.switches.searches else 0
        runs, _ = number_keys((one.index if one.sparse else one.key, False) for one in gradients)
        self.run = np.array(runs, dtype=np.int64)
        self.run_ends = np.zeros(len(self), dtype=np.bool_)
        self.run_ends[len(self) - 1 - np.unique(self.run[::-1], return_index=True)[1]] = True
        wire, dense = [one.on_wire for one in gradients], sum(one.num_bytes for one in gradients)
        _ints("num_bytes of all gradients", [sum(wire), dense], MOST_BYTES)
        times = [one.ready_ns or 0 for one in gradients[len(unused) :]]
        self.ready_ns = _ints("ready_ns", [*times[:1] * len(unused), *times], MOST_NS)
        self.wire, self.work = np.array(wire, dtype=np.int64), np.diff(self.ready_ns, prepend=0)
        self.tail = self.workload.backward_ns - times[-1]
        self.copied = (tuple(map(ddp.copied_bytes, gradients)),) * 2
        self.passes = np.zeros((3, len(self)), np.int64)
        self.sends = ~self.unused | (not self.switches.skip_all_reduce_unused_params)
        if job.switches:
            self._read(plan)
        self.copies = self.copies_on(hardware)
        self.ready = np.cumsum(self.work + self.copies.into)
        # Passes up to a launch, at least: a bucket's copy and its hook's pass are rounded by half a ns each.
        (fills, before, after), ns = self.passes, [ns / size for ns, size in self.copies.a_byte]
        least_ns = np.cumsum(fills + before * self.sends) * ns[0] - np.arange(2, len(self) + 2)
        passes_ns = np.maximum(0, least_ns).astype(np.int64)
        self.has_passes = bool(self.passes.any())
        self.lane_end = int(self.ready[-1] + passes_ns[-1]) + self.tail
        if self.has_one_run:  # else others may come between
            self.ready += passes_ns
        # No message takes longer than by the line that lies on the curve, as steep as it goes on.
        curve, total = curve_of(hardware), int(self.wire.sum())
        rise, per = rise_beyond(curve)
        first = max(0, *(point.duration_ns - rise * point.num_bytes // per for point in curve))
        sent = len(self) * (first + 1 + hardware.launch_cost_ns) + rise * total // per
        sent += int(self.copies.back.sum() + after.sum() * ns[2]) + 2 * len(self)
        check_length(hardware.name, self.lane_end + sent)
        self.curve_bytes, self.curve_ns = self.curve_on(hardware)
        self.machine = machine_of(self.workload, hardware)
        self._known: dict[Buckets, int] = {}

    def _read(self, plan: ddp.DdpPlan) -> None:
        """What the job's switches make of each gradient, off the step that has a bucket for each."""
        switches = replace(plan.switches, skip_all_reduce_unused_params=False)
        # At a byte a ns copies last as many ns as they have bytes.
        by_bytes: dict[str, Any] = dict.fromkeys(("copy_in_bytes_per_s", "copy_out_bytes_per_s"), 1e9)
        program = replace(plan, buckets=self.singles(), switches=switches).write(
            replace(self.hardware, hook_cost_ns=0, **by_bytes), "steady"
        )[-1]
        rows, copied_back = [[0] * 4], []  # a row: work, bytes copied in alone and with the bucket, a hook's
        for item in program.lane:
            of_bucket, is_copy = item.bucket is not None, item.kind == COPY_IN
            if item.kind == READY:
                rows.append([0] * 4)
            elif item.kind == COPY_BACK:
                copied_back.append(item.duration_ns)
            elif item.kind == HOOK and of_bucket:
                rows[-2][3] += item.duration_ns
            elif item.kind in (BACKWARD, HOOK, COPY_IN):
                rows[-1][is_copy + (is_copy and of_bucket)] += item.duration_ns
        self.tail = rows.pop()[0]
        self.work, copied_in, *passes = np.array(rows, dtype=np.int64).T.copy()
        self.copied = tuple(copied_in.tolist()), tuple(copied_back)
        sent = [[program.collectives[one] for one in each] for each in program.carriers]
        self.wire = np.array([sum(one.num_bytes for one in each) for each in sent], dtype=np.int64)
        self.passes = np.array([*passes, [sum(one.settle_ns for one in each) for each in sent]], np.int64)
        self.sends &= list(map(bool, sent))

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
        return bool(self.copies.back.any())

    @cached_property
    def for_search(self) -> "Problem":
        """What a search scores by: without the rule for small messages (``shared_connection``).

        With it a search cuts dozens of tiny buckets off, for half a percent of a step, less than the rule is
        known to. What is found, and all that it is compared with, is scored with the rule.
        """
        if not self.hardware.shared_connection:
            return self
        return Problem(self.job, replace(self.hardware, shared_connection=False), self.tell)

    def copies_on(self, hardware: Hardware) -> Copies:
        """What copying takes on ``hardware``.

        Raises:
            InputError: it is longer than can be played.
        """
        included = "copy_in" in self.workload.ready_includes
        rate_in, hook_ns = (None, 0) if included else (hardware.copy_in_bytes_per_s, hardware.hook_cost_ns)
        rate_out = hardware.copy_out_bytes_per_s
        into = hook_ns * ~self.unused + np.array(_transfers_ns(self.copied[0], rate_in), np.int64)
        back = np.array(_transfers_ns(self.copied[1], rate_out), np.int64)
        rates = rate_in, rate_in, rate_out
        passes_ns = sum(map(transfer_ns, self.passes.sum(axis=1).tolist(), rates))
        check_length(hardware.name, float(into.sum(dtype=float) + back.sum(dtype=float)) + passes_ns)
        return Copies(into, back, tuple(map(_ns_a_byte, rates)))

    def curve_on(self, hardware: Hardware) -> tuple[Ints, Ints]:
        """The curve of all-reduces on ``hardware``, as far as anything that is sent reaches."""
        return curve_arrays(curve_of(hardware), max(int(self.wire.sum()), self.map_bytes))

    # ---- Buckets.

    def bucket_of(self, buckets: Sequence[Sequence[int]]) -> Ints:
        """The number of each place's bucket, in launch order."""
        made = np.empty(len(self), np.int64)
        members = np.fromiter(chain.from_iterable(buckets), np.int64)
        made[self.place[members]] = np.repeat(np.arange(len(buckets)), list(map(len, buckets)))
        return made

    def buckets(self, closes: Flags) -> Buckets:
        """The buckets that end at ``closes``, in launch order: by when their last gradient is ready."""
        bucket_of = number_buckets(self.run, closes)
        members = self._indices[np.argsort(bucket_of, kind="stable")].tolist()
        stops = np.cumsum(np.bincount(bucket_of)).tolist()
        return tuple(tuple(members[start:stop]) for start, stop in pairwise([0, *stops]))

    def closes(self, buckets: Buckets) -> Flags | None:
        """At which places a bucket ends; None unless this alone makes ``buckets``, in this order."""
        closes = np.zeros(len(self), dtype=np.bool_)
        last = np.empty(len(buckets), np.int64)
        last[self.bucket_of(buckets)] = np.arange(len(self))  # of the places of a bucket the last one stays
        closes[last] = True
        made = self.buckets(closes)
        return closes if made == buckets or list(map(set, made)) == list(map(set, buckets)) else None

    def singles(self) -> Buckets:
        """One bucket a gradient."""
        return tuple(zip(self.order))

    def sync_end_ns(self, buckets: Sequence[Sequence[int]]) -> int:
        """When all gradients are available under these buckets, in ns from the start of backward."""
        key = tuple(map(tuple, buckets))
        end = self._known.get(key)
        if end is None:
            end = self._known[key] = int(play_layouts(self.tables, self.bucket_of(key)[None])[0])
        return end

    def score_all(self, places: Ints) -> Ints:
        """``sync_end_ns`` of each partition: bit b of its number says that a bucket ends at ``places[b]``."""
        numbers, ends = np.arange(1 << places.size), []
        for some in np.split(numbers, range(PLAYED_AT_ONCE, numbers.size, PLAYED_AT_ONCE)):
            closes = np.repeat(self.run_ends[None], some.size, axis=0)
            closes[:, places] = some[:, None] >> np.arange(places.size) & 1
            bucket_of = np.stack([number_buckets(self.run, row) for row in closes])
            ends.append(play_layouts(self.tables, bucket_of))
        return np.concatenate(ends)

    # ---- The job's own buckets.

    @cached_property
    def default(self) -> Assignment:
        """DDP's default."""
        return as_the_job(self.job, assign(self.workload))

    @cached_property
    def default_ns(self) -> int:
        """The step with DDP's default, in ns."""
        return simulated_step_ns(self.job, self.hardware, self.default)

    @cached_property
    def rest_ns(self) -> int:
        """What a step holds beside its backwards that reduce, in ns; the same with any buckets."""
        return self.default_ns - self.times * self.sync_end_ns(self.default.bucket_indices)

    def step_ns(self, sync_end_ns: int) -> int:
        """The step whose backwards that reduce end at ``sync_end_ns``, in ns."""
        return self.times * sync_end_ns + self.rest_ns


# ---- Kernels.


@compiled
def add_share(base: int, a: int, b: int, c: int) -> int:
    """``base + a * b / c`` rounded half to even, for 0 <= b, 0 < c < 2**61 and |a * b / c| < 2**45.

    The products may wrap; their difference, of some ``c``, is right.
    """
    share = int(np.floor(a * (b / c)))  # by floats: off by one at most
    rest = a * b - share * c
    while rest < 0:
        share, rest = share - 1, rest + c
    while rest >= c:
        share, rest = share + 1, rest - c
    if 2 * rest > c or (2 * rest == c and (base + share) & 1):
        share += 1
    return base + share


@compiled
def service(curve_bytes: Ints, curve_ns: Ints, num_bytes: int) -> int:
    """Service time of one all-reduce on ``curve_arrays``: ``service_time.service_ns``, compiled."""
    at = int(np.searchsorted(curve_bytes, num_bytes, side="right"))
    if at == curve_bytes.size:
        return int(curve_ns[at - 1])
    rise, run = curve_ns[at] - curve_ns[at - 1], curve_bytes[at] - curve_bytes[at - 1]
    return add_share(curve_ns[at - 1], rise, num_bytes - curve_bytes[at - 1], run)


@compiled
def services(curve_bytes: Ints, curve_ns: Ints, wires: Ints) -> Ints:
    """Service time in ns of each of ``wires`` bytes."""
    made = np.empty(wires.size, np.int64)
    for k in range(wires.size):
        made[k] = service(curve_bytes, curve_ns, wires[k])
    return made


@compiled
def lay_out(tables: Tables, bucket_of: Ints, copies: Copies) -> Layout:
    """The layout of the buckets that each place is in."""
    count = bucket_of.max() + 1
    stops, back, mapped = np.zeros(count, np.int64), np.zeros(count, np.int64), count
    wires = np.zeros(count + 1 if tables.map_bytes else count, np.int64)
    is_sent, passed = np.zeros(count, np.bool_), count if tables.has_passes else 0
    passes, into = np.zeros((3, passed), np.int64), copies.into.copy()
    for place in range(bucket_of.size):
        bucket = bucket_of[place]
        stops[bucket] = place
        wires[bucket] += tables.wire[place]
        back[bucket] += copies.back[place]
        is_sent[bucket] |= tables.sends[place]
        if passed:
            for number in range(3):
                passes[number, bucket] += tables.passes[number, place]
        if tables.unused[place]:
            mapped = min(mapped, bucket)
    for bucket in range(passed):
        for number in range(3):
            ns, for_bytes = copies.a_byte[number]
            passes[number, bucket] = add_share(0, passes[number, bucket], ns, for_bytes)
        into[stops[bucket]] += passes[0, bucket]
    for bucket in range(1, count):
        stops[bucket] = max(stops[bucket], stops[bucket - 1])
    if tables.map_bytes:
        wires[count] = tables.map_bytes
    return Layout(stops, wires, is_sent, passes, into, back, mapped)


@compiled
def play_steps(machine: Machine, works: Ints, tails: Ints, layout: Layout, services: Ints) -> Ints:
    """``sync_end_ns`` of DDP's step under each of some draws.

    Args:
        machine: see ``program.Machine``.
        works: [draws, places] ns of backward before each place.
        tails: ns of backward after the last place, of each draw.
        layout: the buckets; the last waits for the last place.
        services: [draws, messages] ns of each of ``layout.wires`` alone.
    """
    stops, count, messages = layout.stops, layout.stops.size, layout.wires.size
    ends = np.empty(tails.size, np.int64)
    # The lane, item by item where collectives stretch it, else as one item for each bucket.
    fine = machine.copying_in.lane != FULL_SPEED  # which what slows computing slows, too
    passed, copies_in = layout.passes.size > 0, layout.copies_in
    most = 4 * count + 3 + (2 * copies_in.size if fine else count)
    none, paces, came = np.zeros(1, np.int64), np.ones(1), np.full(messages, -NEVER)
    collectives = np.zeros((messages, ROOT + 1), np.int64)
    for draw in range(tails.size):
        lane = np.zeros((1, most, 3), np.int64)
        item = place = computing = 0
        for bucket in range(count):
            while place <= stops[bucket]:
                if fine:
                    item = _put(lane, item, BACKWARD, works[draw, place], 0)
                    item = _put(lane, item, COPY_IN, copies_in[place], 0)
                computing += works[draw, place] + copies_in[place]
                place += 1
            if not fine:
                item = _put(lane, item, BACKWARD, computing, 0)
                computing = 0
            if layout.is_sent[bucket]:
                if passed:
                    item = _put(lane, item, HOOK, layout.passes[1, bucket], 0)
                item = _put(lane, item, LAUNCH, 0, bucket)
        if messages > count:
            item = _put(lane, item, LAUNCH, 0, count)
        item = _put(lane, item, BACKWARD, tails[draw], 0)
        for bucket in range(count):
            if layout.is_sent[bucket]:
                item = _put(lane, item, WAIT, 0, bucket)
            if messages > count and bucket == layout.mapped:
                item = _put(lane, item, WAIT, 0, count)
            item = _put(lane, item, COPY_BACK, layout.copies_back[bucket], 0)
        if messages > count:
            item = _put(lane, item, WAIT, 0, count)
        for number in range(messages):
            collectives[number, SERVICE] = collectives[number, QUEUED] = services[draw, number]
            collectives[number, SMALL] = layout.wires[number] < machine.small_bytes
            collectives[number, SETTLE] = layout.passes[2, number] if passed and number < count else 0
            collectives[number, AFTER] = -1
        sheet = Sheet(machine, lane[:, :item].copy(), collectives)
        ranks = assemble(sheet, none, paces, none - 1, 0, none, False)
        advance(sheet, ranks, came, messages)
        ends[draw] = ranks.states[0, END]
    return ends


@compiled
def _put(lane: Ints, item: int, kind: int, duration: int, number: int) -> int:
    lane[0, item, KIND], lane[0, item, DURATION], lane[0, item, NUMBER] = kind, duration, number
    return item + 1


@compiled
def play_layouts(tables: Tables, bucket_of: Ints) -> Ints:
    """``sync_end_ns`` of the step as given, with the buckets of each row of ``bucket_of`` [layouts, places].

    Kernels that call this hold the clock once more, which takes seconds to compile: few may.
    """
    ends = np.empty(bucket_of.shape[0], np.int64)
    work, tails = tables.work.reshape((1, -1)), np.full(1, tables.tail)
    for row in range(ends.size):
        layout = lay_out(tables, bucket_of[row], tables.copies)
        sent = services(tables.curve_bytes, tables.curve_ns, layout.wires).reshape((1, -1))
        ends[row] = play_steps(tables.machine, work, tails, layout, sent)[0]
    return ends


@compiled
def number_buckets(run: Ints, closes: Flags) -> Ints:
    """The number of each place's bucket, if one ends at each of ``closes``, and at the last of each run."""
    number = 0
    for place in range(run.size):
        number += closes[place]
    bucket_of, current = np.empty(run.size, np.int64), np.empty(run.size, np.int64)  # the latter by run
    for place in range(run.size - 1, -1, -1):
        if closes[place]:
            number -= 1
            current[run[place]] = number
        bucket_of[place] = current[run[place]]
    return bucket_of
