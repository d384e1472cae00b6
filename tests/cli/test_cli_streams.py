"""Stdout that is full or closed, and a stderr that is: one line and exit 1; an unread one ends quietly."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.cli import cheap

SIMULATE = ("simulate", cheap.W, "--hardware", cheap.H)
COMMANDS: dict[str, tuple[object, ...]] = {
    "help": ("--help",),
    "help of a command": ("tune", "--help"),
    "version": ("--version",),
    "tables": SIMULATE,
    "a document": (*SIMULATE, "--json"),
}
QUICK = {("unread", "help"), ("full", "a document"), ("closed", "a document")}


@contextmanager
def full() -> Iterator[int]:
    with Path("/dev/full").open("wb") as stream:
        yield stream.fileno()


@contextmanager
def unread() -> Iterator[int]:
    """The end of a pipe whose reader is gone: what ``| head -1`` leaves."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def run(
    words: tuple[object, ...], before: Callable[[], object] | None = None, **streams: int
) -> tuple[int, str]:
    """Exit code and stderr of a real process; ``before`` runs in it first."""
    done = subprocess.run(
        [sys.executable, "-m", "sim", *map(str, words)],
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | streams,
        preexec_fn=before,
        check=False,
    )
    return done.returncode, (done.stderr or b"").decode()


FULL = (1, "error: stdout: cannot be written: No space left on device\n")
FAR = [("full", full, FULL), ("unread", unread, (128 + signal.SIGPIPE, ""))]


@pytest.mark.parametrize(
    ("words", "where", "ends"),
    [
        pytest.param(
            words, where, ends, id=f"{far}-{name}", marks=() if (far, name) in QUICK else pytest.mark.slow
        )
        for name, words in COMMANDS.items()
        for far, where, ends in FAR
    ],
)
def test_an_answer_that_does_not_arrive_is_one_error_and_one_that_is_not_read_is_none(
    words: tuple[object, ...], where: Callable[[], AbstractContextManager[int]], ends: tuple[int, str]
) -> None:
    with where() as stream:
        assert run(words, stdout=stream) == ends


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=() if ("closed", name) in QUICK else pytest.mark.slow)
        for name, words in COMMANDS.items()
    ],
)
def test_a_closed_stdout_is_one_error(words: tuple[object, ...]) -> None:
    said = "error: stdout: is closed; give it a terminal, a file or a pipe\n"
    assert run(words, before=lambda: os.close(1)) == (1, said)


def test_a_closed_stdout_does_not_end_up_in_a_file(tmp_path: Path) -> None:
    """The first file that is opened would get its number, and whatever is printed with it."""
    path = tmp_path / "s.csv"
    code, said = run(("sweep", *SIMULATE[1:], "--caps", 4, "-o", path), before=lambda: os.close(1))
    assert code == 1
    assert said.startswith(f"wrote {path}\nerror: stdout: is closed")
    assert path.read_text().startswith("label,bucket_cap_mb,")


@pytest.mark.parametrize(
    "where", [full, pytest.param(unread, marks=pytest.mark.slow)], ids=["full", "unread"]
)
def test_a_stderr_that_is_lost_costs_nothing(
    where: Callable[[], AbstractContextManager[int]], tmp_path: Path
) -> None:
    path = tmp_path / "s.csv"
    with where() as stream:
        assert run(("sweep", *SIMULATE[1:], "--caps", 4, "-o", path), stderr=stream)[0] == 0
        assert run(("simulate", tmp_path / "none", "--hardware", cheap.H), stderr=stream)[0] == 1
    assert run(("sweep", *SIMULATE[1:], "--caps", 4), before=lambda: os.close(2))[0] == 0
    assert path.exists()


def test_the_file_of_stdout_is_no_output(tmp_path: Path) -> None:
    """Replaced, it would lose all that is said afterwards."""
    path = tmp_path / "said"
    with path.open("wb") as stream:
        code, _ = run(("sweep", *SIMULATE[1:], "--caps", 4, "-o", path), stdout=stream.fileno())
    assert code == 1
