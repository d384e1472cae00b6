"""Tables of collectives in text: of nccl-tests and OSU, CSV, Markdown, in columns; between any other lines.

Launchers write words before each line, and logs stand between rows. A header is a line whose words name a
size and a time or a bandwidth. What stands before it on its line is taken off all lines; then each line is
listened to for what it says of a run, and is a row of the last header's table as long as nothing ended that.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache

from sim.errors import InputError
from sim.importer.imported import count_of, few, plain
from sim.importer.links.columns import (
    COLLECTIVE,
    MOST_BYTES,
    MOST_NS,
    NUMBER,
    TIME_UNITS,
    Column,
    LinkRow,
    LinkTable,
    Timing,
    Variant,
    bus_factor,
    collective_in,
    column_of,
    unit_of,
)

NCCL = ("nccl", "cuda")
COMMAND, WORDS = "the command line", "the words before it"
LONGEST_LINE, LONGEST_HEADER, LONGEST_PREFIX = 1 << 16, 2000, 200
MOST_COMMAND, MOST_COLUMNS, MOST_ROWS = 4000, 200, 100_000

Columns = tuple[Column, ...]


@dataclass(slots=True, kw_only=True)
class Said:
    """What the lines before a header say of the run; ``ranks``: host and device of each."""

    collective: str | None = None
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_ranks: tuple[int | None, str] = (None, "")  # and words for what told it
    iterations: int | None = None
    is_over_ranks: bool = False  # OSU's least and greatest are over ranks, not over iterations
    titles: list[str] = field(default_factory=list)  # which run it is
    over: tuple[str, str] | None = None  # the backend, and the device whose buffers were reduced


@dataclass(slots=True, kw_only=True)
class TextBlock:
    """A table as it is found: its columns, what separates them (None: spaces), the number and the fields of
    each of its lines, and what was said before it.

    ``others`` are lines with numbers that are no whole rows, or below its end: of a run whose header is not
    there.
    """

    columns: Columns
    delimiter: str | None = None
    said: Said
    what: str = "line"
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    others: list[tuple[int, list[str]]] = field(default_factory=list)
    is_ended: bool = False


_OWN_LINES = re.compile(
    r"^[^\n]{0,80}#\s*(nThread \d+ nGpus|nccl-tests version|Collective test starting)", re.MULTILINE
)
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure[^\n]{0,200}")


def read_tables(text: str, source: str, world_size: int | None = None) -> list[LinkTable]:
    """All tables of a text, measured on ``world_size`` ranks where it does not say.

    Raises:
        InputError: there is none, or a time without a unit.
    """
    blocks = _blocks(_ANSI.sub("", text), source)
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
    tables = [table for block in blocks for table in read_block(block, source, world_size)]
    if not any(table.rows for table in tables):
        raise InputError(f"{source}: a header, but no whole row below it (truncated?){failure}")
    if failure:
        left_out = (*tables[0].left_out, f"{source}: what follows a failure{failure}")
        tables[0] = replace(tables[0], left_out=left_out)
    return tables


def has_table(text: str) -> bool:
    """Whether a text holds a header of such a table, or nccl-tests' own first lines."""
    return _OWN_LINES.search(text) is not None or bool(_headers(_ANSI.sub("", text)))


# ---- headers, and what stands before each line

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_MAY_BE_HEADER = re.compile(r"size|bytes|message|msg|payload", re.IGNORECASE)
_NCCL_LOG = re.compile(r" NCCL (?:INFO|WARN) ")
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")
_AVERAGE = re.compile(r"\b(avg|average|min|max|mean|median)\s+(latency|lat|time)", re.IGNORECASE)
_UNIT_APART = re.compile(r"(?<=\w)[ \t](?=\((?:[num\u00b5]?s|usec|msec|B|bytes|[GM]B/s)\))", re.IGNORECASE)


def _headers(text: str) -> dict[int, tuple[str, Columns, str | None]]:
    """By the number of its line, what stands before each header, its columns and what separates them."""
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_HEADER or _NCCL_LOG.search(line) or not _MAY_BE_HEADER.search(line):
            continue
        best, most = None, 0
        for start in (match.start() for match in _START.finditer(line[:LONGEST_PREFIX])):
            header = _header(line[start:])
            known = sum(column.kind != "other" for column in header[0]) if header else 0
            if header and known > most and _is_prefix(line[:start], text):
                best, most = (line[:start], *header), known
        if best is not None:
            found[number] = best
    return found


