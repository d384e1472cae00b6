"""What to set: the caps that do as well as the best buckets, the round one of them, and the line on it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Gain, Plateau, Setting
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.caps import CapCurve
from sim.tuner.draws import NO_ITERATIONS
from sim.tuner.gain import Paired
from sim.tuner.sweep import SweepRow
from sim.units import MIB, format_mib_range, format_ms, format_number, format_percent

TOLERANCE = 0.01  # of the best cap's step: caps within it come near
FAR = 0.03  # of a step: caps that are further behind the best buckets are not what to set
MOST_PLAYED = 1 << 21  # draws times gradients, of all caps that are played
# MiB: the caps that people set most often, then others that they set.
ROUNDEST_MB = ((25, 1, 4, 10, 100), (2, 5, 8, 16, 20, 32, 50, 64, 128, 200, 256, 512, 1024, 0.5, 0.25))

_MOST_STRETCHES = 4
_BYTE_MB, _LEAST_MB = 2.0**-20, 0.01  # nobody sets less than the latter
_TOUCHES = 1.005  # the same number, told to three digits


def find_plateau(curve: CapCurve, paired: Paired, best: Assignment) -> Plateau:
    """The plateau of the curve of caps, against ``best``, which is recommended.

    A cap, or DDP's default, is as good as what is recommended unless that is significantly better. With fewer
    than two recorded iterations nothing is significant: then a cap is as good if its step is within 1 % of
    the best cap's; so are, of very many layouts of very many gradients, those judged that are not nearest to
    the best.
    """
    draws, problem = paired.draws, paired.draws.problem
    steps, default_ns, nearly_ns = curve.steps_ns, problem.default_ns, curve.best_ns * (1 + TOLERANCE)
    alike, holds_default = steps <= nearly_ns, paired.is_as_good(problem.default, best, default_ns)
    is_among, by_noise = bool(default_ns <= nearly_ns), NO_ITERATIONS not in draws.not_known
    if by_noise:
        is_among = holds_default
        affordable = max(1, MOST_PLAYED // (len(draws) * max(1, len(problem))))
        for at in np.argsort(steps, kind="stable")[:affordable].tolist():
            made = assign(problem.workload, bucket_cap_mb=curve.cap_mb(at))
            alike[at] = paired.is_as_good(made, best, int(steps[at]))
    highs = np.where(curve.high_bytes == NO_LIMIT, problem.workload.total_bytes + 1, curve.high_bytes)
    stretches = tuple(
        (int(curve.low_bytes[first]) / MIB, int(highs[last]) / MIB) for first, last in curve.stretches(alike)
    )
    if not stretches:
        default_is = "cannot be told apart from it" if holds_default else "is not either"
        sentence = f"No cap is as good as what is recommended; DDP's default {default_is}."
    else:
        do = f"are within {TOLERANCE:.0%} of the best cap"
        if by_noise:
            do = "cannot be told apart from what is recommended"
        where = "is among them" if is_among else "is not among them"
        if holds_default and not is_among:
            where += ", but the difference is not significant"
        start = "The curve is flat: caps" if alike.all() else "Caps"
        sentence = f"{start} of {_stretches_words(stretches)} {do}; DDP's default {where}."
    return Plateau(
        caps_mb=tuple(map(curve.cap_mb, np.flatnonzero(alike).tolist())),
        stretches_mb=stretches,
        holds_default=holds_default or is_among,
        is_flat=bool(alike.all()),
        decided_by="noise" if by_noise else "tolerance",
        sentence=sentence,
    )


def _stretches_words(stretches_mb: Sequence[tuple[float, float]]) -> str:
    """Stretches of caps in words, those between which nobody sets a cap as one; of many the widest, by how
    many times its first cap the last is."""
    merged: list[tuple[float, float]] = []
    for first, high in stretches_mb:
        low = first and max(first, min(_LEAST_MB, high))
        touches = merged and low <= merged[-1][1] * _TOUCHES
        merged.append((merged.pop()[0] if touches else low, high))
    widest = sorted(merged, key=lambda ends: (ends[0] + _BYTE_MB) / (ends[1] + _BYTE_MB))
    words = [format_mib_range(low, high) for low, high in sorted(widest[:_MOST_STRETCHES])]
    if more := len(widest) - len(words):
        return f"{', '.join(words)} MiB and {more} narrower stretch{'es' if more > 1 else ''}"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) + " MiB"


def round_cap(rows: Sequence[SweepRow], plateau: Plateau | None = None) -> SweepRow | None:
    """The row of the cap to set: a round cap whose step is within 1 % of the best cap's; None without caps.

    Of several equally round caps it is the fastest; without a round one it is the fastest cap of all.

    Args:
        rows: a sweep over caps, under what-ifs or switches that are the same in all of them.
        plateau: if given, only caps of it are taken, unless none of those within 1 % is such a cap.
    """
    caps = {row.bucket_cap_mb: row for row in rows if row.bucket_cap_mb}
    best_ns = min((row.step_ns for row in caps.values()), default=0)
    near = [cap for cap, row in caps.items() if row.step_ns <= best_ns * (1 + TOLERANCE)]
    near = [cap for cap in near if plateau is not None and holds(plateau, cap)] or near
    for usual in (*ROUNDEST_MB, near):
        if round_ones := [caps[cap] for cap in usual if cap in near]:
            return min(round_ones, key=lambda row: row.step_ns)
    return None


def holds(plateau: Plateau, cap_mb: float) -> bool:
    """Whether a cap (MiB) lies on a plateau."""
    return any(low <= cap_mb <= high for low, high in plateau.stretches_mb)


def find_setting(
    rows: Sequence[SweepRow], *, default_ns: int, best_ns: int, gain: Gain, plateau: Plateau
) -> Setting:
    """The easiest setting that comes near to the best buckets, by steps under the switches of the job.

    Nothing is to be set where the gain is not significant. The best buckets are to be set where no cap is
    faster than the default, or the round one is ``FAR`` behind them and can be told apart.

    Args:
        rows: a sweep over caps under these switches.
        default_ns: the step with what the job has: DDP's default, or its own buckets.
        best_ns: the step of the best buckets.
        gain: what these save.
        plateau: the caps that do as well.
    """
    nothing = found = Setting(pick="default", step_ns=default_ns)
    if gain.significant is False:
        return nothing
    row = round_cap(rows, plateau)
    if row is not None and row.step_ns < default_ns:
        is_far = row.step_ns > best_ns * (1 + FAR)
        found = Setting(
            pick="cap",
            step_ns=row.step_ns,
            saved_ns=default_ns - row.step_ns,
            cap_mb=row.bucket_cap_mb,
            cap_step_ns=row.step_ns,
            behind_ns=row.step_ns - best_ns,
            is_alike=is_far and plateau.decided_by == "noise" and holds(plateau, row.bucket_cap_mb or 0.0),
        )
        if not is_far or found.is_alike:
            return found
    if best_ns >= default_ns:
        return nothing
    return replace(found, pick="recommended", step_ns=best_ns, saved_ns=default_ns - best_ns)


def tell_setting(setting: Setting, against: str) -> str:
    """What to set, in one line; ``against``: what it is compared with, in words."""
    if setting.pick == "default":
        return f"nothing; keep {against}"
    saves = f"{format_ms(setting.step_ns)} a step, {format_ms(setting.saved_ns)} less than {against}"
    if setting.cap_mb is None:
        return f"the recommended buckets: {saves}; no one cap is faster than {against}"
    cap, behind_ns = f"bucket_cap_mb={format_number(setting.cap_mb, 6)}", setting.behind_ns or 0
    best_ns = (setting.cap_step_ns or 0) - behind_ns
    share = format_percent(abs(behind_ns) / best_ns if best_ns else 0.0)
    behind = f"{format_ms(abs(behind_ns))} ({share}) {'more' if behind_ns >= 0 else 'less'} than"
    if setting.pick == "recommended":
        return f"the recommended buckets: {saves}; the best round cap, {cap}, takes {behind} they do"
    alike = "; over steps as they vary the two cannot be told apart" if setting.is_alike else ""
    return f"{cap}: {saves} and {behind} the recommended buckets{alike}"
