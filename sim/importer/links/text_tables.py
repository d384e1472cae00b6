"""Tables in text: nccl-tests' own, CSV, and whitespace tables with a header; rows between any noise."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache

from sim.errors import InputError
from sim.importer.imported import plain
from sim.importer.links.around_tables import (
    NCCL,
    ends_table,
    headers_in,
    is_command,
    library_of,
    origin,
    program_of,
    ranks_in_words,
    ranks_of_command,
    title_of,
    without_prefixes,
)
from sim.importer.links.columns import (
    MOST_BYTES,
    MOST_NS,
    NUMBER,
    RATE_UNITS,
    TIME_UNITS,
    Column,
    LinkRow,
    LinkTable,
    Timing,
    Variant,
    bus_factor,
    collective_in,
    column_of,
    named_collective,
)

# ---- tables as they are found


# The columns of a table, and what separates them (None: spaces).
Header = tuple[tuple[Column, ...], str | None]


@dataclass(slots=True, kw_only=True)
class Said:
    """What the lines before a header say of the run; ``ranks``: host and device of each."""

    collective: str | None = None
    is_fresh: bool = False  # the collective was named after the last table
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_ranks: tuple[int, str] | None = None  # and words for what told it
    iterations: int | None = None
    is_used: bool = False  # a table has been found since
    is_over_ranks: bool = False  # OSU's least and greatest are over ranks, not over iterations
    headline: str = ""  # which run it is, by the last headline and the last command
    comment: str = ""
    command: str = ""
    origin: str = ""  # who wrote it, by what stands before its lines
    over: tuple[str, str] | None = None  # the backend, and the device whose buffers were reduced


@dataclass(slots=True, kw_only=True)
class TextBlock:
    """A table as it is found: its columns, what separates them (None: spaces), the fields of its
    rows, and what was said before it.

    ``rows`` begin with the number of their line; ``broken`` are numbers of lines that are no whole rows;
    ``cut`` is that of a last row that is cut off. ``ended`` is the line after which nothing belongs to it,
    ``strays`` are lines below that which look like its rows: of another run, whose header is not there.
    """

    columns: tuple[Column, ...]
    delimiter: str | None = None
    said: Said
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    cut: int | None = None
    before: str | None = None  # what stands before each of its rows, but for numbers
    ended: int | None = None
    strays: list[tuple[int, str]] = field(default_factory=list)


LONGEST_LINE, MOST_COLUMNS, MOST_ROWS = 1 << 16, 200, 100_000
MOST_COMMAND = 4000

_LOOSE_PREFIX = re.compile(r".*[:|>\])]|.*\d:\d\d.*|\[.*")
_RANK = re.compile(
    r"\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*)"
)
_THREADS = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+\b.*?(?<!warmup )(?<!agg )\biters:\s*(\d{1,9})")
_OWN_LINES = re.compile(
    r"^[^\n]{0,80}#\s*(nThread \d+ nGpus|nccl-tests version|Collective test starting)", re.MULTILINE
)
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure[^\n]{0,200}")
_NRANKS = re.compile(r"\bn[rR]anks[ :=]+(\d{1,7})\b")
_MAY_BE_HEADER = re.compile(r"size|bytes|message|msg|payload", re.IGNORECASE)
_AVERAGE = re.compile(r"\b(avg|average|min|max|mean|median)\s+(latency|lat|time)", re.IGNORECASE)
_UNIT_APART = re.compile(r"(?<=\w)[ \t](?=\((?:[num\u00b5]?s|usec|msec|B|bytes|[GM]B/s)\))", re.IGNORECASE)
_RULE = re.compile(r"[\s|:=+*~_-]+")
_SPACED_UNIT = re.compile(
    r"(?<=\d)[ \t]+(?=(?:[KMGT]i?B?|B|[num\u00b5\u03bc]?s|[GMT]i?(?:B|b|bit)(?:ps|/s))(?:\s|$))"
)
_FILE_BEFORE = re.compile(r"^([^\s:]*[A-Za-z][^\s:]*:)\s*(?=\d)")  # as grep names files
_UNIT_ROW = re.compile(r"\s*(?:\([^()]+\)\s*)+(?:%.*)?")


def read_tables(text: str, source: str, world_size: int | None = None) -> list[LinkTable]:
    """All tables of a text, measured on ``world_size`` ranks where it does not say.

    Raises:
        InputError: there is none, or a time without a unit.
    """
    prefixes = headers_in(text, _MAY_BE_HEADER, _known)
    text = without_prefixes(text, set(prefixes.values()))
    blocks = _blocks(text, source, {number: origin(prefix) for number, prefix in prefixes.items()})
    if not blocks and _OWN_LINES.search(text):
        raise InputError(
            f"{source}: nccl-tests' first lines without its table: the run ended before its first size"
            f"{_failure(text)}; give the output of a run that got further"
        )
    if not blocks:
        raise InputError(
            f"{source}: no table of collectives in it; give nccl-tests' output, or a header that names a "
            f"size in bytes and a time with its unit (size_B time_us)"
        )
    tables = [table for block in blocks for table in read_cells(block, source, world_size)]
    if not any(table.rows for table in tables):
        raise InputError(f"{source}: a header, but no whole row below it (truncated?){_failure(text)}")
    if _FAILURE.search(text) is not None:
        tables[0] = replace(
            tables[0], left_out=(*tables[0].left_out, f"{source}: what follows a failure{_failure(text)}")
        )
    return tables


def _failure(text: str) -> str:
    """What nccl-tests says where it fails, in brackets; empty where it did not."""
    failed = _FAILURE.search(text)
    return "" if failed is None else f" ({plain(failed[0].strip())})"


def has_table(text: str) -> bool:
    """Whether a text holds a header of such a table, or nccl-tests' own first lines."""
    if _OWN_LINES.search(text):
        return True
    return bool(headers_in(text, _MAY_BE_HEADER, _known))


