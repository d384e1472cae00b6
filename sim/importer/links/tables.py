"""Tables of collectives: what nccl-tests, rccl-tests (text or ``-J``) and OSU print, and CSV or Markdown.

A header is a line whose words name a size and a time or a bandwidth. What stands before it on its line is a
launcher's, and is taken off all lines. Below it a line is a row, a log's, or ends the table; lines between
tables say what was run.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from math import log
from pathlib import PurePosixPath
from statistics import median
from typing import Any

import msgspec

from sim.errors import InputError
from sim.importer.imported import Notes, few, plain
from sim.nouns.collective import bus_factor
from sim.nouns.hardware import CURVES
from sim.units import count_of

MOST_NS, MOST_BYTES, MOST_ROWS = 10**15, 1 << 50, 100_000  # eleven days, a pebibyte
LONGEST_LINE, LONGEST_HEADER, LONGEST_PREFIX, LONGEST_CELL = 1 << 16, 2000, 200, 40
NCCL, WORDS, _LIST = ("nccl", "cuda"), "the words before it", "its list of ranks"
UNUSED = "which reduces no bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How long a collective of ``num_bytes``, as nccl-tests counts them, took, and what its row says beside.

    ``place``: the result is ``in`` the buffer that it came from, ``out`` of it, or ``only``: not told.
    ``part_bytes`` are those of the row's count (0: none), ``slack_ns`` one unit of the last digit written.
    ``rates``: ``algbw`` and ``busbw`` in GB/s (1e9 bytes), each with one unit of its last digit. ``beside``:
    the words in its row.
    """

    where: str
    num_bytes: int
    part_bytes: int
    place: str
    duration_ns: int
    slack_ns: float
    rates: dict[str, tuple[float, float]]
    wrong: float
    beside: str


@dataclass(slots=True, kw_only=True)
class Said:
    """What the lines before a header say of the run.

    ``listed`` has host and device of each rank, ``ranks`` is how many there are, and what says so: this list,
    or words. ``over`` is the backend and the type of device by torch's names, where the benchmark is a known
    one. ``of_parts``: sizes are those of one rank's part.
    """

    collective: str | None = None
    listed: dict[int, tuple[str, str]] = field(default_factory=dict)
    ranks: tuple[int | None, str] = (None, WORDS)
    titles: list[str] = field(default_factory=list)
    over: tuple[str, str] | None = None
    of_parts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The samples of one collective on one set of ranks, and what the file says of these.

    ``ranks_by`` is what says ``ranks``; words may be another run's. ``title`` is what a headline, a command
    or columns say of which run it is; ``redop`` the operation of its rows.
    """

    source: str
    samples: tuple[Sample, ...]
    said: Said
    collective: str | None
    ranks: int | None
    ranks_by: str
    title: str
    redop: str | None


_COLLECTIVE = re.compile(
    r"(all[\s_-]?reduce|reduce[\s_-]?scatter|all[\s_-]?gather|all[\s_-]?to[\s_-]?allv?|send[_-]?recv"
    r"|hypercube|broadcast|bcast|(?<![a-z])(?:reduce|scatter|gather)(?=_perf))",
    re.IGNORECASE,
)
_OURS = {"allreduce": "all_reduce", "reducescatter": "reduce_scatter", "allgather": "all_gather"}
_OURS |= {"bcast": "broadcast"}


def collective_in(text: str) -> str | None:
    """The first collective named in a text, in our spelling; those that fill no curve without marks."""
    found = _COLLECTIVE.search(text)
    word = "" if found is None else re.sub(r"[\s_-]", "", found[1].lower())
    return _OURS.get(word, word) or None


# ---- columns, told by their names

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# What a column holds, by its name without its unit, with an underscore between words.
_KINDS = {
    "size": r"(?:(?:message|msg|data|buffer|tensor|payload)_)?size|n?bytes|message|msg|payload",
    "time": r"(?:avg_|average_|mean_|median_)?(?:time|latency|lat|duration)|time_(?:avg|mean|median)",
    "cputime": "cpu_?time",
    "algbw": "alg(?:o|orithm)?_?(?:bw|bandwidth)",
    "busbw": "bus_?(?:bw|bandwidth)",
    "wrong": "n?wrong",
    "count": "count|elements",
    "dtype": "d?type|datatype",
    "redop": "redop",
    "known": r"root|error|iter(?:ation)?s|(?:min|max|p\d+(?:_tail)?)_(?:time|latency|lat)",
    "collective": "op|coll|collective|operation",
    "in_place": "in_?place",
    "ranks": "(?:num_|n)?(?:ranks|procs|workers|gpus)|world(?:_size)?",
    "place": r"(?:num_)?nodes|host(?:name)?|cluster|machine|system|backend|transport|fabric|interconnect"
    "|network|gpu(?:_type|_name)?|device_name",
}
# In ns, bytes and GB/s of 1e9 bytes; a small b is a bit. nccl-tests' own K is 2^10; KB is 10^3 to some, 2^10
# to others: of it and its like the power, below 0.
_RATES = {"GB/s": "1", "GBps": "1", "MB/s": "0.001", "MBps": "0.001"}
_RATES |= {"Gb/s": "0.125", "Gbps": "0.125", "Gbit/s": "0.125"}
_UNITS: dict[str, dict[str, Any]] = {
    "time": {"s": 10**9, "ms": 10**6, "us": 1000, "usec": 1000, "µs": 1000, "μs": 1000, "ns": 1},
    "size": {"b": 1, "bytes": 1, "kb": -1, "mb": -2, "gb": -3}
    | {f"{k}{ib}": 1 << power for k, power in (("k", 10), ("m", 20), ("g", 30)) for ib in ("", "ib")},
    "algbw": _RATES,
    "busbw": _RATES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name as it stands, what it is called in words of ours, and what it holds.

    ``scale`` turns its numbers into ns, bytes or GB/s (see ``_UNITS``); None where the name says no unit.
    """

    name: str
    stem: str = ""
    kind: str = "other"
    scale: Decimal | None = None


