"""What nccl-tests and its like measured, as Hardware: one for each number of ranks and each file."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sim.costs.own_costs import with_own_costs
from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions, Notes, count_of
from sim.importer.links.around_tables import COMMAND, WORDS
from sim.importer.links.columns import LinkRow, LinkTable, Timing, Variant, bus_factor
from sim.importer.links.nccl_json import read_report
from sim.importer.links.text_tables import read_tables
from sim.importer.readers import read_text
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, MAX_RANKS, Curve, CurvePoint, Hardware
from sim.units import format_number, format_size, median_ns

_LEAST_SIZES = 3
_UNLIKE = 2.0  # repeated runs of one machine lie nearer
_SUFFIX = re.compile(r"(\.(txt|csv|tsv|md|log|out|json|gz))+$")


class _Key(NamedTuple):
    """What tells the systems measured apart: file, number of ranks, place by its columns, hosts, devices and
    a headline; and where a run begins that is no repeat of one which nothing tells it from.
    """

    source: str
    ranks: int
    place: str
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    title: str
    unlike: str = ""


_System = dict[str, list[LinkTable]]  # by collective, tables with their sound rows


def read_nccl_tests(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Curves from nccl-tests' text and ``-J`` reports, CSV, OSU's and other tables, by their content.

    Of rows that one file repeats, the median is taken. Each file is a system of its own, except that curves
    of a file without an all-reduce go to the one system with as many ranks. Sizes are those of the whole
    tensor (nccl-tests' PERFORMANCE.md), as ``Hardware`` has them. Curves are measured outside of a step.

    Raises:
        InputError: no table, a unit or a number of ranks that cannot be told, rows that mostly contradict
            what is said of them, or no all-reduce of three sizes or more.
    """
    notes = Notes()
    tables = []
    if not paths:
        raise InputError("paths: no files; give at least one")
    for number, path in enumerate(paths):
        options.progress(number, len(paths), str(path))
        alone = sum(other.name == path.name for other in paths) == 1
        source, text = path.name if alone else str(path), read_text(path)
        is_json = text.lstrip()[:1] == "{"
        found = [read_report(text, source)] if is_json else read_tables(text, source, options.world_size)
        if not any(table.rows for table in found):
            raise InputError(f"{path}: no row in it; give the output of a run that got so far")
        tables += found
    options.progress(len(paths), len(paths), "")
    for table in tables:
        for line in table.left_out:
            notes.add("dropped", line)
        if table.unread:
            notes.add("dropped", f"{table.source}: columns {', '.join(dict.fromkeys(table.unread))}")
    systems = _systems(tables, options.world_size, notes)
    _pick(systems, options.machine, notes)
    _join(systems, notes)
    _leave_out_short(systems, notes)
    return Imported(
        format="nccl-tests",
        name=options.name or _stem(paths[0].name),
        hardware=tuple(
            _hardware(key, system, _name(options.name, key, systems), notes)
            for key, system in systems.items()
        ),
        notes=tuple(notes),
    )


# ---- systems


def _systems(tables: Sequence[LinkTable], wanted: int | None, notes: Notes) -> dict[_Key, _System]:
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
    systems: dict[_Key, _System] = defaultdict(lambda: defaultdict(list))
    for table, collective, ranks in told:
        if wanted is not None and ranks != wanted:
            notes.add("dropped", f"{table.source}: what was measured on {ranks} ranks")
            continue
        table = replace(table, rows=tuple(sound_rows(table, collective, ranks, notes)))
        key = _Key(table.source, ranks, table.place, table.hosts, table.devices, table.title)
        if key in systems and _differs(table.rows, _rows(systems[key][collective])):
            where = table.rows[0].where
            if key.hosts:
                notes.add(
                    "doubtful",
                    f"{where}: begins a run that differs from one on the same hosts by more than a factor of "
                    f"{format_number(_UNLIKE, 6)}",
                )
            else:
                key = key._replace(unlike=where)
        systems[key][collective].append(table)
    return systems


def _rows(tables: Sequence[LinkTable]) -> list[LinkRow]:
    return [row for table in tables for row in table.rows]


def _differs(rows: Sequence[LinkRow], others: Sequence[LinkRow]) -> bool:
    """Whether two runs are further apart than repeated ones: by a factor at half of the sizes of both."""
    mine, theirs = (
        {point.num_bytes: point.duration_ns for point in curve_of(several, "mean")[0]}
        for several in (rows, others)
    )
    both = [max(pair) / min(pair) for size in mine.keys() & theirs for pair in [(mine[size], theirs[size])]]
    return len(both) >= _LEAST_SIZES and median(both) > _UNLIKE