@lru_cache(maxsize=4096)  # logs repeat their lines
def _known(line: str) -> int:
    """How many columns of a line are of a table of collectives; 0 where it is no header."""
    header = _header(line)
    return 0 if header is None else sum(column.kind != "other" for column in header[0])


def _blocks(text: str, source: str, origins: Mapping[int, str]) -> list[TextBlock]:
    said, blocks = Said(), list[TextBlock]()
    after_header = after_blank = False
    rows = 0
    command = ""
    for number, (line, is_whole) in enumerate(_lines(text), start=1):
        if " NCCL INFO " in line or " NCCL WARN " in line:
            continue
        body = command + line.rstrip("\r")
        command = body[:-1] if body.endswith("\\") and len(body) <= MOST_COMMAND else ""
        if command:
            continue
        content = body.lstrip(" \t#")
        table = blocks[-1] if blocks else None
        if not content.strip():
            after_blank = after_blank or not body.strip()
            if table is not None and table.delimiter == "|" and table.ended is None and table.rows:
                table.ended = number
            continue
        if after_header and _UNIT_ROW.fullmatch(content):
            blocks[-1].columns = _with_units(blocks[-1].columns, content)
            continue
        if _RULE.fullmatch(content):
            continue
        if _MAY_BE_HEADER.search(content) and (header := _header(body)) is not None:
            said.origin = origins.get(number, "")
            blocks.append(_block(*header, said))
            after_header, after_blank = True, False
            continue
        after_header = False
        delimiter = table.delimiter if table is not None else None
        end = ends_table(body, after_blank, delimiter)
        after_blank = False
        if end is not None:
            is_new = end in ("fence", "prompt", "headline", "prose")
            if table is not None and table.ended is None and (is_new or table.rows):
                table.ended = number
            if is_new and said.is_used:
                said = Said()
            if (title := title_of(body, end)) is not None:
                if end == "prompt":
                    said.command = title
                elif end == "comment":
                    said.comment = title
                else:
                    said.headline = title
        is_comment = body.lstrip().startswith("#")
        if _listen(content, is_comment, said) or is_comment or (table is not None and end is not None):
            continue
        if table is None:
            continue
        if table.ended is not None:
            stray = TextBlock(columns=table.columns, delimiter=table.delimiter, said=said)
            content = _FILE_BEFORE.sub("", content)
            if NUMBER.match(content.lstrip("| ")) and _row(stray, number, content, is_whole):
                table.strays.append((number, plain(" ".join(content.split()[:2]))))
            continue
        rows += _row(table, number, content, is_whole)
        if rows > MOST_ROWS:
            raise InputError(f"{source}: more than {MOST_ROWS} rows; give the output of one run")
    return blocks


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each has its end; one too long for a row is empty."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield (text[start:end] if end - start <= LONGEST_LINE else ""), True
        start = end + 1
    if start < len(text) <= start + LONGEST_LINE:
        yield text[start:], False


