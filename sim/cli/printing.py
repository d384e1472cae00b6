"""What a command says, and where.

The answer goes to stdout: what was asked for, with its figures, what they rest on and what they leave out, as
sentences (``say``) and tables (``table``), or with ``--json`` as one document and nothing else (``emit``):
then sentences are about the process, and there are no tables.
What is about the process goes to stderr: progress, files written, hints what to do next, warnings, errors
(``progress``, ``note``, ``suggest``, ``fail``). So ``bucketsim tune … > file`` keeps the recommendation, and
nothing else.
"""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.columns import Column, texts
from sim.formats.documents import json_text, to_text
from sim.formats.record_files import box_in
from sim.nouns.assignment import OTHERS
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.hardware import Hardware

Row = TypeVar("Row")
errors = Console(stderr=True, highlight=False, soft_wrap=True)
_EVERY_S = 10.0  # from one line of progress to the next, where no terminal shows a bar
_WIDE = 10_000  # columns where no terminal sets a limit: a file keeps every figure on its line
wants_json: ContextVar[bool] = ContextVar("wants_json", default=False)


@contextmanager
def one_document(is_so: bool = True) -> Iterator[None]:
    """Within it stdout is for one document, and sentences are about the process."""
    before = wants_json.set(is_so)
    try:
        yield
    finally:
        wants_json.reset(before)


class Answer(NamedTuple):
    """What a command answers: the ``document`` of ``--json``, or what ``show`` says to people; then its exit
    code, and ``ahead``, the command line or sentence with which to go on."""

    document: Any
    show: Callable[[], object]
    ahead: str = ""
    code: int = 0


def fail(message: str) -> None:
    """One red line on stderr; what a terminal would obey (escape codes in names) is taken out."""
    line = "".join(c if c.isprintable() else " " for c in message)
    errors.print(Text("error: " + " ".join(line.split()), style="bold red"))


def note(message: str) -> None:
    """One line about the process, on stderr."""
    errors.print(Text(message))


def say(sentence: str) -> None:
    """One line of the answer, on stdout."""
    if wants_json.get():
        note(sentence)
    else:
        _answers().print(Text(sentence), soft_wrap=True)


def say_notes(*groups: Iterable[str]) -> None:
    """What an answer leaves out or cannot rely on, each once."""
    for line in dict.fromkeys(line for group in groups for line in group):
        say(f"note: {line}")


def emit(answer: Any) -> None:
    """A document on stdout: a text untouched, a noun or what JSON knows as JSON."""
    if not isinstance(answer, str):
        answer = to_text(answer) if hasattr(answer, "KIND") else json_text(answer)
    sys.stdout.write(answer if answer.endswith("\n") else answer + "\n")
    sys.stdout.flush()


def table(
    title: str, columns: Sequence[Column[Row]], rows: Iterable[Row], words: Collection[str] = ()
) -> None:
    """A table of a noun's rows on stdout; the title says the units of all columns, which are narrower so.

    The first column and those of ``words`` stand to the left, the others to the right. Where there is too
    little room, the last column of ``words`` is broken into lines, else any.
    """
    names, told = [column.name for column in columns], [title] * bool(title)
    for unit, what in (", ms", "times in ms"), (", %", "shares in %"):
        told += [what] * any(name.endswith(unit) for name in names)
        names = [name.removesuffix(unit) for name in names]
    if wants_json.get():
        return
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        justify: Any = "left" if place == 0 or name in words else "right"
        is_whole = bool(words) and place < len(names) - 1
        made.add_column(name, justify=justify, overflow="fold", no_wrap=is_whole)
    for row in texts(columns, rows):
        made.add_row(*map(Text, row))
    out = _answers()
    if told:
        out.print(Text(", ".join(told), style="italic"), soft_wrap=True)
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
    """Meanwhile loops that are made into machine code are told, on a terminal or not: one line at the first,
    which says how long it takes, and another every ten seconds.
    """
    log, report = logging.getLogger("sim.clock.machine_code"), None

    def tell(_: logging.LogRecord) -> bool:
        nonlocal report
        if report is None:
            report = _lines_of_progress("compiling loops")
            note("compiling loops: once after an installation, some fifteen seconds")
        report(0, None)
        return False

    level = log.level
    log.setLevel(logging.INFO)
    log.addFilter(tell)
    try:
        yield
    finally:
        log.removeFilter(tell)
        log.setLevel(level)


