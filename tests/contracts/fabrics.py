"""Systems that others measured, predicted from published figures, from three points, and from fewer ranks.

And how GPT-2 124M scales on two machines of A100.

``python -m tests.contracts.fabrics`` prints the manual's tables, from figures in ``tests/published``.
Errors are medians of |predicted / measured - 1| over the sizes of 1 MiB to 1 GiB that were not given.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import sim
from sim.clusters.computed import uncertainty
from sim.clusters.extrapolation import MeasuredCurve, extrapolate
from sim.clusters.nccl_model import collective_ns
from sim.clusters.scaling import ScalingRow
from sim.columns import SCALING, Column, markdown, plain
from sim.nouns.hardware import Curve
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from tests.clusters.published_fabrics import (
    BY_NAME,
    ELSEWHERE,
    SYSTEMS,
    System,
    measured,
    median_error,
    three_of,
)

FEWER = ("alps, 4 GH200", "alps, 8 GH200", "alps, 16 GH200")
MORE = "alps, 32 GH200"


def by_figures(system: System) -> float:
    """The error from data sheets alone."""
    points = measured(system)
    return median_error((collective_ns(system.fabric, "all_reduce", p.num_bytes) for p in points), points)


def by_three_points(system: System) -> tuple[float, float]:
    """The error at the other sizes when three are measured, and the share of them within the stated range."""
    points = measured(system)
    three = three_of(points)
    rest = tuple(point for point in points if point not in three)
    return _scored([MeasuredCurve(fabric=system.fabric, curve=three)], system, rest)


def by_fewer_ranks() -> tuple[float, float]:
    """The same of 32 GPUs on Alps, from the curves of 4, 8 and 16."""
    fewer = [BY_NAME[name] for name in FEWER]
    known = [MeasuredCurve(fabric=each.fabric, curve=measured(each)) for each in fewer]
    return _scored(known, BY_NAME[MORE], measured(BY_NAME[MORE]))


def within(system: System) -> float:
    """The share of sizes that lie within the range stated without any measurement."""
    low, high = uncertainty(system.fabric)
    ratios = [
        point.duration_ns / collective_ns(system.fabric, "all_reduce", point.num_bytes)
        for point in measured(system)
    ]
    return sum(low <= ratio <= high for ratio in ratios) / len(ratios)


def _scored(known: Sequence[MeasuredCurve], system: System, points: Curve) -> tuple[float, float]:
    found = extrapolate(known, system.fabric, [point.num_bytes for point in points])
    pairs = zip(found, points, strict=True)
    inside = [each.least_ns <= point.duration_ns <= each.greatest_ns for each, point in pairs]
    return median_error((each.duration_ns for each in found), points), sum(inside) / len(inside)


def fabric_rows() -> Iterator[str]:
    """Each system: its error by figures alone and by three points, and what is missing beyond the aims."""
    yield (
        "| system | figures alone | in its range | three points | in its range | what figures alone lack |"
    )
    yield "|---" * 6 + "|"
    for system in SYSTEMS:
        alone, sizes = by_figures(system), within(system)
        three, inside = by_three_points(system)
        yield (
            f"| {system.name} | {alone:.1f} % | {sizes:.0%} | {three:.1f} % | {inside:.0%} | "
            f"{system.missing} |"
        )
    error, inside = by_fewer_ranks()
    yield f"| {MORE}, from the curves of 4, 8 and 16 |  |  | {error:.1f} % | {inside:.0%} |  |"


def preset_rows() -> Iterator[str]:
    """Presets against machines that were looked up once the model was made."""
    yield "| preset | error by figures alone | sizes |"
    yield "|---|---|---|"
    for machine in ELSEWHERE:
        sizes = sorted(machine.time_us)
        yield f"| {machine.name} | {machine.error():.1f} % | {sizes[0]} MiB to {sizes[-1]} MiB |"


def summary() -> str:
    """How many systems meet each aim, and the means."""
    alone = [by_figures(system) for system in SYSTEMS]
    three = [by_three_points(system)[0] for system in SYSTEMS]
    near, nearer = (sum(error <= aim for error in alone) for aim in (20, 15))
    return (
        f"Of {len(SYSTEMS)} systems {nearer} are within 15 % by figures alone ({near} within 20 %), and "
        f"{sum(error <= 7 for error in three)} within 7 % with three points."
    )


# How GPT-2 124M scales: ``bucketsim estimate`` of the model, and ``bucketsim scaling`` on each machine.

MODEL: dict[str, Any] = {"model_type": "gpt2", "batch": 16, "tokens": 512}
BACKWARD_MS = 60
RDMA: dict[str, list[Any]] = {"gpus": [1], "gbit_per_s": [100], "protocol": ["rdma"]}
MACHINES: tuple[tuple[str, dict[str, list[Any]], tuple[int, ...]], ...] = (
    ("dgx_a100", {}, (1, 2, 16, 128, 12_500)),
    ("pcie_hosts", RDMA, (2, 4, 8, 32)),
)


@cache
def workload() -> Workload:
    """The model's gradients on one A100, estimated."""
    return estimate(
        "models:huggingface",
        arguments=MODEL,
        backward_ns=BACKWARD_MS * 1_000_000,
        gpu="a100-80gb-sxm",
        autocast="bfloat16",
    )


@cache
def rows() -> tuple[ScalingRow, ...]:
    """A row a machine and number of hosts."""
    return tuple(
        row
        for machine, settings, hosts in MACHINES
        for row in sim.scaling(workload(), machine, hosts=hosts, settings=settings)
    )


def _saved(row: ScalingRow) -> str:
    """What the best cap saves against the default, at either end of the range of all-reduces, in %."""
    regrets = row.default_regret_low_ns, row.default_regret_high_ns
    ends = zip(regrets, (row.cap_step_low_ns, row.cap_step_high_ns), strict=True)
    return " to ".join(f"{100 * saved / (step + saved):z.1f}" for saved, step in ends)


COLUMNS: tuple[Column[ScalingRow], ...] = (
    plain("machine", "machine"),
    *SCALING,
    Column("saves, %", lambda row: 100 * row.default_regret_ns / row.default_step_ns, "z.1f"),
    Column("in range, %", _saved),
)


def scaling_rows() -> Iterator[str]:
    """The manual's table."""
    yield from markdown(COLUMNS, rows()).splitlines()


if __name__ == "__main__":
    for table in (fabric_rows(), preset_rows(), scaling_rows(), [summary()]):
        print("\n".join(table), end="\n\n")
    print("\n".join(f"{row.machine}: {row.reason}" for row in rows() if row.reason))
