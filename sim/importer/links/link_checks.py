"""What the rows of a link benchmark say beside their times: how many ranks, and whether they agree."""

from collections import Counter
from dataclasses import replace
from statistics import median

from sim.importer.links.columns import Variant
from sim.importer.links.link_rows import LinkRow, LinkTable, Timing
from sim.nouns.hardware import MAX_RANKS
from sim.units import format_number

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
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


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
        for (busbw, slack), (algbw, digit) in [
            (timing.rates.get("busbw", (0.0, 1.0)), timing.rates.get("algbw", (0.0, 1.0)))
        ]
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
    if collective not in _BY_PARTS:
        return None
    told = set()
    for row in table.rows:
        part = (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)
        if part and row.num_bytes and row.num_bytes % part == 0:
            told.add(row.num_bytes // part)
        elif part and row.num_bytes:
            return None
    return told.pop() if len(told) == 1 else None


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
        first = max(2, _above(top / (top - max(0.0, low))))
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


def _above(number: float) -> int:
    whole = int(number)
    return whole if number - whole < 1e-9 else whole + 1


def sound_rows(table: LinkTable, collective: str, ranks: int) -> tuple[list[LinkRow], dict[str, list[str]]]:
    """The rows with their sound timings, and by kind of fault a sentence for each timing that is left out.

    A timing is left out if it contradicts the rest of its row. It is also left out if the run had wrong
    results, since it did not do the work that the curve stands for.
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
    return kept, why


CONTRADICTS = "contradict themselves"


def _fault_of_sizes(row: LinkRow, collective: str, ranks: int) -> tuple[str, str] | None:
    if row.num_bytes == 0:
        return "carry nothing", "size 0"
    part = (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)
    whole = part * ranks if collective in _BY_PARTS else part
    if part and row.num_bytes not in (part, whole):
        return CONTRADICTS, f"{row.num_bytes} B are not {row.count} of {row.dtype}"
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
                CONTRADICTS,
                f"{num_bytes} B in {format_number(timing.duration_ns / 1000, 6)} us are "
                f"{format_number(expected, 4)} GB/s, "
                f"{name} says {format_number(said, 6)}",
            )
    return None
