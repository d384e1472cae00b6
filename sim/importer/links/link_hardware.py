"""What nccl-tests and its like measured, as Hardware: one for each number of ranks and each file."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sim.costs.own_costs import with_own_costs
from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions, Notes, count_of
from sim.importer.links.columns import LinkRow, LinkTable, Timing, Variant, bus_factor
from sim.importer.links.nccl_json import read_report
from sim.importer.links.text_tables import COMMAND, WORDS, read_tables
from sim.importer.readers import read_text
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, MAX_RANKS, Curve, CurvePoint, Hardware
from sim.units import format_number, format_size, median_ns

_LEAST_SIZES = 3
_UNLIKE = 2.0  # repeated runs of one machine lie nearer
_SUFFIX = re.compile(r"(?<=.)(\.(txt|csv|tsv|md|log|out|json|gz))+$")


class _Key(NamedTuple):
    """What tells the systems measured apart; ``unlike`` is where a run begins that is no repeat of one which
    nothing else tells it from."""

    source: str
    ranks: int
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
    notes, tables = Notes(), list[LinkTable]()
    if not paths:
        raise InputError("paths: no files; give at least one")
    for number, path in enumerate(paths):
        options.progress(number, len(paths), str(path))
        alone = sum(other.name == path.name for other in paths) == 1
        source, text = path.name if alone else str(path), read_text(path)
        is_json = text.lstrip()[:1] == "{"
        found = read_report(text, source) if is_json else read_tables(text, source, options.world_size)
        if not any(table.rows for table in found):
            raise InputError(f"{path}: no row in it; give the output of a run that got so far")
        tables += found
    options.progress(len(paths), len(paths), "")
    for line in (line for table in tables for line in table.left_out):
        notes.add("dropped", line)
    systems = _systems(tables, options.world_size, notes)
    _pick(systems, options.machine, notes)
    _join(systems, notes)
    _leave_out_short(systems, notes)
    stems = {key: key.source if len(paths) > 1 else _SUFFIX.sub("", key.source) for key in systems}
    if options.name is not None:
        stems = {
            key: f"{options.name}, {stem}" if len(systems) > 1 else options.name
            for key, stem in stems.items()
        }
    return Imported(
        format="nccl-tests",
        name=options.name or _SUFFIX.sub("", paths[0].name),
        hardware=tuple(_hardware(key, system, stems[key], notes) for key, system in systems.items()),
        notes=tuple(notes),
    )


# ---- systems


def _systems(tables: Sequence[LinkTable], wanted: int | None, notes: Notes) -> dict[_Key, _System]:
    """Tables by system, their rows checked; of several numbers of ranks only the wanted one."""
    named = [(table, collective) for table in tables if (collective := _collective(table, notes))]
    told = [(table, collective, *_ranks(table, collective, wanted, notes)) for table, collective in named]
    if not told:
        raise InputError("PATH: no collective that fills a curve; give a run of all_reduce_perf")
    by = {ranks: words for _, _, ranks, words in reversed(told)}
    if wanted is not None and wanted not in by:
        seen = ", ".join(f"{ranks} (told by {words})" for ranks, words in sorted(by.items()))
        raise InputError(
            f"--world-size: {wanted} is not legal here; {told[0][0].source} was measured on {seen}"
        )
    systems: dict[_Key, _System] = defaultdict(lambda: defaultdict(list))
    for table, collective, ranks, _ in told:
        if wanted is not None and ranks != wanted:
            notes.add("dropped", f"{table.source}: what was measured on {ranks} ranks")
            continue
        table = replace(table, rows=tuple(sound_rows(table, collective, ranks, notes)))
        key = _Key(table.source, ranks, table.hosts, table.devices, table.title)
        if key in systems and _differs(table.rows, _rows(systems[key][collective])):
            where = table.rows[0].where
            if key.hosts:
                notes.add("doubtful", f"{where}: begins a run unlike the one before on the same hosts")
            else:
                key = key._replace(unlike=where)
        systems[key][collective].append(table)
    return systems


def _rows(tables: Iterable[LinkTable]) -> list[LinkRow]:
    return [row for table in tables for row in table.rows]


def _differs(rows: Sequence[LinkRow], others: Sequence[LinkRow]) -> bool:
    """Whether two runs are further apart than repeated ones: by a factor at half of the sizes of both."""
    mine, theirs = ({p.num_bytes: p.duration_ns for p in curve_of(many, "")[0]} for many in (rows, others))
    pairs = [(mine[size], theirs[size]) for size in mine.keys() & theirs]
    return len(pairs) >= _LEAST_SIZES and median(max(pair) / min(pair) for pair in pairs) > _UNLIKE


def _pick(systems: dict[_Key, _System], machine: str | None, notes: Notes) -> None:
    """Keep of several machines the one that is asked for.

    Raises:
        InputError: a file has several of one number of ranks, or none is as asked for.
    """
    words = {}
    for key, system in systems.items():
        begins = f"from {_rows(next(iter(system.values())))[0].where}"
        told = (", ".join(key.hosts[:8]), ", ".join(key.devices[:4]), key.title, begins)
        words[key] = "; ".join(filter(None, told))
    if machine is not None and not any(machine.lower() in told.lower() for told in words.values()):
        raise InputError(f"--machine: {machine!r} is in none of {' | '.join(words.values())}")
    for key, described in words.items():
        if machine is not None and machine.lower() not in described.lower():
            notes.add("dropped", f"{key.source}: another machine ({described})")
            del systems[key]
    reducing = sorted(key for key, system in systems.items() if "all_reduce" in system)
    for (source, ranks), group in groupby(reducing, key=lambda key: key[:2]):
        keys = list(group)
        if len(keys) > 1:
            raise InputError(
                f"{source}: {len(keys)} machines or runs of {ranks} ranks in one file "
                f"({' | '.join(words[key] for key in words if key in keys)}); pick one by --machine WORD, a "
                f"word of its hosts, devices or headline, or give a file of one"
            )


def _join(systems: dict[_Key, _System], notes: Notes) -> None:
    """Give curves of files without an all-reduce to the one system of as many ranks."""
    for key in [key for key, system in systems.items() if "all_reduce" not in system]:
        for collective, tables in systems.pop(key).items():
            fitting = [
                (other.source, system)
                for other, system in systems.items()
                if other.ranks == key.ranks and "all_reduce" in system and collective not in system
            ]
            if len(fitting) == 1:
                source, system = fitting[0]
                system[collective] = tables
                notes.add("assumed", f"{key.source}: {collective} of the system of {source}")
                continue
            notes.add(
                "missing",
                f"one all_reduce of the {key.ranks} ranks of {key.source}, without which its {collective} is "
                f"left out; give all_reduce_perf's file too",
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
    name: width
    for width, names in (
        (1, "int8 uint8 char f8e4m3 f8e5m2 fp8_e4m3 fp8_e5m2"),
        (2, "half float16 bfloat16 fp16 bf16"),
        (4, "int32 uint32 float float32 fp32 int"),
        (8, "int64 uint64 double float64"),
    )
    for name in names.split()
}
# Of these nccl-tests' size is the whole tensor's, its count that of one rank's part.
_BY_PARTS = ("all_gather", "reduce_scatter", "alltoall")


def _part(row: LinkRow) -> int:
    """The bytes that a row's count says; 0 where it says none."""
    return (row.count or 0) * _WIDTHS.get(row.dtype or "", 0)


