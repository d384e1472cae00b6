"""What nccl-tests and its like measured, as Hardware: one for each number of ranks and each file."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sim.costs.doubts import odd_points, with_own_costs
from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions, Note, Notes, plain
from sim.importer.links.tables import UNUSED, WORDS, LinkTable, Sample, read_tables
from sim.importer.readers import read_text
from sim.importer.samples import median_curve, scatter_by_size
from sim.nouns.collective import bus_factor
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, MAX_RANKS, Hardware
from sim.units import count_of, format_number, format_size, median_ns

_LEAST_SIZES = 3
_WITHIN = 0.01  # a mean of bandwidths is not quite the bandwidth of a mean time
_UNLIKE = 2.0  # repeated runs of one machine lie nearer
_MOST_RUNS = 16  # that are told apart in one table
_MOST_TOLD = 1024  # ranks that bandwidths of a few digits can tell
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


_System = dict[str, list[LinkTable]]  # by collective, tables with their sound samples


def read_nccl_tests(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Curves from nccl-tests' text and ``-J`` reports, CSV, OSU's and other tables, by their content.

    Of rows that one file repeats, the median is taken. Each file is a system of its own, except that curves
    of a file without an all-reduce go to the one system with as many ranks. Sizes are those of the whole
    tensor (nccl-tests' PERFORMANCE.md), as ``Hardware`` has them. Curves are measured outside of a step.

    Raises:
        InputError: no table, a unit or a number of ranks that cannot be told, rows that mostly contradict
            what is said of them, several machines or runs of one number of ranks, or no all-reduce of three
            sizes or more.
    """
    notes, tables = Notes(), list[LinkTable]()
    for path in paths:
        alone = sum(other.name == path.name for other in paths) == 1
        tables += read_tables(read_text(path), path.name if alone else str(path), notes)
    systems = _systems(tables, options.world_size, notes)
    _pick(systems, options.machine, notes)
    systems = _complete(systems, notes)
    made, own = [], options.name
    for key, system in systems.items():
        stem = key.source if len(paths) > 1 else _SUFFIX.sub("", key.source)
        stem = stem if own is None else f"{own}, {stem}" if len(systems) > 1 else own
        made.append(_hardware(key, system, stem, notes))
    name = own or _SUFFIX.sub("", paths[0].name)
    return Imported(format="nccl-tests", name=name, hardware=tuple(made), notes=tuple(notes))


# ---- systems


def _systems(tables: Sequence[LinkTable], wanted: int | None, notes: Notes) -> dict[_Key, _System]:
    """Tables by system, their samples checked; of several numbers of ranks only the wanted one."""
    systems: dict[_Key, _System] = defaultdict(lambda: defaultdict(list))
    unlike, others = defaultdict[_Key, list[_Key]](list), []
    for table in tables:
        if (collective := _collective(table, notes)) is None:
            continue
        ranks, by = _ranks(table, collective, wanted, notes)
        if wanted not in (None, ranks):
            others.append(f"{ranks} (told by {by})")
            notes.add("dropped", f"{table.source}: what was measured on {ranks} ranks")
            continue
        if table.said.of_parts:
            whole = (replace(one, num_bytes=ranks * one.num_bytes) for one in table.samples)
            table = replace(table, samples=tuple(whole))
            notes.add("assumed", f"{table.source}: sizes are those of one rank's part, as OSU has them")
        table = replace(table, samples=_sound(table, collective, ranks, notes))
        columns = zip(*table.said.listed.values(), strict=True) if table.said.listed else ((), ())
        hosts, devices = (tuple(dict.fromkeys(map(plain, filter(None, one)))) for one in columns)
        for number, run in enumerate(_runs(table)):
            key, sure = _Key(table.source, ranks, hosts, devices, table.title), bool(hosts or number)
            known = unlike[key][:_MOST_RUNS]
            like = (one for one in known if _repeats([run], systems[one][collective], sure=sure))
            if (told := next(like, None)) is None:
                told = key._replace(unlike=run.samples[0].where) if known else key
                unlike[key].append(told)
            systems[told][collective].append(run)
    if others and not systems:
        words = f"{tables[0].source} was measured on {', '.join(dict.fromkeys(others))}"
        raise InputError(f"--world-size: {wanted} is not legal here; {words}")
    if not systems:
        why = notes[-1].text if notes else "PATH"
        raise InputError(f"{why}: no collective that fills a curve; give a run of all_reduce_perf")
    return systems


