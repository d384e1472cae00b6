"""Whether the times of a recording can be true, and by how much to correct those that cannot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from sim.importer.quiet_steps import left_out
from sim.importer.recorded.kept_steps import Kept
from sim.metrics.noise import median_interval
from sim.nouns.devices import serialised_by
from sim.units import format_ms, format_ranks, median_ns

# Shares of a median: two phases of one job differ by less from run to run anyway.
_LITTLE = 0.03
_DRIFT = 0.05
_ASIDE = (
    "gradients were copied into buckets on another stream than forward ran on, under which DDP had been made "
    "(Lightning up to 2026-05 does so): the copies ran beside backward, and are simulated within it; make "
    "DDP outside of torch.cuda.stream(...) and record again"
)
_FEWEST = 3  # times in a group that is compared
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``pace``: by rank, what the times of its plain backwards are to be divided by. ``doubtful``: sentences
    on what was found and done.
    """

    pace: dict[int, float]
    doubtful: tuple[str, ...]


def check_recording(kept: Sequence[Kept]) -> Checked:
    """Compare what a rank did under ``no_sync`` with what it did beside communication, and early with late.

    Forward has no communication beside it either way: where it took longer in steps with plain backwards the
    machine was slower then, and the times of these backwards are divided by the ratio. A synchronised
    backward does all that a plain one does, and more: a plain one that still takes longer is taken to be as
    long. What several ranks show is told once, with the ranks.
    """
    pace: dict[int, float] = {}
    found: list[_Finding] = []
    for one in kept:
        rank = one.rank.header.rank
        pace[rank], own = _pace(rank, one)
        found += own
    found += [drift for one in kept for drift in _drift(one)]
    said = left_out(kept[0].lengths_ns, kept[0].lengths_ns.keys() - kept[0].loud)
    told = [*([said] if said else []), *_told(found)]
    told += [_ASIDE] if any(step.aside for one in kept for step in one.steps) else []
    told += dict.fromkeys(line for one in kept for line in serialised_by(one.rank.header.environment))
    return Checked(pace=pace, doubtful=tuple(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What one rank shows: a time in ns against another, the ratio that mends it (0: none), and the sentence
    about them, with places for the three.
    """

    rank: int
    sentence: str
    one_ns: int
    other_ns: int
    ratio: float = 0.0


def _finding(
    rank: int, sentence: str, ones: Sequence[int], others: Sequence[int], ratio: float = 0.0
) -> _Finding:
    return _Finding(
        rank=rank, sentence=sentence, one_ns=median_ns(ones), other_ns=median_ns(others), ratio=ratio
    )


def _told(found: Sequence[_Finding]) -> list[str]:
    """Each sentence once, with the ranks that it is true of and from where to where their times go."""
    alike: dict[str, list[_Finding]] = {}
    for one in found:
        alike.setdefault(one.sentence, []).append(one)
    return [
        f"{format_ranks([one.rank for one in group])}: "
        + sentence.format(
            one=_span([one.one_ns for one in group], format_ms),
            other=_span([one.other_ns for one in group], format_ms),
            ratio=_span([one.ratio for one in group], "{:.2f}".format),
        )
        for sentence, group in alike.items()
    ]


def _span(values: Sequence[_Number], shown: Callable[[_Number], str]) -> str:
    ends = dict.fromkeys(shown(end) for end in (min(values), max(values)))
    return " to ".join(ends)


def _pace(rank: int, one: Kept) -> tuple[float, list[_Finding]]:
    if min(len(one.plain), len(one.synchronised)) < _FEWEST:
        return 1.0, []
    found = []
    pace = 1.0
    plain, beside = ([b.forward_ns for b in backwards] for backwards in (one.plain, one.synchronised))
    if _apart(plain, beside, _LITTLE):
        pace = median_ns(plain) / max(1, median_ns(beside))
        sentence = (
            "forward took {one} before plain backwards and {other} before synchronised ones: the machine was "
            f"{'slower' if pace > 1 else 'faster'} then, and the plain times are divided by {{ratio}}"
        ) + _when(one)
        found.append(_finding(rank, sentence, plain, beside, pace))
    plain = [round(b.backward_ns / pace) for b in one.plain]
    beside = [b.backward_ns for b in one.synchronised]
    if median_ns(plain) > median_ns(beside) and _apart(plain, beside, 0):
        extra = median_ns(plain) / max(1, median_ns(beside))
        pace *= extra
        sentence = (
            "a plain backward took {one}, one beside communication {other}, which cannot be: the plain times "
            "are divided by {ratio}, so that what communication costs computation is not known"
        ) + _when(one)
        found.append(_finding(rank, sentence, plain, beside, extra))
    return pace, found


def _when(one: Kept) -> str:
    """What to do about plain backwards recorded apart from the others; empty where they were not."""
    kinds = [all(b.synchronised for b in step.backwards) for step in one.steps]
    changes = sum(before != after for before, after in pairwise(kinds))
    return "" if changes > 2 else "; record plain backwards between the others, not before or after them"


def _drift(one: Kept) -> list[_Finding]:
    """What later steps take, if it is another time than that of earlier ones, of those like the last step."""
    manner = [b.synchronised for b in one.steps[-1].backwards] if one.steps else []
    alike = [step for step in one.steps if [b.synchronised for b in step.backwards] == manner]
    half = len(alike) // 2
    if half < _FEWEST:
        return []
    early, late = ([step.step_ns for step in part] for part in (alike[:half], alike[-half:]))
    if not _apart(early, late, _DRIFT):
        return []
    sentence = (
        f"steps {alike[0].step} to {alike[half - 1].step} took {{one}}, steps {alike[-half].step} to "
        f"{alike[-1].step} {{other}}: the machine changed meanwhile, and a median is of neither; record again"
    )
    return [_finding(one.rank.header.rank, sentence, early, late)]


def _apart(ones: Sequence[int], others: Sequence[int], least: float) -> bool:
    """Whether medians differ by more than ``least`` of the smaller, with 95 % intervals that are apart."""
    smaller, larger = sorted((median_ns(ones), median_ns(others)))
    if larger <= (1 + least) * smaller:
        return False
    (low, high), (other_low, other_high) = median_interval(ones), median_interval(others)
    return low > other_high or other_low > high