def _block(columns: tuple[Column, ...], delimiter: str | None, said: Said) -> TextBlock:
    said.is_fresh, said.is_used = False, True
    return TextBlock(columns=columns, delimiter=delimiter, said=replace(said, ranks=dict(said.ranks)))


def _listen(content: str, is_comment: bool, said: Said) -> bool:
    """Take in what a line says of a run; True where it can be no row."""
    if (over := library_of(content)) is not None:
        said.over = over
    if "Rank" in content and (rank := _RANK.match(content)) is not None:
        if int(rank[1]) == 0:
            said.ranks.clear()
        said.ranks[int(rank[1])] = (rank[2], rank[3].strip())
        return True
    if "nThread" in content and (threads := _THREADS.search(content)) is not None:
        if not said.is_fresh:
            said.collective = None
        said.ranks.clear()
        said.num_ranks, said.iterations = None, int(threads[1])
        return True
    if is_command(content):
        if (program := program_of(content)) is not None:
            said.collective, said.is_fresh = collective_in(program), True
        said.num_ranks = ranks_of_command(content)
        return True
    if is_comment and "concluded" not in content:
        said.is_over_ranks = said.is_over_ranks or content.startswith("OSU ")
        if (nranks := _NRANKS.search(content)) is not None:
            said.num_ranks = int(nranks[1]), "the line 'nranks'"
        elif (words := ranks_in_words(content)) is not None:
            said.num_ranks = words
        if (named := collective_in(content)) is not None:
            said.collective, said.is_fresh = named, True
        return True
    if not is_comment and not said.is_used and not NUMBER.match(content.lstrip("| ")):
        said.num_ranks = said.num_ranks or ranks_in_words(content)
        said.collective = said.collective or (collective_in(content) if len(content) < 200 else None)
    return False


def _header(line: str) -> Header | None:
    """The header that a line is, else None: a size and a time among its words, and few unknown ones."""
    content = _UNIT_APART.sub("", _AVERAGE.sub(r"\1_\2", line.lstrip(" \t#")))
    for delimiter in ("|", "\t", ",", ";"):
        if delimiter in content:
            names = _cells(content, delimiter)
            if names is None or len(names) > MOST_COLUMNS:
                continue
            columns = tuple(column_of(name) for name in names)
            if _has_size_and_time(columns) and not any(NUMBER.fullmatch(name.strip()) for name in names):
                return columns, delimiter
    words = content.split()
    if len(words) > 60 or any(NUMBER.fullmatch(word) for word in words):
        return None
    columns = tuple(column_of(word) for word in words)
    unknown = sum(column.kind == "other" for column in columns)
    if not _has_size_and_time(columns) or columns[0].kind == "other" or 2 * unknown > len(columns):
        return None
    return columns, None


def _has_size_and_time(columns: tuple[Column, ...]) -> bool:
    kinds = {column.kind for column in columns}
    return "size" in kinds and bool(kinds & {"time", "cputime", "algbw", "busbw"})


def _cells(content: str, delimiter: str) -> list[str] | None:
    """The cells of a delimited line, a Markdown row without the marks at its ends; None where it is none."""
    if delimiter == "|":
        return [cell.strip().strip("*`") for cell in content.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([content], delimiter=delimiter))]
    except csv.Error:
        return None


def _with_units(columns: tuple[Column, ...], row: str) -> tuple[Column, ...]:
    """The columns with the units of the row below the header, in the order of its columns of times."""
    units = iter([word for word in re.findall(r"\(([^()]+)\)", row) if word in TIME_UNITS])
    return tuple(
        replace(column, scale=TIME_UNITS[unit])
        if column.kind == "time" and column.scale is None and (unit := next(units, None)) is not None
        else column
        for column in columns
    )


