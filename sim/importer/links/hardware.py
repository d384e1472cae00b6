"""What nccl-tests and its like measured, as Hardware: one for each number of ranks and each file."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sim.costs.own_costs import with_own_costs
from sim.errors import InputError
from sim.importer.links.tables import LinkRow, LinkTable, Timing, Variant, read_tables
from sim.importer.notes import Notes
from sim.importer.opening import read_text
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, MAX_RANKS, Curve, CurvePoint, Hardware
from sim.nouns.imported import Imported, ImportOptions
from sim.units import format_number, format_size, median_ns

_LEAST_SIZES = 3
_UNLIKE = 2.0  # repeated runs of one machine lie nearer
_SUFFIX = re.compile(r"(\.(txt|csv|tsv|md|log|out|json|gz))+$")
# DDP reduces its buckets in place: the buffer that goes in is the one that comes out.
_PREFERRED: tuple[Variant, ...] = ("in", "only", "out")
# nccl-tests' names of its types, and numpy's and torch's.
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "fp16", "bf16"), 2),
    **dict.fromkeys(("int32", "uint32", "float", "float32", "fp32", "int"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64"), 8),
}
# Of these nccl-tests' size is the whole tensor's, its count that of one rank's part.
_BY_PARTS = ("all_gather", "reduce_scatter", "alltoall")
_CONTRADICTS = "contradict themselves"


class _Key(NamedTuple):
    """What tells the systems measured apart."""

    source: str
    ranks: int
    place: str
    hosts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _System:
    """The tables of one system by collective, and rows by collective."""

    tables: dict[str, list[LinkTable]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, list[LinkRow]] = field(default_factory=lambda: defaultdict(list))


def read_nccl_tests(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Curves from nccl-tests' text and ``-J`` reports, OSU's text and CSV with a header, by their content.

    Of rows that one file repeats, the median is taken. Each file is a system of its own, except that curves
    of a file without an all-reduce go to the one system with as many ranks. Sizes are those of the whole
    tensor (nccl-tests' PERFORMANCE.md), as ``Hardware`` has them. Curves are measured outside of a step.

    Raises:
        InputError: no table, a unit or a number of ranks that cannot be told, rows that mostly contradict
            what is said of them, two machines in one file, or no all-reduce of three sizes or more.
    """
    if not paths:
        raise InputError("paths: no files; give at least one")
    notes, tables = Notes(), list[LinkTable]()
    for number, path in enumerate(paths):
        options.progress(number, len(paths), str(path))
        alone = sum(other.name == path.name for other in paths) == 1
        found = read_tables(read_text(path), path.name if alone else str(path))
        if not any(table.rows for table in found):
            raise InputError(f"{path}: no row in it; give the output of a run that got so far")
        tables += found
    options.progress(len(paths), len(paths), "")
    for table in tables:
        notes.dropped += table.left_out
        notes.assumed += table.assumed
    systems = _systems(tables, options.world_size, notes)
    _join(systems, notes)
    _leave_out_short(systems, notes)
    stems = Counter(_stem(source) for source in {key.source for key in systems})
    hardware = []
    for key, system in systems.items():
        name = _stem(key.source) if stems[_stem(key.source)] == 1 else key.source
        if options.name is not None:
            name = options.name if len(systems) == 1 else f"{options.name}, {name}"
        place = f", {key.place}" if key.place else ""
        hardware.append(_hardware(key, system, f"{name}, {key.ranks} ranks{place}", notes))
    return Imported(
        format="nccl-tests",
        name=options.name or _stem(paths[0].name),
        hardware=tuple(hardware),
        **notes.each(),
    )


def _stem(name: str) -> str:
    return _SUFFIX.sub("", name) or name


# ---- which collective on how many ranks, and on which machine