Columns = tuple[Column, ...]


@lru_cache(maxsize=4096)
def column_of(name: str) -> Column:
    """What a column's name says of it."""
    words = [word for word in re.split(r'[\s_.()\[\]#"-]+', name[:80].replace("num_bytes", "size")) if word]
    unit = next((word for word in words[1:] if any(_unit(kind, word) is not None for kind in _UNITS)), "")
    stem = "_".join(word for word in words if word != unit).lower()
    stem = re.sub(r"^(?:oop|out_of_place|ip|in_place)_|_(?:oop|out_of_place|ip|in_place)$", "", stem)
    kind = next((kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, stem)), "other")
    scale = _unit(kind, unit) if unit else None if kind == "time" else Decimal(1)
    if unit and scale is None:  # a unit that such a column cannot have
        return Column(name=name, kind="known" if kind == "known" else "other")
    return Column(name=name, stem=stem, kind=kind, scale=scale)


def _unit(kind: str, word: str) -> Decimal | None:
    """What turns numbers in a unit of such a column into ours (see ``_UNITS``); None: it has no such unit."""
    units = _UNITS.get(kind, {})
    scale = units.get(word, None if units is _RATES else units.get(word.lower()))
    return None if scale is None else Decimal(scale)


def columns_of(names: Sequence[str]) -> Columns:
    """The columns of a header; a time without a unit beside both bandwidths, as in nccl-tests, is in us."""
    columns = tuple(map(column_of, names))
    if not {"time", "algbw", "busbw"} <= {column.kind for column in columns}:
        return columns
    us = Decimal(1000)
    return tuple(replace(one, scale=one.scale or us) if one.kind == "time" else one for one in columns)


_OF_TIMES = re.compile(r"\b(?:avg|average|min|max|mean|median|p\d+[ \t]tail)[ \t](?=lat|time)", re.IGNORECASE)
_UNIT_APART = re.compile(r"(?<=\w)[ \t](?=\((?:[num\u00b5]?s|usec|B|bytes|[GM]B(?:/|p)s)\))", re.IGNORECASE)
_CELL_UNIT_APART = re.compile(r"(?<=\d)[ \t](?=(?:[KMG]i?B|B|[num\u00b5]?s)(?:\s|$))")


