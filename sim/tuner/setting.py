"""What to set: one round cap, the best buckets that were found, or nothing: one rule for all who tell it."""

from collections.abc import Sequence
from dataclasses import replace

from sim.nouns.recommendation import Gain, Plateau, Setting
from sim.tuner.sweep import SweepRow
from sim.units import format_ms, format_number, format_percent

# MiB: the caps that people set most often, then others that they set.
ROUNDEST_MB = ((25, 1, 4, 10, 100), (2, 5, 8, 16, 20, 32, 50, 64, 128, 200, 256, 512, 1024, 0.5, 0.25))
TOLERANCE = 0.01  # of the best step, as of a plateau
FAR = 0.03  # of a step: caps that are further behind the best buckets are not what to set


def round_cap(rows: Sequence[SweepRow], plateau: Plateau | None = None) -> SweepRow | None:
    """The row of the cap to set: a round cap whose step is within 1 % of the best cap's; None without caps.

    Of several equally round caps it is the fastest; without a round one it is the fastest cap of all. See
    ``plateau.caps_mb`` for the other caps within 1 %, one of each layout.

    Args:
        rows: a sweep over caps, under what-ifs or switches that are the same in all of them.
        plateau: if given, only caps that cannot be told apart from the recommendation are taken, unless none
            of those within 1 % is such a cap.
    """
    caps = {row.bucket_cap_mb: row for row in rows if row.bucket_cap_mb}
    best_ns = min((row.step_ns for row in caps.values()), default=0)
    near = {cap: row for cap, row in caps.items() if row.step_ns <= best_ns * (1 + TOLERANCE)}
    if plateau is not None:
        alike = plateau.alike_mb
        near = {cap: near[cap] for cap in near if any(low <= cap <= high for low, high in alike)} or near
    for usual in (*ROUNDEST_MB, tuple(near)):
        round_ones = [near[cap] for cap in usual if cap in near]
        if round_ones:
            return min(round_ones, key=lambda row: row.step_ns)
    return None


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
    nothing = found = Setting(pick="default", step_ns=default_ns)
    if gain is not None and gain.significant is False:
        return nothing
    row = round_cap(rows, plateau)
    if row is not None and row.bucket_cap_mb is not None and row.step_ns < default_ns:
        cap_mb = row.bucket_cap_mb
        is_far = best_ns is not None and row.step_ns > best_ns * (1 + FAR)
        is_alike = (
            is_far
            and plateau is not None
            and plateau.decided_by == "noise"
            and any(low <= cap_mb <= high for low, high in plateau.alike_mb)
        )
        found = Setting(
            pick="cap",
            step_ns=row.step_ns,
            saved_ns=default_ns - row.step_ns,
            cap_mb=cap_mb,
            cap_step_ns=row.step_ns,
            behind_ns=None if best_ns is None else row.step_ns - best_ns,
            is_alike=is_alike,
        )
        if not is_far or is_alike:
            return found
    if best_ns is None or best_ns >= default_ns:
        return nothing
    return replace(found, pick="recommended", step_ns=best_ns, saved_ns=default_ns - best_ns)


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