def _collective(table: LinkTable, notes: Notes) -> str | None:
    """The collective of a table, where need be by its sizes, counts and bandwidths; None: it fills no curve.

    nccl-tests' size is n counts where a rank has a part, of a reduce-scatter with an operation, of an
    all-gather without. Only an all-reduce has a bus bandwidth above the algorithm's.
    """
    if not table.rows or table.collective in CURVES:
        return table.collective if table.rows else None
    if table.collective is not None:
        notes.add("dropped", f"{table.source}: {table.collective}, which reduces no bucket")
        return None
    rates = [timing.rates for row in table.rows for timing in row.timings.values() if len(timing.rates) == 2]
    exact = [one for one in rates if all(rate >= 20 * digit for rate, digit in one.values())]  # two digits
    ratio = median(one["busbw"][0] / one["algbw"][0] for one in exact) if exact else 1.0
    if (ranks_by_counts(table, "reduce_scatter") or 1) > 1 or ratio < 0.97:
        if table.redop is None:
            raise InputError(
                f"{table.source}: sizes and bandwidths are those of a reduce_scatter or an all_gather, and "
                f"it does not say which; name it above the table (# reduce_scatter)"
            )
        told = "all_gather" if table.redop == "none" else "reduce_scatter"
    else:
        told = "all_reduce"
    sure = "its sizes and bandwidths are those of" if told != "all_reduce" or ratio > 1.03 else "taken for"
    notes.add("assumed", f"{table.source}: does not name its collective; {sure} {told}")
    return told


