"""``make bench``: every benchmark, its tables in README.md, and who measured what, on what, and when.

A row has its table and name, the number of tensors, the seconds of its rounds, and what its answer is worth;
``is_reference``: the others of its table are given as multiples of it. ``units``, each a ``unit``, are what
one round gets through.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sim.formats.files import write_atomically
from traces.tools.bench import catalogue, recording, screen

Row = dict[str, Any]
VERSIONS = ("bucketsim", "numpy", "numba", "simpy")

HEAD = """# Benchmarks

Written by `make bench` (`traces/tools/bench/__main__.py`); do not edit. Each figure is the median of at
least three rounds, in processor time (of all threads), with the distance between its quartiles in brackets,
and where a row is marked 1x, as a multiple of that. Models are made up (`tests/machines.py`): weights and
biases in turn, in blocks that backward passes at different speeds; backward takes as long as the wire needs
for all of it in pieces of 8 MiB. Kernels are compiled before they are timed.
Tables "On the screen" are wall time, by a browser's own clock, to the painted frame. What the browser draws
of a slider is timed from a key, the server's answer from when the mouse lets go of it. The server is asked
then, but 0.4 s after the last key, which is not timed.
"Worth" compares `sync_end`, when all gradients are available, with that of the best assignment found, which
is never worse than any other row of its table.
"""


def main() -> None:
    """Measure everything, and write what is there by now after each row."""
    target, rows = Path(__file__).with_name("README.md"), list[Row]()
    told = conditions()
    for row in chain(screen.rows(), recording.rows(), catalogue.rows()):
        rows.append(row)
        print(f"{row['table']}; {row['row']}; {row['size']}")
        write_atomically(target, tell(rows, told + "- **Cut off: more were to be measured.**\n"))
    write_atomically(target, tell(rows, told))


def tell(rows: Sequence[Row], said: str) -> str:
    """The whole of README.md; ``said`` are its ``conditions``."""
    tables = dict.fromkeys(row["table"] for row in rows)
    parts = [_table([row for row in rows if row["table"] == name]) for name in tables]
    return "\n".join([HEAD, said, *parts])


def conditions() -> str:
    """Who measures what, on what, and when."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True)
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"- Measured: {datetime.now(UTC):%Y-%m-%d}, by `make bench` at commit {commit.stdout.strip()}\n"
        f"- Hardware: {cpu.partition(': ')[2]}, {os.cpu_count()} cores, one of them used; load "
        f"{os.getloadavg()[0]:.1f} when it began\n"
        f"- Versions: {versions}, {python}, {platform.system()} {platform.release().split('-')[0]}\n"
    )


def _table(rows: list[Row]) -> str:
    """Times, and below them what the answers are worth: a line a way, a column a number of tensors."""
    sizes = sorted({row["size"] for row in rows})
    names = list(dict.fromkeys(row["row"] for row in rows))
    cells = {(row["row"], row["size"]): row for row in rows}
    references = {row["size"]: median(row["seconds"]) for row in rows if row.get("is_reference")}
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
    middle, (first, last) = median(row["seconds"]), np.percentile(row["seconds"], [25, 75])
    text = f"{_seconds(middle)} ({_seconds(last - first)})"
    if row.get("units"):
        text += f", {_seconds(middle / row['units'])} a {row['unit']}"
    return text if reference is None else f"{text}, {middle / reference:.3g}x"


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


if __name__ == "__main__":
    main()