@lru_cache(maxsize=4096)  # logs repeat their lines
def _header(line: str) -> tuple[Columns, str | None] | None:
    """The columns that a line names, and what separates them (None: spaces); None where it is no header: it
    names no size and time, or much else."""
    named = _OF_TIMES.sub(lambda found: re.sub(r"[ \t]", "_", found[0]), line.lstrip(" \t#"))
    content = _UNIT_APART.sub("", named)
    for delimiter in (*(mark for mark in "|\t,;" if mark in content), None):
        names = _cells(content, delimiter)
        if any(_NUMBER.fullmatch(name) for name in names):
            continue
        columns = columns_of(names)
        kinds = [column.kind for column in columns]
        is_loose = delimiter is None and (kinds[:1] == ["other"] or 2 * kinds.count("other") > len(kinds))
        if "size" in kinds and {"time", "cputime", "algbw", "busbw"} & {*kinds} and not is_loose:
            return columns, delimiter
    return None


def _cells(content: str, delimiter: str | None) -> list[str]:
    """The cells of a line, of a Markdown row without the marks at its ends; empty where it is none."""
    if delimiter is None:
        return _CELL_UNIT_APART.sub("", content).split()
    if delimiter == "|":
        return [cell.strip().strip("*`") for cell in content.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([content], delimiter=delimiter), [])]
    except csv.Error:
        return []


# ---- headers in a text, and what stands before each line

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_NCCL_LOG = re.compile(r" NCCL (?:INFO|WARN) ")
_MAY_BE_HEADER = re.compile(r"size|bytes|message|msg|payload", re.IGNORECASE)
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")


def has_table(text: str) -> bool:
    """Whether a text holds a header of such a table, or the first line of nccl-tests or OSU."""
    is_named = re.search(r"\bnThread \d+ nGpus \d", text) or _OSU.search(text)
    return is_named is not None or bool(_headers(_ANSI.sub("", text)))


def _headers(text: str) -> dict[int, tuple[str, Columns, str | None]]:
    """By the number of its line, what stands before each header, its columns and what separates them."""
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_HEADER or _NCCL_LOG.search(line) or not _MAY_BE_HEADER.search(line):
            continue
        most = 0
        for start in (match.start() for match in _START.finditer(line[:LONGEST_PREFIX])):
            header = _header(line[start:])
            known = sum(column.kind != "other" for column in header[0]) if header else 0
            if header and known > most and _is_prefix(line[:start], text):
                found[number], most = (line[:start], *header), known
    return found


def _is_prefix(before: str, text: str) -> bool:
    """Whether words before a header are a prefix: none, ended as one, or before a row too."""
    words = before.rstrip()
    if not re.search(r"\w", words) or words[-1] in ":|>])" or re.search(r"\d:\d\d", words):
        return True
    return re.search(rf"^{re.escape(words)}[ \t]+\d", text, re.MULTILINE) is not None


def _shape(prefix: str) -> str:
    """A prefix as a pattern: numbers may differ, other words are another's."""
    words = re.sub(r"(?:\\[ \t])+", r"[ \\t]+", re.sub(r"\d+", r"\\d+", re.escape(prefix.strip())))
    return rf"[ \t]*{words}" + (r"(?=[ \t#]|$)" if re.search(r"\w$", prefix.strip()) else "")


# ---- lines, one after the other


@dataclass(kw_only=True)
class _Block:
    """A table as it stands: its columns, what was said before it, and the number and the cells of its lines;
    ``others`` are no whole rows, or below its end: of a run whose header is not there."""

    columns: Columns
    delimiter: str | None = None
    said: Said
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    others: list[tuple[int, list[str]]] = field(default_factory=list)
    is_ended: bool = False

    @cached_property
    def places(self) -> dict[str, int]:
        """The first column of each kind."""
        return {column.kind: place for place, column in reversed([*enumerate(self.columns)])}

    @cached_property
    def timings(self) -> dict[str, slice]:
        """The columns of each timing: one in place begins where the column that tells time comes again."""
        first = next(self.places[kind] for kind in ("time", "algbw", "busbw") if kind in self.places)
        told = [(column.kind, column.stem) for column in self.columns]
        again = [place for place, one in enumerate(told) if one == told[first]][1:2]
        return {"out": slice(again[0]), "in": slice(again[0], None)} if again else {"only": slice(None)}


