"""Every option that names an output, on what a path may be: files, links, and what is refused."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import cheap
from tests.cli.test_no_new_options import FROZEN
from tests.commands import bucketsim
from tests.targets import REFUSED, kinds_below

# A command and its option; the commands without one of these options write nothing.
TO_FILES = [
    *(("record", "--output"), ("estimate", "--output"), ("calibrate", "--output"), ("sweep", "--output")),
    *(("tune", "--output"), ("export", "--output"), ("anchor", "--output"), ("ranks", "--output")),
    *(("scaling", "--output"), ("cluster", "--output"), ("cluster", "--save-cluster")),
]
TO_DIRECTORIES = ["import", "validate"]
MEASURED = ("record", "calibrate")  # what they write cannot be had again


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    cheap.save_inputs(inputs)
    cheap.without_ranks(monkeypatch)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return inputs


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def full_disk(home: Path) -> Iterator[Path]:
    """A file system that takes names, and not a byte more."""
    mounted = ("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(home))
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("needs root that may mount a small tmpfs")
    try:
        (home / "filler").write_bytes(b"x" * 4096)
        yield home
    finally:
        subprocess.run(("umount", "--lazy", str(home)), check=True)


def kept(said: str, at: Path) -> str:
    """What was measured, from where the error says that it is kept."""
    _, found, folder = said.strip().partition("; what was measured is kept in ")
    assert found, said
    assert Path(folder).parent == at.parent / "temporary"
    return "".join(path.read_text() for path in Path(folder).iterdir())


@pytest.mark.parametrize(("command", "option"), [*TO_FILES, *((one, "--output") for one in TO_DIRECTORIES)])
def test_a_full_disk_is_one_line_and_keeps_what_was_measured(
    command: str, option: str, at: Path, full_disk: Path
) -> None:
    said = bucketsim(*cheap.commands(at)[command], option, full_disk / "made")
    assert said.code == 1
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said.err
    assert "cannot be written: No space left on device" in errors[0]
    assert "Traceback" not in said.err
    assert [one.name for one in full_disk.rglob("*") if one.is_file()] == ["filler"]
    if command in MEASURED:
        assert kept(errors[0], at).startswith("{")


def test_every_output_is_here() -> None:
    options = {"--output", "--save-cluster"}
    known = {*TO_FILES, *((command, "--output") for command in TO_DIRECTORIES), ("gather", "--output")}
    known |= {("demo", "--output"), ("ab", "--output")}  # tests/cli/test_demo.py, tests/dist
    assert {(name, word) for name, words in FROZEN.items() for word in words if word in options} == known


@pytest.mark.parametrize(("command", "option"), TO_FILES)
def test_what_is_neither_is_one_line(command: str, option: str, at: Path, home: Path) -> None:
    """One of the kinds that ``tests/formats/test_outputs.py`` tries: each option asks what it names."""
    path, words = REFUSED["a link to a directory"](home)
    before = kinds_below(home)
    said = bucketsim(*cheap.commands(at)[command], option, path)
    assert said.code == 1
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"error: {option}: {path}: cannot be written: ")
    assert words in said.err
    assert kinds_below(home) == before