def _row(block: TextBlock, number: int, content: str, is_whole: bool) -> bool:
    """Take a row into its table; False where the line is none."""
    width, last = len(block.columns), block.columns[-1].kind
    if block.delimiter is not None:
        fields = _cells(content, block.delimiter) or []
    else:
        fields = content.split()
        fields = _FILE_BEFORE.sub(r"\1 ", content).split()
        before = ""
        while fields and not NUMBER.fullmatch(fields[0]) and _LOOSE_PREFIX.fullmatch(fields[0]):
            before += re.sub(r"\d+", "", fields.pop(0))
        is_row = bool(fields) and NUMBER.fullmatch(fields[0]) is not None
        if block.before is None and is_row and len(fields) >= width - 1:
            block.before = before
        elif block.before not in (None, before) and is_row:
            block.strays.append((number, plain(" ".join(content.split()[:2]))))
            return True
        if len(fields) > width:
            fields = _SPACED_UNIT.sub("", " ".join(fields)).split()
        if len(fields) > width and last in ("other", "timestamp"):
            fields = [*fields[: width - 1], " ".join(fields[width - 1 :])]
        elif len(fields) == width - 1 and last == "other" and is_whole:
            fields = [*fields, ""]
    numbers = sum(NUMBER.fullmatch(field) is not None for field in fields)
    if not is_whole and len(fields) < width:
        if numbers:
            block.cut = number
    elif len(fields) == width:
        # Of a line without its end nobody knows whether the last field is whole.
        block.rows.append((number, fields if is_whole else [*fields[:-1], ""]))
    elif fields and NUMBER.fullmatch(fields[0]) and 2 * numbers > len(fields) > 1:
        block.broken.append(number)
    else:
        return False
    return True


# ---- cells

# nccl-tests' own: a K is 2^10. KB and MB are 10^n to some, 2^n to others, and are not read.
_SIZE_UNITS = {"B": Decimal(1)} | {
    f"{prefix}{end}": Decimal(1 << power)
    for prefix, power in (("K", 10), ("k", 10), ("M", 20), ("G", 30), ("T", 40))
    for end in ("", "iB")
}
_UNCLEAR = re.compile(r"\d\s*[KMGT]B$", re.IGNORECASE)
_SEPARATOR = r"[,_' \u202f\u00a0]"
_CELL = re.compile(
    rf"([+-]?\d{{1,3}}({_SEPARATOR})\d{{3}}(?:\2\d{{3}})*(?:\.\d+)?|{NUMBER.pattern})\s*([A-Za-zµμ/]*)",
    re.ASCII,
)
_UNITS = {"size": _SIZE_UNITS, "algbw": RATE_UNITS, "busbw": RATE_UNITS}


def _value(cell: str, column: Column, time_ns: Decimal | None) -> tuple[Decimal, Decimal] | None:
    """A cell in ns, bytes or GB/s, and one unit of its last digit; None where it is no such number.

    ``time_ns`` is a unit of time where neither the column nor the cell says it.
    """
    found = _CELL.fullmatch(cell) if len(cell) <= 40 else None
    if found is None:
        return None
    number, unit = Decimal(re.sub(_SEPARATOR, "", found[1])), found[3]
    scale = column.scale or (time_ns if column.kind == "time" else Decimal(1))
    if unit:
        units = TIME_UNITS if column.kind == "time" else _UNITS.get(column.kind, {})
        scale = units.get(unit.lower() if column.kind == "time" else unit)
    if scale is None or (number and not -30 <= number.adjusted() <= 30):
        return None
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return number * scale, Decimal(1).scaleb(exponent) * scale


def _whole(cell: str, column: Column, most: int) -> int | None:
    value = _value(cell, column, None)
    is_whole = value is not None and 0 <= value[0] <= most and value[0] == value[0].to_integral_value()
    return int(value[0]) if value is not None and is_whole else None


# ---- cells as timings

_SCATTER = {"min": "min_ns", "p10": "p10_ns", "median": "median_ns", "p90": "p90_ns", "max": "max_ns"}
_BESIDE = ("algbw", "busbw", "wrong", "iterations")
# The columns of one timing, by place in the row: times by statistic ("time" without one), others by kind.
_Group = dict[str, int]
_Key = tuple[str | None, int | None, str]  # collective, ranks, and what else sets a row apart


