"""The one answer of a page: what to set, played under the switches and beside the ranks of the page."""

from dataclasses import dataclass
from typing import Literal

import sim
from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from sim.errors import SimError
from sim.nouns.recommendation import Recommendation
from sim.nouns.rows import SweepRow
from sim.tuner.setting import find_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to set: one round cap, the best buckets that were found, or nothing, which is DDP's default.

    ``played`` is that, ``default`` DDP's default for the same job, ``best`` the best buckets that were found:
    None where they cannot be had under the switches. ``cap_mb`` is the round cap to set, and ``capped`` its
    step; None where none is faster than the default. ``pick``, ``cap_mb`` and ``is_alike`` are those of a
    ``Setting``.
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
    whether its gain shows, and which caps can be told apart.
    """
    best = _best(inputs, choice)
    setting = find_setting(
        cached.sweep(inputs, choice.options_under_ddp),
        default_ns=default.report.step_ns,
        best_ns=None if best is None else best.report.step_ns,
        gain=found.gain if is_plain else None,
        plateau=found.plateau if is_plain else None,
    )
    capped = None
    if setting.cap_mb is not None:
        options = choice.options_under_ddp
        capped = cached.play(inputs, Choice(pick="cap", cap_mb=setting.cap_mb, options=options))
    played = {"cap": capped, "recommended": best}.get(setting.pick) or default
    return Answer(
        pick=setting.pick,
        played=played,
        default=default,
        best=best,
        cap_mb=setting.cap_mb,
        capped=capped,
        is_alike=setting.is_alike,
    )


def cap_row(inputs: Inputs, choice: Choice, found: Recommendation | None) -> SweepRow | None:
    """The row of the round cap to set, the same on every page; ``found`` where it tells of this very job."""
    rows = cached.sweep(inputs, choice.options_under_ddp)
    return sim.round_cap(rows, None if found is None else found.plateau)


def _best(inputs: Inputs, choice: Choice) -> Played | None:
    try:
        return cached.play(inputs, choice.recommended)
    except SimError:
        return None
