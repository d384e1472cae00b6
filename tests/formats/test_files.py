"""Files, and pipes that somebody writes to, are read; files are written whole or not at all. All else is
refused, soon, and left as it is."""

import codecs
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.formats import documents, files
from sim.formats.files import check_directory, check_writable, make_directory, write_atomically, write_files
from sim.live.follower import Follower
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.commands import bucketsim
from tests.targets import DIRECTORIES, FILES, REFUSED, REFUSED_AS_DIRECTORY, kinds_below

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"

# Reading


def a_pipe(at: Path) -> Path:
    os.mkfifo(at / "pipe")
    return at / "pipe"


def a_socket(at: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at / "socket"))
    return at / "socket"


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "/dev/zero": (lambda at: "/dev/zero", "it is no file; give a file or a pipe"),
    "/dev/null": (lambda at: "/dev/null", "it is no file; give a file or a pipe"),
    "a directory": (lambda at: at, "it is no file; give a file or a pipe"),
    "a socket": (a_socket, "it is no file; give a file or a pipe"),
    "a pipe without a writer": (a_pipe, "the file is empty"),
    "nothing": (lambda at: at / "none", "No such file or directory"),
    "below a file": (lambda at: EXAMPLES / "workload.json" / "w", "Not a directory"),
    "a long name": (lambda at: "x" * 300, "File name too long"),
    "a loop of links": (lambda at: REFUSED["a loop of links"](at)[0], "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_is_one_line(kind: str, tmp_path: Path) -> None:
    make, words = UNREADABLE[kind]
    said = bucketsim("simulate", EXAMPLES / "workload.json", "--hardware", make(tmp_path), "--json")
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


@pytest.mark.parametrize("name", ["workload.json", "hardware.json"])
def test_a_byte_order_mark_is_read_over(name: str, tmp_path: Path) -> None:
    """Which editors on Windows put ahead of UTF-8, and JSON does not know."""
    kind, text = {"workload.json": Workload, "hardware.json": Hardware}[name], (EXAMPLES / name).read_bytes()
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text)
    assert documents.load(tmp_path / name, kind) == documents.load(EXAMPLES / name, kind)
    assert bucketsim("import", "auto", tmp_path / name, "-o", tmp_path / "made").code == 0


def test_more_than_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 3)
    (tmp_path / "f.json").write_text("[1]\n")
    with pytest.raises(InputError, match="holds more than 3 bytes"):
        files.read_bytes(tmp_path / "f.json")
    with pytest.raises(InputError, match=r"'x\\x00': cannot be read: no file has such a name"):
        files.read_bytes("x\0")


def test_a_pipe_among_the_files_of_ranks_does_not_stop_who_follows_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.jsonl")
    (tmp_path / "rank-1.jsonl").symlink_to("/dev/zero")
    assert Follower(tmp_path).refresh().ranks == ()


# Writing

TEXT = "new, é\n"
ASSIGNMENT = Assignment(bucket_indices=((0,),))


def one(path: Path, option: str) -> str:
    write_atomically(path, TEXT, option)
    return TEXT


def several(path: Path, option: str) -> str:
    beside = path.parent / "beside.json"
    write_files({path: TEXT, beside: "first"}, option)
    assert beside.read_text() == "first"
    beside.unlink()
    return TEXT


def noun(path: Path, option: str) -> str:
    documents.save(path, ASSIGNMENT)
    return documents.to_text(ASSIGNMENT)


WRITERS = pytest.mark.parametrize("write", [one, several, noun])
Writer = Callable[[Path, str], str]


@WRITERS
@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_written_where_its_links_lead(kind: str, write: Writer, tmp_path: Path) -> None:
    path, behind = FILES[kind](tmp_path)
    links = {each: os.readlink(each) for each in tmp_path.rglob("*") if each.is_symlink()}
    check_writable(path)
    text = write(path, "--output")
    assert behind.read_text() == text
    assert not behind.is_symlink()
    assert {each: os.readlink(each) for each in tmp_path.rglob("*") if each.is_symlink()} == links
    assert not list(tmp_path.rglob(".*"))  # no temporary files


@WRITERS
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_neither_is_refused_and_left_alone(kind: str, write: Writer, tmp_path: Path) -> None:
    path, words = REFUSED[kind](tmp_path)
    before = kinds_below(tmp_path)
    with pytest.raises(InputError) as caught:
        write(path, "--output")
    assert f"{path}: cannot be written: " in str(caught.value)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--output: ") == (write is not noun)
    assert kinds_below(tmp_path) == before
    with pytest.raises(InputError, match=r"^--figure: .*cannot be written"):
        check_writable(path, "--figure")


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_a_directory_is_made_where_its_links_lead(kind: str, tmp_path: Path) -> None:
    path, behind = DIRECTORIES[kind](tmp_path)
    links = [each for each in tmp_path.rglob("*") if each.is_symlink()]
    check_directory(path)
    assert make_directory(path) == path
    write_atomically(path / "w.json", TEXT)
    assert (behind / "w.json").read_text() == TEXT
    assert all(link.is_symlink() for link in links)


@pytest.mark.parametrize("kind", REFUSED_AS_DIRECTORY)
@pytest.mark.parametrize("make", [check_directory, make_directory])
def test_what_is_no_directory_is_refused_and_left_alone(
    kind: str, make: Callable[[Path, str], object], tmp_path: Path
) -> None:
    path, words = REFUSED_AS_DIRECTORY[kind](tmp_path)
    before = kinds_below(tmp_path)
    with pytest.raises(InputError) as caught:
        make(path, "--output")
    assert str(caught.value).startswith(f"--output: {path}: cannot be made: ")
    assert words in str(caught.value)
    assert kinds_below(tmp_path) == before


@pytest.mark.parametrize("is_there", [False, True])
def test_where_one_of_several_does_not_fit_none_is_written(is_there: bool, tmp_path: Path) -> None:
    """A disk that is full, without one: no file of this process grows beyond 1,000 bytes."""
    texts = {tmp_path / "a": "x" * 10, tmp_path / "b": "x" * 100_000, tmp_path / "c": "x"}
    for path in texts if is_there else ():
        path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InputError, match="b: cannot be written: "):
            write_files(texts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == (dict.fromkeys("abc", "old") if is_there else {})


@pytest.mark.parametrize("fails", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file_with_its_rights_and_nothing_else(
    fails: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or not at all, whatever breaks and wherever."""
    target = tmp_path / "w.json"
    target.write_text("old")
    target.chmod(0o640)

    def break_down(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(os, fails, break_down)
        with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
            write_atomically(target, "new " * 1000)
    assert target.read_text() == "old"
    write_atomically(target, TEXT)
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (TEXT, 0o640)
    assert list(tmp_path.iterdir()) == [target]