def read_cells(block: TextBlock, source: str, world_size: int | None = None) -> list[LinkTable]:
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
    if columns[places["size"]].scale is None:
        raise InputError(
            f"{source}: column {columns[places['size']].name!r}: a unit that is 10^n to some, 2^n to others; "
            f"give sizes in bytes (size_B)"
        )
    is_nccl_tests = _is_of_nccl_tests(columns)
    groups = _groups(columns)
    if not is_nccl_tests:
        _check_units(block, groups, source)
    rows: dict[_Key, list[LinkRow]] = defaultdict(list)
    broken = list(block.broken)
    for number, fields in block.rows:
        cells = {kind: (fields[place], columns[place]) for kind, place in places.items()}
        num_bytes = _whole(*cells["size"], MOST_BYTES)
        key = _key(block, fields)
        ranks = key[1] or _ranks(block)[0] or world_size
        ratio = None if ranks is None or ranks < 2 else bus_factor(key[0] or "all_reduce", ranks)
        values = [
            _value(cell, column, TIME_UNITS["us"] if is_nccl_tests else None)
            for cell, column in zip(fields, columns, strict=True)
        ]
        timings = {
            variant: timing
            for variant, group in groups.items()
            if (timing := _timing(group, values, said, num_bytes, ratio)) is not None
        }
        if num_bytes is None or not timings:
            broken.append(number)
            continue
        row = LinkRow(
            where=f"{source}: line {number}",
            num_bytes=num_bytes,
            timings=timings,
            count=_whole(*cells["count"], MOST_BYTES) if "count" in cells else None,
            dtype=cells["dtype"][0] if "dtype" in cells else None,
        )
        rows[key].append(row)
    if not rows:
        _refuse_unclear(
            block, [fields[places["size"]] for _, fields in block.rows], groups, source, world_size
        )
    redops = {fields[places["redop"]] for _, fields in block.rows} if "redop" in places else set()
    made = LinkTable(
        source=source,
        rows=(),
        collective=None,
        title=", ".join(filter(None, (said.headline, said.comment, said.command, said.origin))),
        redop=redops.pop() if len(redops) == 1 else None,
        statistic="median" if any("median" in group for group in groups.values()) else "mean",
        iterations=said.iterations,
        devices=tuple(dict.fromkeys(plain(name) for _, name in said.ranks.values() if name)),
        hosts=tuple(dict.fromkeys(plain(host) for host, _ in said.ranks.values())),
        over=NCCL if is_nccl_tests else said.over,
        unread=tuple(column.name for column in columns if column.kind == "other" and column.name),
    )
    tables: list[LinkTable] = []
    for (collective, ranks, place), found in rows.items():
        known, by = (ranks, "its column") if ranks is not None else _ranks(block)
        table = replace(made, rows=tuple(found), collective=collective, ranks=known, ranks_by=by, place=place)
        tables.append(table if tables else replace(table, left_out=_left_out(block, broken, source)))
    return tables


def _left_out(block: TextBlock, broken: Sequence[int], source: str) -> tuple[str, ...]:
    """Sentences on lines that are no rows of the table."""
    said = [f"{source}: line {block.cut}, cut off at the end of the file"] if block.cut else []
    if broken:
        said.append(f"{source}: {len(broken)} lines that are no whole row (the first: {min(broken)})")
    if block.strays:
        named = ", ".join(f"line {number} ({words})" for number, words in block.strays[:3])
        more = f" and {len(block.strays) - 3} more" if len(block.strays) > 3 else ""
        below = "" if block.ended is None else f" below the end of the table (line {block.ended})"
        said.append(f"{source}: {named}{more}{below}: rows of a run whose header is not there")
    return tuple(said)


def _check_units(block: TextBlock, groups: Mapping[Variant, _Group], source: str) -> None:
    """Raise ``InputError`` where neither a column of times nor its cells say the unit."""
    for place in (place for group in groups.values() for key, place in group.items() if key not in _BESIDE):
        column = block.columns[place]
        if column.scale is None and any(NUMBER.fullmatch(fields[place]) for _, fields in block.rows):
            name = column.name
            raise InputError(
                f"{source}: column {name!r}: its unit cannot be told; name it {name}_us, _ms or _s"
            )


