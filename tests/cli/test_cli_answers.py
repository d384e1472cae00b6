"""The answer on stdout, what is about the process on stderr: of every command that has an answer."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.printing import say, table, to_replay
from sim.columns import by_place
from sim.nouns.hardware import Hardware
from tests.cli import cheap
from tests.cli.test_no_new_options import FROZEN
from tests.commands import Said, bucketsim

# A word that is found on stdout, whatever is done with stderr; all that is said: tests/golden.
ANSWERS = {
    "record": "gradients",
    "estimate": "estimated, not recorded; a band of",
    "calibrate": "a wire of two: ",
    "import": "hardware.json: my wire, 4 ranks",
    "simulate": "exposed communication",
    "explain": "all_reduce",
    "sweep": "default",
    "tune": "recommended: 4 bucket(s)",
    "export": "DistributedDataParallel",
    "validate": "median step error",
    "agree": "median step error",
    "gather": "median step error",
    "cluster": "computed, not measured",
    "scaling": "efficiency",
    "ranks": "who came last",
    "anchor": "a step of 75.00 ms, measured 75.00 ms",
    "doctor": "this machine",
}
ABOUT_THE_PROCESS = re.compile(
    r"wrote |hint: |next: |error: doctor: |computed, not measured|compiling loops: |.+: (\d+% )?after "
)
WRITES = {
    "record": "w.json",
    "estimate": "w.json",
    "calibrate": "h.json",
    "import": "made",
    "validate": "rec",
}


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cheap.save_inputs(tmp_path)
    cheap.without_ranks(monkeypatch)
    return tmp_path


def heard(name: str, at: Path, *more: str) -> Said:
    words = cheap.commands(at)[name]
    output = ("-o", at / WRITES[name]) if name in WRITES else ()
    said = bucketsim(*words, *output, *more)
    assert said.code == 0 or name == "doctor", said.err  # exit 1 where the loop cannot close here
    return said


def test_every_command_is_here() -> None:
    """But for the screen, which says where it is, and those in which another command speaks."""
    assert set(ANSWERS) == set(FROZEN) - {"ab", "dash", "box", "demo"}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_on_stdout_and_what_to_do_next_ends_stderr(name: str, at: Path) -> None:
    """In one line of commands that there are, with files that are there or have yet to be named."""
    said = heard(name, at)
    assert ANSWERS[name] in said.out
    assert "wrote" not in said.out
    *before, ahead = said.err.splitlines()
    assert all(ABOUT_THE_PROCESS.match(line) for line in (*before, ahead)), said.err
    assert not any(line.startswith("next: ") for line in before)
    if name == "doctor":  # whose machine may be one where nothing runs
        return
    assert ahead.startswith("next: ")
    for line in re.findall(r"bucketsim ([^;(]+)", ahead):
        command, *words = shlex.split(line)
        assert {word for word in words if word.startswith("-")} <= set(FROZEN[command])
        *given, written = words if "-o" in words else [*words, ""]
        assert all(Path(word).exists() for word in given if "/" in word), ahead
        assert "/" not in written


@pytest.mark.parametrize("name", [name for name in ANSWERS if "--json" in FROZEN[name]])
def test_with_json_stdout_is_one_document(name: str, at: Path) -> None:
    said = heard(name, at, "--json")
    assert isinstance(json.loads(said.out), dict)
    assert all(ABOUT_THE_PROCESS.match(line) for line in said.err.splitlines()), said.err
    assert "next: " not in said.err


def test_another_systems_best_size_is_told_against_its_default(at: Path) -> None:
    inputs = ("tune", cheap.W, "--hardware", cheap.H, "--policy", "megatron")
    said = bucketsim(*inputs, "-o", at / "best.json")
    best = sim.load_assignment(at / "best.json")
    assert f"best: bucket_size={best.settings['bucket_size']}" in said.out
    assert "its default: " in said.out
    assert json.loads(bucketsim(*inputs, "--json").out)["policy"] == "megatron"


def test_no_figure_is_cut_where_no_terminal_sets_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cells = [f"{number}.{number}" for number in range(1000, 1060)]
    title, sentence = "a title, " * 40, "a sentence, " * 40
    table(title, by_place("name", *map(str, range(60))), [("a name of some words", *cells)])
    say(sentence)
    first, _, row, last = capsys.readouterr().out.splitlines()
    assert row.split() == ["a", "name", "of", "some", "words", *cells]
    assert (first, last) == (title, sentence)


def test_a_terminal_of_eighty_columns_breaks_lines_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cells = [f"{number}.{number}" for number in range(1000, 1016)]
    table("", by_place("name", *map(str, range(16))), [("row", *cells)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(character.isdigit() for line in lines[1:] for character in line) >= 8 * 16


# What a command suggests next leads to the link, and to the files, that its answer is about.

WORKLOAD, WIRE, BEST = Path("w.json"), Path("wire.json"), Path("best.json")
BOX = {"rates_bits": [10**9] * 4, "uplink_bits": None, "hosts": [0, 1, 2, 3]}


def measured(**provenance: Any) -> Hardware:
    return replace(sim.load_hardware(cheap.H), world_size=2, provenance=provenance)


@pytest.mark.parametrize(
    ("provenance", "where"),
    [
        ({"loopback": True}, "--ranks 2"),
        ({"place": "2 ranks by torchrun"}, "--ranks 2 --prepare"),
        ({"box": BOX}, "--box 4 --rate 1gbit"),
        ({"box": {**BOX, "hosts": [0, 2]}}, "--ranks 2 --prepare"),  # of a box that is no longer made
        ({"box": BOX, "carried": {"cluster": "another"}}, "--ranks 2 --prepare"),
    ],
)
def test_a_replay_runs_where_the_hardware_was_measured(provenance: dict[str, Any], where: str) -> None:
    line = to_replay(WORKLOAD, WIRE, measured(**provenance), BEST)
    assert (
        line == f"bucketsim validate w.json --hardware wire.json --assignment best.json {where} -o measured"
    )
