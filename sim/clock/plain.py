"""Many ranks whose work nothing stretches: each lane by itself, and each collective once for all of them.

Until a lane waits for a collective it does not depend on communication: all that others need to know of a
rank is when it launched what. Collectives then start and end together on all ranks.
"""

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.clock.sheet import BACKWARD, COPY_IN, LAUNCH, OTHER_WORK, WAIT, Machine


@compiled
def play_plain(
    machine: Machine,
    kinds: Ints,
    durations: Ints,
    numbers: Ints,
    tails: Ints,
    services: Ints,
    variants: Ints,
    paces: Floats,
    stalled: Ints,
    stall_ns: int,
    begins: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    """One micro-batch of ranks whose backward starts at ``begins``; arrays as in ``Lanes``, and by rank.

    Returns:
        When each rank has its gradients [ranks], when it came to each collective [ranks, collectives], when
        the last rank did, and when the collective ended [collectives].
    """
    ranks, count = begins.size, services.size
    taken = np.empty((ranks, count), np.int64)  # at first when it was launched
    lanes = np.empty(ranks, np.int64)
    last = np.zeros(count, np.int64)
    last[:] = begins.min() if ranks else 0
    for rank in range(ranks):
        variant, pace, now = variants[rank], paces[rank], begins[rank]
        launched = now
        for item in range(tails[variant]):
            kind = kinds[variant, item]
            if kind == BACKWARD:
                now += int(np.rint(durations[variant, item] * pace))
                if item == stalled[rank]:
                    now += stall_ns
            elif kind in (OTHER_WORK, COPY_IN):
                now += durations[variant, item]
            elif kind == LAUNCH:
                if machine.blocks:
                    now += machine.launch_cost_ns
                    launched = now
                else:
                    launched = max(launched, now) + machine.launch_cost_ns
                number = numbers[variant, item]
                taken[rank, number] = launched
                last[number] = max(last[number], launched)
        lanes[rank] = now

    free = np.empty(min(machine.channels, max(count, 1)), np.int64)
    free[:] = begins.min() if ranks else 0
    freed, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    for number in range(count):
        channel = int(free.argmin())
        freed[number] = free[channel]
        last[number] = max(last[number], freed[number])
        ends[number] = last[number] + services[number]
        free[channel] = ends[number]

    for rank in range(ranks):
        for number in range(count):
            taken[rank, number] = max(taken[rank, number], freed[number])
        variant, pace, now = variants[rank], paces[rank], lanes[rank]
        for item in range(tails[variant], kinds.shape[1]):
            kind = kinds[variant, item]
            if kind == WAIT:
                now = max(now, ends[numbers[variant, item]])
            elif kind == BACKWARD:
                now += int(np.rint(durations[variant, item] * pace))
                if item == stalled[rank]:
                    now += stall_ns
            else:
                now += durations[variant, item]
        lanes[rank] = now
    return lanes, taken, last, ends
