"""A job as the search plays it: one backward of DDP on a machine, as arrays; a partition is played in 5 us.

Places are those of the ready order. Times are int64 ns and sizes int64 bytes. A step is played by the
compiled clock. What the switches of a job change for all buckets alike is in these times and bytes; a found
assignment is then simulated with the switches themselves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.clock.play import (
    AFTER,
    DURATION,
    KIND,
    NUMBER,
    QUEUED,
    ROOT,
    SERVICE,
    SMALL,
    Sheet,
    play_alone,
)
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
from sim.costs.service_time import rise_beyond
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import Switches, read_switches, split_switches
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import DTYPE_BYTES, Gradient, ReadyTimes, Workload
from sim.systems.ddp import copied_bytes
from sim.systems.ddp_assignment import as_compiled, as_the_job, check_used
from sim.systems.registry import assign
from sim.systems.simulate import Engine, simulate
from sim.units import transfer_ns

MOST_BYTES = 1 << 52
NEVER = 1 << 62

Buckets = tuple[tuple[int, ...], ...]
Listener = Callable[[str], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listened_to(listener: Listener | None) -> Iterator[None]:
    """In the block, and in this thread, ``tell`` calls ``listener``; what that raises ends the search."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(words: str) -> None:
    """Say what comes next: called between the parts of a search, of some milliseconds each."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(words)


def run_keys(ordered: Sequence[Gradient]) -> list[int]:
    """For each gradient in ready order the number of its run: one per dtype and device; a sparse gradient is
    a run alone. Runs are numbered by their first gradient."""
    keys = [("sparse", gradient.index) if gradient.sparse else gradient.key for gradient in ordered]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys] if len(numbers) > 1 else [0] * len(keys)


class Tables(NamedTuple):
    """What kernels take of a ``Problem``, by the same names."""

    machine: Machine
    run: Ints
    run_ends: Flags
    wire: Ints
    work: Ints
    copy_in: Ints
    copy_back: Ints
    unused: Flags
    map_bytes: int
    tail: int
    curve_bytes: Ints
    curve_ns: Ints


class Layout(NamedTuple):
    """Buckets as a step plays them, in launch order: the last place that each waits for, which is none before
    that of an earlier bucket (A3.5), bytes on the wire, and ns to copy it back.

    Where unused parameters are searched for, the last of ``wires`` is the map of the used ones (A3.9);
    ``mapped`` is the first bucket with an unused one, from which on copies back wait for the map (A3.10).
    """

    stops: Ints
    wires: Ints
    copies_back: Ints
    mapped: int


def _ints(what: str, values: Sequence[int], most: int) -> Ints:
    if max(values, default=0) > most:
        raise InputError(f"{what}: {max(values)} is more than the tuner can count with; give at most {most}")
    return np.array(values, dtype=np.int64)


@lru_cache(maxsize=16)  # machines that are drawn copy alike
def _transfers_ns(sizes: tuple[int, ...], bytes_per_s: float | None) -> tuple[int, ...]:
    return tuple(transfer_ns(size, bytes_per_s) for size in sizes)


def curve_of(hardware: Hardware) -> Curve:
    """The all-reduce curve; of one rank a point without bytes or time."""
    return hardware.all_reduce if hardware.world_size > 1 else (CurvePoint(num_bytes=0, duration_ns=0),)


def curve_arrays(curve: Curve, most_bytes: int) -> tuple[Ints, Ints]:
    """Sizes and times of a curve, and one point more, further on, if ``most_bytes`` lie beyond its last."""
    sizes = _ints("all_reduce.num_bytes", [point.num_bytes for point in curve], MOST_BYTES)
    times = _ints("all_reduce.duration_ns", [point.duration_ns for point in curve], MOST_NS)
    if most_bytes > sizes[-1]:
        rise, run = rise_beyond(curve)
        count = -(-(most_bytes - int(sizes[-1])) // run)  # whole runs: the same slope, to the ns
        sizes, times = np.append(sizes, sizes[-1] + count * run), np.append(times, times[-1] + count * rise)
    return sizes, times


class Problem:
    """A job on a machine, one array entry for each place in the ready order.

    ``job``, ``link``: as they are given; ``workload``, ``hardware``: those on which DDP without switches
    takes as long with any buckets. ``order``: index of the gradient, and by index its ``place``; ``run``:
    number of its run (``run_keys``); ``run_ends``: whether it is the last of its run, where a bucket ends in
    every partition; ``wire``: its bytes on the wire; ``work``, ``copy_in``: ns of the compute lane for it,
    with its hook; ``copy_back``: ns of copying it out of its bucket; ``unused``: whether it is never ready,
    and marked with the first that is; ``ready``: ns at which it is copied in if nothing stretches or blocks
    the lane; ``tail``: ns of backward after the last; ``lane_end``: ns, the end of that lane; ``machine``:
    what the machine does. ``curve_bytes``, ``curve_ns``: the all-reduce curve, as far as all bytes reach.
    ``map_bytes``: of the map of used parameters, 0 where none is sent. ``times``: how many backwards of a
    step reduce, each with the buckets.

    Raises:
        InputError: sizes beyond 2**52 bytes, or a step that is too long to be played.
        NotModelledError: torch takes no buckets under the switches of the job.
    """

    def __init__(self, job: Workload, link: Hardware) -> None:
        self.job, self.link = job, link
        self.times = self.switches.accumulation_steps if self.switches.syncs_each else 1
        self.workload, self.hardware = workload, hardware = self._equivalent()
        self.order = workload.order()
        self._indices = np.array(self.order, dtype=np.int64)
        self.place = np.full(len(workload.gradients), len(self))  # an unused gradient has none
        self.place[self._indices] = np.arange(len(self))
        gradients = [workload.gradients[index] for index in self.order]
        ready = [gradient.ready_ns or 0 for gradient in gradients]
        unused = [self.compiled.gradients[index].ready_ns is None for index in self.order]
        self.unused = np.array(unused, dtype=np.bool_)
        searches = self.switches.searches
        self.map_bytes = len(self.compiled.gradients) * DTYPE_BYTES["int32"] if searches else 0
        self.run = np.array(run_keys(gradients), dtype=np.int64)
        self.run_ends = np.zeros(len(self), dtype=np.bool_)
        self.run_ends[len(self) - 1 - np.unique(self.run[::-1], return_index=True)[1]] = True
        wire, dense = [one.on_wire for one in gradients], sum(one.num_bytes for one in gradients)
        _ints("num_bytes of all gradients", [sum(wire), dense], MOST_BYTES)
        self.wire = np.array(wire, dtype=np.int64)
        self.work = np.diff(_ints("ready_ns", ready, MOST_NS), prepend=0)
        self.copy_in, self.copy_back = self.copies(hardware, workload.backward_ns)
        self.ready = np.cumsum(self.work + self.copy_in)
        self.tail = workload.backward_ns - (ready[-1] if ready else 0)
        self.lane_end = int(self.ready[-1]) + self.tail if ready else self.tail
        self.curve_bytes, self.curve_ns = curve_arrays(curve_of(hardware), sum(wire))
        self.machine = machine_of(workload, hardware)
        self._known: dict[Buckets, int] = {}

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

    @cached_property
    def for_search(self) -> "Problem":
        """What a search scores by: without the rule for small messages (``shared_connection``).

        With it a search cuts dozens of tiny buckets off, for half a percent of a step, less than the rule is
        known to. What is found, and all that it is compared with, is scored with the rule.
        """
        link = self.link
        return Problem(self.job, replace(link, shared_connection=False)) if link.shared_connection else self

    def copies(self, hardware: Hardware, backward_ns: int) -> tuple[Ints, Ints]:
        """Ns of each gradient's hook and copy into its bucket, and of its copy out of it, on ``hardware``.

        The slice of an unused gradient is filled with zeros, at half a copy's price, and not copied out.

        Raises:
            InputError: a step with such a backward could be longer than can be played.
        """
        whole = np.array([copied_bytes(self.workload.gradients[index]) for index in self.order], np.int64)
        copied = tuple((whole >> self.unused).tolist())
        included = "copy_in" in self.workload.ready_includes
        into, hook_ns = (None, 0) if included else (hardware.copy_in_bytes_per_s, hardware.hook_cost_ns)
        copies_in = hook_ns * ~self.unused + np.array(_transfers_ns(copied, into), np.int64)
        copies_back = np.array(_transfers_ns(copied, hardware.copy_out_bytes_per_s), np.int64)
        copies_back[self.unused] = 0
        # No message takes longer than by the line that lies on the curve, as steep as it goes on.
        curve = curve_of(hardware)
        rise, run = rise_beyond(curve)
        first = max(0, *(point.duration_ns - rise * point.num_bytes // run for point in curve))
        sent = len(self) * (first + 1) + rise * int(self.wire.sum()) // run
        lane = backward_ns + int(copies_in.sum()) + len(self) * hardware.launch_cost_ns
        check_length(hardware.name, lane + sent + int(copies_back.sum()))
        return copies_in, copies_back

    # ---- Buckets.

    def bucket_of(self, buckets: Sequence[Sequence[int]]) -> Ints:
        """The number of each place's bucket, in launch order."""
        made = np.empty(len(self), np.int64)
        members = np.fromiter(chain.from_iterable(buckets), np.int64)
        made[self.place[members]] = np.repeat(np.arange(len(buckets)), list(map(len, buckets)))
        return made

    def lay_out(self, buckets: Sequence[Sequence[int]], copy_back: Ints | None = None) -> Layout:
        """These buckets as they are played; ``copy_back`` on another machine, as ``copies`` has it."""
        return lay_out(
            self.tables, self.bucket_of(buckets), self.copy_back if copy_back is None else copy_back
        )

    def buckets(self, closes: Flags) -> Buckets:
        """The buckets that end at ``closes``, in launch order: by when their last gradient is ready."""
        bucket_of = number_buckets(self.run, closes)
        members = self._indices[np.argsort(bucket_of, kind="stable")].tolist()
        stops = np.cumsum(np.bincount(bucket_of)).tolist()
        return tuple(tuple(members[start:stop]) for start, stop in pairwise([0, *stops]))

    def closes(self, buckets: Buckets) -> Flags | None:
        """At which places a bucket ends; None unless this alone makes ``buckets``, in this order."""
        closes = np.zeros(len(self), dtype=np.bool_)
        closes[self.lay_out(buckets).stops] = True
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
            end = self._known[key] = play_buckets(self.tables, self.bucket_of(key))
        return end

    # ---- The job's switches.

    @cached_property
    def switches(self) -> Switches:
        """Those of the job."""
        return read_switches(self._any_buckets) if self.job.switches else Switches()

    @cached_property
    def compiled(self) -> Workload:
        """The job as DDP sees it, under torch.compile too."""
        return as_compiled(self.job, self._any_buckets) if self.job.switches else self.job

    @cached_property
    def _any_buckets(self) -> Assignment:
        kwargs, settings = split_switches(self.job.switches)
        everything = tuple(range(len(self.job.gradients)))
        return Assignment(bucket_indices=(everything,), ddp_kwargs=kwargs, settings=settings)

    @cached_property
    def default(self) -> Assignment:
        """DDP's default."""
        return self.as_used(assign(self.compiled))

    @cached_property
    def in_use(self) -> Assignment | None:
        """The buckets that the job had, where they are not those of DDP's default."""
        job = self.job.job
        if job is None or not job.bucket_indices:
            return None
        default = assign(self.job)
        if set(map(frozenset, default.bucket_indices)) == set(map(frozenset, job.bucket_indices)):
            return None
        return self.as_used(Assignment(bucket_indices=job.bucket_indices))

    def as_used(self, found: Assignment) -> Assignment:
        """An assignment that a search found, with the job's switches."""
        return as_the_job(self.job, found)

    def simulate(self, assignment: Assignment, engine: Engine = "simpy") -> Timeline:
        """A step of the job."""
        return simulate(self.job, self.link, assignment, engine)

    def rest_ns(self, step_ns: int, assignment: Assignment) -> int:
        """What a step holds beside its backwards with ``assignment`` that reduce."""
        return step_ns - self.times * self.sync_end_ns(assignment.bucket_indices)

    def _equivalent(self) -> tuple[Workload, Hardware]:
        """A workload and a machine on which DDP without switches takes as long with any buckets."""
        hardware, switches, seen = self.link, self.switches, self.compiled
        check_used(self.job, switches)
        if not self.job.switches:
            return self.job, hardware
        earlier_ns = 0
        if switches.accumulation_steps > 1 and self.times == 1:
            earlier_ns = self.simulate(assign(self.job, "single"), "analytic").accumulation_ns
        # Unused ones that are searched for are marked, and so ready, when the first gradient is (A3.13). The
        # hook of each of the others marks it, and adds it to that of the micro-batches before (A3.12).
        finds = switches.find_unused_parameters or switches.static_graph
        unused = {one.index for one in seen.gradients if one.ready_ns is None} if finds else set()
        order = (*sorted(unused), *seen.order())
        adds = switches.accumulation_steps > 1 and switches.set_to_none
        later, total = dict.fromkeys(range(len(seen.gradients)), 0), 0
        for index in seen.order():
            one = seen.gradients[index]
            total += hardware.mark_used_ns if switches.searches else 0
            if adds and not one.sparse:
                total += transfer_ns(one.num_bytes, hardware.accumulate_bytes_per_s)
            later[index] = total
        later |= dict.fromkeys(unused, later[seen.order()[0]])

        def moved(times: ReadyTimes) -> ReadyTimes:
            first = min((time for time in times if time is not None), default=None)
            filled = (first if at in unused and time is None else time for at, time in enumerate(times))
            return tuple(None if time is None else time + later[at] for at, time in enumerate(filled))

        seen = seen.retimed(moved, backward_ns=seen.backward_ns + total, ready_order=order, job=None)
        hook = switches.hook
        dtype = None if hook is None else hook.dtype
        # Copies are counted by the bytes on the wire, and are of the gradients' own.
        width = max(DTYPE_BYTES[one.dtype] for one in seen.gradients)
        narrow = 1.0 if dtype is None else DTYPE_BYTES[dtype] / width
        into = None if switches.keeps_views and hook is not None else hardware.copy_in_bytes_per_s
        back = None if switches.gradient_as_bucket_view else hardware.copy_out_bytes_per_s

        def sent(one: Gradient) -> Gradient:
            wire = one.wire_bytes
            if dtype is not None and not one.sparse:
                wire = one.num_bytes * DTYPE_BYTES[dtype] // DTYPE_BYTES[one.dtype]
            return replace(one, wire_bytes=wire, uses=1 if finds else one.uses)

        return replace(
            seen,
            gradients=tuple(map(sent, seen.gradients)),
            forward_ns=seen.forward_ns + earlier_ns,
            buffers=seen.buffers if switches.syncs_buffers else (),
        ), replace(
            hardware,
            copy_in_bytes_per_s=None if into is None else into * narrow,
            copy_out_bytes_per_s=None if back is None else back * narrow,
        )


