"""Systems that others measured, predicted from published figures, from three points, and from fewer ranks.

``python -m tests.contracts.fabrics`` prints the manual's tables, from figures in ``tests/published``.
Errors are medians of |predicted / measured - 1| over the sizes of 1 MiB to 1 GiB that were not given.
"""

from collections.abc import Iterator, Sequence

from sim.clusters.computed import uncertainty
from sim.clusters.extrapolation import EstimatedPoint, MeasuredCurve, extrapolate
from sim.clusters.nccl_model import collective_ns
from sim.nouns.hardware import Curve
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
    inside = [_holds(each, point.duration_ns) for each, point in zip(found, points, strict=True)]
    return median_error((each.duration_ns for each in found), points), sum(inside) / len(inside)


def _holds(estimate: EstimatedPoint, duration_ns: int) -> bool:
    return estimate.least_ns <= duration_ns <= estimate.greatest_ns


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


if __name__ == "__main__":
    for rows in (fabric_rows(), preset_rows()):
        print("\n".join(rows))
        print()
    print(summary())
