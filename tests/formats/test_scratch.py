"""Temporary directories: gone with their process, or, where that was killed, with the next one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.errors import MachineError
from sim.formats import scratch
from sim.formats.scratch import remove_left_directories, scratch_directory
from tests.commands import bucketsim

_HOLDS_ONE = """
import sys, tempfile
from sim.formats.scratch import scratch_directory
tempfile.tempdir = sys.argv[1]
with scratch_directory() as folder:
    (folder / "half").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that holds a directory, and the directory."""
    command = [sys.executable, "-c", _HOLDS_ONE, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_it_is_gone_with_its_context(place: Path) -> None:
    with scratch_directory() as folder:
        assert folder.parent == place
        (folder / "deep").mkdir()
        assert remove_left_directories() == []
    assert list(place.iterdir()) == []


def test_one_that_is_in_use_stays_and_one_left_by_a_killed_process_goes(
    holder: tuple[subprocess.Popen[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    process, folder = holder
    assert remove_left_directories() == []
    os.kill(process.pid, signal.SIGSTOP)
    assert remove_left_directories() == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not waited for yet
    with scratch_directory():
        assert not folder.exists()
    assert caplog.messages == [f"removed {folder}, left by a bucketsim that was killed"]


def test_the_command_removes_and_names_it(holder: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = holder
    assert str(folder) not in bucketsim("doctor", "--clean").out
    process.kill()
    process.wait()
    said = bucketsim("doctor", "--clean")
    assert said.code == 0
    assert f"removed {folder}\n" in said.out
    assert not folder.exists()


@pytest.fixture
def mark_of_a_gone_process() -> str:
    mark = scratch._owner()
    assert mark is not None
    number, _, where = mark.split(" ", 2)
    return f"{number} 1 {where}"


def test_a_mark_that_is_no_file_of_ours_is_not_opened(
    place: Path, tmp_path_factory: pytest.TempPathFactory, mark_of_a_gone_process: str
) -> None:
    text = tmp_path_factory.mktemp("elsewhere") / "mark"
    text.write_text(mark_of_a_gone_process)
    kept = [place / f"bucketsim-{name}" for name in ("pipe", "link", "long")]
    for folder in kept:
        folder.mkdir()
    os.mkfifo(kept[0] / ".owner")
    (kept[1] / ".owner").symlink_to(text)
    (kept[2] / ".owner").write_text(mark_of_a_gone_process.ljust(200))
    (place / "bucketsim-left").mkdir()
    (place / "bucketsim-left" / ".owner").write_text(mark_of_a_gone_process)
    assert remove_left_directories() == [place / "bucketsim-left"]
    assert sorted(place.iterdir()) == sorted(kept)


def test_where_the_system_does_not_tell_processes_apart_there_is_no_mark(
    place: Path, monkeypatch: pytest.MonkeyPatch, mark_of_a_gone_process: str
) -> None:
    def denied(path: str) -> str:
        raise PermissionError(path)

    monkeypatch.setattr("sim.formats.scratch.os.readlink", denied)
    with scratch_directory() as folder:
        assert list(folder.iterdir()) == []
        (folder / ".owner").write_text(mark_of_a_gone_process)
        assert remove_left_directories() == []


def test_nothing_is_removed_that_is_not_provably_left(place: Path, mark_of_a_gone_process: str) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    marks = {
        "bucketsim-unmarked": None,
        "bucketsim-garbage": "x",
        "bucketsim-binary": "\0 \0 \0",
        "bucketsim-another-boot": "1 1 0-0 pid:[1]",
        "bucketsim-ourselves": scratch._owner(),
    }
    for name, mark in marks.items():
        (place / name).mkdir()
        if mark is not None:
            (place / name / ".owner").write_text(mark)
    (elsewhere / ".owner").write_text(mark_of_a_gone_process)
    (place / "bucketsim-link").symlink_to(elsewhere)
    before = sorted(place.rglob("*"))
    assert remove_left_directories() == []
    assert sorted(place.rglob("*")) == before


def test_no_room_is_one_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place / "none"))
    with (
        pytest.raises(MachineError, match=r"no temporary directory can be made: .*TMPDIR"),
        scratch_directory(),
    ):
        pass

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(MachineError, match=r"made: No usable .*TMPDIR"), scratch_directory():
        pass
