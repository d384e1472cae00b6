"""What is left of a recording without its warm-up, and the backwards that a Workload can be made from."""

from dataclasses import dataclass

from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording

FEWEST_BACKWARDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One rank's steps without warm-up, and those of its backwards that a Workload can be made from.

    ``plain`` ran under ``no_sync``: no copies, no launches, no communication in them (A3.12);
    ``synchronised`` have all three. ``dropped`` counts backwards after more than one forward.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    dropped: int


def warmup_steps(recording: Recording) -> int:
    """Steps dropped from the start: the rebuild on a CPU (A2.6), and DDP's host syncs on a GPU (A4.3)."""
    return warmup_by(recording.ranks[0].header.clock)


def warmup_by(clock: str) -> int:
    """As ``warmup_steps``, of a recording on this clock."""
    return 2 if clock == "host" else 11


def keep(recording: Recording) -> tuple[Kept, ...]:
    """By rank, what is left without warm-up steps and without backwards that belong to several forwards."""
    return tuple(_kept(rank, warmup_steps(recording)) for rank in recording.ranks)


def _kept(rank: RecordedRank, warmup: int) -> Kept:
    steps = tuple(step for step in rank.steps if step.step > warmup)
    backwards = [backward for step in steps for backward in step.backwards]
    alone = [backward for backward in backwards if backward.forwards == 1]
    return Kept(
        rank=rank,
        steps=steps,
        plain=tuple(backward for backward in alone if not backward.synchronised),
        synchronised=tuple(backward for backward in alone if backward.synchronised),
        dropped=len(backwards) - len(alone),
    )