def _systems(tables: Iterable[LinkTable], wanted: int | None, notes: Notes) -> dict[_Key, _System]:
    """Tables by system, their rows checked; of several numbers of ranks only the wanted one."""
    told: list[tuple[LinkTable, str, int]] = []
    by: dict[int, str] = {}
    for table in tables:
        collective = _collective(table, notes) if table.rows else None
        if collective is not None:
            ranks, words = _ranks(table, collective, wanted, notes)
            by.setdefault(ranks, words)
            told.append((table, collective, ranks))
    if not told:
        raise InputError("PATH: no collective that fills a curve; give a run of all_reduce_perf")
    if wanted is not None and wanted not in by:
        seen = ", ".join(f"{ranks} (told by {words})" for ranks, words in sorted(by.items()))
        raise InputError(
            f"--world-size: {wanted} is not legal here; {told[0][0].source} was measured on {seen}"
        )
    systems: dict[_Key, _System] = defaultdict(_System)
    for table, collective, ranks in told:
        if wanted not in (None, ranks):
            notes.dropped.append(f"{table.source}: what was measured on {ranks} ranks")
            continue
        rows = _sound_rows(table, collective, ranks, notes)
        key = _Key(table.source, ranks, table.place, table.hosts, table.devices)
        for other in systems:
            if key[:3] == other[:3] and key != other:
                each = " | ".join(", ".join((*one.hosts[:8], *one.devices[:4])) for one in (other, key))
                raise InputError(
                    f"{table.source}: two machines of {ranks} ranks in one file ({each}); give a file of each"
                )
        if _differs(rows, systems[key].rows[collective]):
            raise InputError(
                f"{rows[0].where}: begins a run that differs from one above it on as many ranks by more than "
                f"a factor of {format_number(_UNLIKE, 6)}; give a file of each"
            )
        systems[key].tables[collective].append(table)
        systems[key].rows[collective] += rows
    return systems


def _differs(rows: Sequence[LinkRow], others: Sequence[LinkRow]) -> bool:
    """Whether two runs are further apart than repeated ones: by a factor at half of the sizes of both."""
    mine, theirs = (
        {point.num_bytes: point.duration_ns for point in _curve_of(several, "mean")[0]}
        for several in (rows, others)
    )
    pairs = [sorted((mine[size], theirs[size])) for size in mine.keys() & theirs.keys()]
    return len(pairs) >= _LEAST_SIZES and median(high / low for low, high in pairs) > _UNLIKE


def _collective(table: LinkTable, notes: Notes) -> str | None:
    """The collective of a table, None where it reduces no bucket; by its rows where its file says nothing.

    Only an all-reduce has a bus bandwidth above the algorithm's, and only where a rank has a part is
    nccl-tests' size several counts.
    """
    if table.collective is not None:
        if table.collective in CURVES:
            return table.collective
        notes.dropped.append(f"{table.source}: {table.collective}, which reduces no bucket")
        return None
    ratios = [
        busbw / algbw
        for row in table.rows
        for timing in row.timings.values()
        if timing.rates.keys() == {"algbw", "busbw"}
        for (busbw, slack), (algbw, digit) in [(timing.rates["busbw"], timing.rates["algbw"])]
        if min(busbw / slack, algbw / digit) >= 20  # two digits at least
    ]
    ratio = median(ratios) if ratios else 1.0
    if (_ranks_by_counts(table, "reduce_scatter") or 1) > 1 or ratio < 0.97:
        raise InputError(
            f"{table.source}: sizes and bandwidths are those of a reduce_scatter or an all_gather, and "
            f"it does not say which; name it above the table (# reduce_scatter)"
        )
    told = "its sizes and bandwidths are those of all_reduce" if ratio > 1.03 else "taken for all-reduces"
    notes.assumed.append(f"{table.source}: does not name its collective; {told}")
    return "all_reduce"


def _ranks(table: LinkTable, collective: str, wanted: int | None, notes: Notes) -> tuple[int, str]:
    """How many ranks a table was measured on, and what tells it; ``InputError`` where nothing does."""
    by_counts = _ranks_by_counts(table, collective)
    told = by_counts or _ranks_by_bandwidths(table, collective)
    if table.ranks is not None:
        if not 1 <= table.ranks <= MAX_RANKS:
            raise InputError(f"{table.source}: {table.ranks} ranks are not legal; give 1 to {MAX_RANKS}")
        if told not in (None, table.ranks):
            raise InputError(
                f"{table.source}: {table.ranks} ranks by {table.ranks_by}, {told} by its sizes and "
                f"bandwidths; give a file of one run"
            )
        if table.ranks_by != "its column":
            notes.found.append(f"{table.source}: {table.ranks} ranks, told by {table.ranks_by}")
        return table.ranks, table.ranks_by
    if told is not None:
        formula = "2(n-1)/n" if collective == "all_reduce" else "(n-1)/n"
        by = "its sizes and counts" if by_counts else f"bus over algorithm bandwidth, {formula}"
        notes.assumed.append(f"{table.source}: {told} ranks, told by {by}")
        return told, by
    if wanted is not None:
        notes.assumed.append(f"{table.source}: {wanted} ranks, as --world-size says")
        return wanted, "--world-size"
    raise InputError(f"{table.source}: does not say on how many ranks it was measured; give --world-size N")


def _ranks_by_counts(table: LinkTable, collective: str) -> int | None:
    """The number of ranks: bytes of the whole tensor over those of one rank's part.

    None if no row gives both, or rows disagree.
    """
    parts = [(row.num_bytes, (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)) for row in table.rows]
    told = {divmod(num_bytes, part) for num_bytes, part in parts if part and num_bytes}
    ranks, rest = told.pop() if len(told) == 1 else (0, 0)
    return ranks if collective in _BY_PARTS and ranks and not rest else None


