"""The frozen command line: a name, once out, is a promise (an idea of torchtitan's).

To add a command or an option, add it to ``options.txt`` too; before taking one away, think twice.
"""

import re
from pathlib import Path

import pytest
import typer.main

import sim
import sim.cli.commands
from tests.commands import bucketsim

GROUP = typer.main.get_command(sim.cli.commands.app)
COMMANDS = GROUP.commands  # type: ignore[attr-defined]
LINES = Path(__file__).with_name("options.txt").read_text(encoding="utf-8").splitlines()
FROZEN = {name: words for name, *words in map(str.split, LINES)}


def words_of(command: object) -> list[str]:
    """Arguments and options as the user types them."""
    parameters = command.params  # type: ignore[attr-defined]
    named = sorted(word for one in parameters for word in one.opts if word.startswith("-"))
    return [*(one.metavar for one in parameters if not one.opts[0].startswith("-")), *named]


def test_no_command_and_no_option_comes_or_goes_unseen() -> None:
    assert sorted(" ".join((name, *words_of(one))) for name, one in COMMANDS.items()) == LINES
    assert words_of(GROUP) == ["--debug", "--version"]


@pytest.mark.parametrize("name", FROZEN)
def test_every_command_and_every_option_says_what_it_does(name: str) -> None:
    said = bucketsim(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert COMMANDS[name].help.strip() in " ".join(said.out.split())
    assert [one.name for one in COMMANDS[name].params if not one.help] == []


def test_the_contract_names_what_there_is() -> None:
    """Each command has a row in ``sim/CONTRACT.md``, whose options are its own."""
    text = (Path(sim.__file__).parent / "CONTRACT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `bucketsim (\w+)(.*)$", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(FROZEN)
    for name, row in rows:
        assert set(re.findall(r"--[a-z-]*\w", row)) <= set(FROZEN[name]), name
