"""What a path that is read may be: a file, or a pipe that somebody writes to; all else is refused, soon."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.formats import files
from sim.live.follower import Follower
from tests.commands import bucketsim

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"


def a_pipe(at: Path) -> Path:
    os.mkfifo(at / "pipe")
    return at / "pipe"


def a_socket(at: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at / "socket"))
    return at / "socket"


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "/dev/zero": (lambda at: "/dev/zero", "it is no file; give a file or a pipe"),
    "/dev/random": (lambda at: "/dev/random", "it is no file; give a file or a pipe"),
    "/dev/null": (lambda at: "/dev/null", "it is no file; give a file or a pipe"),
    "a directory": (lambda at: at, "it is no file; give a file or a pipe"),
    "a socket": (a_socket, "it is no file; give a file or a pipe"),
    "a pipe without a writer": (a_pipe, "the file is empty"),
    "nothing": (lambda at: at / "none", "No such file or directory"),
    "below a file": (lambda at: EXAMPLES / "workload.json" / "w", "Not a directory"),
    "a long name": (lambda at: "x" * 300, "File name too long"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_file_is_one_line(kind: str, tmp_path: Path) -> None:
    make, words = REFUSED[kind]
    path = make(tmp_path)
    said = bucketsim("simulate", EXAMPLES / "workload.json", "--hardware", path)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert words in said.err


def test_a_pipe_is_read_to_its_end_however_slow_its_writer(tmp_path: Path) -> None:
    pipe = a_pipe(tmp_path)
    says = "s.write('a' * 99_999); s.flush(); time.sleep(0.3); s.write('b')"
    with subprocess.Popen([sys.executable, "-c", f"import time\nwith open({str(pipe)!r}, 'w') as s: {says}"]):
        reader = os.open(pipe, os.O_RDONLY)  # waits for the writer, and stays: he may take his time from here
        try:
            assert files.read_bytes(pipe) == b"a" * 99_999 + b"b"
        finally:
            os.close(reader)


def test_more_than_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 3)
    (tmp_path / "f.json").write_text("[1]\n")
    with pytest.raises(InputError, match="holds more than 3 bytes"):
        files.read_bytes(tmp_path / "f.json")


def test_a_pipe_among_the_files_of_ranks_does_not_stop_who_follows_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.jsonl")
    (tmp_path / "rank-1.jsonl").symlink_to("/dev/zero")
    assert Follower(tmp_path).refresh().ranks == ()


def test_a_name_that_no_file_has_is_our_own_error() -> None:
    with pytest.raises(InputError, match=r"'x\\x00': cannot be read: no file has such a name"):
        files.read_bytes("x\0")
