"""The manual's table of real training, from ``traces/training``: ``python -m traces.tools.table``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import sim
from sim.metrics.intervals import difference_interval, median_interval
from sim.nouns.measurement import Record
from sim.nouns.recommendation import Gain
from sim.truth.scoring import Agreement
from sim.tuner.draws import DRAWS
from sim.tuner.recommend import gains
from traces.tools.measure import AGAIN

TRACES = Path(__file__).parents[2] / "traces" / "training"
_DEFAULT = "DDP default"
_HEAD = (
    "where",
    "measured, fastest to slowest, ms",
    "noise floor",
    "default, run against recording",
    "parts alone: median, worst",
    "held to its own step: median, worst",
    "pairs in order",
    "regret",
    "gain measured, predicted",
    "gains inside, or as near as can be told",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record; times in ns, errors and ratios as shares.

    ``floor`` is by how much two candidates with the same buckets differ, and half the width of the median's
    95 % interval, whichever is more. ``drift`` is DDP's default in the replay over the recorded step: one
    layout measured twice, minutes apart. ``parts`` and ``held`` are step errors by candidate. ``inside`` of
    ``gains`` over the default were measured within their predicted 95 % interval, of ``near`` the measured
    interval meets it.
    """

    name: str
    fastest_ns: int
    slowest_ns: int
    floor: float
    drift: float
    parts: tuple[float, ...]
    held: tuple[float, ...]
    right: int
    apart: int
    regret: float
    regret_is_noise: bool
    gain_ns: int
    predicted: Gain
    inside: int
    near: int
    gains: int


@cache
def row_of(directory: Path) -> Row:
    """What one record says."""
    record = sim.load_record(directory)
    anchored = replace(sim.as_measured(record), own_step=None)
    held = sim.agreement(anchored)
    alone = sim.agreement(replace(record, own_step=None))
    steps = {one.name: [step.step_ns for step in one.iterations] for one in record.candidates}
    medians = {name: median(times) for name, times in steps.items()}
    best = min(medians, key=medians.__getitem__)
    others = {
        one.name: one.asked for one in record.candidates if one.asked and one.name not in (_DEFAULT, AGAIN)
    }
    told = gains(anchored.workload, anchored.hardware, [*others.values()], seed=0, draws=DRAWS)
    predicted = dict(zip(others, told, strict=True))
    inside, near = _held(predicted, steps)
    low, _ = difference_interval(steps["recommended"], steps[best])
    return Row(
        name=record.name,
        fastest_ns=round(min(medians.values())),
        slowest_ns=round(max(medians.values())),
        floor=_floor(steps, medians),
        drift=medians[_DEFAULT] / _recorded_step_ns(record) - 1,
        parts=_errors(alone),
        held=_errors(held),
        right=held.order_right,
        apart=held.order_pairs,
        regret=medians["recommended"] / medians[best] - 1,
        regret_is_noise=low <= 0,
        gain_ns=round(medians[_DEFAULT] - medians["recommended"]),
        predicted=predicted["recommended"],
        inside=inside,
        near=near,
        gains=len(predicted),
    )


def _errors(agreement: Agreement) -> tuple[float, ...]:
    return tuple(row.step_error for row in agreement.rows)


def _recorded_step_ns(record: Record) -> float:
    assert record.own_step is not None
    return median(step.step_ns for step in record.own_step.iterations)


def _floor(steps: dict[str, list[int]], medians: dict[str, float]) -> float:
    twice = abs(medians[AGAIN] / medians[_DEFAULT] - 1)
    halves = [
        (high - low) / 2 / medians[name]
        for name, times in steps.items()
        for low, high in [median_interval(times)]
    ]
    return max(twice, median(halves))


def _held(each: dict[str, Gain], steps: dict[str, list[int]]) -> tuple[int, int]:
    """Of the gains of all candidates over the default, how many were measured where they were predicted."""
    inside = near = 0
    for name, predicted in each.items():
        assert predicted.low_ns is not None
        assert predicted.high_ns is not None
        gain = median(steps[_DEFAULT]) - median(steps[name])
        inside += predicted.low_ns <= gain <= predicted.high_ns
        low, high = difference_interval(steps[_DEFAULT], steps[name])
        near += low <= predicted.high_ns and predicted.low_ns <= high
    return inside, near


def cells(row: Row) -> list[str]:
    """One line of the table."""

    def errors(values: Sequence[float]) -> str:
        sizes = [abs(value) for value in values]
        return f"{median(sizes):.1%}, {max(sizes):.1%}"

    predicted = row.predicted
    assert predicted.low_ns is not None
    assert predicted.high_ns is not None
    return [
        f"`{row.name}`",
        f"{row.fastest_ns / 1e6:.0f} to {row.slowest_ns / 1e6:.0f}",
        f"{row.floor:.1%}",
        f"{row.drift:+.1%}",
        errors(row.parts),
        errors(row.held),
        f"{row.right} of {row.apart}",
        f"{row.regret:.1%}" + (", within noise" if row.regret and row.regret_is_noise else ""),
        f"{row.gain_ns / 1e6:.0f} ms, {predicted.gain_ns / 1e6:.0f} "
        f"[{predicted.low_ns / 1e6:.0f} to {predicted.high_ns / 1e6:.0f}]",
        f"{row.inside}, {row.near} of {row.gains}",
    ]


def table(directory: Path = TRACES) -> str:
    """The table in Markdown."""
    rows = [cells(row_of(path)) for path in sim.find_records(directory)]
    lines = [_HEAD, ["---"] * len(_HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    print(table())