def _is_prefix(before: str, text: str) -> bool:
    """Whether words before a header are a prefix: none, ended as one, or before a row too."""
    words = before.rstrip()
    if not re.search(r"\w", words) or words[-1] in ":|>])" or re.search(r"\d:\d\d", words):
        return True
    return re.search(rf"^{re.escape(words)}[ \t]+\d", text, re.MULTILINE) is not None


def _shape(prefix: str) -> str:
    """A prefix as a pattern: times, days and numbers may differ, other words are another's."""
    prefix = prefix.strip()
    parts = [re.escape(part) for part in re.split(r"(\d+|\b[A-Z][a-z]{2}\b|\s+)", prefix)]
    for place in range(1, len(parts), 2):
        part = parts[place]
        parts[place] = r"\d+" if part[0].isdigit() else "[A-Z][a-z]{2}" if part[0].isalpha() else r"[ \t]+"
    end = r"(?=[ \t#]|$)" if re.search(r"\w$", prefix) else ""
    return rf"[ \t]*{''.join(parts)}{end}"


@lru_cache(maxsize=4096)  # logs repeat their lines
def _header(line: str) -> tuple[Columns, str | None] | None:
    """The columns that a line names, and what separates them; None where it is no header: it names no size
    and time, or much else.
    """
    content = _UNIT_APART.sub("", _AVERAGE.sub(r"\1_\2", line.lstrip(" \t#")))
    for delimiter in ("|", "\t", ",", ";", None):
        if delimiter and delimiter not in content:
            continue
        names = _cells(content, delimiter)
        if len(names) > MOST_COLUMNS or any(NUMBER.fullmatch(name.strip()) for name in names):
            continue
        columns = tuple(column_of(name) for name in names)
        kinds = [column.kind for column in columns]
        is_loose = delimiter is None and (kinds[:1] == ["other"] or 2 * kinds.count("other") > len(kinds))
        if "size" in kinds and {"time", "cputime", "algbw", "busbw"} & {*kinds} and not is_loose:
            return columns, delimiter
    return None


def _cells(content: str, delimiter: str | None) -> list[str]:
    """The cells of a line, of a Markdown row without the marks at its ends; empty where it is none."""
    if delimiter is None:
        return content.split()
    if delimiter == "|":
        return [cell.strip().strip("*`") for cell in content.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([content], delimiter=delimiter), [])]
    except csv.Error:
        return []


# ---- lines, one after the other

_RULE = re.compile(r"[\s|:=+*~_-]*")
_UNIT_ROW = re.compile(r"\s*(?:\([^()]+\)\s*)+(?:%.*)?")
_SPACED_UNIT = re.compile(
    r"(?<=\d)[ \t]+(?=(?:[KMGT]i?B?|B|[num\u00b5\u03bc]?s|[GMT]i?(?:B|b|bit)(?:ps|/s))(?:\s|$))"
)
_NOISE = re.compile(r"\b(warn\w*|error|fail\w*|traceback|info|debug|notice|help message)\b", re.IGNORECASE)
_MESSAGE = re.compile(r"[a-z][\w./-]*(?:\[\d+\])?:\s")  # a program's, with its name before it
_FOOTER = re.compile(r"out of bounds|av(?:era)?ge? bus bandwidth|test concluded", re.IGNORECASE)
_PROMPT = re.compile(
    r"\[?\S+@\S+(?:\s\S+)?\]?\s?[$#%]\s+\S|(?:\([\w.-]+\)\s*)?(?:\[[^\]]+\]|[\w./:~-]*)\s?\$\s+\S"
)
_HEADLINE = re.compile(r"```|~~~|#{2,6}\s+\S|[=*~+_-]{2,}\s*[^\s=*~+_-]|[^(]{1,80}:\s*$")
_OWN_COMMENT = re.compile(
    r"nccl|collective test|nthread|using devices|\brank\b|-place|osu |datatype|^\(b\)", re.IGNORECASE
)
_DATE = re.compile(r"\d+(?:[:/.-]\d+)+\S*")
_REPEAT = re.compile(r"\b(?:run|iteration|trial|repeat|attempt|repetition|try)s?\s*(?:#|no\.?)?\s*\d*\b")