# What to do next: the line on stderr that ends a command, with the files that it just made or was given.

WORKLOAD, HARDWARE = Path("WORKLOAD.json"), Path("HARDWARE.json")  # where the user has yet to name them
_NAMED = Path("hardware.json")
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def suggest(line: str) -> None:
    """What to do next, on stderr; nothing where another command runs this one and goes on itself."""
    if not _silent.get():
        note(f"next: {line}")


@contextmanager
def without_suggestions() -> Iterator[None]:
    """Commands that run meanwhile suggest nothing."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def line(*words: object) -> str:
    """A command line of ours."""
    return shlex.join(("bucketsim", *map(str, words)))


def to_calibrate(workload: Path, ranks: int = 2) -> str:
    """From a workload to its first answer, where no link has been measured."""
    measure = line("calibrate", "--ranks", ranks, "--workload", workload, "-o", _NAMED)
    return f"{measure}; then: {to_tune(workload, _NAMED)}"


def to_tune(
    workload: Path, hardware: Path, policy: str = "ddp", given: Mapping[str, object] | None = None
) -> str:
    """The best buckets of a workload on a machine, under the job's switches among those that were ``given``;
    of another system that has some those of its own, by its defaults: nothing where others were given."""
    if policy in OTHERS and given:
        return ""
    of = ("--policy", policy) if policy in OTHERS else set_again(given or {})
    return line("tune", workload, "--hardware", hardware, *of, "-o", "assignment.json")


def set_again(given: Mapping[str, object]) -> list[str]:
    """The job's switches among what ``--set`` gave, as words of a command line."""
    switches = (f"{name}={value}" for name, value in given.items() if name in SWITCHES)
    return [word for switch in switches for word in ("--set", switch)]


def to_tune_written(workload: Path, hardware: Path | None, named: Path = _NAMED) -> str:
    """The best buckets on a machine that was written to a file, or has yet to be: as ``named``."""
    if hardware is not None and hardware.is_file():
        return to_tune(workload, hardware)
    return f"the same with -o {named}; then: {to_tune(workload, named)}"


def to_replay(workload: Path, file: Path | None, hardware: Hardware | None, assignment: Path | None) -> str:
    """An assignment on real ranks where the hardware was measured, or by a job that is carried there."""
    named = () if assignment is None else ("--assignment", assignment)
    where = () if hardware is None else _where(hardware)
    return line("validate", workload, "--hardware", file or HARDWARE, *named, *where, "-o", "measured")


def _where(hardware: Hardware) -> tuple[object, ...]:
    """validate's options for the ranks that ``hardware`` is of; others than its own are to be prepared."""
    known, ranks = hardware.provenance, ("--ranks", hardware.world_size)
    box = box_in(known, hardware.name)
    if box is None:
        return ranks if "loopback" in known else (*ranks, "--prepare")
    is_whole = box.uplink_bits is None and box.hosts == tuple(range(len(box.rates_bits)))
    if not is_whole or "carried" in known:  # computed for another wire
        return (*ranks, "--prepare")
    rates = box.rates_bits if len(set(box.rates_bits)) > 1 else box.rates_bits[:1]
    told = (f"{bits / 1e6:.12g}mbit" if bits % 10**9 else f"{bits // 10**9}gbit" for bits in rates)
    return ("--box", len(box.rates_bits), "--rate", ",".join(told))
