"""One program on many machines at once: the analytic engine's steps, compiled.

Remaining work is a fraction in the engine and here the sum of two floats, right to some 100 bits (Dekker
1971, doi:10.1007/BF01397083). Each rounding to the ns is watched: where it comes closer to a half than that
can tell, the figures are marked as not sure, and the engine has to decide.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Ints
from sim.clock.machine_code import compiled
from sim.clock.program import CopyBack, Effects, Launch, Program, Wait, Work
from sim.errors import InputError

MOST_NS = 1 << 50  # with all that is computed from it exact in a float64
_IDLE, _WORK, _COPY_IN, _LAUNCH, _WAIT, _COPY_BACK = range(6)  # what the lane is at, and its items
_NEVER = 1 << 62


class Factors(NamedTuple):
    """``Effects`` as the kernel reads them."""

    channels: int
    launch_cost_ns: int
    blocks: bool
    compute: float
    comm: float
    channel: float
    copy_in: float
    copy_out: float
    comm_copy_out: float


class Played(NamedTuple):
    """Per machine: when gradients are available, for how long collectives are under way, for how long beside
    the compute lane (ns from the start of backward; union of intervals), and whether all that is sure."""

    sync_end_ns: Ints
    comm_ns: Ints
    overlapped_ns: Ints
    is_sure: NDArray[np.bool_]


def too_long(program: Program, services_ns: Sequence[Sequence[int]]) -> bool:
    """Whether a step may take more than 2**50 ns (13 days), beyond which floats are not exact."""
    lane = sum(item.duration_ns for item in program.lane if isinstance(item, (Work, CopyBack)))
    launches = len(program.collectives) * program.effects.launch_cost_ns
    return lane + launches + max(map(sum, services_ns), default=0) > MOST_NS


def play_on_machines(program: Program, services_ns: Sequence[Sequence[int]]) -> Played:
    """``program`` with other service times of its collectives: [machine][collective], in ns.

    Each collective is launched by the lane, in the order of their numbers, and by itself usable at its end.

    Raises:
        InputError: collectives that are not, or a program that is ``too_long``.
    """
    launched = [item.collective for item in program.lane if isinstance(item, Launch)]
    if launched != list(range(len(program.collectives))) or any(
        one.settle_ns or one.arrival_ns for one in program.collectives
    ):
        raise InputError("program: collectives that follow or await others are the engines'")
    if too_long(program, services_ns):
        raise InputError(f"program: more than {MOST_NS} ns are the engines'")
    kinds, durations, numbers = _lane(program)
    services = np.array(services_ns, dtype=np.int64).reshape(len(services_ns), len(program.collectives))
    made = _play_many(factors_of(program.effects), kinds, durations, numbers, services)
    return Played(made[:, 0], made[:, 1], made[:, 2], made[:, 3].astype(np.bool_))


def _lane(program: Program) -> tuple[Ints, Ints, Ints]:
    """The lane's items that take or wait for time: what, for how many ns, for which collective or bucket."""
    items: list[tuple[int, int, int]] = []
    for item in program.lane:
        if isinstance(item, Work):
            items.append((_COPY_IN if item.kind == "copy_in" else _WORK, item.duration_ns, 0))
        elif isinstance(item, Launch):
            items.append((_LAUNCH, program.effects.launch_cost_ns, item.collective))
        elif isinstance(item, Wait):
            items.append((_WAIT, 0, item.collective))
        elif isinstance(item, CopyBack):
            items.append((_COPY_BACK, item.duration_ns, item.bucket))
    columns = np.array(items, dtype=np.int64).reshape(len(items), 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def factors_of(effects: Effects) -> Factors:
    """``effects`` as kernels read them."""
    return Factors(
        effects.channels,
        effects.launch_cost_ns,
        effects.launch_blocks_compute,
        float(effects.compute_slowdown),
        float(effects.comm_slowdown),
        float(effects.channel_slowdown),
        float(effects.copy_in_slowdown),
        float(effects.copy_out_slowdown),
        float(effects.comm_copy_out_slowdown),
    )


@compiled
def exact_product(a: float, b: float) -> tuple[float, float]:
    """``a * b``, exactly, as the sum of two floats."""
    high = a * b
    split = 134217729.0 * a  # 2**27 + 1
    a_high = split - (split - a)
    a_low = a - a_high
    split = 134217729.0 * b
    b_high = split - (split - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@compiled
def exact_sum(a: float, b: float) -> tuple[float, float]:
    """``a + b``, exactly, as the sum of two floats."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


@compiled
def work_left(
    left: float, left_low: float, elapsed: float, rate: float, rate_low: float
) -> tuple[float, float, bool]:
    """What is left after ``elapsed`` ns in which work took ``rate`` times as long, and whether exactly so."""
    done = elapsed / rate
    product, product_low = exact_product(done, rate)
    rest = (elapsed - product) - product_low - done * rate_low
    done_low = rest / rate
    high, low = exact_sum(left, -done)
    high, low = exact_sum(high, low + (left_low - done_low))
    return high, low, rest == 0.0 and rate_low == 0.0


@compiled
def rounded_end(
    elapsed: float, left: float, left_low: float, rate: float, rate_low: float, whole: float, changes: int
) -> tuple[int, bool]:
    """``elapsed + left * rate`` rounded half to even, and whether that is sure.

    ``whole`` is the work in all, ``changes`` how often what is left of it was not exact.
    """
    product, product_low = exact_product(left, rate)
    total, total_low = exact_sum(elapsed, product)
    total_low += product_low + (left * rate_low + left_low * rate)
    floor = np.floor(total)
    above_half = ((total - floor) - 0.5) + total_low
    rounded = int(floor)
    if above_half > 0 or (above_half == 0 and rounded & 1):
        rounded += 1
    if changes == 0 and rate_low == 0.0:
        return rounded, True
    return rounded, abs(above_half) > (changes + 1) * (total + whole * rate) * 2.0**-95


@compiled
def _play_many(factors: Factors, kinds: Ints, durations: Ints, numbers: Ints, services: Ints) -> Ints:
    made = np.empty((services.shape[0], 4), np.int64)
    for machine in range(services.shape[0]):
        made[machine] = _play(factors, kinds, durations, numbers, services[machine])
    return made


@compiled
def _play(
    factors: Factors, kinds: Ints, durations: Ints, numbers: Ints, services: Ints
) -> tuple[int, int, int, int]:
    """One machine, from instant to instant, as ``clock.recurrence`` steps: the columns of ``Played``.

    Of a task under way: ``whole`` work, when it ``began``, what was ``left`` at the last change of rate
    (``since``), and when it is ``due`` at today's. The last place of these arrays is the lane.
    """
    lane = services.size
    whole, began, since, due, changes, launched = np.zeros((6, lane + 1), np.int64)
    left, left_low, rate, rate_low = np.zeros((4, lane + 1), np.float64)
    clear, done = np.zeros((2, lane + 1), np.bool_)
    under_way = np.empty(min(lane, factors.channels) + 1, np.int64)
    in_service = turn = begun = item = 0
    busy = _IDLE
    now = last_launch = comm_ns = overlapped_ns = 0
    sure = True
    while True:
        # All that happens at this instant without taking time.
        settled = False
        while not settled:
            while busy == _IDLE and item < kinds.size:
                kind = kinds[item]
                if kind == _WAIT and not done[numbers[item]]:
                    break
                if kind == _LAUNCH and not factors.blocks:
                    last_launch = max(last_launch, now) + factors.launch_cost_ns
                    launched[turn] = last_launch
                    turn += 1
                elif durations[item] > 0:
                    busy, whole[lane] = kind, durations[item]
                    began[lane], rate[lane] = now, 0.0
                elif kind == _LAUNCH:
                    launched[turn] = now
                    turn += 1
                item += 1
            if busy == _IDLE and item == kinds.size:
                return now, comm_ns, overlapped_ns, int(sure)
            settled = True
            while begun < turn and launched[begun] <= now and in_service < factors.channels:
                if services[begun] > 0:
                    under_way[in_service] = begun
                    in_service += 1
                    whole[begun], began[begun] = services[begun], now
                else:
                    done[begun] = True
                    settled = False
                begun += 1
        # How much work stretches from here on, and when it ends at that rate: the whole is rounded, once.
        comm, comm_low, compute, compute_low = 1.0, 0.0, 1.0, 0.0
        if busy != _IDLE:
            comm = factors.comm_copy_out if busy == _COPY_BACK else factors.comm
        if in_service > 1:
            comm, comm_low = exact_product(comm, factors.channel)
        if in_service > 0:
            compute = factors.copy_out if busy == _COPY_BACK else factors.compute
            if busy == _COPY_IN:
                compute, compute_low = exact_product(compute, factors.copy_in)
        then = _NEVER
        if begun < turn and in_service < factors.channels:
            then = launched[begun]
        tasks = in_service
        if busy != _IDLE:
            under_way[tasks] = lane
            tasks += 1
        for k in range(tasks):
            task = under_way[k]
            new, new_low = (compute, compute_low) if task == lane else (comm, comm_low)
            if new != rate[task] or new_low != rate_low[task]:
                if rate[task] == 0.0:
                    left[task], left_low[task], changes[task] = float(whole[task]), 0.0, 0
                else:
                    left[task], left_low[task], is_exact = work_left(
                        left[task], left_low[task], float(now - since[task]), rate[task], rate_low[task]
                    )
                    changes[task] += not is_exact
                since[task], rate[task], rate_low[task] = now, new, new_low
                lasts, clear[task] = rounded_end(
                    float(now - began[task]),
                    left[task],
                    left_low[task],
                    new,
                    new_low,
                    float(whole[task]),
                    changes[task],
                )
                due[task] = began[task] + lasts
            then = min(then, due[task])
        for k in range(tasks):  # a rounding decides where a task ends now, or would with one ns less
            sure &= clear[under_way[k]] or due[under_way[k]] > then + 1
        if in_service > 0:
            comm_ns += then - now
            if busy in (_WORK, _COPY_IN, _LAUNCH):
                overlapped_ns += then - now
        now = then
        kept = 0
        for k in range(in_service):
            if due[under_way[k]] == now:
                done[under_way[k]] = True
            else:
                under_way[kept] = under_way[k]
                kept += 1
        in_service = kept
        if busy != _IDLE and due[lane] == now:
            if busy == _LAUNCH:
                launched[turn] = now
                turn += 1
            busy = _IDLE
