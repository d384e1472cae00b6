"""The one answer of a page: what to set, played under the switches and beside the ranks of the page."""

from dataclasses import dataclass, replace
from typing import Literal

import sim
from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from sim.errors import SimError
from sim.nouns.recommendation import Recommendation
from sim.nouns.rows import SweepRow

FAR = 0.03  # of a step: caps that are further behind the best buckets are not what to set


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to set: one round cap, the best buckets that were found, or nothing, which is DDP's default.

    ``played`` is that, ``default`` DDP's default for the same job, ``best`` the best buckets that were found:
    None where they cannot be had under the switches. ``cap_mb`` is the round cap to set, and ``capped`` its
    step; of pick ``recommended`` the one that comes nearest to the best buckets, None where none is faster
    than the default. ``is_alike``: that is ``FAR`` behind, but over steps as they vary not to be told apart.
    """

    pick: Literal["cap", "recommended", "default"]
    played: Played
    default: Played
    best: Played | None
    cap_mb: float | None = None
    capped: Played | None = None
    is_alike: bool = False

    @property
    def saved_ns(self) -> int:
        """What it saves of the step under DDP's default."""
        return self.default.report.step_ns - self.played.report.step_ns

    @property
    def behind_ns(self) -> int | None:
        """How much longer the step of the cap is than under the best buckets that were found."""
        if self.best is None or self.capped is None:
            return None
        return self.capped.report.step_ns - self.best.report.step_ns


def find_answer(
    inputs: Inputs, choice: Choice, found: Recommendation, default: Played, *, is_plain: bool
) -> Answer:
    """What to set for the job of ``choice``, from the sweep over caps under its switches.

    ``is_plain``: neither switches nor a slowest rank are in force, so that ``found`` tells of this very job
    whether its gain shows, and which caps can be told apart. The best buckets are the answer where no cap is
    faster than the default, or all are ``FAR`` behind them and can be told apart.
    """
    best = _best(inputs, choice)
    row = cap_row(inputs, choice, found if is_plain else None)
    answer = Answer(pick="default", played=default, default=default, best=best)
    if is_plain and found.gain.significant is False:
        return answer
    if row is not None and row.bucket_cap_mb is not None and row.step_ns < default.report.step_ns:
        cap_mb = row.bucket_cap_mb
        capped = cached.play(inputs, Choice(pick="cap", cap_mb=cap_mb, options=choice.options_under_ddp))
        answer = replace(answer, cap_mb=cap_mb, capped=capped)
        is_far = best is not None and capped.report.step_ns > best.report.step_ns * (1 + FAR)
        is_alike = is_far and is_plain and _is_alike(found, cap_mb)
        if is_alike or not is_far:
            return replace(answer, pick="cap", played=capped, is_alike=is_alike)
    if best is not None and best.report.step_ns < default.report.step_ns:
        return replace(answer, pick="recommended", played=best)
    return answer


def _is_alike(found: Recommendation, cap_mb: float) -> bool:
    plateau = found.plateau
    return plateau.decided_by == "noise" and any(low <= cap_mb <= high for low, high in plateau.alike_mb)


def cap_row(inputs: Inputs, choice: Choice, found: Recommendation | None) -> SweepRow | None:
    """The row of the round cap to set, the same on every page; ``found`` where it tells of this very job."""
    rows = cached.sweep(inputs, choice.options_under_ddp)
    return sim.round_cap(rows, None if found is None else found.plateau)


def _best(inputs: Inputs, choice: Choice) -> Played | None:
    try:
        return cached.play(inputs, choice.recommended)
    except SimError:
        return None
