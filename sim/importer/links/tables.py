"""Tables of link benchmarks as rows: nccl-tests' text and ``-J`` report, OSU's, and CSV with a header."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np

from sim.errors import InputError
from sim.importer.bounded_json import parse_bounded
from sim.importer.wording import plain

# Out of place the result goes to another buffer than the input came from; "only" where a table does not say.
Variant = Literal["out", "in", "only"]
NCCL = ("nccl", "cuda")
MOST_NS, MOST_BYTES = 10**15, 1 << 50  # eleven days, a pebibyte
LONGEST_LINE, MOST_COLUMNS, MOST_ROWS, LONGEST_NAME = 1 << 16, 200, 100_000, 80
LONGEST_HEADER, LONGEST_PREFIX = 2000, 200
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SCATTER = {"min": "min_ns", "p10": "p10_ns", "median": "median_ns", "p90": "p90_ns", "max": "max_ns"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long it took, in ns, and what else its row says of it.

    ``slack_ns`` is one unit of the last digit written. ``rates`` has ``algbw`` and ``busbw`` in GB/s (1e9
    bytes), each with one unit of its last digit. ``wrong`` counts wrong results. ``scatter`` holds members
    of a ``spread`` (``count``, ``min_ns``...).
    """

    duration_ns: int
    slack_ns: float
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: float = 0.0
    scatter: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One line of a table: ``num_bytes`` as nccl-tests counts them, timings by where the result went."""

    where: str
    num_bytes: int
    timings: dict[Variant, Timing]
    count: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The rows of one collective on one set of ranks, and what the file says of these.

    ``ranks`` is what the file says, ``ranks_by`` how it says it; None where only bandwidths may tell.
    ``place`` is what sets a table apart from others with as many ranks: ``devices_per_node 4``.
    ``statistic`` says what a time is: ``mean`` of nccl-tests' iterations, ``median``. ``over`` is the backend
    and the type of device by torch's names, where the benchmark is a known one. ``left_out`` and ``assumed``
    are sentences.
    """

    source: str
    rows: tuple[LinkRow, ...]
    collective: str | None
    ranks: int | None = None
    ranks_by: str = ""
    place: str = ""
    statistic: str = "mean"
    iterations: int | None = None
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    over: tuple[str, str] | None = None
    left_out: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


# ---- columns: what a name and the unit in it say


class Column(NamedTuple):
    """``kind`` of what it holds; ``scale`` turns its numbers into ns or bytes (None: its unit is not told).

    ``statistic`` is that of a time ("time": whatever it is), ``variant`` the buffers' where the name says it.
    """

    name: str
    kind: str = "other"
    scale: Decimal | None = None
    statistic: str = "time"
    variant: Variant | None = None


_TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "seconds"), Decimal(10**9)),
    **dict.fromkeys(("ms", "msec"), Decimal(10**6)),
    **dict.fromkeys(("us", "usec", "µs", "μs"), Decimal(10**3)),
    **dict.fromkeys(("ns", "nsec"), Decimal(1)),
}
_SIZE_UNITS = {
    **dict.fromkeys(("", "b", "byte", "bytes"), Decimal(1)),
    **{"kib": Decimal(1 << 10), "mib": Decimal(1 << 20), "gib": Decimal(1 << 30)},
    **dict.fromkeys(("kb", "mb", "gb"), None),  # 10^n to some, 2^n to others
}
_TIMES = ("time", "latency", "lat", "duration", "elapsed", "runtime")
_STATISTICS = {
    **{name: name for name in ("min", "max", "median", "p10", "p90", "p95", "p99")},
    **dict.fromkeys(("mean", "avg", "average"), "mean"),
    **dict.fromkeys(("std", "stdev", "stddev"), "std"),
    "p50": "median",
}
_NAMES = {
    "size": "size bytes num_bytes nbytes message msg payload message_size msg_size data_size buffer_size "
    "tensor_size payload_size",
    "count": "count elements num_elements nelem numel",
    "dtype": "type dtype datatype",
    "cputime": "cputime cpu_time",
    "algbw": "algbw alg_bw algobw algo_bw algorithm_bw alg_bandwidth algo_bandwidth algorithm_bandwidth",
    "busbw": "busbw bus_bw bus_bandwidth",
    "wrong": "#wrong wrong nwrong",
    "collective": "op collective coll operation primitive",
    "world_size": "world_size world nranks num_ranks ranks num_workers nprocs num_gpus gpus",
    "iterations": "iterations iters repeats",
    "place": "devices_per_node max_devices_per_node nodes num_nodes backend transport host hostname cluster "
    "machine system gpu gpu_type gpu_name device_name fabric interconnect network partition",
    "known": "root redop rank error i_cv%",
    "timestamp": "timestamp",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_VARIANTS: tuple[tuple[re.Pattern[str], Variant], ...] = (
    (re.compile(r"(?:^|_)(?:out_?of_?place|oop)(?=_|$)"), "out"),
    (re.compile(r"(?:^|_)(?:in_?place|ip)(?=_|$)"), "in"),
)
_RATE = re.compile(r"[\s_]*[(\[]?([GMT](?:iB|B|bit|b))(?:ps|/s|_s)[)\]]?$")
_IN_BRACKETS = re.compile(r"(.*?)[\s_]*[(\[]([^)\]]*)[)\]]")
_VIDUR = re.compile(r"time_stats\.all_reduce\.(min|max|mean|median|std)")  # its profiles are in ms


@lru_cache(maxsize=4096)
def _column_of(name: str) -> Column:
    name = name.strip().strip('"')
    if len(name) > LONGEST_NAME:
        return Column(name[:LONGEST_NAME])
    if (vidur := _VIDUR.fullmatch(name)) is not None:
        return Column(name, "time", _TIME_UNITS["ms"], _STATISTICS[vidur[1]])
    rate = _RATE.search(name)
    text = (name if rate is None else name[: rate.start()]).lower()
    unit: str | None = None
    if (bracketed := _IN_BRACKETS.fullmatch(text)) is not None:
        text, unit = bracketed[1], bracketed[2].strip()
    text = re.sub(r"[\s.\-]+", "_", text).strip("_")
    variant: Variant | None = None
    for pattern, which in _VARIANTS:
        text, hits = pattern.subn("", text)
        variant = which if hits else variant
    text = text.strip("_")
    kind = _KINDS.get(text)
    if rate is not None and (kind not in ("algbw", "busbw") or rate[1] != "GB"):
        return Column(name, variant=variant)
    if kind == "size":
        return Column(name, "size", _SIZE_UNITS.get(unit or ""))
    if kind is not None:
        return Column(name, kind, variant=variant)
    start, _, end = text.rpartition("_")
    if unit is None and _KINDS.get(start) == "size" and end in _SIZE_UNITS:
        return Column(name, "size", _SIZE_UNITS[end])
    words = text.split("_")
    statistic = next((_STATISTICS[word] for word in words if word in _STATISTICS), None)
    unit = unit or next((word for word in words if word in _TIME_UNITS), None)
    base = "_".join(word for word in words if word not in _STATISTICS and word not in _TIME_UNITS)
    # nccl-tests' i_min and so on are statistics over iterations.
    is_alone = base in ("", "i") and (statistic is not None or (not base and unit in ("ms", "us", "ns")))
    if base not in _TIMES and not is_alone:
        return Column(name, variant=variant)
    return Column(name, "time", _TIME_UNITS.get(unit or ""), statistic or "time", variant)


def _first(columns: Sequence[Column], kind: str) -> int:
    """The place of the first column of a kind; -1 where there is none."""
    return next((place for place, column in enumerate(columns) if column.kind == kind), -1)


COLLECTIVE = re.compile(
    r"(all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|all[_-]?to[_-]?allv?|send[_-]?recv|hypercube"
    r"|broadcast|bcast|(?<![a-z])(?:reduce|scatter|gather)(?=_perf))",
    re.IGNORECASE,
)
_OURS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
}


def _collective_in(text: str) -> str | None:
    """The first collective named in a text, in our spelling; those that fill no curve as they are written."""
    found = COLLECTIVE.search(text)
    word = "" if found is None else re.sub(r"[_-]", "", found[1].lower())
    return _OURS.get(word, word) or None