_RULE = re.compile(r"[\s|:=+*~_-]*")
_FOOTER = re.compile(r"out of bounds|av(?:era)?ge? bus bandwidth|test concluded", re.IGNORECASE)
_LOG = re.compile(r"\b(?:warn\w*|error|fail\w*|traceback|info|debug|notice|help message)\b", re.IGNORECASE)
_MESSAGE = re.compile(r"[a-z][\w./-]*(?:\[\d+\])?:\s")  # a program's, with its name before it
# A comment, a prompt or a command, a headline, a header that is none
_ENDS = re.compile(
    r"#|.{0,200}?(?:[$%]\s+\S|\S@\S.{0,80}#\s\S|\b(?:mpirun|mpiexec|srun|torchrun)\s|\b\w{1,80}_perf\s+-)"
    r"|```|[=*~+_-]{2,}\s*[^\s=*~+_-]|[^(]{1,80}:\s*$|[\s|\"]*(?:size|bytes|message)"
)
_OWN_COMMENT = re.compile(
    r"#.{0,80}?(?:nccl|collective test|nthread|using devices|\brank\b|-place|osu |datatype)", re.IGNORECASE
)
_RANK = re.compile(
    r"\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*)"
)
_RANKS = re.compile(
    r"(?:(?:^|\s)(?:-np|--np|--ntasks)[ =]+|\b(?:mpirun|mpiexec|srun)\s(?:(?!_perf).){0,200}?-n +"
    r"|\b(?i:n_?ranks|world[ _-]?size)[ :=]+)(\d{1,6})\b"
    r"|\b(\d{1,6})[ -](?i:MPI )?(?i:ranks|processes|devices)\b(?!\s*(?:per|a|each|/))"
)
_NCCL_TESTS = re.compile(r"\b[nr]ccl-tests\b|\bnThread \d+ nGpus \d+|(?:^|[\s/])\w{1,40}_perf(?=\s|$)")
# What OSU ran over, on what (of one-sided tests and other devices more behind it), and its name of the test.
_OSU = re.compile(r"OSU (MPI|NCCL|RCCL)(?:-(CUDA|ROCM))?([-_]\S+)? (.{0,60}?)(?: Latency)? Test\b")
# What says nothing of which run it is: dates, the collective, and the number of a repeated run.
_NO_TITLE = re.compile(
    rf"\d+(?:[:/.-]\d+)+\S*|{_COLLECTIVE.pattern}"
    r"|\b(?:run|iteration|trial|repeat|attempt|repetition|try)s?\s*(?:#|no\.?)?\s*\d*\b",
    re.IGNORECASE,
)


def _blocks(text: str, source: str) -> list[_Block]:
    headers = _headers(text)
    prefixes = {prefix for prefix, _, _ in headers.values() if prefix.strip(" \t#|")}
    if shapes := sorted(map(_shape, prefixes), key=len, reverse=True):
        text = re.sub(rf"^(?:{'|'.join(shapes)})", "", text, flags=re.MULTILINE)
    said, blocks, is_used, after_blank, rows = Said(), list[_Block](), False, False, 0
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE or _NCCL_LOG.search(line):
            continue
        body, content = line.strip(), line.strip().lstrip("# \t")
        table = blocks[-1] if blocks else None
        if number in headers:
            prefix, columns, delimiter = headers[number]
            if is_used and table and (table.is_ended or columns != table.columns):
                said = Said()  # of another run, whose first lines are not there
            writer = re.sub(r"\b[A-Z][a-z]{2}\b|\d+", "", prefix).strip(" \t#|:>")
            known = replace(said, listed=dict(said.listed), titles=[*said.titles[-3:], writer])
            blocks.append(_Block(columns=columns, delimiter=delimiter, said=known))
            is_used = True
        elif _RULE.fullmatch(content):
            after_blank = after_blank or not body
            if table is not None and table.delimiter == "|" and table.rows and not body:
                table.is_ended = True
            continue
        elif table and body[0] != "#" and (cells := _row(table, content, is_whole=number < len(lines))):
            is_whole = len(cells) == len(table.columns) and not table.is_ended
            (table.rows if is_whole else table.others).append((number, cells))
            rows += 1
            if rows > MOST_ROWS:
                raise InputError(f"{source}: more than {MOST_ROWS} rows; give the output of one run")
        elif table and _FOOTER.search(body):
            table.is_ended = True
        elif _is_text(body, after_blank, table) and content[0] != "(":  # units below a header
            if table and (table.rows or body[0] != "#"):
                table.is_ended = True
            if table and table.is_ended and is_used:
                said, is_used = Said(), False
            _listen(body, content[:LONGEST_HEADER], said)
        after_blank = False
    return blocks