def _blocks(text: str, source: str) -> list[TextBlock]:
    headers = _headers(text)
    prefixes = {prefix for prefix, _, _ in headers.values() if prefix.strip(" \t#|")}
    if shapes := sorted(map(_shape, prefixes), key=len, reverse=True):
        text = re.sub(rf"^(?:{'|'.join(shapes)})", "", text, flags=re.MULTILINE)
    said, blocks = Said(), list[TextBlock]()
    is_used = after_header = after_blank = False
    rows, command, lines = 0, "", text.split("\n")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE or _NCCL_LOG.search(line):
            continue
        line = command + line.rstrip("\r")
        command = line[:-1] if line.endswith("\\") and len(line) <= MOST_COMMAND else ""
        if command:
            continue
        body, content = line.strip(), line.lstrip("# \t")
        table = blocks[-1] if blocks else None
        if number in headers:
            prefix, columns, delimiter = headers[number]
            writer = re.sub(r"\b[A-Z][a-z]{2}\b|\d+", "", prefix).strip(" \t#|:>")
            known = replace(said, ranks=dict(said.ranks), titles=[*said.titles[-3:], writer])
            blocks.append(TextBlock(columns=columns, delimiter=delimiter, said=known))
            is_used, after_header, after_blank = True, True, False
            continue
        if _RULE.fullmatch(content):
            after_blank = after_blank or not body
            if table is not None and table.delimiter == "|" and table.rows and not body:
                table.is_ended = True
            continue
        is_comment = body.startswith("#")
        if table is not None:
            if after_header and _UNIT_ROW.fullmatch(content):
                table.columns = _with_units(table.columns, content)
                continue
            after_header = False
            if not is_comment and (fields := _row(table, content, is_whole=number < len(lines))):
                is_whole = len(fields) == len(table.columns) and not table.is_ended
                (table.rows if is_whole else table.others).append((number, fields))
                after_blank, rows = False, rows + 1
                if rows > MOST_ROWS:
                    raise InputError(f"{source}: more than {MOST_ROWS} rows; give the output of one run")
                continue
        end = _ends_table(body, after_blank, None if table is None else table.delimiter)
        after_blank = False
        if end and table is not None:
            table.is_ended = table.is_ended or end == "other" or bool(table.rows)
            if is_used and end != "footer" and table.is_ended:
                said, is_used = Said(), False
        if end == "other" or (end == "comment" and not _OWN_COMMENT.search(content)):
            said.titles.append(_title(body))
        if end != "footer":
            _listen(content, is_comment, said, is_before=not is_used)
    return blocks


def _with_units(columns: Columns, row: str) -> Columns:
    """The columns with the units of the row below the header, in the order of its columns of times."""
    units = iter([word for word in re.findall(r"\(([^()]+)\)", row) if word in TIME_UNITS])
    return tuple(
        replace(column, scale=TIME_UNITS[unit])
        if column.kind == "time" and column.scale is None and (unit := next(units, None)) is not None
        else column
        for column in columns
    )


def _row(block: TextBlock, content: str, *, is_whole: bool) -> list[str]:
    """The fields of a line that may be a row of the table: it has a size, or is mostly numbers; else none."""
    width, last = len(block.columns), block.columns[-1].kind
    fields = _cells(content, block.delimiter)
    if block.delimiter is None:
        if len(fields) > width:
            fields = _SPACED_UNIT.sub("", content).split()
        if len(fields) > width and last in ("other", "timestamp"):
            fields = [*fields[: width - 1], " ".join(fields[width - 1 :])]
        elif len(fields) == width - 1 and last == "other" and is_whole:
            fields = [*fields, ""]
    size = next(place for place, column in enumerate(block.columns) if column.kind == "size")
    numbers = sum(NUMBER.fullmatch(field) is not None for field in fields)
    if len(fields) == width and _CELL.fullmatch(fields[size]):
        # Of a line without its end nobody knows whether the last field is whole.
        return fields if is_whole else [*fields[:-1], ""]
    return [field for field in fields if field] if 2 * numbers > len(fields) > 1 else []


