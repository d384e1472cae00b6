"""What nccl-tests and its like measured, as Hardware: one for each number of ranks and each file."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from sim.costs.own_costs import with_own_costs
from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions
from sim.importer.links.around_tables import COMMAND, WORDS
from sim.importer.links.columns import LinkRow, LinkTable
from sim.importer.links.link_checks import (
    PARTS,
    chosen,
    collective_by_rows,
    curve_of,
    in_place_ratio,
    ranks_by_bandwidths,
    ranks_by_counts,
    sound_rows,
)
from sim.importer.links.nccl_json import read_json_tables
from sim.importer.links.text_tables import read_tables
from sim.importer.opening import read_text
from sim.importer.wording import Notes
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, MAX_RANKS, Hardware
from sim.units import format_number, format_size

FORMAT = "nccl-tests"
_LEAST_SIZES = 3
_UNLIKE = 2.0  # repeated runs of one machine lie nearer
_SUFFIX = re.compile(r"(\.(txt|csv|tsv|md|log|out|json|gz))+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """What tells the systems measured apart: file, number of ranks, place by its columns, and hosts."""

    source: str
    ranks: int
    place: str
    hosts: tuple[str, ...]
    devices: tuple[str, ...] = ()
    title: str = ""
    unlike: str = ""  # the first row of a run that is no repeat of one which nothing tells it from


@dataclass(slots=True, kw_only=True)
class _System:
    """The tables of one system by collective, and rows by collective."""

    tables: dict[str, list[LinkTable]] = field(default_factory=dict)
    rows: dict[str, list[LinkRow]] = field(default_factory=dict)


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
        tables += _tables_of(path, read_text(path), path.name if alone else str(path), options.world_size)
    options.progress(len(paths), len(paths), "")
    for table in tables:
        notes.dropped += table.left_out
        if table.unread:
            notes.dropped.append(f"{table.source}: columns {', '.join(dict.fromkeys(table.unread))}")
        if table.unit_by:
            notes.assumed.append(table.unit_by)
    systems = _systems(tables, options.world_size, notes)
    _pick(systems, options.machine, notes)
    orphans = _join(systems, notes)
    _leave_out_short(systems, notes)
    name = options.name or _stem(paths[0].name)
    details: dict[str, Any] = {"systems": []}
    hardware = tuple(
        _hardware(key, system, _name(options.name, key, systems), notes, details)
        for key, system in systems.items()
    )
    if orphans:
        details["curves_without_all_reduce"] = orphans
    return Imported(
        format=FORMAT,
        name=name,
        hardware=hardware,
        **notes.each(),
        details=details,
    )


def _tables_of(path: Path, text: str, source: str, world_size: int | None) -> list[LinkTable]:
    is_json = text.lstrip()[:1] == "{"
    tables = read_json_tables(text, source) if is_json else read_tables(text, source, world_size)
    if not any(table.rows for table in tables):
        raise InputError(f"{path}: no row in it; give the output of a run that got so far")
    return tables


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
    if wanted is not None and all(ranks != wanted for *_, ranks in told):
        seen = ", ".join(f"{ranks} (told by {words})" for ranks, words in sorted(by.items()))
        raise InputError(
            f"--world-size: {wanted} is not legal here; {told[0][0].source} was measured on {seen}"
        )
    systems: dict[_Key, _System] = {}
    for table, collective, ranks in told:
        if wanted is not None and ranks != wanted:
            notes.dropped.append(f"{table.source}: what was measured on {ranks} ranks")
            continue
        rows = sound_rows(table, collective, ranks, notes)
        key = _Key(
            source=table.source,
            ranks=ranks,
            place=table.place,
            hosts=table.hosts,
            devices=table.devices,
            title=table.title,
        )
        if _differs(rows, systems.get(key, _System()).rows.get(collective, [])):
            where = rows[0].where
            if key.hosts:
                notes.doubtful.append(
                    f"{where}: begins a run that differs from one on the same hosts by more than a factor of "
                    f"{format_number(_UNLIKE, 6)}"
                )
            else:
                key = replace(key, unlike=where)
        system = systems.setdefault(key, _System())
        system.tables.setdefault(collective, []).append(table)
        system.rows.setdefault(collective, []).extend(rows)
    return systems


def _differs(rows: Sequence[LinkRow], others: Sequence[LinkRow]) -> bool:
    """Whether two runs are further apart than repeated ones: by a factor at half of the sizes of both."""
    mine, theirs = (
        {point.num_bytes: point.duration_ns for point in curve_of(several, "mean")[0]}
        for several in (rows, others)
    )
    pairs = [sorted((mine[size], theirs[size])) for size in mine.keys() & theirs.keys()]
    both = [high / low for low, high in pairs]
    return len(both) >= _LEAST_SIZES and median(both) > _UNLIKE


def _collective(table: LinkTable, notes: Notes) -> str | None:
    if table.collective is None and (told := collective_by_rows(table)) is not None:
        if told == PARTS:
            raise InputError(
                f"{table.source}: sizes and bandwidths are those of a reduce_scatter or an all_gather, and "
                f"it does not say which; name it above the table (# reduce_scatter)"
            )
        notes.assumed.append(
            f"{table.source}: does not name its collective; its sizes and bandwidths are those of {told}"
        )
        return told
    if table.collective is None:
        notes.assumed.append(f"{table.source}: does not name its collective; taken for all-reduces")
        return "all_reduce"
    if table.collective not in CURVES:
        notes.dropped.append(f"{table.source}: {table.collective}, which reduces no bucket")
        return None
    return table.collective


def _ranks(table: LinkTable, collective: str, wanted: int | None, notes: Notes) -> tuple[int, str]:
    """How many ranks a table was measured on, and what tells it; ``InputError`` where nothing does."""
    by_counts = ranks_by_counts(table, collective)
    told = by_counts or ranks_by_bandwidths(table, collective)
    said = table.ranks
    if said is not None and not 1 <= said <= MAX_RANKS:
        raise InputError(f"{table.source}: {said} ranks are not legal; give 1 to {MAX_RANKS}")
    is_weak = table.ranks_by in (COMMAND, WORDS)  # which may be of another run, or leave something out
    if said is not None and not is_weak:
        if told not in (None, said):
            raise InputError(
                f"{table.source}: {said} ranks by {table.ranks_by}, {told} by its sizes and bandwidths; give "
                f"a file of one run"
            )
        if table.ranks_by != "its column":
            notes.found.append(f"{table.source}: {said} ranks, told by {table.ranks_by}")
        return said, table.ranks_by
    if told is not None:
        formula = "2(n-1)/n" if collective == "all_reduce" else "(n-1)/n"
        by = "its sizes and counts" if by_counts else f"bus over algorithm bandwidth, {formula}"
        notes.assumed.append(f"{table.source}: {told} ranks, told by {by}")
        if said not in (None, told):
            notes.doubtful.append(f"{table.source}: {said} ranks by {table.ranks_by}, but {told} by {by}")
        return told, by
    if said is not None:
        notes.assumed.append(f"{table.source}: {said} ranks, told by {table.ranks_by}")
        return said, table.ranks_by
    if wanted is not None:
        notes.assumed.append(f"{table.source}: {wanted} ranks, as --world-size says")
        return wanted, "--world-size"
    raise InputError(f"{table.source}: does not say on how many ranks it was measured; give --world-size N")


def _told_apart(key: _Key, system: _System) -> str:
    """What else than ranks tells a machine from others: its hosts and so on, and where its rows begin."""
    first = next(iter(system.tables.values()))[0].rows[0].where
    words = (", ".join(key.hosts[:8]), ", ".join(key.devices[:4]), key.title, key.place, f"from {first}")
    return "; ".join(filter(None, words))


def _pick(systems: dict[_Key, _System], machine: str | None, notes: Notes) -> None:
    """Keep of several machines the one that is asked for.

    Raises:
        InputError: a file has several of one number of ranks and one place, or none is as asked for.
    """
    if machine is not None:
        words = {key: _told_apart(key, system) for key, system in systems.items()}
        picked = [key for key in systems if machine.lower() in words[key].lower()]
        if not picked:
            raise InputError(f"--machine: {machine!r} is in none of {' | '.join(words.values())}")
        for key in [key for key in systems if key not in picked]:
            notes.dropped.append(f"{key.source}: another machine ({words[key]})")
            del systems[key]
    alike: dict[tuple[str, int, str], list[_Key]] = {}
    for key, system in systems.items():
        if "all_reduce" in system.rows:
            alike.setdefault((key.source, key.ranks, key.place), []).append(key)
    for (source, ranks, _), keys in alike.items():
        if len(keys) > 1:
            each = " | ".join(_told_apart(key, systems[key]) for key in keys)
            raise InputError(
                f"{source}: {len(keys)} machines or runs of {ranks} ranks in one file ({each}); pick one by "
                f"--machine WORD, a word of its hosts, devices or headline, or give a file of one"
            )


def _join(systems: dict[_Key, _System], notes: Notes) -> list[dict[str, Any]]:
    """Give curves of files without an all-reduce to the one system that they fit; returns those of none."""
    orphans = []
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
            curve, _ = curve_of(rows, "mean")
            orphans.append(
                {
                    "source": key.source,
                    "world_size": key.ranks,
                    "collective": collective,
                    "points": [[point.num_bytes, point.duration_ns] for point in curve],
                }
            )
            notes.missing.append(
                f"an all_reduce of the {key.ranks} ranks of {key.source}, without which its {collective} is "
                f"kept in the summary only; give all_reduce_perf's file too"
                if not fitting
                else f"which of {len(fitting)} systems the {collective} of {key.source} is of"
            )
    return orphans


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


def _stem(name: str) -> str:
    return _SUFFIX.sub("", name) or name


def _name(given: str | None, key: _Key, systems: Collection[_Key]) -> str:
    sources = {other.source for other in systems}
    is_shared = any(_stem(source) == _stem(key.source) for source in sources - {key.source})
    stem = key.source if is_shared else _stem(key.source)
    name = stem if given is None else given if len(systems) == 1 else f"{given}, {stem}"
    return f"{name}, {key.ranks} ranks" + (f", {key.place}" if key.place else "")


def _hardware(key: _Key, system: _System, name: str, notes: Notes, details: dict[str, Any]) -> Hardware:
    curves: dict[str, Any] = {}
    spread, ratios = {}, {}
    for collective, rows in system.rows.items():
        curve, known = curve_of(rows, _statistic(system.tables[collective]))
        curves[collective] = curve
        if known:
            spread[collective] = known
        notes.found.append(
            f"{key.source}: {collective} on {key.ranks} ranks{f' ({key.place})' if key.place else ''}, "
            f"{len(curve)} sizes from {curve[0].num_bytes} to {curve[-1].num_bytes} B"
        )
        if len(rows) > len(curve):
            notes.assumed.append(f"{key.source}: {collective}: medians where a size comes more than once")
        if (ratio := in_place_ratio(rows)) is not None:
            ratios[collective] = ratio
        _say_columns(key.source, rows, known, len(curve), notes)
    tables = [table for several in system.tables.values() for table in several]
    details["systems"].append(
        {"name": name, "world_size": key.ranks, "source": key.source, "in_place_over_out_of_place": ratios}
    )
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
    made = Hardware(
        name=name,
        world_size=key.ranks,
        spread=spread,
        provenance=provenance,
        **curves,
    )
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
    variants = {chosen(row)[0] for row in rows}
    if "in" in variants:
        notes.assumed.append(
            f"{source}: the times in place, as DDP reduces a bucket in the buffer that it fills; the summary "
            f"has their ratio to those out of place"
        )
    if "out" in variants:
        notes.assumed.append(f"{source}: times out of place where there are none in place")
    if any(known["of"] == "in place and out of place" for known in spread.values()):
        notes.assumed.append(f"{source}: a size scatters by the distance of its two columns, each a mean")
    if not spread:
        notes.missing.append(f"{source}: how times scatter: a size has one value; repeat the run in one file")
    elif len(spread) < sizes:
        notes.missing.append(f"{source}: how times scatter at {sizes - len(spread)} of {sizes} sizes")
