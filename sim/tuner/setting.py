"""What to set: one round cap, the best buckets that were found, or nothing: one rule for all who tell it."""

from collections.abc import Sequence

from sim.nouns.recommendation import Gain, Plateau, Setting
from sim.nouns.rows import SweepRow
from sim.tuner.sweeps.usual_caps import round_cap
from sim.units import format_ms, format_number, format_percent

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


def tell_setting(setting: Setting, against: str) -> str:
    """What to set, in one line; ``against``: what it is compared with, in words."""
    if setting.pick == "default":
        return f"nothing; keep {against}"
    saves = f"{format_ms(setting.step_ns)} a step, {format_ms(setting.saved_ns)} less than {against}"
    if setting.cap_mb is None:
        return f"the recommended buckets: {saves}; no one cap is faster than {against}"
    behind_ns = setting.behind_ns or 0
    best_ns = (setting.cap_step_ns or 0) - behind_ns
    behind = f"{format_ms(behind_ns)} ({format_percent(behind_ns / best_ns if best_ns else 0.0)}) more than"
    if setting.pick == "cap":
        alike = "; over steps as they vary the two cannot be told apart" if setting.is_alike else ""
        return (
            f"bucket_cap_mb={format_number(setting.cap_mb, 6)}: {saves} and {behind} the recommended "
            f"buckets{alike}"
        )
    return (
        f"the recommended buckets: {saves}; the best round cap, "
        f"bucket_cap_mb={format_number(setting.cap_mb, 6)}, takes "
        f"{behind} they do"
    )