def _refuse_unclear(
    block: TextBlock,
    sizes: Sequence[str],
    groups: Mapping[Variant, _Group],
    source: str,
    world_size: int | None,
) -> None:
    """Raise ``InputError`` where a unit or the number of ranks is why no row can be read."""
    if (unclear := next(filter(_UNCLEAR.search, sizes), None)) is not None:
        raise InputError(
            f"{source}: size {unclear!r}: a unit that is 10^n to some, 2^n to others; write KiB, MiB or bytes"
        )
    if any(_main(group) is None for group in groups.values()) and world_size is None:
        raise InputError(
            f"{source}: bus bandwidths without times or algorithm bandwidths, and it does not say on how "
            f"many ranks; give --world-size N"
        )


def _ranks(block: TextBlock) -> tuple[int | None, str]:
    if block.said.ranks:
        return max(block.said.ranks) + 1, "its list of ranks"
    return block.said.num_ranks or (None, "")


def _groups(columns: tuple[Column, ...]) -> dict[Variant, _Group]:
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
    times = [key for key in ("median", "time", "mean", "min", "max", *group) if key in group]
    return next((key for key in times if key not in _BESIDE), None)


def _is_of_nccl_tests(columns: tuple[Column, ...]) -> bool:
    names = {column.name.lower().lstrip("#") for column in columns}
    return {"size", "count", "type", "time", "algbw", "busbw"} <= names and bool(names & {"wrong", "error"})


def _timing(
    group: _Group,
    values: Sequence[tuple[Decimal, Decimal] | None],
    said: Said,
    num_bytes: int | None,
    ratio: float | None,
) -> Timing | None:
    """A row's timing by one group of columns; None where it has none.

    Without a time it is the one that the algorithm's bandwidth tells, or the bus's where its ``ratio`` to
    that is known: a GB/s is a byte in a ns.
    """
    numbers = {key: value for key, place in group.items() if (value := values[place]) is not None}
    rates: dict[str, tuple[float, float]] = {
        name: (float(numbers[name][0]), float(numbers[name][1]))
        for name in ("algbw", "busbw")
        if name in numbers and numbers[name][0] >= 0
    }
    wrong = float(numbers["wrong"][0]) if "wrong" in numbers else 0.0
    main = _main(group)
    if main is None:
        name, share = ("algbw", 1.0) if "algbw" in group else ("busbw", ratio)
        speed, digit = rates.get(name, (0.0, 0.0))
        if (
            not num_bytes
            or share is None
            or speed <= 0
            or not 0 < (ns := num_bytes * share / speed) <= MOST_NS
        ):
            return None
        return Timing(duration_ns=max(1, round(ns)), slack_ns=ns * digit / speed, rates=rates, wrong=wrong)
    if main not in numbers or not 0 < round(numbers[main][0]) <= MOST_NS:
        return None
    scatter = {
        name: round(numbers[key][0])
        for key, name in _SCATTER.items()
        if key in numbers and 0 <= numbers[key][0] <= MOST_NS
    }
    told = int(numbers["iterations"][0]) if "iterations" in numbers else 0
    count = told if 0 < told <= 10**9 else said.iterations
    if said.is_over_ranks or not set(scatter) - {"median_ns"}:
        scatter, count = {}, None
    return Timing(
        duration_ns=round(numbers[main][0]),
        slack_ns=float(numbers[main][1]),
        rates=rates,
        wrong=wrong,
        scatter=scatter if count is None else {"count": count, **scatter},
    )


def _key(block: TextBlock, fields: Sequence[str]) -> _Key:
    collective, ranks, places = None, None, []
    for column, cell in zip(block.columns, fields, strict=True):
        if column.kind == "collective":
            collective = named_collective(cell) or collective
        elif column.kind == "world_size":
            ranks = _whole(cell, column, 10**7) or ranks
        elif column.kind == "place":
            places.append(f"{column.name} {cell}")
    return collective or block.said.collective, ranks, ", ".join(places)
