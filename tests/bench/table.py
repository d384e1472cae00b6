"""From what benchmarks measured to README.md: its tables, and who measured what, on what, and when."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]

HEAD = """# Benchmarks

Written by `make bench` (`tests/bench/table.py`); do not edit. Each figure is the median of at least three
rounds, in processor time (of all threads), with the distance
between its quartiles in brackets, and where a row is marked 1x, as a multiple of that. Models are made up
(`machines.py`): weights and biases in turn, in blocks that backward passes at different speeds; backward
takes as long as the wire needs for all of it in pieces of 8 MiB. Kernels are compiled before they are timed.
Tables "On the screen" are wall time, by a browser's own clock, to the painted frame. What the browser draws
of a slider is timed from a key, the server's answer from when the mouse lets go of it. The server is asked
then, but 0.4 s after the last key, which is not timed.
"Worth" compares `sync_end`, when all gradients are available, with that of the best assignment found, which
is never worse than any other row of its table.
"""


def tell(rows: Sequence[Row], said: str, missing: int) -> str:
    """The whole of README.md: ``said`` are its ``conditions``, ``missing`` how many rows are to come."""
    cut = f"- **Cut off: {missing} more were to be measured.**\n" if missing else ""
    tables = dict.fromkeys(row["table"] for row in rows)
    parts = [_table([row for row in rows if row["table"] == name]) for name in tables]
    return "\n".join([HEAD, said + cut, *parts])


def conditions(info: dict[str, Any], commit: dict[str, Any]) -> str:
    """Who measures what, on what, and when; as pytest-benchmark tells of machine and commit."""
    cpu = info["cpu"]
    versions = ", ".join(f"{name} {number}" for name, number in info["versions"].items())
    changed = " with changes that were not committed" if commit.get("dirty") else ""
    return "\n".join(
        [
            f"- Measured: {datetime.now(UTC):%Y-%m-%d}, by `make bench` at commit "
            f"{str(commit.get('id', 'unknown'))[:10]}{changed}",
            f"- Hardware: {cpu.get('brand_raw', info['machine'])}, {cpu.get('count', '?')} cores, one of "
            f"them used; load {info['load']:.1f} when it began",
            f"- Versions: {versions}, {info['python_implementation']} {info['python_version']}, "
            f"{info['system']} {info['release'].split('-')[0]}",
            "",
        ]
    )


def _table(rows: list[Row]) -> str:
    """Times, and below them what the answers are worth: a line a way, a column a number of tensors."""
    sizes = sorted({row["size"] for row in rows})
    names = list(dict.fromkeys(row["row"] for row in rows))
    cells = {(row["row"], row["size"]): row for row in rows}
    references = {row["size"]: row["median"] for row in rows if row["is_reference"]}
    times = [
        [name, *(_time(cells.get((name, size)), references.get(size)) for size in sizes)] for name in names
    ]
    worth = [[name, *(_worth(cells.get((name, size))) for size in sizes)] for name in names]
    columns = [f"{size:,} tensors" for size in sizes]
    parts = [f"## {rows[0]['table']}", "", *_markdown(["Time", *columns], times), ""]
    if any(row["worth"] for row in rows):
        parts += [*_markdown(["Worth", *columns], worth), ""]
    return "\n".join(parts)


def _time(row: Row | None, reference: float | None) -> str:
    if row is None:
        return "-"
    text = f"{_seconds(row['median'])} ({_seconds(row['iqr'])})"
    if row["units"]:
        text += f", {_seconds(row['median'] / row['units'])} a {row['unit']}"
    return text if reference is None else f"{text}, {row['median'] / reference:.3g}x"


def _worth(row: Row | None) -> str:
    return "-" if row is None else row["worth"]


def _seconds(value: float) -> str:
    """Three digits in the unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def _markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_line(head), _line(["---"] + ["---:"] * (len(head) - 1)), *map(_line, rows)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