def _ends_table(line: str, after_blank: bool, delimiter: str | None) -> str:
    """``footer``, ``comment`` or ``other``: what ends a table of that delimiter; empty where a line may stand
    between two rows, as warnings and blank lines may."""
    if _FOOTER.search(line):
        return "footer"
    first = line.split(None, 1)[0]
    if NUMBER.fullmatch(first.rstrip(",;")) or _NOISE.search(line) or not re.search(r"[^\W\d_]|`", line):
        return ""
    if _PROMPT.match(line) or _is_command(line):
        return "other"
    if delimiter in (",", ";", "\t") and line.count(delimiter) > 1:
        return ""
    if _HEADLINE.match(line):
        return "other"
    if line.startswith("#"):
        return "comment"
    if delimiter == "|":
        return "" if line.startswith("|") or line.count("|") > 1 else "other"
    is_text = re.match(r"[^\W\d_]|[*_>-]", line) and not _MESSAGE.match(line)
    few = sum(NUMBER.fullmatch(word) is not None for word in line.split()) < 2
    return "other" if after_blank and few and is_text else ""


def _title(line: str) -> str:
    """What a line between tables says of which run it is: neither the collective nor the number of a repeated
    run."""
    words = line.lower()
    for pattern in (_DATE, COLLECTIVE, _REPEAT):
        words = pattern.sub("", words)
    return " ".join(words.strip("#=*~+-_:$%<>` \t").split())[:80]


# ---- what lines say of a run

_RANK = re.compile(
    r"\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*)"
)
_THREADS = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+\b.{0,200}?(?<!warmup )(?<!agg )\biters:\s*(\d{1,9})")
_NRANKS = re.compile(r"\bn[rR]anks[ :=]+(\d{1,7})\b")
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|prun|torchrun|jsrun|flux run)\b")
_LAUNCHED = re.compile(
    r"\W*(?:.{0,200}?[$#%:+]\s+)?(?:(?:\w{1,80}=\S{0,200}|time|nohup|sudo|exec|env)\s+)*(?:\S{0,200}/)?"
    + _LAUNCHER.pattern
    + r"\s"
)
_PROGRAM = re.compile(r"(?:^|[\s/])(\w{1,80}_perf|osu_\w{1,80})(?=\s|$)")
_NCCL_TESTS = re.compile(
    r"\b[nr]ccl-tests\b|\bnThread \d+ nGpus \d+|\bCollective test \w+: \w+_perf|\bPid +\d+ on +\S+ +device "
)
_OSU = re.compile(r"OSU (MPI|NCCL|RCCL)(?:-(CUDA|ROCM))? ")
_OSU_DEVICES = {"": "cpu", "CUDA": "cuda", "ROCM": "cuda"}  # torch calls both cuda


def _listen(content: str, is_comment: bool, said: Said, *, is_before: bool) -> None:
    """Take in what a line says of a run; one that is no comment only ``is_before`` its table."""
    said.over = _library_of(content) or said.over
    if (rank := _RANK.match(content)) is not None:
        if int(rank[1]) == 0:
            said.ranks.clear()
        said.ranks[int(rank[1])] = (rank[2], rank[3].strip())
    elif (threads := _THREADS.search(content)) is not None:
        said.ranks.clear()
        said.num_ranks, said.iterations = (None, ""), int(threads[1])
    elif _is_command(content):
        program = _PROGRAM.search(content)
        said.collective = said.collective if program is None else collective_in(program[1])
        said.num_ranks = _ranks_of_command(content)
    elif is_comment or is_before:
        said.is_over_ranks = said.is_over_ranks or content.startswith("OSU ")
        if (nranks := _NRANKS.search(content)) is not None:
            said.num_ranks = int(nranks[1]), "the line 'nranks'"
        elif is_comment or said.num_ranks[0] is None:
            words = _ranks_in_words(content)
            said.num_ranks = said.num_ranks if words is None else (words, WORDS)
        if is_comment or (said.collective is None and len(content) < 200):
            said.collective = collective_in(content) or said.collective


def _is_command(line: str) -> bool:
    """Whether a line starts a benchmark: with a launcher, or with a program and its options."""
    program = _PROGRAM.search(line)
    has_options = program is not None and re.match(r"\s+-", line[program.end() :]) is not None
    return has_options or _LAUNCHED.match(line) is not None