def _row(block: _Block, content: str, *, is_whole: bool) -> list[str]:
    """The cells of a line that may be a row of the table: it has a size, or is mostly numbers; else none. Of
    a line without its end (not ``is_whole``) the last cell is empty, unless it shows to be all there."""
    width, last = len(block.columns), block.columns[-1].kind
    cells = _cells(content, block.delimiter)
    if block.delimiter is None and last == "other":  # a note or a time of day, with spaces or empty
        if len(cells) > width:
            cells = [*cells[: width - 1], " ".join(cells[width - 1 :])]
        elif len(cells) == width - 1 and is_whole:
            cells = [*cells, ""]
    size = block.places["size"]
    numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in cells)
    if len(cells) == width and _CELL.fullmatch(cells[size]):
        is_whole = is_whole or (block.delimiter == "|" and content.endswith("|"))
        return cells if is_whole or _is_all_there(block, cells, size) else [*cells[:-1], ""]
    return [cell for cell in cells if cell] if 2 * numbers > len(cells) > 1 else []


def _is_all_there(block: _Block, cells: Sequence[str], size: int) -> bool:
    """Whether the last cell of a text is whole, by the rows above: it is that of the last of them, or has the
    decimals and the unit of them all. A whole number without its last digit is a tenth of it: a time is all
    there where with a digit more a message no smaller would have less than half of the bandwidth above.
    """
    above = [row for _, row in block.rows]
    if not above or cells[-1] == above[-1][-1]:
        return bool(above)
    tails = {re.sub(r"\d", "0", re.sub(r"^[+-]?[\d,]*", "", row[-1])) for row in (*above, cells)}
    if tails != {""}:
        return len(tails) == 1
    four = [cell.replace(",", "") for row in (above[-1], cells) for cell in (row[size], row[-1])]
    if block.columns[-1].kind != "time" or not all(one.isdecimal() and len(one) < 20 for one in four):
        return False
    size_above, time_above, num_bytes, time = map(int, four)
    return num_bytes >= size_above and num_bytes * time_above < 5 * size_above * time


def _is_text(line: str, after_blank: bool, table: _Block | None) -> bool:
    """Whether a line is a person's, a shell's or the benchmark's, and no log's between two rows."""
    is_message = _MESSAGE.match(line) is not None
    if re.match(r"[\d.]+[,;]?(?:\s|$)", line) or not re.search(r"[^\W\d_]|`", line):
        return False
    if table is None or table.is_ended:
        return not is_message
    if _LOG.search(line):
        return False
    is_apart = after_blank and re.match(r"[^\W\d_]|[*_>-]", line) is not None and not is_message
    is_cell = "|" in line if table.delimiter == "|" else not is_apart
    return _ENDS.match(line) is not None or not is_cell


def _listen(line: str, content: str, said: Said) -> None:
    """Take in what a line before a table says of the run."""
    if (rank := _RANK.match(content)) is not None:
        if int(rank[1]) == 0:
            said.listed.clear()
        said.listed[int(rank[1])], said.over = (rank[2], rank[3].strip()), NCCL
        said.ranks = max(said.listed) + 1, _LIST
        return
    said.collective = collective_in(content) or said.collective
    if _NCCL_TESTS.search(content):
        said.over = NCCL
    elif osu := _OSU.match(content):
        said.collective = _test_of(osu)
        said.of_parts = said.collective == "all_gather"
        if not osu[3]:  # torch calls both CUDA and ROCm cuda
            said.over = NCCL if osu[1] != "MPI" else ("mpi", "cuda" if osu[2] else "cpu")
    told = {one or other for one, other in _RANKS.findall(content)}
    said.ranks = (int(told.pop()), WORDS) if len(told) == 1 and not said.listed else said.ranks
    if not _OWN_COMMENT.match(line):
        said.titles.append(" ".join(_NO_TITLE.sub("", line.lower()).strip("#=*~+-_:$%<>` \t").split())[:80])