# ---- Kernels.


@compiled
def add_share(base: int, a: int, b: int, c: int) -> int:
    """``base + a * b / c`` rounded half to even, for 0 <= b <= c < 2**53 and |a| < 2**45.

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
    if at == 0 or at == curve_bytes.size:
        return int(curve_ns[max(0, at - 1)])
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
def lay_out(tables: Tables, bucket_of: Ints, copy_back: Ints) -> Layout:
    """The layout of the buckets that each place is in."""
    count = bucket_of.max() + 1
    stops, wires, back = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    mapped = count
    for place in range(bucket_of.size):
        bucket = bucket_of[place]
        stops[bucket] = place
        wires[bucket] += tables.wire[place]
        back[bucket] += copy_back[place]
        if tables.unused[place]:
            mapped = min(mapped, bucket)
    for bucket in range(1, count):
        stops[bucket] = max(stops[bucket], stops[bucket - 1])
    if tables.map_bytes:
        wires = np.append(wires, tables.map_bytes)
    return Layout(stops, wires, back, mapped)


@compiled
def play_step(machine: Machine, work: Ints, copy_in: Ints, tail: int, layout: Layout, services: Ints) -> int:
    """``sync_end_ns`` of one DDP step.

    Args:
        machine: see ``program.Machine``.
        work: ns of backward before each place; ``copy_in``: ns of its copy.
        tail: ns of backward after the last place.
        layout: the buckets; the last waits for the last place.
        services: ns of each of ``layout.wires`` alone.
    """
    stops, count, messages = layout.stops, layout.stops.size, layout.wires.size
    # The lane, item by item where collectives stretch it, else as one item for each bucket.
    fine = machine.computing.lane != FULL_SPEED or machine.copying_in.lane != FULL_SPEED
    lane = np.zeros((1, 3 * count + 3 + (2 * work.size if fine else count), 3), np.int64)
    item = place = computing = 0
    for bucket in range(count):
        while place <= stops[bucket]:
            if fine:
                item = _put(lane, item, BACKWARD, work[place], 0)
                item = _put(lane, item, COPY_IN, copy_in[place], 0)
            computing += work[place] + copy_in[place]
            place += 1
        if not fine:
            item = _put(lane, item, BACKWARD, computing, 0)
            computing = 0
        item = _put(lane, item, LAUNCH, 0, bucket)
    if messages > count:
        item = _put(lane, item, LAUNCH, 0, count)
    item = _put(lane, item, BACKWARD, tail, 0)
    for bucket in range(count):
        item = _put(lane, item, WAIT, 0, bucket)
        if messages > count and bucket == layout.mapped:
            item = _put(lane, item, WAIT, 0, count)
        item = _put(lane, item, COPY_BACK, layout.copies_back[bucket], 0)
    if messages > count:
        item = _put(lane, item, WAIT, 0, count)
    collectives = np.zeros((messages, ROOT + 1), np.int64)
    collectives[:, SERVICE] = collectives[:, QUEUED] = services
    collectives[:, SMALL] = layout.wires < machine.small_bytes
    collectives[:, AFTER] = -1
    return play_alone(Sheet(machine, lane[:, :item], collectives))


@compiled
def _put(lane: Ints, item: int, kind: int, duration: int, number: int) -> int:
    lane[0, item, KIND], lane[0, item, DURATION], lane[0, item, NUMBER] = kind, duration, number
    return item + 1


@compiled
def play_many(
    machine: Machine, works: Ints, copy_in: Ints, tails: Ints, layout: Layout, services: Ints
) -> Ints:
    """``play_step`` of each draw; ``works`` [draws, places], ``services`` [draws, messages]."""
    ends = np.empty(tails.size, np.int64)
    for k in range(tails.size):
        ends[k] = play_step(machine, works[k], copy_in, tails[k], layout, services[k])
    return ends


@compiled
def play_buckets(tables: Tables, bucket_of: Ints) -> int:
    """``play_step`` of these buckets."""
    layout = lay_out(tables, bucket_of, tables.copy_back)
    sent = services(tables.curve_bytes, tables.curve_ns, layout.wires)
    return play_step(tables.machine, tables.work, tables.copy_in, tables.tail, layout, sent)


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


@compiled
def score(tables: Tables, closes: Flags) -> int:
    """``play_step`` of the partition whose buckets end at ``closes``."""
    return play_buckets(tables, number_buckets(tables.run, closes))


@compiled
def score_all(tables: Tables, places: Ints) -> Ints:
    """``score`` of every partition: bit b of its number says that a bucket ends at ``places[b]``."""
    ends = np.empty(1 << places.size, np.int64)
    closes = tables.run_ends.copy()
    for number in range(1 << places.size):
        for bit in range(places.size):
            closes[places[bit]] = number >> bit & 1
        ends[number] = score(tables, closes)
    return ends
