"""Tables: a column is a name with its unit, what it shows of a row, and how; a noun's columns are said once.

Terminal, Markdown and page show the same ones: ``texts`` and ``markdown`` as words, ``records`` as values.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from sim.units import NS_PER_MS, format_size, in_ms

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """``spec`` is Python's format of the values, of which None is a dash; ``help`` is for the page."""

    name: str
    get: Callable[[Row], Any]
    spec: str = ""
    help: str = ""

    def text(self, row: Row) -> str:
        """The value of a row in words."""
        value = self.get(row)
        return "-" if value is None else format(value, self.spec)


def by_place(*names: str) -> tuple[Column[Any], ...]:
    """Columns of rows that are tuples of words."""
    return tuple(Column(name, itemgetter(place)) for place, name in enumerate(names))


def plain(name: str, field: str, help: str = "") -> Column[Any]:
    """A field as it is."""
    return Column(name, attrgetter(field), "", help)


def ms(name: str, field: str, spec: str = ".2f", help: str = "") -> Column[Any]:
    """A field in ns, shown in ms."""
    return _made(f"{name}, ms", field, lambda ns: ns / NS_PER_MS, spec, help)


def percent(name: str, field: str, spec: str = ".1f", help: str = "") -> Column[Any]:
    """A share, shown in percent."""
    return _made(f"{name}, %", field, lambda share: share * 100, spec, help)


def size(name: str, field: str, help: str = "") -> Column[Any]:
    """A field in bytes, shown in binary units."""
    get = attrgetter(field)
    return Column(name, lambda row: format_size(get(row)), "", help)


def _made(name: str, field: str, scale: Callable[[Any], float], spec: str, help: str) -> Column[Any]:
    get = attrgetter(field)

    def value(row: Any) -> float | None:
        found = get(row)
        return None if found is None else scale(found)

    return Column(name, value, spec, help)


def of_part(part: Callable[[Any], Any], columns: Iterable[Column[Any]]) -> tuple[Column[Any], ...]:
    """The columns of what ``part`` makes of a row."""
    return tuple(replace(one, get=lambda row, get=one.get: get(part(row))) for one in columns)  # type: ignore[misc]


def texts(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> list[list[str]]:
    """Each row's cells in words."""
    return [[column.text(row) for column in columns] for row in rows]


def records(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Each row's values by column, for a frame or a file."""
    return [{column.name: column.get(row) for column in columns} for row in rows]


def markdown(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    heads = [[column.name for column in columns], ["---"] * len(columns)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (*heads, *texts(columns, rows)))


def _interval(name: str, low: str, high: str) -> Column[Any]:
    """Fields in ns, as an interval in ms; none where there are too few steps to tell."""
    ends = attrgetter(low, high)
    return Column(
        name, lambda row: "-".join(in_ms(end, ".1f") for end in ends(row)) if row.has_interval else None
    )


def _regret(agreement: Any) -> str | None:
    regret = agreement.regret
    if regret is None:
        return None
    return f"{'~' if regret.within_noise and regret.regret_ns else ''}{100 * regret.relative:.2f}"


def _span(agreement: Any) -> str:
    steps = [row.measured_step_ns for row in agreement.rows]
    return f"{in_ms(min(steps), '.1f')} to {in_ms(max(steps), '.1f')}"


def _unless_trace(column: Column[Any]) -> Column[Any]:
    """None of a trace, whose step is predicted from itself."""
    return replace(column, get=lambda row: None if row.passed is None else column.get(row))


_RULE = {None: "not judged", True: "passed", False: "missed"}

CANDIDATES: tuple[Column[Any], ...] = (  # of an Agreement's rows
    plain("candidate", "name"),
    Column("buckets", lambda row: len(row.bucket_indices)),
    ms("measured", "measured_step_ns"),
    _interval("interval", "step_low_ns", "step_high_ns"),
    ms("predicted", "predicted_step_ns"),
    percent("error", "step_error", "+.2f"),
    ms("exposed", "measured_exposed_ns"),
    _interval("its interval", "exposed_low_ns", "exposed_high_ns"),
    ms("its prediction", "predicted_exposed_ns"),
    percent("ends", "median_bucket_end_error"),
    percent("probe", "probe_effect", "+.1f"),
    plain("steps", "iterations"),
)
RECORDS: tuple[Column[Any], ...] = (  # of an Agreement
    plain("record", "name"),
    Column("ms a step", _span),
    _unless_trace(percent("step error", "median_step_error", ".2f")),
    _unless_trace(percent("worst", "worst_step_error", ".2f")),
    _unless_trace(Column("order", lambda row: f"{row.order_right} of {row.order_pairs}")),
    percent("exposed", "median_exposed_error"),
    percent("ends", "median_bucket_end_error"),
    ms("ends off", "median_bucket_end_error_ns"),
    Column("regret, %", _regret),
    Column("rule", lambda row: _RULE[row.passed]),
)
FAMILIES: tuple[Column[Any], ...] = (  # what one knob of a Recommendation reaches
    ms("step", "report.step_ns"),
    ms("regret", "regret_ns"),
    ms("exposed", "report.exposed_comm_ns"),
    Column("buckets", lambda family: len(family.assignment.bucket_indices)),
    Column("buffers", lambda family: family.report.buffer_bytes and format_size(family.report.buffer_bytes)),
)
SCALING: tuple[Column[Any], ...] = (
    plain("GPUs", "world_size"),
    ms("all-reduce", "all_reduce_ns"),
    ms("default", "default_step_ns"),
    ms("best cap", "cap_step_ns"),
    ms("best buckets", "optimum_step_ns"),
    Column("proved", lambda row: "yes" if row.proved_optimal else "no"),
    ms("exposed", "cap_exposed_comm_ns"),
    percent("efficiency", "cap_efficiency"),
    Column("bucket_cap_mb", attrgetter("bucket_cap_mb"), ".6g"),
)