def _told_apart(key: _Key, system: _System) -> str:
    """What else than ranks tells a machine from others: its hosts and so on, and where its rows begin."""
    first = _rows(next(iter(system.values())))[0].where
    words = (", ".join(key.hosts[:8]), ", ".join(key.devices[:4]), key.title, key.place, f"from {first}")
    return "; ".join(filter(None, words))


def _pick(systems: dict[_Key, _System], machine: str | None, notes: Notes) -> None:
    """Keep of several machines the one that is asked for.

    Raises:
        InputError: a file has several of one number of ranks and one place, or none is as asked for.
    """
    words = {key: _told_apart(key, system) for key, system in systems.items()}
    if machine is not None and not any(machine.lower() in told.lower() for told in words.values()):
        raise InputError(f"--machine: {machine!r} is in none of {' | '.join(words.values())}")
    for key, told in words.items():
        if machine is not None and machine.lower() not in told.lower():
            notes.add("dropped", f"{key.source}: another machine ({told})")
            del systems[key]
    alike: dict[tuple[str, int, str], list[_Key]] = defaultdict(list)
    for key, system in systems.items():
        if "all_reduce" in system:
            alike[key[:3]].append(key)
    for (source, ranks, _), keys in alike.items():
        if len(keys) > 1:
            raise InputError(
                f"{source}: {len(keys)} machines or runs of {ranks} ranks in one file "
                f"({' | '.join(words[key] for key in keys)}); pick one by --machine WORD, a word of its "
                f"hosts, devices or headline, or give a file of one"
            )


def _join(systems: dict[_Key, _System], notes: Notes) -> None:
    """Give curves of files without an all-reduce to the one system that they fit."""
    for key in [key for key, system in systems.items() if "all_reduce" not in system]:
        for collective, tables in systems.pop(key).items():
            fitting = [
                other
                for other, system in systems.items()
                if other.ranks == key.ranks
                and "all_reduce" in system
                and collective not in system
                and (not key.hosts or not other.hosts or key.hosts == other.hosts)
                and (not key.devices or not other.devices or key.devices == other.devices)
            ]
            if len(fitting) == 1:
                systems[fitting[0]][collective] = tables
                notes.add("assumed", f"{key.source}: {collective} of the system of {fitting[0].source}")
                continue
            notes.add(
                "missing",
                f"which of {len(fitting)} systems the {collective} of {key.source} is of"
                if fitting
                else f"an all_reduce of the {key.ranks} ranks of {key.source}, without which its "
                f"{collective} is left out; give all_reduce_perf's file too",
            )


def _leave_out_short(systems: dict[_Key, _System], notes: Notes) -> None:
    """Leave out curves of too few sizes, and systems without an all-reduce then.

    Raises:
        InputError: none is left.
    """
    short = []
    for key, system in list(systems.items()):
        for collective in list(system):
            sizes = sorted({row.num_bytes for row in _rows(system[collective])})
            if len(sizes) >= _LEAST_SIZES:
                continue
            run = f"{collective}_perf -b 64K -e 512M -f 2 -g"
            short.append(
                f"{key.source}: {count_of(len(sizes), 'size')} of {collective} on {key.ranks} ranks "
                f"({', '.join(map(format_size, sizes))}), which tell nothing of other buckets; measure "
                f"{_LEAST_SIZES} at least, such as by {run} {key.ranks}, or by mpirun -np {key.ranks} {run} 1"
            )
            del system[collective]
        if "all_reduce" not in system:
            del systems[key]
    if short and not systems:
        raise InputError(short[0])
    for line in short:
        notes.add("missing", line)


# ---- collective and ranks