def _test_of(osu: re.Match[str]) -> str:
    """The collective of a headline of OSU's in our spelling; of a test that fills no curve words for it."""
    is_plain = re.fullmatch(rf"{_COLLECTIVE.pattern}(?:v|_block)?", osu[4], re.IGNORECASE)
    return (collective_in(osu[4]) if is_plain else None) or f"OSU's {osu[4]} Test"


# ---- cells as samples

_CELL = re.compile(rf"([+-]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|{_NUMBER.pattern})\s*([A-Za-zµμ/]*)", re.ASCII)
_WIDTHS = {"half": 2, "float": 4, "double": 8, "int": 4, "bf16": 2, "fp16": 2, "fp32": 4}
_Number = tuple[Decimal, Decimal]  # in ns, bytes or GB/s, and one unit of its last digit
_Apart = tuple[str | None, int | None, str]  # a row's collective, number of ranks, and words for its place
_DOUBLED = tuple(1 << power for power in range(10))  # of a KB and its like, where that is 2^10 bytes


def _width(dtype: str) -> int:
    """Bytes of one element by nccl-tests' or torch's name of its type; 0 where it is not known."""
    bits = re.fullmatch(r"(?:b?float|u?int)(8|16|32|64)", dtype)
    return int(bits[1]) // 8 if bits else 1 if dtype.startswith(("f8e", "fp8_")) else _WIDTHS.get(dtype, 0)


def _value(cell: str, column: Column, kilo: int = 0) -> _Number | None:
    """A cell's number; None where it is none. ``kilo``: the bytes of a KB, 0 where nothing tells."""
    found = _CELL.fullmatch(cell) if len(cell) <= LONGEST_CELL else None
    if found is None:
        return None
    number = Decimal(found[1].replace(",", ""))
    scale = _unit(column.kind, found[2]) if found[2] else column.scale
    scale = Decimal(kilo) ** -scale if scale and scale < 0 else scale
    exponent = number.as_tuple().exponent
    if not scale or not isinstance(exponent, int) or (number and not -30 <= number.adjusted() <= 30):
        return None
    return number * scale, Decimal(1).scaleb(exponent) * scale


def _kilo(block: _Block) -> tuple[int, str]:
    """The bytes of a KB in the sizes, and what tells it: times and bandwidths, or that three sizes at least
    are 1, 2, 4 to 512 of a unit. 0 where no size is in KB, MB or GB, or nothing tells."""

    def values(kind: str, kilo: int) -> list[_Number | None]:
        cells = ((row[block.places[kind]], block.columns[block.places[kind]]) for _, row in block.rows)
        return [_value(*cell, kilo) for cell in cells] if kind in block.places else []

    off, sizes = dict[int, list[float]](), {*zip(values("size", 1), values("size", 2), strict=True)}
    numbers = [one[0] for one, other in sizes if one and one != other]
    if not numbers:
        return 0, ""
    pairs = zip(values("time", 0), values("algbw", 0), strict=False)
    sent = [t and r and min(t[0] / t[1], r[0] / r[1]) >= 20 and t[0] * r[0] for t, r in pairs]
    for kilo in (1000, 1024):
        rows = zip(values("size", kilo), sent, strict=False)
        off[kilo] = [abs(log(by / size[0])) for size, by in rows if by and size and size[0]]
    if off[1000]:
        return min(off, key=lambda kilo: median(off[kilo])), "as its bandwidths have it"
    doubles = all(one in _DOUBLED for one in numbers)
    return (1024, "for its sizes double") if len(numbers) > 2 and doubles else (0, "")


def _whole(value: _Number | None) -> int | None:
    is_whole = value is not None and 0 <= value[0] <= MOST_BYTES and value[0] == value[0].to_integral_value()
    return int(value[0]) if value is not None and is_whole else None