def _library_of(line: str) -> tuple[str, str] | None:
    """The backend and the device, by torch's names, of the benchmark that wrote or started with ``line``.

    nccl-tests and rccl-tests reduce buffers of GPUs; OSU's headers say whose theirs are. None where a line
    says nothing of it.
    """
    if (osu := _OSU.match(line)) is not None:
        return NCCL if osu[1] != "MPI" else ("mpi", _OSU_DEVICES[osu[2] or ""])
    program = _PROGRAM.search(line)
    is_perf = program is not None and program[1].endswith("_perf") and collective_in(program[1]) is not None
    return NCCL if is_perf or _NCCL_TESTS.search(line) is not None else None


def _ranks_of_command(line: str) -> tuple[int | None, str]:
    """Ranks that a command line starts: processes x threads x GPUs a thread; None where it gives none."""
    program = _PROGRAM.search(line)
    before, arguments = (line, "") if program is None else (line[: program.start(1)], line[program.end() :])

    def given(text: str, names: str) -> int | None:
        found = re.search(rf"(?:^|\s)(?:{names})[ =]*(\d{{1,6}})\b", text)
        return None if found is None else int(found[1])

    launcher = _LAUNCHER.search(before)
    processes = given(before, "-np|--np|-n|--ntasks")
    nodes = given(before, "-N|--nodes|--nnodes")
    each = given(before, "--ntasks-per-node|--tasks-per-node|--nproc[-_]per[-_]node")
    needed = {"srun": nodes, "torchrun": each}.get(launcher[0]) if launcher is not None else None
    if processes is None and needed is not None:
        processes = (nodes or 1) * (each or 1)
    gpus, threads = given(arguments, "-g|--ngpus"), given(arguments, "-t|--nthreads")
    if processes is None and (gpus is None or launcher is not None):
        return None, ""
    return (processes or 1) * (gpus or 1) * (threads or 1), COMMAND


_COUNTED = re.compile(
    r"\b(\d{1,6})[\s-]*(?:(?:mpi )?(?:ranks|processes|procs|workers|tasks)|GPUs?)\b(?! (?:per|a|each)\b)"
    r"|\b(?:world[ _-]?size|n?ranks|nprocs)\s*[:=]\s*(\d{1,6})\b",
    re.IGNORECASE,
)
_NODES = re.compile(
    r"\b(\d{1,6})[\s-]*(?:nodes?|hosts?)\s*(?:x|×|with|,|of)\s*(\d{1,6})\D{0,12}GPUs?\b", re.I
)
_ON_NODES = re.compile(r"\b(?:nodes?|hosts?|servers?|machines?|each)\b", re.IGNORECASE)


def _ranks_in_words(line: str) -> int | None:
    """Ranks that a sentence or a headline tells (``4 ranks``, ``2 nodes x 8 GPUs``); None where it tells
    none, or several."""
    if (nodes := _NODES.search(line[:400])) is not None:
        return int(nodes[1]) * int(nodes[2])
    counted = {int(a or b) for a, b in _COUNTED.findall(line[:400])}
    is_told = len(counted) == 1 and not _ON_NODES.search(line) and not _NOISE.search(line)
    return counted.pop() if is_told else None


# ---- cells as timings

_SEPARATOR = r"[,_' \u202f\u00a0]"
_CELL = re.compile(
    rf"([+-]?\d{{1,3}}({_SEPARATOR})\d{{3}}(?:\2\d{{3}})*(?:\.\d+)?|{NUMBER.pattern})\s*([A-Za-zµμ/]*)",
    re.ASCII,
)
_SCATTER = {"min": "min_ns", "p10": "p10_ns", "median": "median_ns", "p90": "p90_ns", "max": "max_ns"}
_BESIDE = ("algbw", "busbw", "wrong", "iterations")
_MAINS = ("time", "median", "mean", "min", "max")
# The columns of one timing, by place in the row: times by statistic ("time" without one), others by kind.
_Group = dict[str, int]
_Number = tuple[Decimal, Decimal]  # in ns, bytes or GB/s, and one unit of its last digit


def _value(cell: str, column: Column, time_ns: Decimal | None = None) -> _Number | None:
    """A cell's number; None where it is none. ``time_ns``: a unit of time where nothing says it."""
    found = _CELL.fullmatch(cell) if len(cell) <= 40 else None
    if found is None:
        return None
    number = Decimal(re.sub(_SEPARATOR, "", found[1]))
    scale = column.scale
    if scale is None:
        scale = {"time": time_ns, "size": None}.get(column.kind, Decimal(1))
    if found[3]:
        _, scale = unit_of(column.kind, found[3])
    if scale is None or (number and not -30 <= number.adjusted() <= 30):
        return None
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return number * scale, Decimal(1).scaleb(exponent) * scale


