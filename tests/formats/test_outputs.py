"""What is there stays what it is: files whole or not at all, the rest refused."""

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.formats import documents
from sim.formats.files import (
    check_directory,
    check_writable,
    make_directory,
    write_atomically,
    write_files,
)
from sim.nouns.assignment import Assignment
from tests.targets import DIRECTORIES, FILES, REFUSED, REFUSED_AS_DIRECTORY, kinds_below

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


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file of this process grows beyond ``most`` bytes: a disk that is full, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_there", [False, True])
def test_where_one_of_several_does_not_fit_none_is_written(is_there: bool, tmp_path: Path) -> None:
    texts = {tmp_path / "a": "x" * 10, tmp_path / "b": "x" * 100_000, tmp_path / "c": "x"}
    if is_there:
        for path in texts:
            path.write_text("old")
    with small_files(1000), pytest.raises(InputError, match="b: cannot be written: "):
        write_files(texts)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == (
        dict.fromkeys("abc", "old") if is_there else {}
    )


def test_rights_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, TEXT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_text() == TEXT
