"""Which steps of a running job its prediction is made from: the first ones after warm-up, on all ranks.

All other steps are ones that a prediction has not seen.
"""

from dataclasses import replace
from statistics import median

from sim.errors import InputError
from sim.importer.recorded import FEWEST_BACKWARDS, warmup_steps
from sim.live.follower import Followed
from sim.nouns.recording import Recording

CALIBRATION_STEPS = 20
_FIRST = 5
_SETTLED = 1.1  # times the median of later steps


def live_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The first ``steps`` steps after warm-up that all ranks have finished; None until there are so many.

    Steps that still become shorter count as warm-up, too, as long as ``steps`` others are kept whole.

    Raises:
        InputError: fewer than three steps, or more than are kept whole.
    """
    kept = followed.first
    if kept is None:
        return None
    if steps < FEWEST_BACKWARDS:
        raise InputError(f"steps: {steps} is not legal; give an integer >= {FEWEST_BACKWARDS}")
    if steps > followed.whole_steps:
        raise InputError(
            f"steps: {steps} is not legal; of {len(followed.ranks)} ranks {followed.whole_steps} whole steps "
            f"are kept"
        )
    warmup = warmup_steps(kept.ranks[0].header.clock)
    on_ranks = [{step.step for step in rank.steps if step.step > warmup} for rank in kept.ranks]
    numbers = sorted(set.intersection(*on_ranks))
    skipped = _settling(kept, numbers, steps, followed.whole_steps - steps)
    numbers = numbers[skipped : skipped + steps]
    if len(numbers) < steps:
        return None
    ranks = []
    for rank in kept.ranks:
        layouts = tuple(layout for layout in rank.layouts if layout.step <= numbers[-1])
        inside = tuple(step for step in rank.steps if step.step in numbers)
        ranks.append(replace(rank, layouts=layouts, steps=inside))
    return replace(kept, ranks=tuple(ranks))


def _settling(recording: Recording, numbers: list[int], count: int, most: int) -> int:
    """How many of ``numbers``, at most ``most``, are skipped because steps still become shorter.

    Steps have settled where the first ones take no more than ``_SETTLED`` times the median of later ones.
    Later are the second half of the next ``2 * count`` steps: once these exist, the answer stays.
    """
    longest = dict.fromkeys(numbers, 0)
    for rank in recording.ranks:
        for step in rank.steps:
            if step.step in longest:
                longest[step.step] = max(longest[step.step], step.step_ns)
    took = list(longest.values())
    for skipped in range(min(most, len(took))):
        ahead = took[skipped : skipped + 2 * count]
        longest_ns = _SETTLED * median(ahead[len(ahead) // 2 :])
        if max(ahead[0], median(ahead[:_FIRST])) <= longest_ns:
            return skipped
    return max(0, most)
