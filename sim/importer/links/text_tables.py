"""Tables in text: nccl-tests' own, CSV, and whitespace tables with a header; rows between any noise."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sim.errors import InputError
from sim.importer.links.blocks import Header, Said, TextBlock
from sim.importer.links.cell_units import with_units
from sim.importer.links.cells import read_cells
from sim.importer.links.columns import NUMBER, TIME_UNITS, Column, collective_in, column_of
from sim.importer.links.endings import (
    ends_table,
    is_command,
    library_of,
    program_of,
    ranks_in_words,
    ranks_of_command,
    title_of,
)
from sim.importer.links.link_rows import LinkTable
from sim.importer.links.prefixes import headers_in, origin, without_prefixes
from sim.importer.wording import plain

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
    return bool(headers_in(text, _MAY_BE_HEADER, _known)) or any(
        line.lstrip().startswith("#") and _weak_header(line) is not None
        for line, _ in _lines(text)
        if _MAY_BE_HEADER.search(line)
    )


def _known(line: str) -> int:
    """How many columns of a line are of a table of collectives; 0 where it is no header."""
    header = _header(line)
    return 0 if header is None else sum(column.kind != "other" for column in header.columns)


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
            if table is not None and table.header.delimiter == "|" and table.ended is None and table.rows:
                table.ended = number
            continue
        if after_header and _UNIT_ROW.fullmatch(content):
            blocks[-1].header = _with_units(blocks[-1].header, content)
            continue
        if _RULE.fullmatch(content):
            continue
        if _MAY_BE_HEADER.search(content) and (header := _header(body)) is not None:
            said.origin = origins.get(number, "")
            blocks.append(_block(header, said))
            after_header, after_blank = True, False
            continue
        after_header = False
        delimiter = table.header.delimiter if table is not None else None
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
        if table is None or (said.weak is not None and said.is_fresh):
            fields = content.split()
            if said.weak is None or not NUMBER.fullmatch(fields[0]) or len(fields) > len(said.weak):
                continue
            table = _block(Header(columns=said.weak[: len(fields)]), said)
            blocks.append(table)
        if table.ended is not None:
            stray = TextBlock(header=table.header, said=said)
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


def _block(header: Header, said: Said) -> TextBlock:
    said.is_fresh, said.is_used, said.weak = False, True, None
    return TextBlock(header=header, said=replace(said, ranks=dict(said.ranks)))


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
        said.weak = (_weak_header(content) if is_comment else None) or said.weak
        return True
    if is_comment and "concluded" not in content:
        said.is_over_ranks = said.is_over_ranks or content.startswith("OSU ")
        if (nranks := _NRANKS.search(content)) is not None:
            said.num_ranks = int(nranks[1]), "the line 'nranks'"
        elif (words := ranks_in_words(content)) is not None:
            said.num_ranks = words
        if (named := collective_in(content)) is not None:
            said.collective, said.is_fresh = named, True
        said.weak = _weak_header(content) or said.weak
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
                return Header(columns=columns, delimiter=delimiter)
    words = content.split()
    if len(words) > 60 or any(NUMBER.fullmatch(word) for word in words):
        return None
    columns = tuple(column_of(word) for word in words)
    unknown = sum(column.kind == "other" for column in columns)
    if not _has_size_and_time(columns) or columns[0].kind == "other" or 2 * unknown > len(columns):
        return None
    return Header(columns=columns)


def _weak_header(content: str) -> tuple[Column, ...] | None:
    """Names of columns in a sentence: a size and a time with its unit, side by side, and what follows."""
    columns = [column_of(word) for word in content.split()]
    for place in range(len(columns) - 1):
        size, time = columns[place], columns[place + 1]
        if size.kind == "size" and size.scale and time.kind == "time" and time.scale:
            return tuple(columns[place:])
    return None


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


def _with_units(header: Header, row: str) -> Header:
    """The header with the units of the row below it, in the order of its columns of times."""
    units = iter(
        [word for word in re.findall(r"\(([^()]+)\)", row) if word in TIME_UNITS],
    )
    columns = []
    for column in header.columns:
        scale = column.scale
        if column.kind == "time" and scale is None and (unit := next(units, None)) is not None:
            scale = TIME_UNITS[unit]
        columns.append(replace(column, scale=scale))
    return Header(columns=tuple(columns), delimiter=header.delimiter)


def _row(block: TextBlock, number: int, content: str, is_whole: bool) -> bool:
    """Take a row into its table; False where the line is none."""
    header = block.header
    width, last = len(header.columns), header.columns[-1].kind
    if header.delimiter is not None:
        fields = _cells(content, header.delimiter) or []
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
    fields = with_units(fields, block)
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
