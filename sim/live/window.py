"""Which steps of a recording a prediction is made from, so that all others are steps it has not seen."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from sim.errors import InputError
from sim.importer.recorded.recorded_workload import FEWEST_BACKWARDS, warmup_steps
from sim.live.follower import Followed
from sim.nouns.recording import Recording

_FIRST = 5
_SETTLED = 1.1  # times the median of later steps
FEWEST_STEPS = FEWEST_BACKWARDS
CALIBRATION_STEPS = 20


def live_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The first ``steps`` steps after warm-up that all ranks have finished; None until there are so many.

    Steps that still become shorter count as warm-up, too, as long as ``steps`` others are kept whole.

    Raises:
        InputError: more steps than are kept whole.
    """
    most = followed.whole_steps - steps
    return _whole(
        followed, followed.first, steps, lambda recording, count: first_window(recording, count, most)
    )


def latest_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The last ``steps`` steps that all ranks have finished; None until there are so many.

    Raises:
        InputError: more steps than are kept whole.
    """
    return _whole(followed, followed.latest, steps, last_window)


def _whole(
    followed: Followed,
    recording: Recording | None,
    steps: int,
    window_of: Callable[[Recording, int], Recording],
) -> Recording | None:
    """The window of ``recording`` with ``steps`` steps; None if it has fewer."""
    if recording is None:
        return None
    if steps > followed.whole_steps:
        raise InputError(
            f"steps: {steps} is not legal; of {len(followed.ranks)} ranks {followed.whole_steps} whole steps "
            f"are kept"
        )
    window = window_of(recording, steps)
    return window if len(window.ranks[0].steps) >= steps else None


def first_window(recording: Recording, count: int, most: int = 0) -> Recording:
    """The first ``count`` steps after warm-up that every rank in ``recording`` has.

    Fewer where there are not so many yet; the caller looks at how many it got. Up to ``most`` steps that take
    longer than those after them are skipped.

    Raises:
        InputError: fewer than three steps asked for.
    """
    if count < FEWEST_STEPS:
        raise InputError(f"steps: {count} is not legal; give an integer >= {FEWEST_STEPS}")
    numbers = _common(recording)
    skipped = _settling(recording, numbers, count, most)
    return _only(recording, numbers[skipped : skipped + count])


def last_window(recording: Recording, count: int) -> Recording:
    """The last ``count`` steps that every rank in ``recording`` has."""
    return _only(recording, _common(recording)[-count:])


def _settling(recording: Recording, numbers: list[int], count: int, most: int) -> int:
    """How many of ``numbers``, at most ``most``, are skipped because steps still become shorter.

    Steps have settled where the first ones take no more than ``_SETTLED`` times the median of later ones.
    Later are the second half of the next ``2 * count`` steps: once these exist, the answer stays.
    """
    longest: dict[int, int] = dict.fromkeys(numbers, 0)
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


def _common(recording: Recording) -> list[int]:
    """Numbers of the steps after warm-up that every rank has, ascending."""
    warmup = warmup_steps(recording)
    numbers = [{step.step for step in rank.steps if step.step > warmup} for rank in recording.ranks]
    return sorted(set.intersection(*numbers))


def _only(recording: Recording, numbers: list[int]) -> Recording:
    kept = set(numbers)
    return replace(
        recording,
        ranks=tuple(
            replace(
                rank,
                layouts=tuple(layout for layout in rank.layouts if layout.step <= max(kept, default=0)),
                steps=tuple(step for step in rank.steps if step.step in kept),
            )
            for rank in recording.ranks
        ),
    )
