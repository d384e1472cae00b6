"""Tables in text: nccl-tests' own, CSV, and whitespace tables with a header; rows between any noise."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace

from sim.errors import InputError
from sim.importer.links.blocks import Header, Said, TextBlock
from sim.importer.links.cells import read_cells
from sim.importer.links.columns import NUMBER, TIME_UNITS, Column, collective_in, column_of
from sim.importer.links.link_rows import LinkTable
from sim.importer.wording import plain

LONGEST_LINE, MOST_COLUMNS, MOST_ROWS = 1 << 16, 200, 100_000

# mpirun --tag-output: [1,0]<stdout>: or [host@1,0]<stdout>:, srun -l: 0:
_TAG = re.compile(r"^\s*(?:\[[^\]\s]*\]<\w+>:?|\d+:(?=\s|$))")
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
_COMMAND = re.compile(r"(\S{0,200}_perf)\s+(-.*)")
_MAY_BE_HEADER = re.compile(r"size|bytes|message|msg", re.IGNORECASE)
_AVERAGE = re.compile(r"\b(avg|average|min|max|mean|median)\s+(latency|lat|time)", re.IGNORECASE)
_UNIT_ROW = re.compile(r"\s*(?:\([^()]+\)\s*)+(?:%.*)?")


def read_tables(text: str, source: str) -> list[LinkTable]:
    """All tables of a text. Raises ``InputError`` where there is none, or a time without a unit."""
    blocks = _blocks(text, source)
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
    tables = [table for block in blocks for table in read_cells(block, source)]
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
    lines = (
        _TAG.sub("", line, count=1)
        for line, _ in _lines(text)
        if " NCCL " not in line and _MAY_BE_HEADER.search(line)
    )
    return any(
        _header(line) is not None or (line.lstrip().startswith("#") and _weak_header(line) is not None)
        for line in lines
    )


def _blocks(text: str, source: str) -> list[TextBlock]:
    said, blocks = Said(), list[TextBlock]()
    after_header = False
    rows = 0
    for number, (line, is_whole) in enumerate(_lines(text), start=1):
        if " NCCL INFO " in line or " NCCL WARN " in line:
            continue
        body = _TAG.sub("", line.rstrip("\r"), count=1)
        content = body.lstrip(" \t#")
        if not content.strip():
            continue
        if after_header and _UNIT_ROW.fullmatch(content):
            blocks[-1].header = _with_units(blocks[-1].header, content)
            continue
        if _MAY_BE_HEADER.search(content) and (header := _header(body)) is not None:
            blocks.append(_block(header, said))
            after_header = True
            continue
        after_header = False
        is_comment = body.lstrip().startswith("#")
        if _listen(content, is_comment, said) or is_comment:
            continue
        if not blocks or (said.weak is not None and said.is_fresh):
            fields = content.split()
            if said.weak is None or not NUMBER.fullmatch(fields[0]) or len(fields) > len(said.weak):
                continue
            blocks.append(_block(Header(columns=said.weak[: len(fields)]), said))
        rows += _row(blocks[-1], number, content, is_whole)
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
    said.is_fresh, said.weak = False, None
    return TextBlock(header=header, said=replace(said, ranks=dict(said.ranks)))


def _listen(content: str, is_comment: bool, said: Said) -> bool:
    """Take in what a line says of a run; True where it can be no row."""
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
    if "_perf" in content and (command := _COMMAND.search(content)) is not None:
        said.collective, said.is_fresh = collective_in(command[1]), True
        said.num_ranks = _ranks_of_command(content[: command.start()], command[2])
        return True
    if is_comment and "concluded" not in content:
        said.is_over_ranks = said.is_over_ranks or content.startswith("OSU ")
        if (nranks := _NRANKS.search(content)) is not None:
            said.num_ranks = int(nranks[1]), "the line 'nranks'"
        if (named := collective_in(content)) is not None:
            said.collective, said.is_fresh = named, True
        said.weak = _weak_header(content) or said.weak
        return True
    return False


def _ranks_of_command(before: str, arguments: str) -> tuple[int, str] | None:
    """Ranks that a command line starts: processes x threads x GPUs a thread; None where it gives none."""

    def given(text: str, *names: str) -> int | None:
        found = re.search(rf"(?:^|\s)(?:{'|'.join(names)})[ =]*(\d{{1,6}})\b", text)
        return None if found is None else int(found[1])

    processes = given(before, "-np", "-n", "--ntasks", "-c")
    gpus, threads = given(arguments, "-g", "--ngpus"), given(arguments, "-t", "--nthreads")
    is_launched = "mpirun" in before or "srun" in before
    if processes is None and (gpus is None or is_launched):
        return None
    return (processes or 1) * (gpus or 1) * (threads or 1), "the command line"


def _header(line: str) -> Header | None:
    """The header that a line is, else None: a size and a time among its words, and few unknown ones."""
    content = _AVERAGE.sub(r"\1_\2", line.lstrip(" \t#"))
    for delimiter in (",", ";"):
        if delimiter in content:
            try:
                names = next(csv.reader([content], delimiter=delimiter))
            except csv.Error:
                continue
            if len(names) > MOST_COLUMNS:
                continue
            columns = tuple(column_of(name) for name in names)
            if _has_size_and_time(columns) and not any(NUMBER.fullmatch(name.strip()) for name in names):
                return Header(columns=columns, delimiter=delimiter)
    words = content.split()
    if len(words) > 60 or any(NUMBER.fullmatch(word) for word in words):
        return None
    columns = tuple(column_of(word) for word in words)
    while columns and columns[0].kind == "other" and _LOOSE_PREFIX.fullmatch(columns[0].name):
        columns = columns[1:]
    while columns and not columns[0].name.strip("#"):
        columns = columns[1:]
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
    return "size" in kinds and bool(kinds & {"time", "cputime"})


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
        try:
            fields = [field.strip() for field in next(csv.reader([content], delimiter=header.delimiter))]
        except csv.Error:
            return False
    else:
        fields = content.split()
        for _ in range(3):
            if fields and not NUMBER.fullmatch(fields[0]) and _LOOSE_PREFIX.fullmatch(fields[0]):
                fields = fields[1:]
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