def _ranks_by_bandwidths(table: LinkTable, collective: str) -> int | None:
    """The number n of ranks by bus over algorithm bandwidth, 2(n-1)/n for an all-reduce.

    A row has few digits and allows a range of n. Returned is the n that most rows allow. None if as many rows
    allow another n, or fewer than half of all rows allow it.
    """
    if _bus_factor(collective, 2) == 1 and collective != "all_reduce":
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


# ---- rows that can be true


def _bus_factor(collective: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, 1.0)


def _sound_rows(table: LinkTable, collective: str, ranks: int, notes: Notes) -> list[LinkRow]:
    """The rows with their sound timings; what is left out is told by kind of fault.

    A timing is left out if it contradicts the rest of its row. It is also left out if the run had wrong
    results, since it did not do the work that the curve stands for.

    Raises:
        InputError: most timings contradict themselves, or no row is left.
    """
    kept: list[LinkRow] = []
    why: dict[str, list[str]] = defaultdict(list)
    for row in table.rows:
        fault = _fault_of_sizes(row, collective, ranks)
        sound: dict[Variant, Timing] = {}
        for variant, timing in row.timings.items():
            reason = fault or _fault(timing, row.num_bytes, collective, ranks)
            if reason is None:
                sound[variant] = timing
            else:
                why[reason[0]].append(f"{row.where}: {reason[1]}")
        if sound:
            kept.append(replace(row, timings=sound))
    timings = sum(len(row.timings) for row in table.rows)
    for name, examples in why.items():
        notes.dropped.append(f"{table.source}: {len(examples)} timings that {name} ({examples[0]})")
    if 2 * len(contradictions := why[_CONTRADICTS]) > timings:
        raise InputError(
            f"{contradictions[0]}; so do {len(contradictions)} of {timings} timings of {collective} on "
            f"{ranks} ranks; give the right --world-size, or another file"
        )
    if not kept:
        reasons = ", ".join(name for name, examples in why.items() if examples)
        raise InputError(f"{table.source}: no row is left of {collective}: all {reasons}; measure again")
    return kept


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
    for name, (said, slack) in timing.rates.items():
        factor = _bus_factor(collective, ranks) if name == "busbw" else 1.0
        expected = num_bytes / timing.duration_ns * factor
        # A table may have computed its bus bandwidth from the rounded algorithm bandwidth beside it.
        rounded = timing.rates["algbw"][1] * factor if name == "busbw" and "algbw" in timing.rates else 0.0
        relative = timing.slack_ns / timing.duration_ns
        if abs(said - expected) > slack + rounded + expected * relative + 1e-9:
            return (
                _CONTRADICTS,
                f"{num_bytes} B in {format_number(timing.duration_ns / 1000, 6)} us are "
                f"{format_number(expected, 4)} GB/s, {name} says {format_number(said, 6)}",
            )
    return None


# ---- curves


def _join(systems: dict[_Key, _System], notes: Notes) -> None:
    """Give curves of files without an all-reduce to the one system that they fit."""
    for key in [key for key, system in systems.items() if "all_reduce" not in system.rows]:
        system = systems.pop(key)
        for collective, rows in system.rows.items():
            fitting = [
                other
                for other, with_all_reduce in systems.items()
                if other.ranks == key.ranks
                and "all_reduce" in with_all_reduce.rows
                and collective not in with_all_reduce.rows
                and (not key.hosts or not other.hosts or key.hosts == other.hosts)
                and (not key.devices or not other.devices or key.devices == other.devices)
            ]
            if len(fitting) == 1:
                systems[fitting[0]].rows[collective] = rows
                systems[fitting[0]].tables[collective] = system.tables[collective]
                notes.assumed.append(f"{key.source}: {collective} of the system of {fitting[0].source}")
                continue
            notes.missing.append(
                f"an all_reduce of the {key.ranks} ranks of {key.source}, without which its {collective} is "
                f"left out; give all_reduce_perf's file too"
                if not fitting
                else f"which of {len(fitting)} systems the {collective} of {key.source} is of"
            )