def _whole(value: _Number | None, most: int) -> int | None:
    is_whole = value is not None and 0 <= value[0] <= most and value[0] == value[0].to_integral_value()
    return int(value[0]) if value is not None and is_whole else None


def read_block(block: TextBlock, source: str, world_size: int | None = None) -> list[LinkTable]:
    """A block as tables, one for each collective, number of ranks and place that its columns tell apart.

    ``world_size`` serves where the block does not say on how many ranks bus bandwidths without times were
    measured.

    Raises:
        InputError: a time whose unit cannot be told, a size in units of two meanings, or times of the CPU.
    """
    columns, said = block.columns, block.said
    places = {column.kind: place for place, column in reversed([*enumerate(columns)])}
    if "time" not in places and "cputime" in places:
        raise InputError(
            f"{source}: cputime is what a launch takes on the CPU; run nccl-tests without -C to have the time"
        )
    names = {column.name.lower().lstrip("#") for column in columns}
    is_nccl_tests = {"size", "count", "type", "time", "algbw", "busbw"} <= names
    is_nccl_tests = is_nccl_tests and bool(names & {"wrong", "error"})
    groups = _groups(columns)
    said_ranks = (max(said.ranks) + 1, "its list of ranks") if said.ranks else said.num_ranks
    rows: dict[tuple[str | None, int | None, str], list[LinkRow]] = defaultdict(list)
    broken = list(block.others)
    for number, fields in block.rows:
        collective, ranks, where = said.collective, None, []
        values = []
        for column, cell in zip(columns, fields, strict=True):
            values.append(_value(cell, column, TIME_UNITS["us"] if is_nccl_tests else None))
            if column.kind == "collective" and cell:
                collective = collective_in(cell) or cell.lower()
            elif column.kind == "world_size":
                ranks = _whole(values[-1], 10**7) or ranks
            elif column.kind == "place":
                where.append(f"{column.name} {cell}")
        told = ranks or said_ranks[0] or world_size
        ratio = None if told is None or told < 2 else bus_factor(collective or "all_reduce", told)
        num_bytes = _whole(values[places["size"]], MOST_BYTES)
        timed = {name: _timing(group, values, said, num_bytes, ratio) for name, group in groups.items()}
        timings = {name: timing for name, timing in timed.items() if timing is not None}
        if num_bytes is None or not timings:
            broken.append((number, fields))
            continue
        row = LinkRow(
            where=f"{source}: {block.what} {number}",
            num_bytes=num_bytes,
            timings=timings,
            count=_whole(values[places["count"]], MOST_BYTES) if "count" in places else None,
            dtype=fields[places["dtype"]] if "dtype" in places else None,
        )
        rows[collective, ranks, ", ".join(where)].append(row)
    if not rows and block.rows:
        _refuse(block, groups if world_size is None else {}, source)
    redops = {fields[places["redop"]] for _, fields in block.rows} if "redop" in places else set()
    tables = [
        LinkTable(
            source=source,
            rows=tuple(found),
            collective=collective,
            ranks=said_ranks[0] if ranks is None else ranks,
            ranks_by=said_ranks[1] if ranks is None else "its column",
            title=", ".join(filter(None, (*said.titles, where))),
            redop=redops.pop() if len(redops) == 1 else None,
            statistic="median" if any(_main(group) == "median" for group in groups.values()) else "mean",
            iterations=said.iterations,
            devices=tuple(dict.fromkeys(plain(name) for _, name in said.ranks.values() if name)),
            hosts=tuple(dict.fromkeys(plain(host) for host, _ in said.ranks.values() if host)),
            over=NCCL if is_nccl_tests else said.over,
        )
        for (collective, ranks, where), found in rows.items()
    ]
    return [replace(table, left_out=_left_out(block, broken, source)) for table in tables[:1]] + tables[1:]


