"""A journal takes whole lines or none, and what goes wrong with it stays with it."""

import errno
import json
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.recorder.journal import Journal
from tests.targets import DIRECTORIES, REFUSED_AS_DIRECTORY, kinds_below

LINE = {"kind": "step", "ready_ns": list(range(200))}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page, where this machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(place)]
    try:
        made = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if made.returncode:
        pytest.skip("needs root to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_every_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "rank-0.jsonl"
    journal = Journal(path)
    for count in range(1, 4):
        journal.write(LINE)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [LINE] * count
    journal.close()
    journal.close()
    journal.write(LINE)
    assert not journal.is_open
    assert len(path.read_text().splitlines()) == 3


def test_a_real_full_disk_keeps_what_is_there(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(small_disk / "rank-0.jsonl")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            journal.write(LINE)
    assert not journal.is_open
    assert len(caplog.messages) == 1
    assert f"{small_disk}/rank-0.jsonl: recording stops here" in caplog.text
    *whole, torn = (small_disk / "rank-0.jsonl").read_text().split("\n")
    assert len(whole) >= 1
    assert all(json.loads(line) == LINE for line in whole)
    assert json.dumps(LINE, separators=(",", ":")).startswith(torn)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_write_warns_once_and_never_raises(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "rank-0.jsonl")
    journal.write(LINE)

    def write(handle: int, text: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            journal.write(LINE)
    assert [os.strerror(number) in message for message in caplog.messages] == [True]
    assert json.loads((tmp_path / "rank-0.jsonl").read_text()) == LINE


def test_a_disk_that_is_full_from_the_start_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", refuse)
    journal = Journal(tmp_path / "rank-0.jsonl")
    assert not journal.is_open
    journal.write(LINE)
    journal.discard()
    assert "rank-0.jsonl: recording stops here (No space left on device)" in caplog.text


def test_a_place_that_is_taken_or_impossible_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    Journal(path).close()
    with pytest.raises(InputError, match=r"rank-0\.jsonl: exists already; give a new or empty directory"):
        Journal(path)
    with pytest.raises(InputError, match=r"rank-0\.jsonl: cannot be made: it is no directory"):
        Journal(path / "rank-0.jsonl")


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_a_journal_is_where_the_links_of_its_directory_lead(kind: str, tmp_path: Path) -> None:
    path, behind = DIRECTORIES[kind](tmp_path)
    journal = Journal(path / "rank-0.jsonl")
    journal.write(LINE)
    journal.close()
    assert json.loads((behind / "rank-0.jsonl").read_text()) == LINE


@pytest.mark.parametrize("kind", REFUSED_AS_DIRECTORY)
def test_a_journal_in_what_is_no_directory_is_refused(kind: str, tmp_path: Path) -> None:
    path, words = REFUSED_AS_DIRECTORY[kind](tmp_path)
    before = kinds_below(tmp_path)
    with pytest.raises(InputError, match="cannot be made: ") as caught:
        Journal(path / "rank-0.jsonl")
    assert ("Not a directory" if kind == "below a file" else words) in str(caught.value)
    assert kinds_below(tmp_path) == before


def test_a_link_to_nothing_is_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").symlink_to("elsewhere")
    with pytest.raises(InputError, match=r"rank-0\.jsonl: exists already"):
        Journal(tmp_path / "rank-0.jsonl")
    assert not (tmp_path / "elsewhere").exists()


def test_discarding_takes_the_file_away(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-0.jsonl")
    journal.write(LINE)
    journal.discard()
    assert list(tmp_path.iterdir()) == []