def _read(block: _Block, source: str, notes: Notes) -> list[LinkTable]:
    """A block as tables, one for each collective, number of ranks and place that its columns tell apart."""
    said, places = block.said, block.places
    if "cputime" in places:
        raise InputError(f"{source}: cputime is what a launch takes on the CPU; run nccl-tests without -C")
    kilo, told = _kilo(block)
    found, broken = defaultdict[_Apart, list[Sample]](list), [*block.others]
    for number, cells in block.rows:
        apart, samples = _of_row(block, cells, kilo, f"{source}: line {number}")
        if samples:
            found[apart] += samples
        else:
            broken.append((number, cells))
    if block.rows and not found:
        _refuse_units(block, source)
    if broken:
        named = few([f"line {number} ({plain(' '.join(cells[:2]))})" for number, cells in sorted(broken)], 3)
        why = "no whole rows, or of a run whose header is not there"
        notes.add("dropped", f"{source}: {count_of(len(broken), 'line')} of numbers, {why}: {named}")
    if kilo:
        notes.add("assumed", f"{source}: a KB of {kilo} bytes, and an MB of {kilo**2}, {told}")
    if {"count", "dtype", "redop", "time", "algbw", "busbw"} <= places.keys():
        said.over = NCCL
    redops = {cells[places["redop"]] for _, cells in block.rows} if "redop" in places else set()
    return [
        LinkTable(
            source=source,
            samples=tuple(samples),
            said=said,
            collective=collective,
            ranks=ranks or said.ranks[0],
            ranks_by="its column" if ranks else said.ranks[1],
            title=", ".join(filter(None, (*said.titles, at))),
            redop=min(redops) if len(redops) == 1 else None,
        )
        for (collective, ranks, at), samples in found.items()
    ]


def _refuse_units(block: _Block, source: str) -> None:
    """Raise ``InputError`` where it is for the units of its columns that no row of a block tells anything."""
    for column, cell in zip(block.columns, block.rows[0][1], strict=True):
        if column.kind in ("time", "size") and _CELL.fullmatch(cell) and _value(cell, column) is None:
            raise InputError(
                f"{source}: column {column.name!r}: its unit cannot be told, or is 10^n to some, 2^n to "
                f"others; give bytes, KiB or MiB (size_B), and times as time_us, _ms or _s"
            )
    if not {"time", "algbw"} & block.places.keys():
        raise InputError(f"{source}: busbw tells no time without the number of ranks; give a column ranks")


def _of_row(block: _Block, cells: Sequence[str], kilo: int, where: str) -> tuple[_Apart, list[Sample]]:
    """What tells a row's table from others, and a sample of each of its timings that has a duration."""
    said, named = block.said, [*zip(block.columns, cells, strict=True)]
    values, samples = [_value(cell, column, kilo) for column, cell in named], list[Sample]()
    words = {kind: cells[place] for kind, place in block.places.items()}
    whole = {kind: _whole(values[place]) for kind, place in block.places.items()}
    ranks, size, count = whole.get("ranks"), whole["size"], whole.get("count")
    op = words.get("collective") or next(filter(_COLLECTIVE.fullmatch, cells), "")  # of another name
    collective = (collective_in(op) or op.lower()) if op else said.collective
    at = ", ".join(f"{column.name} {cell}" for column, cell in named if column.kind == "place")
    others = ((column.name, cell) for column, cell in named if column.kind in ("other", "dtype"))
    beside = ", ".join(f"{name} {cell}" for name, cell in others if not _CELL.fullmatch(cell))
    part = (count or 0) * _width(words.get("dtype", ""))
    of_row = {"where": where, "num_bytes": size or 0, "part_bytes": part, "beside": beside}
    factor = bus_factor(collective or "all_reduce", ranks or said.ranks[0] or 1)
    for place, span in block.timings.items() if size is not None else ():
        if "in_place" in words:  # rccl-tests has the two timings in two rows
            place = "in" if words["in_place"] == "1" else "out"
        samples += _timed(block.columns[span], values[span], factor, of_row | {"place": place})
    return (collective, ranks, at), samples