def _refuse(block: TextBlock, groups: Mapping[Variant, _Group], source: str) -> None:
    """Raise ``InputError`` where a unit or the number of ranks is why no row can be read."""
    for column, cell in zip(block.columns, block.rows[0][1], strict=True):
        if column.kind in ("time", "size") and _CELL.fullmatch(cell) and _value(cell, column) is None:
            raise InputError(
                f"{source}: column {column.name!r}: its unit cannot be told, or is 10^n to some, 2^n to "
                f"others; give bytes, KiB or MiB (size_B), and times as time_us, _ms or _s"
            )
    if any(_main(group) is None for group in groups.values()):
        raise InputError(
            f"{source}: bus bandwidths without times or algorithm bandwidths, and it does not say on how "
            f"many ranks; give --world-size N"
        )


def _left_out(block: TextBlock, others: Sequence[tuple[int, Sequence[str]]], source: str) -> tuple[str, ...]:
    """Sentences on lines that are no rows of the table, and on columns that say nothing."""
    said = []
    if others:
        named = few(
            [f"{block.what} {number} ({plain(' '.join(fields[:2]))})" for number, fields in sorted(others)], 3
        )
        why = "no whole rows, or of a run whose header is not there"
        said.append(f"{source}: {count_of(len(others), block.what)} of numbers, {why}: {named}")
    unread = dict.fromkeys(column.name for column in block.columns if column.kind == "other" and column.name)
    if unread:
        said.append(f"{source}: columns {', '.join(unread)}")
    return tuple(said)


def _groups(columns: Columns) -> dict[Variant, _Group]:
    """The columns of each timing. Where a statistic comes again, the second timing begins: in place."""
    # Where no column has a time, bandwidths stand for it.
    kinds = {column.kind for column in columns}
    main = next((kind for kind in ("time", "algbw", "busbw") if kind in kinds), "time")
    by_name = any(column.kind == main and column.variant for column in columns)
    groups: dict[Variant, _Group] = {}
    variant: Variant = "only"
    for place, column in enumerate(columns):
        if column.kind not in ("time", *_BESIDE):
            continue
        key = column.statistic or "time" if column.kind == "time" else column.kind
        if by_name:
            variant = column.variant or "only"
        elif column.kind == main and key in groups.get(variant, {}):
            groups, variant = {"out": groups.get("only") or groups["out"], "in": groups.get("in", {})}, "in"
        groups.setdefault(variant, {}).setdefault(key, place)
    whole = [(which, one) for which, one in groups.items() if _main(one) or (main != "time" and main in one)]
    return dict(whole[:2])


def _main(group: _Group) -> str | None:
    """The statistic that stands for the time of a group; None where it has none."""
    return next((key for key in (*_MAINS, *group) if key in group and key not in _BESIDE), None)


def _timing(
    group: _Group,
    values: Sequence[_Number | None],
    said: Said,
    num_bytes: int | None,
    ratio: float | None,
) -> Timing | None:
    """A row's timing by one group of columns; None where it has none.

    Without a time it is the one that the algorithm's bandwidth tells, or the bus's where its ``ratio`` to
    that is known: a GB/s is a byte in a ns.
    """
    numbers = {
        key: (float(value[0]), float(value[1]))
        for key, place in group.items()
        if (value := values[place]) is not None
    }
    rates = {name: numbers[name] for name in ("algbw", "busbw") if numbers.get(name, (-1,))[0] >= 0}
    main = _main(group)
    duration, slack = numbers.get(main or "", (0.0, 0.0))
    if main is None:
        name, share = ("algbw", 1.0) if "algbw" in group else ("busbw", ratio)
        speed, digit = rates.get(name, (0.0, 0.0))
        if num_bytes and share is not None and speed > 0:
            duration = max(0.5, num_bytes * share / speed)
            slack = duration * digit / speed
    if not 0 < duration <= MOST_NS or (main is not None and not round(duration)):
        return None
    scatter = {
        name: round(numbers[key][0])
        for key, name in _SCATTER.items()
        if key in numbers and 0 <= numbers[key][0] <= MOST_NS
    }
    told = int(numbers.get("iterations", (0.0,))[0])
    count = told if 0 < told <= 10**9 else said.iterations
    if main is None or said.is_over_ranks or not set(scatter) - {"median_ns"}:
        scatter, count = {}, None
    return Timing(
        duration_ns=max(1, round(duration)),
        slack_ns=slack,
        rates=rates,
        wrong=numbers.get("wrong", (0.0,))[0],
        scatter=scatter if count is None else {"count": count, **scatter},
    )
