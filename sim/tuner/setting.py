"""What to set: one round cap, the best buckets that were found, or nothing: one rule for all who tell it."""

from collections.abc import Sequence

from sim.nouns.recommendation import Gain, Plateau, Setting
from sim.nouns.rows import SweepRow
from sim.tuner.sweeps.usual_caps import round_cap

FAR = 0.03  # of a step: caps that are further behind the best buckets are not what to set


def find_setting(
    rows: Sequence[SweepRow],
    *,
    default_ns: int,
    best_ns: int | None,
    gain: Gain | None = None,
    plateau: Plateau | None = None,
) -> Setting:
    """The easiest setting that comes near to the best buckets, by steps under the switches of the job.

    Nothing is to be set where the gain is not significant. The best buckets are to be set where no cap is
    faster than the default, or the round one is ``FAR`` behind them and can be told apart.

    Args:
        rows: a sweep over caps.
        default_ns: the step with what the job has: DDP's default, or its own buckets.
        best_ns: the step of the best buckets; None where they cannot be had.
        gain: of these very steps, where it is known.
        plateau: the caps that can be told apart from the best buckets, where that is known.
    """
    if gain is not None and gain.significant is False:
        return Setting(pick="default", step_ns=default_ns)
    row = round_cap(rows, plateau)
    found = Setting(pick="default", step_ns=default_ns)
    if row is not None and row.bucket_cap_mb is not None and row.step_ns < default_ns:
        cap_mb = row.bucket_cap_mb
        behind_ns = None if best_ns is None else row.step_ns - best_ns
        is_far = best_ns is not None and row.step_ns > best_ns * (1 + FAR)
        is_alike = (
            is_far
            and plateau is not None
            and plateau.decided_by == "noise"
            and any(low <= cap_mb <= high for low, high in plateau.alike_mb)
        )
        capped = Setting(
            pick="cap",
            step_ns=row.step_ns,
            saved_ns=default_ns - row.step_ns,
            cap_mb=cap_mb,
            cap_step_ns=row.step_ns,
            behind_ns=behind_ns,
            is_alike=is_alike,
        )
        if not is_far or is_alike:
            return capped
        found = capped
    if best_ns is not None and best_ns < default_ns:
        return Setting(
            pick="recommended",
            step_ns=best_ns,
            saved_ns=default_ns - best_ns,
            cap_mb=found.cap_mb,
            cap_step_ns=found.cap_step_ns,
            behind_ns=found.behind_ns,
        )
    return Setting(pick="default", step_ns=default_ns)