def _named_collective(cell: str) -> str | None:
    """The collective that a cell names, in our spelling; None where it is no name of one."""
    word = re.sub(r"[\s_-]", "", cell.lower())
    known = ("alltoall", "alltoallv", "sendrecv", "scatter", "gather")
    return _OURS.get(word, word if word in known else None)


# ---- text: headers, prefixes of launchers, and what is said around tables


@dataclass(slots=True, kw_only=True)
class _Said:
    """What the lines before a header say of the run; ``ranks``: host and device of each.

    ``is_fresh``: the collective was named after the last table. ``is_over_ranks``: OSU's least and greatest
    are over ranks, not over iterations.
    """

    collective: str | None = None
    is_fresh: bool = False
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_ranks: int | None = None
    iterations: int | None = None
    is_used: bool = False
    is_over_ranks: bool = False
    over: tuple[str, str] | None = None


@dataclass(slots=True, kw_only=True)
class _Block:
    """A table as it is found: columns (``delimiter`` None: between spaces), fields of its rows by line.

    ``broken`` are numbers of lines that are no whole rows, ``cut`` that of a last row that is cut off.
    ``ended`` is the line after which nothing belongs to it, ``strays`` are lines below that which look like
    its rows: of another run, whose header is not there.
    """

    columns: tuple[Column, ...]
    delimiter: str | None
    said: _Said
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    cut: int | None = None
    ended: int | None = None
    strays: list[tuple[int, str]] = field(default_factory=list)


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")
_PART = re.compile(r"(?P<digits>\d+)|(?P<day>\b[A-Z][a-z]{2}\b)|(?P<space>\s+)|(?P<mark>.)")
_MAY_BE_HEADER = re.compile(r"size|bytes|message|msg|payload", re.IGNORECASE)
_AVERAGE = re.compile(r"\b(avg|average|min|max|mean|median)\s+(latency|lat|time)", re.IGNORECASE)
_UNIT_APART = re.compile(r"(?<=\w)[ \t](?=\((?:[num\u00b5]?s|usec|msec|B|bytes|GB/s)\))", re.IGNORECASE)
_UNIT_ROW = re.compile(r"\s*(?:\([^()]+\)\s*)+(?:%.*)?")
_OWN_LINES = re.compile(
    r"^[^\n]{0,80}#\s*(nThread \d+ nGpus|nccl-tests version|Collective test starting)", re.MULTILINE
)
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure[^\n]{0,200}")
_RANK = re.compile(
    r"\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*)"
)
_THREADS = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+\b.*?(?<!warmup )(?<!agg )\biters:\s*(\d{1,9})")
_NRANKS = re.compile(r"\bn[rR]anks[ :=]+(\d{1,7})\b")
# Lines that may stand between two rows: warnings, and messages with the name of a program before them.
_NOISE = re.compile(
    r".*\b(warn\w*|error|fail\w*|traceback|info|debug|notice|help message)\b|[a-z][\w./-]*(?:\[\d+\])?:\s",
    re.IGNORECASE,
)
_PROGRAM = re.compile(r"(?:^|[\s/])(\w{1,80}_perf)(?=\s|$)")
_NCCL_TESTS = re.compile(
    r"\b[nr]ccl-tests\b|\bnThread \d+ nGpus \d+|\bCollective test \w+: \w+_perf|\bPid +\d+ on +\S+ +device "
)
_OSU = re.compile(r"OSU (MPI|NCCL|RCCL)(?:-(CUDA|ROCM))? ")
_OSU_DEVICES = {"": "cpu", "CUDA": "cuda", "ROCM": "cuda"}  # torch calls both cuda


def has_table(text: str) -> bool:
    """Whether a text holds a header of such a table, or nccl-tests' own first lines."""
    return _OWN_LINES.search(text) is not None or bool(_prefixes(text))


