"""What a command says, and where.

The answer goes to stdout: what was asked for, with its figures, what they rest on and what they leave out, as
sentences (``say``) and tables (``table``), or with ``--json`` as one document and nothing else (``emit``).
What is about the process goes to stderr: progress, files written, hints what to do next, warnings, errors
(``progress``, ``note``, ``fail``). So ``bucketsim tune … > file`` keeps the recommendation, and nothing else.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.formats.documents import to_text

errors = Console(stderr=True, highlight=False, soft_wrap=True)
_EVERY_S = 10.0  # from one line of progress to the next, where no terminal shows a bar
_WIDE = 10_000  # columns where no terminal sets a limit: a file keeps every figure on its line


def fail(message: str) -> None:
    """One red line on stderr; what a terminal would obey (escape codes in names) is taken out."""
    line = "".join(c if c.isprintable() else " " for c in message)
    errors.print(Text("error: " + " ".join(line.split()), style="bold red"))


def note(message: str) -> None:
    """One line about the process, on stderr."""
    errors.print(Text(message))


def say(sentence: str) -> None:
    """One line of the answer, on stdout."""
    _answers().print(Text(sentence), soft_wrap=True)


def emit(text: str) -> None:
    """A document on stdout, untouched."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def emit_noun(noun: Any) -> None:
    """A noun on stdout, as JSON."""
    emit(to_text(noun))


def table(title: str, columns: list[str], rows: list[list[str]], words: Collection[str] = ()) -> None:
    """A table on stdout; the first column and those of ``words`` to the left, the others to the right.

    Where there is too little room, the last column of ``words`` is broken into lines, else any.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        made.add_column(
            column,
            justify="left" if place == 0 or column in words else "right",
            overflow="fold",
            no_wrap=bool(words) and place < len(columns) - 1,
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    out = _answers()
    if title:
        out.print(Text(title, style="italic"), soft_wrap=True)
    out.print(made)


def _answers() -> Console:
    """Stdout: as wide as its terminal or ``COLUMNS``; in a file or a pipe as wide as what is written."""
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if limited else _WIDE)


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, or a line now and then; yields ``report(done, total, what="")``.

    ``total`` is None where nobody knows how much there is.
    """
    if not errors.is_terminal:
        yield _lines_of_progress(title)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int | None, what: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {what}".strip())

        yield report


def _lines_of_progress(title: str) -> Callable[..., None]:
    """``report`` for a log: a line every ten seconds, and so none of what is done sooner."""
    begun = told = time.monotonic()

    def report(done: int, total: int | None, what: str = "") -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= _EVERY_S:
            told = now
            share = "" if total is None else f" {done / max(1, total):.0%}"
            note(f"{' '.join((title, what)).strip()}:{share} after {now - begun:.0f} s")

    return report


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Meanwhile loops that are made into machine code are told, on a terminal or not."""
    log, handler = logging.getLogger("sim.clock.machine_code"), _Compiling()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Compiling(logging.Handler):
    """A line at the first loop, which says how long it takes, and another every ten seconds."""

    _begun: float | None = None
    _told = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if self._begun is None:
            self._begun = self._told = now
            note("compiling loops: once after an installation, some half a minute")
        elif now - self._told >= _EVERY_S:
            self._told = now
            note(f"compiling loops: after {now - self._begun:.0f} s")