def _runs(table: LinkTable) -> list[LinkTable]:
    """A table as its runs: those that words in rows tell apart, if each is of sizes enough, and within such
    a one, or where no words do, the first row of each size, the second of each, and so on."""
    sizes, seen = defaultdict[str, set[int]](set), Counter[tuple[str, int, str]]()
    for one in table.samples:
        sizes[one.beside].add(one.num_bytes)
    is_told = min(map(len, sizes.values())) >= _LEAST_SIZES and len(sizes) <= _MOST_RUNS
    runs = defaultdict[tuple[str, int], list[Sample]](list)
    for one in table.samples:
        row = one.beside if is_told else "", one.num_bytes, one.place
        seen[row] += 1
        runs[row[0], min(seen[row], _MOST_RUNS)].append(one)
    return [replace(table, samples=tuple(samples)) for samples in runs.values()]


def _repeats(run: Iterable[LinkTable], before: Iterable[LinkTable], *, sure: bool) -> bool:
    """Whether a run repeats what was before: times at half of the sizes of both are near. Where the sizes are
    others it goes on with it if it is ``sure`` that both are of one machine."""
    mine, theirs = ({size: median_ns(times) for size, times, _ in _by_size(one)} for one in (run, before))
    ratios = [max(mine[at], theirs[at]) / min(mine[at], theirs[at]) for at in mine.keys() & theirs]
    return median(ratios) <= _UNLIKE if len(ratios) >= _LEAST_SIZES else sure or not theirs


def _pick(systems: dict[_Key, _System], machine: str | None, notes: Notes) -> None:
    """Keep of several machines the one that is asked for; refuse several of one number of ranks in a file."""
    words = {}
    for key, system in systems.items():
        first = next(iter(system.values()))[0].samples[0]
        told = (", ".join(key.hosts[:8]), ", ".join(key.devices[:4]), key.title, plain(first.beside))
        words[key] = "; ".join(filter(None, (*told, f"from {first.where}")))
    if machine is not None:
        others = [key for key in systems if machine.lower() not in words[key].lower()]
        if len(others) == len(systems):
            raise InputError(f"--machine: {machine!r} is in none of {' | '.join(words.values())}")
        for key in others:
            notes.add("dropped", f"{key.source}: another machine ({words[key]})")
            del systems[key]
    reducing = [key for key, system in systems.items() if "all_reduce" in system]
    for (source, ranks), count in Counter((key.source, key.ranks) for key in reducing).items():
        if count > 1:
            named = " | ".join(words[key] for key in reducing if (key.source, key.ranks) == (source, ranks))
            raise InputError(
                f"{source}: {count} machines or runs of {ranks} ranks in one file ({named}); pick one by "
                f"--machine WORD, a word of its hosts, devices or headline, or give a file of one"
            )