def read_tables(text: str, source: str) -> list[LinkTable]:
    """All tables of a text, or of nccl-tests' ``-J`` report.

    Raises:
        InputError: there is none, or a time without a unit.
    """
    if text.lstrip()[:1] == "{":
        return [_report(parse_bounded(text, source), source)]
    text = _ANSI.sub("", text)
    shapes = sorted({_shape(prefix) for prefix in _prefixes(text) if prefix.strip(" \t#|")}, key=len)
    if shapes:
        text = re.sub(rf"^(?:{'|'.join(reversed(shapes))})", "", text, flags=re.MULTILINE)
    blocks = _blocks(text, source)
    failed = _FAILURE.search(text)
    failure = "" if failed is None else f" ({plain(failed[0].strip())})"
    if not blocks and _OWN_LINES.search(text):
        raise InputError(
            f"{source}: nccl-tests' first lines without its table: the run ended before its first size"
            f"{failure}; give the output of a run that got further"
        )
    if not blocks:
        raise InputError(
            f"{source}: no table of collectives in it; give nccl-tests' output, or a header that names a "
            f"size in bytes and a time with its unit (size_B time_us)"
        )
    tables = [table for block in blocks for table in _tables_of(block, source)]
    if not any(table.rows for table in tables):
        raise InputError(f"{source}: a header, but no whole row below it (truncated?){failure}")
    if failure:
        left_out = (*tables[0].left_out, f"{source}: what follows a failure{failure}")
        tables[0] = replace(tables[0], left_out=left_out)
    return tables


def _header(line: str) -> tuple[tuple[Column, ...], str | None] | None:
    """The columns and the delimiter of a header; None where a line is none: it names a size and a time, and
    few unknown things."""
    content = _UNIT_APART.sub("", _AVERAGE.sub(r"\1_\2", line.lstrip(" \t#")))
    for delimiter in ("\t", ",", ";", None):
        if delimiter is not None and delimiter not in content:
            continue
        names = _cells(content, delimiter)
        if len(names) > MOST_COLUMNS or any(NUMBER.fullmatch(name) for name in names):
            continue
        columns = tuple(_column_of(name) for name in names)
        kinds = [column.kind for column in columns]
        if "size" not in kinds or not {"time", "cputime"} & set(kinds):
            continue
        if delimiter is not None or (kinds[0] != "other" and 2 * kinds.count("other") <= len(kinds)):
            return columns, delimiter
    return None


