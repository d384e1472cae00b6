"""What is left of a recording without its warm-up, and the backwards that a Workload can be made from."""

from collections import defaultdict
from dataclasses import dataclass, field

from sim.importer.quiet_steps import quiet_numbers
from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording

FEWEST_BACKWARDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One rank's steps without warm-up, and those of its backwards that a Workload can be made from.

    ``plain`` ran under ``no_sync``: no copies, no launches, no communication in them (A3.12);
    ``synchronised`` have all three. ``dropped`` counts backwards after more than one forward; ``loud`` are
    steps left out as ``loud_steps`` says, and ``lengths_ns`` what they and their likes took, by step number.
    """

    rank: RecordedRank
    steps: tuple[RecordedStep, ...]
    plain: tuple[RecordedBackward, ...]
    synchronised: tuple[RecordedBackward, ...]
    dropped: int
    loud: frozenset[int] = frozenset()
    lengths_ns: dict[int, int] = field(default_factory=dict)


def warmup_steps(recording: Recording) -> int:
    """Steps dropped from the start: the rebuild on a CPU (A2.6), and DDP's host syncs on a GPU (A4.3)."""
    return warmup_by(recording.ranks[0].header.clock)


def warmup_by(clock: str) -> int:
    """As ``warmup_steps``, of a recording on this clock."""
    return 2 if clock == "host" else 11


def keep(recording: Recording) -> tuple[Kept, ...]:
    """By rank, what is left without warm-up steps, those that ``loud_steps`` names, and backwards that belong
    to several forwards.
    """
    loud, lengths = loud_steps(recording)
    return tuple(_kept(rank, warmup_steps(recording), loud, lengths) for rank in recording.ranks)


def loud_steps(recording: Recording) -> tuple[frozenset[int], dict[int, int]]:
    """Numbers of steps that no median is to be taken over, and how long they and their likes took.

    Steps that ran the same forwards and backwards are compared, each by the rank that took longest. A median
    stands as long as most of them are quiet; where half of them or more take a multiple of the quiet ones,
    those are left out. Where no two are alike all stay.
    """
    longest: dict[tuple[tuple[int, bool], ...], dict[int, int]] = defaultdict(dict)
    for step in (
        step for rank in recording.ranks for step in rank.steps if step.step > warmup_steps(recording)
    ):
        lengths = longest[tuple((one.forwards, one.synchronised) for one in step.backwards)]
        lengths[step.step] = max(lengths.get(step.step, 0), step.step_ns)
    loud: set[int] = set()
    compared: dict[int, int] = {}
    for lengths in longest.values():
        quiet = quiet_numbers(lengths, on_gpu=recording.ranks[0].header.clock != "host")
        if quiet and 2 * len(quiet) <= len(lengths):
            loud |= lengths.keys() - quiet
            compared |= lengths
    return frozenset(loud), compared


def _kept(rank: RecordedRank, warmup: int, loud: frozenset[int], lengths_ns: dict[int, int]) -> Kept:
    steps = tuple(step for step in rank.steps if step.step > warmup and step.step not in loud)
    backwards = [backward for step in steps for backward in step.backwards]
    alone = [backward for backward in backwards if backward.forwards == 1]
    return Kept(
        rank=rank,
        steps=steps,
        plain=tuple(backward for backward in alone if not backward.synchronised),
        synchronised=tuple(backward for backward in alone if backward.synchronised),
        dropped=len(backwards) - len(alone),
        loud=loud,
        lengths_ns=lengths_ns,
    )
