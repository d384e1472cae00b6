"""What the compiled clock plays: the lane's items, collectives and what follows them, as arrays."""

from typing import NamedTuple

from sim.clock.arrays import Ints

# What the lane is at, and its items. Only backward's own work takes longer on a slower rank.
BACKWARD, OTHER_WORK, COPY_IN, LAUNCH, WAIT, COPY_BACK, IDLE, STALLED = range(8)

OWN, ALONE, SHARED, SMALL = range(4)  # columns of ``Machine.rates``, in the order of ``program.Rates``


class Machine(NamedTuple):
    """``program.Effects`` as the clock reads them; ``rates`` [what the lane is at] are its ``Rates``."""

    channels: int
    launch_cost_ns: int
    blocks: bool
    rates: Ints
    small_bytes: int


class Sequels(NamedTuple):
    """What happens after each collective has ended, in the order of launches.

    ``settles``: ns from its end until its result can be used. ``holds``: whether it keeps its channel until
    then, 1 or 0. ``follower``: the first of the collectives that are launched because it ended. ``next``: of
    a collective that follows another, the next one that follows the same. -1 is no collective. Where no
    result settles later and no collective follows another, all four arrays are empty; where none follows, the
    last two are.
    """

    settles: Ints
    holds: Ints
    follower: Ints
    next: Ints


class Sheet(NamedTuple):
    """One micro-batch as each variant of a rank runs it.

    ``kinds``, ``durations``, ``numbers`` [variants, items]: the lane's items, for how many ns, and the
    collective of a launch or a wait. ``services`` [rows, collectives]: in ns, in the order of launches, one
    row for all ranks or one a rank. ``small`` [collectives]: which are small messages, 1 or 0.
    """

    machine: Machine
    kinds: Ints
    durations: Ints
    numbers: Ints
    services: Ints
    small: Ints
    sequels: Sequels
