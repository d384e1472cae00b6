"""What rows say beside their times: how many ranks, whether they agree; and their curves."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.importer.links.columns import LinkRow, LinkTable, Timing, Variant
from sim.importer.wording import Notes
from sim.nouns.hardware import MAX_RANKS, Curve, CurvePoint
from sim.units import format_number, median_ns

# nccl-tests' names of its types, and numpy's and torch's.
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "fp16", "bf16"), 2),
    **dict.fromkeys(("int32", "uint32", "float", "float32", "fp32", "int"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64"), 8),
}
# Of these nccl-tests' size is the whole tensor's, its count that of one rank's part.
_BY_PARTS = ("all_gather", "reduce_scatter", "alltoall")


def bus_factor(collective: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, 1.0)


def collective_by_rows(table: LinkTable) -> str | None:
    """The collective that sizes, counts and bandwidths tell; None where they tell none.

    nccl-tests' size is n counts where a rank has a part, of a reduce-scatter with an operation, of an
    all-gather without. Only an all-reduce has a bus bandwidth above the algorithm's.
    """
    parts = ranks_by_counts(table, "reduce_scatter")
    ratios = [
        busbw / algbw
        for row in table.rows
        for timing in row.timings.values()
        if timing.rates.keys() >= {"algbw", "busbw"}
        for (busbw, slack), (algbw, digit) in [(timing.rates["busbw"], timing.rates["algbw"])]
        if min(busbw / slack, algbw / digit) >= 20  # two digits at least
    ]
    ratio = median(ratios) if ratios else None
    if (parts or 1) > 1 or (ratio is not None and ratio < 0.97):
        by_redop = {"none": "all_gather", None: PARTS}
        return by_redop.get(table.redop, "reduce_scatter")
    return "all_reduce" if ratio is not None and ratio > 1.03 else None


PARTS = "reduce_scatter or all_gather"


def ranks_by_counts(table: LinkTable, collective: str) -> int | None:
    """The number of ranks: bytes of the whole tensor over those of one rank's part.

    None if no row gives both, or rows disagree.
    """
    parts = [(row.num_bytes, (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)) for row in table.rows]
    told = {divmod(num_bytes, part) for num_bytes, part in parts if part and num_bytes}
    ranks, rest = told.pop() if len(told) == 1 else (None, 0)
    return None if rest or collective not in _BY_PARTS else ranks


def ranks_by_bandwidths(table: LinkTable, collective: str) -> int | None:
    """The number n of ranks by bus over algorithm bandwidth, 2(n-1)/n for an all-reduce.

    A row has few digits and allows a range of n. Returned is the n that most rows allow. None if as many rows
    allow another n, or fewer than half of all rows allow it.
    """
    if bus_factor(collective, 2) == 1 and collective != "all_reduce":
        return None
    top = 2.0 if collective == "all_reduce" else 1.0
    starts, ends = Counter[int](), Counter[int]()
    rows = 0
    timed = [
        (timing, row.num_bytes) for row in table.rows if row.num_bytes for timing in row.timings.values()
    ]
    for timing, num_bytes in timed:
        if "busbw" not in timing.rates or timing.duration_ns <= timing.slack_ns:
            continue
        busbw, slack = timing.rates["busbw"]
        low = (busbw - slack) * (timing.duration_ns - timing.slack_ns) / num_bytes
        high = (busbw + slack) * (timing.duration_ns + timing.slack_ns) / num_bytes
        if low >= top:
            continue
        rows += 1
        least = top / (top - max(0.0, low))
        first = max(2, int(least) + (least % 1 >= 1e-9))
        last = MAX_RANKS if high >= top else min(MAX_RANKS, int(top / (top - high) + 1e-9))
        if first <= last:
            starts[first] += 1
            ends[last + 1] += 1
    if not starts:
        return None
    most, here, best = 0, 0, (0, 0)
    edges = sorted({*starts, *ends})
    for edge, after in zip(edges, [*edges[1:], MAX_RANKS + 1], strict=True):
        here += starts[edge] - ends[edge]
        if here > most:
            most, best = here, (edge, after)
        elif here == most:
            best = (0, 0)
    return best[0] if best[1] - best[0] == 1 and 2 * most >= rows else None


def sound_rows(table: LinkTable, collective: str, ranks: int, notes: Notes) -> list[LinkRow]:
    """The rows with their sound timings; what is left out is told by kind of fault.

    A timing is left out if it contradicts the rest of its row. It is also left out if the run had wrong
    results, since it did not do the work that the curve stands for.

    Raises:
        InputError: most timings contradict themselves, or no row is left.
    """
    kept: list[LinkRow] = []
    why: dict[str, list[str]] = {}
    for row in table.rows:
        fault = _fault_of_sizes(row, collective, ranks)
        sound: dict[Variant, Timing] = {}
        for variant, timing in row.timings.items():
            reason = fault or _fault(timing, row.num_bytes, collective, ranks)
            if reason is None:
                sound[variant] = timing
            else:
                why.setdefault(reason[0], []).append(f"{row.where}: {reason[1]}")
        if sound:
            kept.append(replace(row, timings=sound))
    timings = sum(len(row.timings) for row in table.rows)
    for name, examples in why.items():
        notes.dropped.append(f"{table.source}: {len(examples)} timings that {name} ({examples[0]})")
    contradictions = why.get(_CONTRADICTS, [])
    if 2 * len(contradictions) > timings:
        raise InputError(
            f"{contradictions[0]}; so do {len(contradictions)} of {timings} timings of {collective} on "
            f"{ranks} ranks; give the right --world-size, or another file"
        )
    if not kept:
        raise InputError(
            f"{table.source}: no row is left of {collective}: all {', '.join(why)}; measure again"
        )
    return kept


_CONTRADICTS = "contradict themselves"


def _fault_of_sizes(row: LinkRow, collective: str, ranks: int) -> tuple[str, str] | None:
    if row.num_bytes == 0:
        return "carry nothing", "size 0"
    part = (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)
    whole = part * ranks if collective in _BY_PARTS else part
    if part and row.num_bytes not in (part, whole):
        return _CONTRADICTS, f"{row.num_bytes} B are not {row.count} of {row.dtype}"
    return None


def _fault(timing: Timing, num_bytes: int, collective: str, ranks: int) -> tuple[str, str] | None:
    if timing.wrong > 0:
        return "have wrong results", f"{num_bytes} B, {format_number(timing.wrong, 6)} wrong"
    rate = num_bytes / timing.duration_ns
    relative = timing.slack_ns / timing.duration_ns
    for name, (said, slack) in timing.rates.items():
        factor = bus_factor(collective, ranks) if name == "busbw" else 1.0
        expected = rate * factor
        # A table may have computed its bus bandwidth from the rounded algorithm bandwidth beside it.
        rounded = timing.rates["algbw"][1] * factor if name == "busbw" and "algbw" in timing.rates else 0.0
        if abs(said - expected) > slack + rounded + expected * relative + 1e-9:
            return (
                _CONTRADICTS,
                f"{num_bytes} B in {format_number(timing.duration_ns / 1000, 6)} us are "
                f"{format_number(expected, 4)} GB/s, "
                f"{name} says {format_number(said, 6)}",
            )
    return None


# ---- curves

# DDP reduces its buckets in place: the buffer that goes in is the one that comes out.
_PREFERRED: tuple[Variant, ...] = ("in", "only", "out")


def chosen(row: LinkRow) -> tuple[Variant, Timing]:
    """The timing of a row that counts: in place where there is one."""
    return next((variant, row.timings[variant]) for variant in _PREFERRED if variant in row.timings)


def curve_of(rows: Iterable[LinkRow], statistic: str) -> tuple[Curve, dict[str, dict[str, Any]]]:
    """The points of a curve, medians over rows of one size, and their ``spread``.

    Of several rows the spread is over these; of one, what its file says of its samples, or else the two
    timings in and out of place. A size with a single timing has none.
    """
    by_size: dict[int, list[LinkRow]] = defaultdict(list)
    for row in rows:
        by_size[row.num_bytes].append(row)
    points, spread = [], dict[str, dict[str, Any]]()
    for num_bytes, same in sorted(by_size.items()):
        timings = [chosen(row)[1] for row in same]
        middle = median_ns([timing.duration_ns for timing in timings])
        points.append(CurvePoint(num_bytes=num_bytes, duration_ns=middle))
        both = list(same[0].timings.values())
        if len(same) == 1 and timings[0].scatter:
            told = {**timings[0].scatter, "of": "what the file says of its samples"}
            spread[str(num_bytes)] = {"quantile": statistic, **told}
        elif len(same) > 1 or len(both) == 2:
            ones = timings if len(same) > 1 else [replace(one, scatter={}) for one in both]
            spread[str(num_bytes)] = {
                "count": sum(one.scatter.get("count", 1) for one in ones),
                "quantile": "median" if len(same) > 1 else statistic,
                "median_ns": middle,
                "min_ns": min(one.scatter.get("min_ns", one.duration_ns) for one in ones),
                "max_ns": max(one.scatter.get("max_ns", one.duration_ns) for one in ones),
                "of": "repeated rows" if len(same) > 1 else "in place and out of place",
            }
    return tuple(points), spread


def in_place_ratio(rows: Iterable[LinkRow]) -> dict[str, float] | None:
    """Time in place over time out of place: median, least and greatest over rows with both; None without."""
    ratios = [
        row.timings["in"].duration_ns / row.timings["out"].duration_ns
        for row in rows
        if "in" in row.timings and "out" in row.timings
    ]
    if not ratios:
        return None
    return {
        "median": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "greatest": round(max(ratios), 4),
        "rows": len(ratios),
    }