# nccl-tests' names of its types, and numpy's and torch's.
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "fp16", "bf16"), 2),
    **dict.fromkeys(("int32", "uint32", "float", "float32", "fp32", "int"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64"), 8),
}
# Of these nccl-tests' size is the whole tensor's, its count that of one rank's part.
_BY_PARTS = ("all_gather", "reduce_scatter", "alltoall")


def _collective(table: LinkTable, notes: Notes) -> str | None:
    """The collective of a table, where need be by its sizes, counts and bandwidths; None: it fills no curve.

    nccl-tests' size is n counts where a rank has a part, of a reduce-scatter with an operation, of an
    all-gather without. Only an all-reduce has a bus bandwidth above the algorithm's.
    """
    if table.collective in CURVES:
        return table.collective
    if table.collective is not None:
        notes.add("dropped", f"{table.source}: {table.collective}, which reduces no bucket")
        return None
    ratios = [
        busbw / algbw
        for row in table.rows
        for timing in row.timings.values()
        if timing.rates.keys() >= {"algbw", "busbw"}
        for (busbw, slack), (algbw, digit) in [(timing.rates["busbw"], timing.rates["algbw"])]
        if min(busbw / slack, algbw / digit) >= 20  # two digits at least
    ]
    ratio = median(ratios) if ratios else 1.0
    if (ranks_by_counts(table, "reduce_scatter") or 1) > 1 or ratio < 0.97:
        if table.redop is None:
            raise InputError(
                f"{table.source}: sizes and bandwidths are those of a reduce_scatter or an all_gather, and "
                f"it does not say which; name it above the table (# reduce_scatter)"
            )
        told = "all_gather" if table.redop == "none" else "reduce_scatter"
    elif ratio > 1.03:
        told = "all_reduce"
    else:
        notes.add("assumed", f"{table.source}: does not name its collective; taken for all-reduces")
        return "all_reduce"
    notes.add(
        "assumed",
        f"{table.source}: does not name its collective; its sizes and bandwidths are those of {told}",
    )
    return told


def _ranks(table: LinkTable, collective: str, wanted: int | None, notes: Notes) -> tuple[int, str]:
    """How many ranks a table was measured on, and what tells it; ``InputError`` where nothing does."""
    by_counts = ranks_by_counts(table, collective)
    told = by_counts or ranks_by_bandwidths(table, collective)
    said, by = table.ranks, table.ranks_by
    if said is not None and not 1 <= said <= MAX_RANKS:
        raise InputError(f"{table.source}: {said} ranks are not legal; give 1 to {MAX_RANKS}")
    is_weak = by in (COMMAND, WORDS)  # which may be of another run, or leave something out
    if said is not None and not is_weak and told not in (None, said):
        raise InputError(
            f"{table.source}: {said} ranks by {by}, {told} by its sizes and bandwidths; give a file of "
            f"one run"
        )
    if said is not None and not is_weak:
        if by != "its column":
            notes.add("found", f"{table.source}: {said} ranks, told by {by}")
        return said, by
    if told is not None:
        formula = "2(n-1)/n" if collective == "all_reduce" else "(n-1)/n"
        how = "its sizes and counts" if by_counts else f"bus over algorithm bandwidth, {formula}"
        if said not in (None, told):
            notes.add("doubtful", f"{table.source}: {said} ranks by {by}, but {told} by {how}")
        said, by = told, how
    if said is not None:
        notes.add("assumed", f"{table.source}: {said} ranks, told by {by}")
        return said, by
    if wanted is not None:
        notes.add("assumed", f"{table.source}: {wanted} ranks, as --world-size says")
        return wanted, "--world-size"
    raise InputError(f"{table.source}: does not say on how many ranks it was measured; give --world-size N")


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
    timed = [
        (timing, *timing.rates["busbw"], row.num_bytes)
        for row in table.rows
        for timing in row.timings.values()
        if "busbw" in timing.rates and timing.duration_ns > timing.slack_ns and row.num_bytes
    ]
    if not timed:
        return None
    rows, allowed = 0, np.zeros(MAX_RANKS + 2, int)
    for timing, busbw, slack, num_bytes in timed:
        low = (busbw - slack) * (timing.duration_ns - timing.slack_ns) / num_bytes
        high = (busbw + slack) * (timing.duration_ns + timing.slack_ns) / num_bytes
        if low < top:
            rows += 1
            least = top / (top - max(0.0, low))
            first = max(2, int(least) + (least % 1 >= 1e-9))
            last = MAX_RANKS if high >= top else min(MAX_RANKS, int(top / (top - high) + 1e-9))
            if first <= last:
                allowed[first] += 1
                allowed[last + 1] -= 1
    counts = allowed.cumsum()
    told = np.flatnonzero(counts == counts.max())
    return int(told[0]) if len(told) == 1 and 2 * counts.max() >= rows else None


# ---- rows

_CONTRADICTS = "contradict themselves"


def sound_rows(table: LinkTable, collective: str, ranks: int, notes: Notes) -> list[LinkRow]:
    """The rows with their sound timings; what is left out is told by kind of fault.

    A timing is left out if it contradicts the rest of its row. It is also left out if the run had wrong
    results, since it did not do the work that the curve stands for.

    Raises:
        InputError: most timings contradict themselves, or no row is left.
    """
    kept: list[LinkRow] = []
    why: dict[str, list[str]] = defaultdict(list)
    for row in table.rows:
        sound: dict[Variant, Timing] = {}
        for variant, timing in row.timings.items():
            reason = _fault_of_sizes(row, collective, ranks) or _fault(
                timing, row.num_bytes, collective, ranks
            )
            if reason is None:
                sound[variant] = timing
            else:
                why[reason[0]].append(f"{row.where}: {reason[1]}")
        if sound:
            kept.append(replace(row, timings=sound))
    timings = sum(len(row.timings) for row in table.rows)
    for name, examples in why.items():
        notes.add("dropped", f"{table.source}: {len(examples)} timings that {name} ({examples[0]})")
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
                f"{format_number(expected, 4)} GB/s, {name} says {format_number(said, 6)}",
            )
    return None