def _leave_out_short(systems: dict[_Key, _System], notes: Notes) -> None:
    """Leave out curves of too few sizes, and systems without an all-reduce then.

    Raises:
        InputError: none is left.
    """
    short = []
    for key, system in list(systems.items()):
        for collective in list(system.rows):
            sizes = sorted({row.num_bytes for row in system.rows[collective]})
            if len(sizes) >= _LEAST_SIZES:
                continue
            run = f"{collective}_perf -b 64K -e 512M -f 2 -g"
            short.append(
                f"{key.source}: {len(sizes)} size{'s' if len(sizes) > 1 else ''} of {collective} on "
                f"{key.ranks} ranks ({', '.join(map(format_size, sizes))}), which tell nothing of other "
                f"buckets; measure {_LEAST_SIZES} at least, such as by {run} {key.ranks}, or by mpirun -np "
                f"{key.ranks} {run} 1"
            )
            del system.rows[collective], system.tables[collective]
        if "all_reduce" not in system.rows:
            del systems[key]
    if short and not systems:
        raise InputError(short[0])
    notes.missing += short


def _chosen(row: LinkRow) -> tuple[Variant, Timing]:
    """The timing of a row that counts: in place where there is one."""
    return next((variant, row.timings[variant]) for variant in _PREFERRED if variant in row.timings)


def _curve_of(rows: Iterable[LinkRow], statistic: str) -> tuple[Curve, dict[str, dict[str, Any]]]:
    """The points of a curve, medians over rows of one size, and their ``spread``.

    Of several rows the spread is over these; of one, what its file says of its samples, or else the two
    timings in and out of place. A size with a single timing has none.
    """
    by_size: dict[int, list[LinkRow]] = defaultdict(list)
    for row in rows:
        by_size[row.num_bytes].append(row)
    points, spread = [], dict[str, dict[str, Any]]()
    for num_bytes, same in sorted(by_size.items()):
        timings = [_chosen(row)[1] for row in same]
        middle = median_ns([timing.duration_ns for timing in timings])
        points.append(CurvePoint(num_bytes=num_bytes, duration_ns=middle))
        known, both = timings[0].scatter, list(same[0].timings.values())
        if len(same) == 1 and known:
            spread[str(num_bytes)] = {
                "quantile": statistic,
                **known,
                "of": "what the file says of its samples",
            }
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


def _hardware(key: _Key, system: _System, name: str, notes: Notes) -> Hardware:
    curves: dict[str, Any] = {}
    spread = {}
    for collective, rows in system.rows.items():
        curve, known = _curve_of(rows, _statistic(system.tables[collective]))
        curves[collective] = curve
        if known:
            spread[collective] = known
        notes.found.append(
            f"{key.source}: {collective} on {key.ranks} ranks{f' ({key.place})' if key.place else ''}, "
            f"{len(curve)} sizes from {curve[0].num_bytes} to {curve[-1].num_bytes} B"
        )
        if len(rows) > len(curve):
            notes.assumed.append(f"{key.source}: {collective}: medians where a size comes more than once")
        _say_columns(key.source, rows, known, len(curve), notes)
    tables = [table for several in system.tables.values() for table in several]
    provenance: dict[str, Any] = {
        "source": "bucketsim import nccl-tests",
        "files": list(dict.fromkeys(table.source for table in tables)),
        "statistic": _statistic(tables),
        "measured": "beside the step, back to back",
    }
    for word, values in (("devices", tables[0].devices), ("hosts", tables[0].hosts)):
        if values:
            provenance[word] = list(values)
    over = {table.over for table in tables}
    if len(over) == 1 and (told := over.pop()) is not None:
        provenance["backend"], provenance["device"] = told
    if key.place:
        provenance["place"] = key.place
    made = Hardware(name=name, world_size=key.ranks, spread=spread, provenance=provenance, **curves)
    if provenance.get("device") == "cpu":
        return made  # what DDP costs on a GPU is nothing of such a link
    return with_own_costs(made, gpus_named(tables[0].devices))


def _statistic(tables: Sequence[LinkTable]) -> str:
    """What one time is: ``mean of 20 iterations``, ``median``."""
    first = tables[0]
    if first.statistic == "mean" and first.iterations:
        return f"mean of {first.iterations} iterations"
    return first.statistic


def _say_columns(
    source: str, rows: Sequence[LinkRow], spread: dict[str, Any], sizes: int, notes: Notes
) -> None:
    variants = {_chosen(row)[0] for row in rows}
    if "in" in variants:
        notes.assumed.append(
            f"{source}: the times in place, as DDP reduces a bucket in the buffer that it fills"
        )
    if "out" in variants:
        notes.assumed.append(f"{source}: times out of place where there are none in place")
    if any(known["of"] == "in place and out of place" for known in spread.values()):
        notes.assumed.append(f"{source}: a size scatters by the distance of its two columns, each a mean")
    if not spread:
        notes.missing.append(f"{source}: how times scatter: a size has one value; repeat the run in one file")
    elif len(spread) < sizes:
        notes.missing.append(f"{source}: how times scatter at {sizes - len(spread)} of {sizes} sizes")