def _ranks(table: LinkTable, collective: str, wanted: int | None, notes: Notes) -> tuple[int, str]:
    """How many ranks a table was measured on, and what tells it; ``InputError`` where nothing does."""
    by_counts = ranks_by_counts(table, collective)
    told = by_counts or ranks_by_bandwidths(table, collective)
    said, by = table.ranks, table.ranks_by
    if said is not None and not 1 <= said <= MAX_RANKS:
        raise InputError(f"{table.source}: {said} ranks are not legal; give 1 to {MAX_RANKS}")
    # A command or a sentence may be of another run, or leave something out.
    is_sure = said is not None and by not in (COMMAND, WORDS)
    formula = "2(n-1)/n" if collective == "all_reduce" else "(n-1)/n"
    how = "its sizes and counts" if by_counts else f"bus over algorithm bandwidth, {formula}"
    if said is not None and told not in (None, said):
        differ = f"{table.source}: {said} ranks by {by}, {told} by {how}"
        if is_sure:
            raise InputError(f"{differ}; give a file of one run")
        notes.add("doubtful", differ)
    if not is_sure and told is not None:
        said, by = told, how
    if said is None and wanted is not None:
        said, by = wanted, "--world-size"
    if said is None:
        raise InputError(
            f"{table.source}: does not say on how many ranks it was measured; give --world-size N"
        )
    if by != "its column":
        notes.add("found" if is_sure else "assumed", f"{table.source}: {said} ranks, told by {by}")
    return said, by


def ranks_by_counts(table: LinkTable, collective: str) -> int | None:
    """The number of ranks: bytes of the whole tensor over those of one rank's part.

    None if no row gives both, or rows disagree.
    """
    told = {divmod(row.num_bytes, _part(row)) for row in table.rows if _part(row) and row.num_bytes}
    ranks, rest = told.pop() if len(told) == 1 else (None, 0)
    return None if rest or collective not in _BY_PARTS else ranks


def ranks_by_bandwidths(table: LinkTable, collective: str) -> int | None:
    """The number n of ranks by bus over algorithm bandwidth, 2(n-1)/n for an all-reduce.

    A row has few digits and allows a range of n. Returned is the n that most rows allow. None if as many rows
    allow another n, or fewer than half of all rows allow it.
    """
    top = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}.get(collective)
    ranges = [
        [
            (busbw + way * slack) * (timing.duration_ns + way * timing.slack_ns) / row.num_bytes
            for way in (-1, 1)
        ]
        for row in table.rows
        for timing in row.timings.values()
        if "busbw" in timing.rates and timing.duration_ns > timing.slack_ns and row.num_bytes
        for busbw, slack in [timing.rates["busbw"]]
    ]
    telling = np.array([one for one in ranges if top is not None and one[0] < top])
    if top is None or not telling.size:
        return None
    factors = top * (1 - 1 / np.arange(2, MAX_RANKS + 1))
    first = np.searchsorted(factors, telling[:, 0] - 1e-9)
    beyond = np.searchsorted(factors, telling[:, 1] + 1e-9, side="right")
    begun, over = (np.bincount(places, minlength=len(factors) + 1) for places in (first, beyond))
    allowed = np.cumsum(begun - over)
    told = np.flatnonzero(allowed == allowed.max())
    return int(told[0]) + 2 if len(told) == 1 and 2 * allowed.max() >= len(telling) else None


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
            kind, words = _fault(row, timing, collective, ranks)
            if kind:
                why[kind].append(f"{row.where}: {words}")
            else:
                sound[variant] = timing
        if sound:
            kept.append(replace(row, timings=sound))
    timings = sum(len(row.timings) for row in table.rows)
    for kind, examples in why.items():
        notes.add("dropped", f"{table.source}: {len(examples)} timings that {kind} ({examples[0]})")
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


