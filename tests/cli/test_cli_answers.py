"""The answer on stdout, what is about the process on stderr: of every command that has an answer."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from sim.cli.printing import say, table
from tests.cli import cheap
from tests.cli.test_no_new_options import FROZEN
from tests.commands import Said, bucketsim, process

# Words that must be found on stdout, whatever is done with stderr.
ANSWERS = {
    "record": ["gradients", "forward", "backward", "optimizer"],
    "estimate": ["gradients", "operators weighed by", "estimated, not recorded; a band of", "backward: "],
    "calibrate": ["a wire of two: ", "GB/s at", "launch", "of two all-reduces at once each takes"],
    "import": ["found: log.txt: 4 ranks", "hardware.json: my wire, 4 ranks", "16 MiB", "GB/s"],
    "simulate": ["exposed communication", "of backward left to hide it"],
    "explain": ["iteration 1", "all_reduce", "layers.3.weight"],
    "sweep": ["cap MiB", "default", "best"],
    "tune": [
        "recommended: 4 bucket(s)",
        "gain: saves",
        "set: ",
        "proof: optimal",
        "why: ",
        "DDP's default: ",
        "caps: ",
        "what each knob or rule reaches",
    ],
    "export": ["bucket_indices"],
    "validate": ["cap 4", "step error: median", "order: ", "the rule: "],
    "agree": ["cap 25", "step error: median", "order: ", "the rule: "],
    "gather": ["cap 25", "step error: median", "the rule: "],
    "cluster": ["computed, not measured", "GB/s"],
    "scaling": ["efficiency", "best buckets"],
    "ranks": ["the slowest costs", "slow, pace 1.5", "not known, so it does not vary"],
    "anchor": ["a step of 75.00 ms, measured 75.00 ms", "parts alone"],
    "doctor": ["this machine", "record: ", "tune: "],
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
    assert set(ANSWERS) == set(FROZEN) - {"dash", "box", "demo"}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_on_stdout_and_nothing_of_it_on_stderr(name: str, at: Path) -> None:
    said = heard(name, at)
    at_places = [said.out.find(words) for words in ANSWERS[name]]
    assert -1 not in at_places, ANSWERS[name]
    if name == "tune":  # the answer first, what it rests on below
        assert at_places == sorted(at_places)
        assert at_places[0] == said.out.index("\n") + 1
    assert "wrote" not in said.out
    for line in said.err.splitlines():
        assert ABOUT_THE_PROCESS.match(line), line


@pytest.mark.parametrize("name", [name for name in ANSWERS if "--json" in FROZEN[name]])
def test_with_json_stdout_is_one_document(name: str, at: Path) -> None:
    said = heard(name, at, "--json")
    assert isinstance(json.loads(said.out), dict)
    for line in said.err.splitlines():
        assert ABOUT_THE_PROCESS.match(line), line
    assert "next: " not in said.err


@pytest.mark.parametrize(
    "name", sorted(set(ANSWERS) - {"doctor"})
)  # whose machine may be one where nothing runs
def test_it_ends_with_what_to_do_next(name: str, at: Path) -> None:
    """In one line of commands that there are, with files that are there or have yet to be named."""
    *before, ahead = heard(name, at).err.splitlines()
    assert not any(line.startswith("next: ") for line in before)
    assert ahead.startswith("next: ")
    for line in re.findall(r"bucketsim ([^;(]+)", ahead):
        command, *words = shlex.split(line)
        assert {word for word in words if word.startswith("-")} <= set(FROZEN[command])
        *given, written = words if "-o" in words else [*words, ""]
        assert all(Path(word).exists() for word in given if "/" in word), ahead
        assert "/" not in written


def test_tune_into_a_file_keeps_the_recommendation(tmp_path: Path) -> None:
    """As a shell has it: each stream a file."""
    program = "import sys; from sim.cli.main import main; main()"
    words = ["tune", cheap.W, "--hardware", cheap.H, "-o", tmp_path / "a.json"]
    said = process("-c", program, *words, env={name: os.environ[name] for name in ("PATH", "PYTHONPATH")
                                               if name in os.environ})  # fmt: skip
    assert said.code == 0, said.err
    assert "recommended: 4 bucket(s): 4 MiB, 4 MiB, 4 MiB, 4 MiB" in said.out
    wrote, ahead = (line for line in said.err.splitlines() if " after " not in line)
    assert wrote == f"wrote {tmp_path / 'a.json'}"
    hardware, kept = cheap.H, tmp_path / "a.json"
    asked = f"{cheap.W} --hardware {hardware} --assignment {kept} --as snippet"
    assert ahead == f"next: bucketsim export {asked}"


def test_no_figure_is_cut_where_no_terminal_sets_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cells = [f"{number}.{number}" for number in range(1000, 1060)]
    title, sentence = "a title, " * 40, "a sentence, " * 40
    table(title, ["name", *map(str, range(60))], [["a name of some words", *cells]])
    say(sentence)
    first, _, row, last = capsys.readouterr().out.splitlines()
    assert row.split() == ["a", "name", "of", "some", "words", *cells]
    assert (first, last) == (title, sentence)


def test_a_terminal_of_eighty_columns_breaks_lines_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cells = [f"{number}.{number}" for number in range(1000, 1016)]
    table("", ["name", *map(str, range(16))], [["row", *cells]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(character.isdigit() for line in lines[1:] for character in line) >= 8 * 16
