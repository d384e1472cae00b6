"""What the terminal shows: red lines, tables, progress bars. Documents go to stdout, all else to stderr."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.formats.documents import to_text, write_atomically

errors = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False)


def fail(message: str) -> None:
    """One red line on stderr; what a terminal would obey (escape codes in names) is taken out."""
    line = "".join(c if c.isprintable() else " " for c in message)
    errors.print(Text("error: " + " ".join(line.split()), style="bold red"))


def note(message: str) -> None:
    """One line on stderr."""
    errors.print(Text(message))


def emit(text: str) -> None:
    """A document on stdout, untouched."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def emit_noun(noun: Any) -> None:
    """A noun on stdout, as JSON."""
    emit(to_text(noun))


def write(path: Path, text: str) -> None:
    """A file, atomically, and a word about it on stderr."""
    write_atomically(path, text)
    note(f"wrote {path}")


def table(title: str, columns: list[str], rows: list[list[str]], words: Collection[str] = ()) -> None:
    """A table on stdout; the first column and those of ``words`` to the left, the others to the right.

    Where there is too little room, the last column of ``words`` is broken into lines, else any.
    """
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        made.add_column(
            column,
            justify="left" if place == 0 or column in words else "right",
            overflow="fold",
            no_wrap=bool(words) and place < len(columns) - 1,
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    out.print(made)


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr; yields ``report(done, total, what="")``."""
    if not errors.is_terminal:
        yield lambda done, total, what="": None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int, what: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {what}".strip())

        yield report