def _cells(content: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return content.split()
    try:
        return [cell.strip() for cell in next(csv.reader([content], delimiter=delimiter))]
    except csv.Error:
        return []


def _prefixes(text: str) -> set[str]:
    """What launchers and loggers write before the headers of a text, "" among them: empty without headers."""
    found = set()
    for line in text.split("\n"):
        if len(line) > LONGEST_HEADER or " NCCL " in line or not _MAY_BE_HEADER.search(line):
            continue
        line = _ANSI.sub("", line)
        best, known = 0, 0
        for match in _START.finditer(line[:LONGEST_PREFIX]):
            header = _header(line[match.start() :])
            count = 0 if header is None else sum(column.kind != "other" for column in header[0])
            if count > known:
                best, known = match.start(), count
        before = line[:best]
        # Words before a header are a prefix if they end as one, or a row has them too.
        if known and (
            not re.search(r"\w", before)
            or before.rstrip()[-1:] in (":", "|", ">", "]", ")")
            or re.search(r"\d:\d\d", before)
            or re.search(rf"^{re.escape(before.rstrip())}[ \t]+\d", text, re.MULTILINE)
        ):
            found.add(before)
    return found


def _shape(prefix: str) -> str:
    """A prefix as a pattern: times, ranks and numbers of hosts may differ, other words are another's."""
    prefix = prefix.strip()
    parts = [
        r"\d+"
        if part["digits"]
        else "[A-Z][a-z]{2}"
        if part["day"]
        else r"[ \t]+"
        if part["space"]
        else re.escape(part["mark"])
        for part in _PART.finditer(prefix)
    ]
    ends = r"(?=[ \t#]|$)" if re.search(r"\w$", prefix) else ""
    return rf"[ \t]*{''.join(parts)}{ends}"


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each has its end; one too long for a row is empty."""
    *whole, last = text.split("\n")
    for line in whole:
        yield (line.rstrip("\r") if len(line) <= LONGEST_LINE else ""), True
    if 0 < len(last) <= LONGEST_LINE:
        yield last, False


def _blocks(text: str, source: str) -> list[_Block]:
    said, blocks = _Said(), list[_Block]()
    after_header = False
    rows = 0
    for number, (body, is_whole) in enumerate(_lines(text), start=1):
        content = body.lstrip(" \t#")
        if not content.strip() or " NCCL INFO " in body or " NCCL WARN " in body:
            continue
        table = blocks[-1] if blocks else None
        if table is not None and after_header and _UNIT_ROW.fullmatch(content):
            table.columns = _with_units(table.columns, content)
            continue
        if _MAY_BE_HEADER.search(content) and (header := _header(body)) is not None:
            blocks.append(
                _Block(columns=header[0], delimiter=header[1], said=replace(said, ranks=dict(said.ranks)))
            )
            said.is_fresh, said.is_used, after_header = False, True, True
            continue
        after_header = False
        is_comment = body.lstrip().startswith("#")
        if table is not None and not is_comment:
            row = _Block(columns=table.columns, delimiter=table.delimiter, said=said)
            taken = table if table.ended is None else row
            if _take(taken, number, content, is_whole):
                rows += 1
                if rows > MOST_ROWS:
                    raise InputError(f"{source}: more than {MOST_ROWS} rows; give the output of one run")
                if taken is row:
                    table.strays.append((number, plain(" ".join(content.split()[:2]))))
                continue
        is_noise = _NOISE.match(body) or not re.search(r"[^\W\d_]|```|~~~", body)
        if not is_noise:
            if table is not None and table.ended is None and (table.rows or not is_comment):
                table.ended = number
            if said.is_used and not is_comment:
                said = _Said()
        _listen(content, is_comment, said)
    return blocks


def _listen(content: str, is_comment: bool, said: _Said) -> None:
    """Take in what a line says of a run."""
    program = _PROGRAM.search(content)
    if (osu := _OSU.match(content)) is not None:
        said.over = NCCL if osu[1] != "MPI" else ("mpi", _OSU_DEVICES[osu[2] or ""])
        said.is_over_ranks = True
    elif _NCCL_TESTS.search(content) or (program is not None and _collective_in(program[1])):
        said.over = NCCL
    said.is_over_ranks = said.is_over_ranks or content.startswith("OSU ")
    if (rank := _RANK.match(content)) is not None:
        if int(rank[1]) == 0:
            said.ranks.clear()
        said.ranks[int(rank[1])] = (rank[2], rank[3].strip())
    elif (threads := _THREADS.search(content)) is not None:
        said.collective = said.collective if said.is_fresh else None
        said.ranks.clear()
        said.num_ranks, said.iterations = None, int(threads[1])
    elif "concluded" not in content and len(content) < 400:
        if is_comment and (nranks := _NRANKS.search(content)) is not None:
            said.num_ranks = int(nranks[1])
        if (is_comment or program or not said.is_used) and (named := _collective_in(content)) is not None:
            said.collective, said.is_fresh = named, True


def _with_units(columns: Sequence[Column], row: str) -> tuple[Column, ...]:
    """The columns with the units of the row below the header, in the order of its columns of times."""
    units = iter([word for word in re.findall(r"\(([^()]+)\)", row) if word in _TIME_UNITS])
    return tuple(
        column._replace(scale=_TIME_UNITS[unit])
        if column.kind == "time" and column.scale is None and (unit := next(units, None)) is not None
        else column
        for column in columns
    )


def _take(block: _Block, number: int, content: str, is_whole: bool) -> bool:
    """Take a row into its table, if it is broken or cut off as such; False where the line is none."""
    columns, width = block.columns, len(block.columns)
    fields = _cells(content, block.delimiter)
    if block.delimiter is None:
        if len(fields) > width and columns[-1].kind in ("other", "timestamp"):
            fields = [*fields[: width - 1], " ".join(fields[width - 1 :])]
        elif len(fields) == width - 1 and columns[-1].kind == "other" and is_whole:
            fields = [*fields, ""]
    numbers = sum(NUMBER.fullmatch(cell) is not None for cell in fields)
    if not is_whole and len(fields) < width:
        block.cut = number if numbers else block.cut
        return numbers > 0
    size = fields[_first(columns, "size")] if len(fields) == width else ""
    if NUMBER.fullmatch(size):
        # Of a line without its end nobody knows whether the last field is whole.
        block.rows.append((number, fields if is_whole else [*fields[:-1], ""]))
    elif fields and NUMBER.fullmatch(fields[0]) and 2 * numbers > len(fields) > 1:
        block.broken.append(number)
    else:
        return False
    return True


# ---- rows: the cells of a table as timings


def _tables_of(block: _Block, source: str) -> list[LinkTable]:
    """A block as tables, one for each collective, number of ranks and place that its columns tell apart.

    Raises:
        InputError: a time whose unit cannot be told, a size in units of two meanings, or times of the CPU.
    """
    columns, said = block.columns, block.said
    if _first(columns, "time") < 0:
        raise InputError(
            f"{source}: cputime is what a launch takes on the CPU; run nccl-tests without -C to have the time"
        )
    size = columns[_first(columns, "size")]
    if size.scale is None:
        raise InputError(
            f"{source}: column {size.name!r}: a unit that is 10^n to some, 2^n to others; give sizes in "
            f"bytes (size_B)"
        )
    names = {column.name.lower().lstrip("#") for column in columns}
    is_nccl_tests = {"size", "count", "type", "time", "algbw", "busbw"} <= names and names & {
        "wrong",
        "error",
    }
    assumed: tuple[str, ...] = ()
    bare = next((one.name for one in columns if one.kind == "time" and one.scale is None), None)
    if bare is not None and not is_nccl_tests:
        raise InputError(f"{source}: column {bare!r}: its unit cannot be told; name it {bare}_us, _ms or _s")
    if bare is not None:
        us = _TIME_UNITS["us"]
        columns = tuple(one._replace(scale=one.scale or us) if one.kind == "time" else one for one in columns)
        assumed = (f"{source}: times are in us, as nccl-tests writes these columns",)
    groups = _groups(columns)
    rows: dict[tuple[str | None, int | None, str], list[LinkRow]] = defaultdict(list)
    broken = list(block.broken)
    for number, fields in block.rows:
        cells = {column.kind: cell for column, cell in zip(columns[::-1], fields[::-1], strict=True)}
        num_bytes = _whole(cells["size"], size.scale, MOST_BYTES)
        timings = {
            variant: timing
            for variant, group in groups.items()
            if (timing := _timing(group, columns, fields, said)) is not None
        }
        if num_bytes is None or not timings:
            broken.append(number)
            continue
        places = zip(columns, fields, strict=True)
        key = (
            _named_collective(cells.get("collective", "")) or said.collective,
            _whole(cells.get("world_size", ""), Decimal(1), 10**7),
            ", ".join(f"{column.name} {cell}" for column, cell in places if column.kind == "place"),
        )
        rows[key].append(
            LinkRow(
                where=f"{source}: line {number}",
                num_bytes=num_bytes,
                timings=timings,
                count=_whole(cells.get("count", ""), Decimal(1), MOST_BYTES),
                dtype=cells.get("dtype"),
            )
        )
    left_out = [f"{source}: line {block.cut}, cut off at the end of the file"] if block.cut else []
    if broken:
        left_out.append(f"{source}: {len(broken)} lines that are no whole row (the first: {min(broken)})")
    if block.strays:
        named = ", ".join(f"line {number} ({words})" for number, words in block.strays[:3])
        more = f" and {len(block.strays) - 3} more" if len(block.strays) > 3 else ""
        below = f"below the end of the table (line {block.ended})"
        left_out.append(f"{source}: {named}{more} {below}: rows of a run whose header is not there")
    if unread := dict.fromkeys(one.name for one in columns if one.kind == "other" and one.name):
        left_out.append(f"{source}: columns {', '.join(unread)}")
    own = (max(said.ranks) + 1, "its list of ranks") if said.ranks else (said.num_ranks, "the line 'nranks'")
    return [
        LinkTable(
            source=source,
            rows=tuple(found),
            collective=collective,
            ranks=own[0] if ranks is None else ranks,
            ranks_by=own[1] if ranks is None else "its column",
            place=place,
            statistic="median" if any("median" in group for group in groups.values()) else "mean",
            iterations=said.iterations,
            devices=tuple(dict.fromkeys(plain(name) for _, name in said.ranks.values() if name)),
            hosts=tuple(dict.fromkeys(plain(host) for host, _ in said.ranks.values())),
            over=NCCL if is_nccl_tests else said.over,
            left_out=tuple(left_out) if not number else (),
            assumed=assumed if not number else (),
        )
        for number, ((collective, ranks, place), found) in enumerate(rows.items())
    ]


def _groups(columns: Sequence[Column]) -> dict[Variant, dict[str, int]]:
    """The columns of each timing: places by statistic of the time, and by kind of the rest.

    Where names do not say whether a timing is in place and a statistic comes again, the second timing begins.
    """
    by_name = any(column.kind == "time" and column.variant for column in columns)
    groups: dict[Variant, dict[str, int]] = {}
    variant: Variant = "only"
    for place, column in enumerate(columns):
        if column.kind not in ("time", "algbw", "busbw", "wrong", "iterations"):
            continue
        key = column.statistic if column.kind == "time" else column.kind
        if by_name:
            variant = column.variant or "only"
        elif column.kind == "time" and key in groups.get(variant, {}):
            groups["out"], variant = groups.pop("only", {}) or groups["out"], "in"
        groups.setdefault(variant, {}).setdefault(key, place)
    return {variant: group for variant, group in groups.items() if set(group) - {"algbw", "busbw", "wrong"}}


def _timing(
    group: dict[str, int], columns: Sequence[Column], fields: Sequence[str], said: _Said
) -> Timing | None:
    """A row's timing by one group of columns; None where its time is none."""
    order = ("median", "time", "mean", "min", "max", *group)
    main = next(key for key in order if key in group)
    numbers = {key: _number(fields[place]) for key, place in group.items()}
    time, unit = numbers[main], columns[group[main]].scale
    if time is None or unit is None or not 0 < round(time * unit) <= MOST_NS:
        return None
    found = {
        name: round(value)
        for key, name in _SCATTER.items()
        if (number := numbers.get(key)) is not None
        and 0 <= (value := number * (columns[group[key]].scale or unit)) <= MOST_NS
    }
    count = _whole(fields[group["iterations"]], Decimal(1), 10**9) if "iterations" in group else None
    count = count or said.iterations
    if said.is_over_ranks or not set(found) - {"median_ns"}:
        found, count = {}, None
    return Timing(
        duration_ns=round(time * unit),
        slack_ns=_digit(time) * float(unit),
        rates={
            name: (float(rate), _digit(rate))
            for name in ("algbw", "busbw")
            if (rate := numbers.get(name)) is not None and rate >= 0
        },
        wrong=float(numbers.get("wrong") or 0),
        scatter=found if count is None else {"count": count, **found},
    )


def _number(cell: str) -> Decimal | None:
    """A plain number of at most 40 characters and a sane exponent; None where it is none."""
    if len(cell) > 40 or not NUMBER.fullmatch(cell):
        return None
    value = Decimal(cell)
    return value if value == 0 or -30 <= value.adjusted() <= 30 else None


def _digit(value: Decimal) -> float:
    """One unit of the last digit written."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return 10.0**exponent


def _whole(cell: str, scale: Decimal, most: int) -> int | None:
    value = _number(cell)
    if value is None or not 0 <= value * scale <= most or value * scale % 1:
        return None
    return int(value * scale)


# ---- the report of nccl-tests' -J

_REPORT_DIGIT = 1e-6  # it writes times in us and bandwidths in GB/s with six decimals (its src/util.cu)


def _report(document: Any, source: str) -> LinkTable:
    """The table of a JSON report. Raises ``InputError`` naming what is missing or not legal."""
    if "results" not in document:
        raise InputError(f"{source}: results: missing; give what nccl-tests wrote with -J")
    results = document["results"]
    if not isinstance(results, list):
        raise InputError(f"{source}: results: not a list; give what nccl-tests wrote with -J")
    rows = [_report_row(result, f"{source}: results.{number}") for number, result in enumerate(results)]
    broken = [number for number, row in enumerate(rows) if row is None]
    arguments = document.get("args")
    program = arguments[0] if isinstance(arguments, list) and arguments else ""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    devices = config.get("devices")
    devices = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    ranks, iterations = _report_ranks(config, devices), config.get("iterations")

    def words(key: str) -> tuple[str, ...]:
        said = (one[key] for one in devices if isinstance(one.get(key), str) and one[key])
        return tuple(dict.fromkeys(map(plain, said)))

    return LinkTable(
        source=source,
        rows=tuple(row for row in rows if row is not None),
        collective=_collective_in(PurePosixPath(str(program)).name),
        ranks=ranks,
        ranks_by="" if ranks is None else "its list of devices",
        iterations=iterations if isinstance(iterations, int) and iterations > 0 else None,
        devices=words("device_info"),
        hosts=words("hostname"),
        over=NCCL,
        left_out=(f"{source}: {len(broken)} results that are no whole row (the first: {broken[0]})",)
        if broken
        else (),
    )


def _report_ranks(config: dict[str, Any], devices: Sequence[dict[str, Any]]) -> int | None:
    """The number of ranks of a report, which lists only the first rank of each process."""
    listed = [one.get("rank") for one in devices]
    each = [config.get(name) for name in ("nthreads", "ngpus")]
    if not listed or not all(type(number) is int and 0 <= number < 10**7 for number in (*listed, *each)):
        return None
    numbers = sorted(number for number in listed if number is not None)
    one_by_one = len(numbers) > 1 and all(after == before + 1 for before, after in pairwise(numbers))
    return int(numbers[-1] + (1 if one_by_one else max(1, each[0] * each[1])))  # type: ignore[operator]


def _report_row(result: Any, where: str) -> LinkRow | None:
    size = result.get("size") if isinstance(result, dict) else None
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        return None
    timings: dict[Variant, Timing] = {}
    names: tuple[tuple[Variant, str], ...] = (("out", "out_of_place"), ("in", "in_place"))
    for variant, name in names:
        body = result.get(name)
        if not isinstance(body, dict):
            continue
        if "cpu_time" in body:
            raise InputError(
                f"{where}: cpu_time is what a launch takes on the CPU; run nccl-tests without -C"
            )
        duration = _report_ns(body.get("time"))
        if duration is None:
            continue
        wrong, each = body.get("nwrong"), result.get(f"{name}_per_iter")
        times = each.get("times_us") if isinstance(each, dict) else None
        samples = [_report_ns(one) for one in times] if isinstance(times, list) else []
        timings[variant] = Timing(
            duration_ns=duration,
            slack_ns=1.0,
            rates={
                name: (float(rate), _REPORT_DIGIT)
                for name, key in (("algbw", "alg_bw"), ("busbw", "bus_bw"))
                if isinstance(rate := body.get(key), int | float) and 0 <= rate < 1e12
            },
            wrong=float(min(wrong, MOST_BYTES)) if isinstance(wrong, int | float) else 0.0,
            scatter=_quantiles([one for one in samples if one is not None], len(samples)),
        )
    count, dtype = result.get("count"), result.get("type")
    return (
        LinkRow(
            where=where,
            num_bytes=size,
            timings=timings,
            count=count if type(count) is int else None,
            dtype=dtype if isinstance(dtype, str) else None,
        )
        if timings
        else None
    )


def _quantiles(samples: Sequence[int], told: int) -> dict[str, int]:
    """What ``told`` samples say of their scatter, if all of them are legal; else nothing."""
    if not 1 < len(samples) == told:
        return {}
    low, middle, high = (round(float(one)) for one in np.quantile(samples, [0.1, 0.5, 0.9]))
    return {"count": told, "p10_ns": low, "median_ns": middle, "p90_ns": high, "min_ns": min(samples)}


def _report_ns(value: Any) -> int | None:
    """A time in us as ns; None where it is none, 0, or beyond reach."""
    if type(value) not in (int, float) or not 0 < value * 1000 <= MOST_NS:
        return None
    return round(Decimal(repr(value)) * 1000) or None
