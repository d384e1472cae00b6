"""The one answer of a page: what to set, played under the switches and beside the ranks of the page."""

from dataclasses import dataclass
from typing import Literal

import sim
from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Recommendation
from sim.tuner.setting import find_setting
from sim.tuner.spread.gain import DEFAULT_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to set: one round cap, the best buckets that were found, or nothing.

    ``played`` is that, ``default`` what it is held against, in words ``against``: DDP's default for the same
    job, or the buckets that a recorded job had. ``best`` is the best buckets that were found:
    None where they cannot be had under the switches. ``cap_mb`` is the round cap to set, and ``capped`` its
    step; None where none is faster than the default. ``pick``, ``cap_mb`` and ``is_alike`` are those of a
    ``Setting``. ``why_none``: why no gain can be told, under any switches; empty where one can.
    """

    pick: Literal["cap", "recommended", "default"]
    played: Played
    default: Played
    best: Played | None
    cap_mb: float | None = None
    capped: Played | None = None
    is_alike: bool = False
    against: str = DEFAULT_WORDS
    why_none: str = ""

    @property
    def saved_ns(self) -> int:
        """What it saves of the step that it is held against."""
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

    ``is_plain``: neither switches nor a slowest rank are in force, so that ``found`` says of this very job
    what to set.
    """
    best = _best(inputs, choice)
    in_use = None
    if is_plain and found.against != DEFAULT_WORDS and inputs.workload.job is not None:
        in_use = Assignment(bucket_indices=inputs.workload.job.bucket_indices)
        default = cached.play(inputs, Choice(pick="given", given=in_use))
    setting = found.setting if is_plain or found.gain.refuted else None
    if setting is None:
        setting = find_setting(
            cached.sweep(inputs, choice.options_under_ddp),
            default_ns=default.report.step_ns,
            best_ns=None if best is None else best.report.step_ns,
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
        against=DEFAULT_WORDS if in_use is None else found.against,
        why_none=found.gain.sentence if found.gain.refuted else "",
    )


def round_cap_mb(inputs: Inputs, choice: Choice, found: Recommendation | None) -> float | None:
    """The round cap to set, the same on every page; where none is to be set the one that comes nearest to it.

    ``found``: where it tells of this very job.
    """
    if found is not None and found.setting is not None and found.setting.cap_mb is not None:
        return found.setting.cap_mb
    rows = cached.sweep(inputs, choice.options_under_ddp)
    row = sim.round_cap(rows, None if found is None else found.plateau)
    return None if row is None else row.bucket_cap_mb


def _best(inputs: Inputs, choice: Choice) -> Played | None:
    try:
        return cached.play(inputs, choice.recommended)
    except SimError:
        return None