def _timed(
    columns: Columns, values: Sequence[_Number | None], factor: float, of_row: dict[str, Any]
) -> list[Sample]:
    """The sample of the columns of one timing; none without a duration. Without a time it is the one that a
    bandwidth tells, the bus's being ``factor`` times the algorithm's: a GB/s is a byte in a ns."""
    known = {column.kind: one for column, one in reversed([*zip(columns, values, strict=True)])}  # the first
    numbers = {kind: (float(one[0]), float(one[1])) for kind, one in known.items() if one is not None}
    rates = {name: numbers[name] for name in ("algbw", "busbw") if numbers.get(name, (-1.0,))[0] >= 0}
    duration, slack = numbers.get("time", (0.0, 0.0))
    speed, digit = rates.get("algbw", rates.get("busbw", (0.0, 0.0)))
    if "time" not in known and speed > 0:
        sent = of_row["num_bytes"] * (1 if "algbw" in rates else factor)
        duration, slack = max(1.0, sent / speed) if sent else 0.0, sent / speed * digit / speed
    if not 0.5 < duration <= MOST_NS:
        return []
    wrong = numbers.get("wrong", (0.0,))[0]
    return [Sample(duration_ns=round(duration), slack_ns=slack, rates=rates, wrong=wrong, **of_row)]


# ---- files


def read_tables(text: str, source: str, notes: Notes) -> list[LinkTable]:
    """All tables of a text, or of nccl-tests' ``-J`` report.

    Raises:
        InputError: there is none, or it has no whole row; a time without a unit, or of the CPU.
    """
    is_report = text.lstrip()[:1] == "{"
    blocks = [_report(text, source)] if is_report else _blocks(_ANSI.sub("", text), source)
    if not blocks:
        what = "no table of collectives in it (a run that ended before its first size?)"
        if (osu := _OSU.search(text)) and _test_of(osu) not in CURVES:
            what = f"{_test_of(osu)}, {UNUSED}"
        raise InputError(
            f"{source}: {what}; give nccl-tests' output, or a header that names a size and a time with its "
            f"unit (size_B time_us)"
        )
    if tables := [table for block in blocks for table in _read(block, source, notes)]:
        return tables
    raise InputError(f"{source}: no whole row in it (truncated?); give the output of a run that got further")


_ROW = ("size", "count", "type", "redop"), ("time", "alg_bw", "bus_bw", "nwrong")  # of a size, of a timing


class _Result(msgspec.Struct):
    size: int
    count: Any = None
    type: Any = None
    redop: Any = None
    out_of_place: dict[str, Any] = {}
    in_place: dict[str, Any] = {}


class _Report(msgspec.Struct):
    results: list[_Result]
    args: list[str] | str = ""
    config: dict[str, Any] = {}


def _report(text: str, source: str) -> _Block:
    """The table of a report. Raises ``InputError`` where it is none that nccl-tests wrote."""
    try:
        report = msgspec.json.decode(text, type=_Report)
        listed = {
            int(one["rank"]): (str(one.get("hostname", "")), str(one.get("device_info", "")))
            for one in report.config.get("devices", [])
        }
        each = int(report.config.get("nthreads", 1)) * int(report.config.get("ngpus", 1))
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, AttributeError) as error:
        what = plain(str(error)) if isinstance(error, msgspec.DecodeError) else "config: not as it writes it"
        raise InputError(f"{source}: {what}; give what nccl-tests wrote with -J") from None
    if listed and (len(listed) == 1 or max(listed) - min(listed) >= len(listed)):
        # Only the first rank of each process is listed.
        listed.setdefault(max(listed) + max(1, each) - 1, ("", ""))
    program = [*report.args, ""][0] if isinstance(report.args, list) else ""
    ranks = (max(listed) + 1, _LIST) if listed else (None, WORDS)
    said = Said(collective=collective_in(PurePosixPath(program).name), listed=listed, ranks=ranks, over=NCCL)
    rows = []
    for number, result in enumerate(report.results):
        members = [getattr(result, key) for key in _ROW[0]]
        members += [side.get(key) for side in (result.out_of_place, result.in_place) for key in _ROW[1]]
        # nccl-tests writes its doubles with six decimals (its src/util.cu).
        rows.append((number, [f"{one:.6f}" if isinstance(one, float) else str(one) for one in members]))
    names = ("size", "count", "type", "redop", *("time", "algbw", "busbw", "wrong") * 2)
    return _Block(columns=columns_of(names), said=said, rows=rows)
