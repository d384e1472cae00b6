"""What the tuner does millions of times: service times, one DDP step, the score of a partition.

Times are int64 ns and sizes int64 bytes. A step is played by the compiled clock.
"""

import numpy as np

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.clock.play import play_alone
from sim.clock.program import BACKWARD, COPY_BACK, COPY_IN, FULL_SPEED, LAUNCH, WAIT, Machine
from sim.tuner.search.problem import Tables

NEVER = 1 << 62


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
    services: Ints,
    small: Ints,
    copies_back: Ints,
) -> int:
    """``sync_end_ns`` of one DDP step.

    Args:
        machine: see ``program.Machine``.
        work: ns of backward before each place; ``copy_in``: ns of its copy.
        tail: ns of backward after the last place.
        stops: per bucket in launch order, the place it waits for; the last is the last place.
        services: ns of each bucket's all-reduce alone; ``small``: whether it is a small message, 1 or 0;
            ``copies_back``: ns to copy it back.
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
    return play_alone(machine, kinds[:item], durations[:item], numbers[:item], services, small)


@compiled
def play_many(
    machine: Machine,
    works: Ints,
    copy_in: Ints,
    tails: Ints,
    stops: Ints,
    services: Ints,
    small: Ints,
    copies_back: Ints,
) -> Ints:
    """``play_step`` of each draw.

    ``works`` [draws, places], ``tails`` [draws], ``services`` [draws, buckets].
    """
    ends = np.empty(tails.size, np.int64)
    for k in range(tails.size):
        ends[k] = play_step(machine, works[k], copy_in, tails[k], stops, services[k], small, copies_back)
    return ends


@compiled
def score(machine: Machine, tables: Tables, closes: Flags) -> int:
    """``play_step`` of the partition whose buckets end at ``closes``: one accumulator a run, as in torch."""
    places = tables.run.size
    filled, held = np.zeros(places, np.int64), np.zeros(places, np.int64)  # of what is open, by run
    count = 0
    for place in range(places):
        count += closes[place]
    stops, sent, back = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    small = np.empty(count, np.int64)
    count = 0
    for place in range(places):
        key = tables.run[place]
        filled[key] += tables.wire[place]
        held[key] += tables.copy_back[place]
        if closes[place]:
            stops[count], back[count] = place, held[key]
            sent[count] = service(tables.curve_bytes, tables.curve_ns, filled[key])
            small[count] = filled[key] < machine.small_bytes
            filled[key] = held[key] = 0
            count += 1
    return play_step(machine, tables.work, tables.copy_in, tables.tail, stops, sent, small, back)


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
