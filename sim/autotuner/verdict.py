"""Whether the steps of a trial show a gain. The trial is judged several times, with 5 % error in all.

Steps come in pairs, the buckets in use and the candidate, in an order that is drawn for each pair: what
drifts cancels, and what comes back every so many steps (batches that four workers load) meets both alike.
All pairs so far are judged after a number of steps that doubles each time; the interval of a look is wider
than 95 %, so that those of all looks hold together 95 % of the time (Pocock). Of simulated trials without any
gain (normal, heavy-tailed, drifting, in two modes, with a period) 1 to 4 % were kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from sim.truth.turns import AbTest, Turns, judge_turns
from sim.units import format_percent

# Two-sided levels of each of so many looks that together leave 5 % (Pocock 1977).
_POCOCK = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
NOT_WORTH = 0.005  # of the step: a trial ends early if its interval allows no larger gain


def looks(first: int, most: int) -> tuple[int, ...]:
    """After how many steps the trial is judged: ``first``, doubled until ``most``; whole pairs."""
    found = [first + first % 2]
    while 2 * found[-1] < most and len(found) < len(_POCOCK) - 1:
        found.append(2 * found[-1])
    if most - most % 2 > found[-1]:
        found.append(most - most % 2)
    return tuple(found)


def is_candidate_turn(step: int, draw: int) -> bool:
    """Whether step ``step`` of a trial is the candidate's, in the trial that ``draw`` stands for."""
    pair, place = divmod(step, 2)
    return Random(f"{draw} {pair}").getrandbits(1) == place


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the steps so far say; ``keeps`` None: more are needed."""

    keeps: bool | None
    why: str
    ab: AbTest


def judge(
    times_ns: Sequence[int],
    draw: int,
    count: int,
    *,
    name: str,
    world_size: int,
    plain_ns: int,
    is_last: bool,
) -> Verdict:
    """The verdict on the steps of a trial, in the order in which they ran.

    Args:
        times_ns: of the slowest rank, one a step.
        draw: what the order of the steps was drawn from.
        count: how many looks there are in all.
        name: of the job.
        world_size: ranks.
        plain_ns: the step without communication, as far as it is known.
        is_last: whether this is the last look.
    """
    sides: tuple[list[int], list[int]] = ([], [])
    for step, time in enumerate(times_ns):
        sides[is_candidate_turn(step, draw)].append(time)
    ab = judge_turns(
        Turns(default=sides[0], recommended=sides[1], plain=[plain_ns]),
        name=name,
        world_size=world_size,
        level=1 - _POCOCK[count - 1],
    )
    of_step, low, high = (
        format_percent(share, sign=True)
        for share in (ab.gain_fraction, ab.gain_low_fraction, ab.gain_high_fraction)
    )
    gain = f"{of_step} of a step, 95 % interval {low} to {high}, {ab.rounds} pairs of steps"
    if ab.significant and ab.gain_low_ns > 0:
        return Verdict(keeps=True, why=f"faster by {gain}", ab=ab)
    if ab.gain_high_fraction < NOT_WORTH:
        return Verdict(keeps=False, why=f"no gain worth having: {gain}", ab=ab)
    if not is_last:
        return Verdict(keeps=None, why=f"no gain shown yet: {gain}", ab=ab)
    why = (
        f"no gain shown: {gain}, which leave open whether there is one; DDP's own buckets are back; "
        f"max_verify_steps above {len(times_ns)} gives a longer trial"
    )
    return Verdict(keeps=False, why=why, ab=ab)
