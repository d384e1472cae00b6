"""What README and manual tell a reader to type: commands that there are, and blocks that print what they say.

A block marked ``console`` is run, in the order of the page: lines behind ``$`` are commands, what follows is
what they print, with ``...`` for what is left out. Python blocks that read only the files that were made
before are run after them. Blocks marked ``bash`` need ranks, a network or files of the reader's: there each
command and option is looked up.
"""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from torch import nn

import sim.cli.commands
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.recorder.profile import record
from tests.commands import bucketsim
from tests.manual.pages import HOME, MANUAL, README, ROOT, blocks

WRITTEN = [README, *MANUAL]
_MADE = re.compile(r'load_(?:workload|hardware)\("(?:gpt|wire)\.json"\)')


def flat(text: str) -> str:
    return " ".join(text.split())


def told(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the pieces of output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], [""]))
        elif line == "...":
            found[-1][1].append("")
        else:
            found[-1][1][-1] += line + "\n"
    return [(command, [flat(piece) for piece in pieces if piece.strip()]) for command, pieces in found]


def once(searched: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but worked out once for the same files and options."""
    kept: dict[tuple[object, ...], Any] = {}

    def search(workload: Workload, hardware: Hardware, **options: Any) -> Any:
        asked = sorted((name, value) for name, value in options.items() if name != "progress")
        key = (sim.digest(workload), sim.digest(hardware), *asked)
        if key not in kept:
            kept[key] = searched(workload, hardware, **options)
        return kept[key]

    return search


ONCE = {name: once(getattr(sim, name)) for name in ("tune",)}


def run(command: str, pieces: list[str]) -> None:
    program, *words = shlex.split(command)
    if program == "cp":
        shutil.copy(*words)
        return
    assert program == "bucketsim", command
    said = bucketsim(*words)
    assert said.code == 0, said.err
    printed, at = flat(said.out), 0
    for piece in pieces:
        assert piece in printed[at:], f"{command} no longer prints, in this order: {piece}"
        at = printed.index(piece, at) + len(piece)


@pytest.mark.parametrize("page", [README, ROOT / "app" / "manual" / "start.md"], ids=lambda page: page.name)
def test_a_reader_sees_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both pages tune the same recording, which takes longer than all else."""
    monkeypatch.chdir(tmp_path)
    for name, searched in ONCE.items():
        monkeypatch.setattr(sim, name, searched)
    ran = 0
    for block in blocks(page):
        if block.language == "console":
            for command, pieces in told(block.text):
                run(command, pieces)
                ran += 1
        elif block.language == "python" and _MADE.search(block.text):
            exec(compile(block.text, str(page), "exec"), {"__name__": "read"})
            assert capsys.readouterr().out
            ran += 1
    assert ran >= 3


def commands(page: Path) -> list[str]:
    """The lines of the page's blocks that call bucketsim."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?bucketsim ", line)]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    given = typer.main.get_command(sim.cli.commands.app).commands  # type: ignore[attr-defined]
    for line in commands(page):
        _, name, *words = shlex.split(line, comments=True)
        assert name in given, line
        ours = words[: words.index("--")] if "--" in words else words
        known = {option for parameter in given[name].params for option in parameter.opts}
        assert {word.split("=")[0] for word in ours if re.match(r"--?[a-z]", word)} <= known, line


def test_the_factory_of_the_manual_is_recorded() -> None:
    names: dict[str, Any] = {"MyModel": lambda: nn.Linear(512, 10)}
    for block in blocks(HOME / "your-job.md"):
        if "def build" in block.text:
            exec(compile(block.text, "your-job.md", "exec"), names)
    pair = record(names["build"](), warmup=1, repeats=1)
    assert [gradient.name for gradient in pair.gradients] == ["model.weight", "model.bias"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_python_blocks_are_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, str(page), "exec")