def _complete(systems: Mapping[_Key, _System], notes: Notes) -> dict[_Key, _System]:
    """The systems with an all-reduce; curves of too few sizes are left out first. Curves of a system without
    one go to the only other of as many ranks that has none of their collective, or are left out, too."""
    apart = [(key, one) for key, system in systems.items() if "all_reduce" not in system for one in system]
    short: dict[str, list[str]] = defaultdict(list)
    for key, system in systems.items():
        for collective, tables in [*system.items()]:
            sizes = [size for size, _, _ in _by_size(tables)]
            if len(sizes) < _LEAST_SIZES:
                del system[collective]
                run = f"{collective}_perf -b 64K -e 512M -f 2 -g"
                short[collective].append(
                    f"{key.source}: {count_of(len(sizes), 'size')} of {collective} on {key.ranks} ranks "
                    f"({', '.join(map(format_size, sizes))}), which tell nothing of other buckets; measure "
                    f"{_LEAST_SIZES} at least, as by {run} {key.ranks}, or mpirun -np {key.ranks} {run} 1"
                )
    whole = {key: system for key, system in systems.items() if "all_reduce" in system}
    apart += [(key, one) for key, system in systems.items() if key not in whole for one in system]
    for key, collective in dict.fromkeys(apart):
        fitting = [one for one in whole if one.ranks == key.ranks and collective not in whole[one]]
        if len(fitting) == 1 and collective in systems[key]:
            whole[fitting[0]][collective] = systems[key][collective]
            notes.add("assumed", f"{key.source}: {collective} of the system of {fitting[0].source}")
        elif len(fitting) != 1:
            need = f"one all_reduce of the {key.ranks} ranks of {key.source}, without which its {collective}"
            notes.add("missing", f"{need} is left out; give all_reduce_perf's file too")
    if short["all_reduce"] and not whole:
        dropped = [one.text for one in notes if one.kind == "dropped"]
        raise InputError("; dropped: ".join([short["all_reduce"][0], *dropped[:1]]))
    notes += [Note("missing", line) for line in chain(*short.values())]
    return whole


# ---- collective and ranks

# Of these nccl-tests' size is the whole tensor's, its count that of one rank's part.
_BY_PARTS = ("all_gather", "reduce_scatter")


def _collective(table: LinkTable, notes: Notes) -> str | None:
    """The collective of a table, where need be by its sizes, counts and bandwidths; None: it fills no curve.
    nccl-tests' size is n counts where a rank has a part, of a reduce-scatter with an operation, of an
    all-gather without. Only an all-reduce has a bus bandwidth above the algorithm's."""
    if table.collective in CURVES:
        return table.collective
    if table.collective is not None:
        notes.add("dropped", f"{table.source}: {table.collective}, {UNUSED}")
        return None
    rates = [one.rates for one in table.samples if len(one.rates) == 2]
    exact = [one for one in rates if all(rate >= 20 * digit for rate, digit in one.values())]  # two digits
    ratio = median(one["busbw"][0] / one["algbw"][0] for one in exact) if exact else 1.0
    told = "all_reduce"
    if _ranks_by_counts(table) > 1 or ratio < 0.97:
        if table.redop is None:
            raise InputError(
                f"{table.source}: sizes and bandwidths are those of a reduce_scatter or an all_gather, and "
                f"it does not say which; name it above the table (# reduce_scatter)"
            )
        told = "all_gather" if table.redop == "none" else "reduce_scatter"
    sure = "its sizes and bandwidths are those of" if told != "all_reduce" or ratio > 1.03 else "taken for"
    notes.add("assumed", f"{table.source}: does not name its collective; {sure} {told}")
    return told


def _ranks(table: LinkTable, collective: str, wanted: int | None, notes: Notes) -> tuple[int, str]:
    """How many ranks a table was measured on, and what tells it; ``InputError`` where nothing does."""
    ranks, by = table.ranks or 0, table.ranks_by
    is_sure = ranks > 0 and by != WORDS  # a command or a sentence may be of another run
    ways = (
        (_ranks_by_counts(table) if collective in _BY_PARTS else 0, "its sizes and counts"),
        (_ranks_by_bandwidths(table, collective), "bus over algorithm bandwidth"),
        (ranks, by),
        (wanted or 0, "--world-size"),
    )
    told, how = next(filter(lambda way: way[0], ways), (0, ""))
    if ranks not in (0, told):
        differ = f"{table.source}: {ranks} ranks by {by}, {told} by {how}"
        if is_sure:
            raise InputError(f"{differ}; give a file of one run")
        notes.add("doubtful", differ)
    if not is_sure:
        ranks, by = told, how
    if not 1 <= ranks <= MAX_RANKS:
        what = f"{ranks} ranks are not legal" if ranks else "does not say on how many ranks it was measured"
        raise InputError(f"{table.source}: {what}; give --world-size N, 1 to {MAX_RANKS}")
    if by != "its column":
        notes.add("found" if is_sure else "assumed", f"{table.source}: {ranks} ranks, told by {by}")
    return ranks, by