def _fault(row: LinkRow, timing: Timing, collective: str, ranks: int) -> tuple[str, str]:
    """The kind of fault of a timing, and words for it; both empty where it is sound."""
    size, part = row.num_bytes, _part(row)
    if size == 0:
        return "carry nothing", "size 0"
    if part and size not in (part, part * ranks if collective in _BY_PARTS else part):
        return _CONTRADICTS, f"{size} B are not {row.count} of {row.dtype}"
    if timing.wrong > 0:
        return "have wrong results", f"{size} B, {format_number(timing.wrong, 6)} wrong"
    for name, (said, slack) in timing.rates.items():
        factor = bus_factor(collective, ranks) if name == "busbw" else 1.0
        expected = size / timing.duration_ns * factor
        # A table may have computed its bus bandwidth from the rounded algorithm bandwidth beside it.
        rounded = timing.rates["algbw"][1] * factor if name == "busbw" and "algbw" in timing.rates else 0.0
        allowed = slack + rounded + expected * timing.slack_ns / timing.duration_ns + 1e-9
        if abs(said - expected) > allowed:
            return _CONTRADICTS, (
                f"{size} B in {format_number(timing.duration_ns / 1000, 6)} us are "
                f"{format_number(expected, 4)} GB/s, {name} says {format_number(said, 6)}"
            )
    return "", ""


# ---- curves

# DDP reduces its buckets in place: the buffer that goes in is the one that comes out.
_PREFERRED: tuple[Variant, ...] = ("in", "only", "out")


def _chosen(row: LinkRow) -> Variant:
    """The timing of a row that counts: in place where there is one."""
    return next(variant for variant in _PREFERRED if variant in row.timings)


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
        timings = [row.timings[_chosen(row)] for row in same]
        middle = median_ns([timing.duration_ns for timing in timings])
        points.append(CurvePoint(num_bytes=num_bytes, duration_ns=middle))
        both = [replace(one, scatter={}) for one in same[0].timings.values()]
        if len(same) == 1 and timings[0].scatter:
            told = {**timings[0].scatter, "of": "what the file says of its samples"}
            spread[str(num_bytes)] = {"quantile": statistic, **told}
        elif len(same) > 1 or len(both) == 2:
            ones = timings if len(same) > 1 else both
            spread[str(num_bytes)] = {
                "count": sum(one.scatter.get("count", 1) for one in ones),
                "quantile": "median" if len(same) > 1 else statistic,
                "median_ns": middle,
                "min_ns": min(one.scatter.get("min_ns", one.duration_ns) for one in ones),
                "max_ns": max(one.scatter.get("max_ns", one.duration_ns) for one in ones),
                "of": "repeated rows" if len(same) > 1 else "in place and out of place",
            }
    return tuple(points), spread


def _hardware(key: _Key, system: _System, stem: str, notes: Notes) -> Hardware:
    curves: dict[str, Any] = {}
    spread = {}
    every = [table for tables in system.values() for table in tables]
    first = every[0]
    is_mean = first.statistic == "mean" and first.iterations
    statistic = f"mean of {first.iterations} iterations" if is_mean else first.statistic
    for collective, tables in system.items():
        rows = _rows(tables)
        curve, known = curve_of(rows, statistic)
        curves[collective] = curve
        if known:
            spread[collective] = known
        notes.add(
            "found",
            f"{key.source}: {collective} on {key.ranks} ranks, {len(curve)} sizes from {curve[0].num_bytes} "
            f"to {curve[-1].num_bytes} B",
        )
        variants = {_chosen(row) for row in rows}
        if len(rows) > len(curve):
            notes.add("assumed", f"{key.source}: {collective}: medians where a size comes more than once")
        said = {
            "the times in place, as DDP reduces a bucket in the buffer that it fills": "in" in variants,
            "times out of place where there are none in place": "out" in variants,
            "a size scatters by the distance of its two columns, each a mean": any(
                each["of"] == "in place and out of place" for each in known.values()
            ),
        }
        for words, is_so in said.items():
            if is_so:
                notes.add("assumed", f"{key.source}: {words}")
        if len(known) < len(curve):
            unknown = len(curve) - len(known)
            notes.add(
                "missing",
                f"{key.source}: how times scatter at {unknown} of {len(curve)} sizes; repeat the run",
            )
    over = {table.over for table in every}
    backend, device = (over.pop() if len(over) == 1 else None) or (None, None)
    provenance: dict[str, Any] = {
        "source": "bucketsim import nccl-tests",
        "files": list(dict.fromkeys(table.source for table in every)),
        "statistic": statistic,
        "measured": "beside the step, back to back",
        "devices": list(first.devices),
        "hosts": list(first.hosts),
        "backend": backend,
        "device": device,
    }
    made = Hardware(
        name=f"{stem}, {key.ranks} ranks",
        world_size=key.ranks,
        spread=spread,
        provenance={word: value for word, value in provenance.items() if value},
        **curves,
    )
    # What DDP costs on a GPU is nothing of a link between CPUs.
    return made if device == "cpu" else with_own_costs(made, gpus_named(first.devices))