# ---- curves

# DDP reduces its buckets in place: the buffer that goes in is the one that comes out.
_PREFERRED: tuple[Variant, ...] = ("in", "only", "out")


def _chosen(row: LinkRow) -> tuple[Variant, Timing]:
    """The timing of a row that counts: in place where there is one."""
    return next((variant, row.timings[variant]) for variant in _PREFERRED if variant in row.timings)


def curve_of(rows: Sequence[LinkRow], statistic: str) -> tuple[Curve, dict[str, dict[str, Any]]]:
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


def _stem(name: str) -> str:
    return _SUFFIX.sub("", name) or name


def _name(given: str | None, key: _Key, systems: Collection[_Key]) -> str:
    sources = {other.source for other in systems}
    is_shared = any(_stem(source) == _stem(key.source) for source in sources - {key.source})
    stem = key.source if is_shared else _stem(key.source)
    name = stem if given is None else given if len(systems) == 1 else f"{given}, {stem}"
    return f"{name}, {key.ranks} ranks" + (f", {key.place}" if key.place else "")


def _hardware(key: _Key, system: _System, name: str, notes: Notes) -> Hardware:
    curves: dict[str, Any] = {}
    spread = {}
    for collective, tables in system.items():
        rows = _rows(tables)
        curve, known = curve_of(rows, _statistic(tables[0]))
        curves[collective] = curve
        if known:
            spread[collective] = known
        notes.add(
            "found",
            f"{key.source}: {collective} on {key.ranks} ranks{f' ({key.place})' if key.place else ''}, "
            f"{len(curve)} sizes from {curve[0].num_bytes} to {curve[-1].num_bytes} B",
        )
        if len(rows) > len(curve):
            notes.add("assumed", f"{key.source}: {collective}: medians where a size comes more than once")
        _say_columns(key.source, rows, known, len(curve), notes)
    every = [table for tables in system.values() for table in tables]
    over = {table.over for table in every}
    told = over.pop() if len(over) == 1 else None
    provenance: dict[str, Any] = {
        "source": "bucketsim import nccl-tests",
        "files": list(dict.fromkeys(table.source for table in every)),
        "statistic": _statistic(every[0]),
        "measured": "beside the step, back to back",
        "devices": list(every[0].devices),
        "hosts": list(every[0].hosts),
        "backend": told and told[0],
        "device": told and told[1],
        "place": key.place,
    }
    made = Hardware(
        name=name,
        world_size=key.ranks,
        spread=spread,
        provenance={word: value for word, value in provenance.items() if value},
        **curves,
    )
    if provenance["device"] == "cpu":
        return made  # what DDP costs on a GPU is nothing of such a link
    return with_own_costs(made, gpus_named(every[0].devices))


def _statistic(table: LinkTable) -> str:
    """What one time is: ``mean of 20 iterations``, ``median``."""
    if table.statistic == "mean" and table.iterations:
        return f"mean of {table.iterations} iterations"
    return table.statistic


def _say_columns(
    source: str, rows: Sequence[LinkRow], spread: dict[str, Any], sizes: int, notes: Notes
) -> None:
    variants = {_chosen(row)[0] for row in rows}
    if "in" in variants:
        notes.add(
            "assumed",
            f"{source}: the times in place, as DDP reduces a bucket in the buffer that it fills",
        )
    if "out" in variants:
        notes.add("assumed", f"{source}: times out of place where there are none in place")
    if any(known["of"] == "in place and out of place" for known in spread.values()):
        notes.add("assumed", f"{source}: a size scatters by the distance of its two columns, each a mean")
    if not spread:
        notes.add("missing", f"{source}: how times scatter: a size has one value; repeat the run in one file")
    elif len(spread) < sizes:
        notes.add("missing", f"{source}: how times scatter at {sizes - len(spread)} of {sizes} sizes")