def _ranks_by_counts(table: LinkTable) -> int:
    """Bytes of the whole tensor over those of one rank's part; 0 if no row gives both, or rows disagree."""
    told = {
        divmod(one.num_bytes, one.part_bytes) for one in table.samples if one.part_bytes and one.num_bytes
    }
    ranks, rest = told.pop() if len(told) == 1 else (0, 1)
    return 0 if rest else ranks


def _ranks_by_bandwidths(table: LinkTable, collective: str) -> int:
    """The number of ranks by bus over algorithm bandwidth, 2(n-1)/n for an all-reduce: the one that most rows
    allow by their few digits. 0 if they allow several, or fewer than half of them that one."""
    telling = [one for one in table.samples if one.num_bytes and "busbw" in one.rates]
    telling = [one for one in telling if _excess(one, "algbw", 1.0) <= 0]
    factors = np.array([bus_factor(collective, ranks) for ranks in range(2, _MOST_TOLD + 1)])
    votes = np.zeros(len(factors), int)
    for one in telling:
        votes += _excess(replace(one, rates={"busbw": one.rates["busbw"]}), "busbw", factors) <= 0
    told = np.flatnonzero(votes == votes.max()) + 2
    return int(told[0]) if len(told) == 1 and 2 * votes.max() >= len(telling) and told[0] < _MOST_TOLD else 0


# ---- samples


def _sound(table: LinkTable, collective: str, ranks: int, notes: Notes) -> tuple[Sample, ...]:
    """The sound samples. Left out, and told by kind of fault, is what contradicts the rest of its row, and
    what had wrong results: it did not do the work that the curve stands for. Refused where most contradict
    themselves, or none is left."""
    faults = [(one, *_fault(one, collective, ranks)) for one in table.samples]
    kinds = dict.fromkeys(kind for _, kind, _ in faults)
    for kind in filter(None, kinds):
        words = [f"{one.where}: {said}" for one, which, said in faults if which == kind]
        notes.add("dropped", f"{table.source}: {len(words)} timings that {kind} ({words[0]})")
        if kind == _CONTRADICTS and 2 * len(words) > len(faults):
            raise InputError(
                f"{words[0]}; so do {len(words)} of {len(faults)} timings of {collective} on {ranks} ranks; "
                f"give the right --world-size, or another file"
            )
    if "" not in kinds:
        told = f"no row is left of {collective}: all {', '.join(kinds)}"
        raise InputError(f"{table.source}: {told}; measure again")
    return tuple(one for one, kind, _ in faults if not kind)


_CONTRADICTS = "contradict themselves"


def _fault(one: Sample, collective: str, ranks: int) -> tuple[str, str]:
    """The kind of fault of a timing, and words for it; both empty where it is sound."""
    size, part = one.num_bytes, one.part_bytes
    if size == 0:
        return "carry nothing", "size 0"
    if part and size not in (part, part * ranks if collective in _BY_PARTS else part):
        return _CONTRADICTS, f"{size} B are not its count of its type"
    if one.wrong > 0:
        return "have wrong results", f"{size} B, {format_number(one.wrong, 6)} wrong"
    for name, factor in (("algbw", 1.0), ("busbw", bus_factor(collective, ranks))):
        rate = size / one.duration_ns * factor
        if _excess(one, name, factor) > _WITHIN * rate:
            took = format_number(one.duration_ns / 1000, 6)
            says = f"{name} says {format_number(one.rates[name][0], 6)}"
            return _CONTRADICTS, f"{size} B in {took} us are {format_number(rate, 4)} GB/s, {says}"
    return "", ""


def _excess(one: Sample, name: str, factor: Any) -> Any:
    """How much farther a rate (GB/s) is from ``factor`` of its row's bytes in its time, one or an array, than
    digits explain; at most 0 where the row may be right, or has no such rate.
    """
    expected = one.num_bytes / one.duration_ns * factor
    said, digit = one.rates.get(name, (expected, 0.0))
    # A table may have computed its bus bandwidth from the rounded algorithm bandwidth beside it.
    rounded = one.rates["algbw"][1] * factor if name == "busbw" and "algbw" in one.rates else 0.0
    return abs(said - expected) - (digit + expected * one.slack_ns / one.duration_ns + rounded + 1e-9)


def _by_size(tables: Iterable[LinkTable]) -> list[tuple[int, list[int], list[Sample]]]:
    """Each size, its times (in place where there are such, as DDP reduces its buckets) and its samples."""
    by_size: dict[int, list[Sample]] = defaultdict(list)
    for one in (one for table in tables for one in table.samples):
        by_size[one.num_bytes].append(one)
    counted = {size: min(one.place for one in same) for size, same in by_size.items()}  # in, only, out
    return [
        (size, [one.duration_ns for one in same if one.place == counted[size]], same)
        for size, same in sorted(by_size.items())
    ]


def _hardware(key: _Key, system: _System, stem: str, notes: Notes) -> Hardware:
    """One system. A size scatters over its repeated rows, else over its two timings."""
    curves, spread = dict[str, Any](), dict[str, Any]()
    for collective, tables in system.items():
        what, rows, known = f"{key.source}: {collective}", _by_size(tables), dict[str, Any]()
        for size, times, same in rows:
            ones = times if len(times) > 1 else [one.duration_ns for one in same]
            if len(ones) > 1:
                known |= scatter_by_size({size: ones}, "median" if len(times) > 1 else "mean")
                known[str(size)]["median_ns"] = median_ns(times)
        curves[collective] = median_curve({size: times for size, times, _ in rows})
        spread |= {collective: known} if known else {}
        for odd in odd_points(curves[collective]):
            notes.add("doubtful", f"{what}: {format_size(odd['num_bytes'])} {odd['why']}; measure it again")
        ends = f"{len(rows)} sizes from {rows[0][0]} to {rows[-1][0]} B"
        notes.add("found", f"{what} on {key.ranks} ranks, {ends}")
        if any(one.place == "in" for _, _, same in rows for one in same):
            how = "the times in place, as DDP reduces a bucket in the buffer that it fills"
            notes.add("assumed", f"{what}: {how}")
        if len(known) < len(rows):
            unknown = f"{len(rows) - len(known)} of {len(rows)} sizes"
            notes.add("missing", f"{what}: how times scatter at {unknown}; repeat the run")
    every = [table for tables in system.values() for table in tables]
    over = {table.said.over for table in every}
    backend, device = (over.pop() if len(over) == 1 else None) or (None, None)
    provenance: dict[str, Any] = {
        "source": "bucketsim import nccl-tests",
        "files": list(dict.fromkeys(table.source for table in every)),
        "measured": "beside the step, back to back",
        "devices": list(key.devices),
        "hosts": list(key.hosts),
        "backend": backend,
        "device": device,
        "doubtful": odd_points(curves["all_reduce"]),
    }
    made = Hardware(
        name=f"{stem}, {key.ranks} ranks",
        world_size=key.ranks,
        spread=spread,
        provenance={word: value for word, value in provenance.items() if value},
        **curves,
    )
    # What DDP costs on a GPU is nothing of a link between CPUs.
    return made if device == "cpu" else with_own_costs(made, gpus_named(key.devices))
