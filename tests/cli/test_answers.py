"""Every command: its answer on stdout, what is about the process on stderr, files where they are to go."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.printing import say, table, to_replay
from sim.columns import by_place
from sim.formats.documents import parse_document
from tests.cli import cheap
from tests.cli.test_commands import FROZEN
from tests.commands import Said, bucketsim
from tests.strategies import KINDS
from tests.targets import small_disk

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
# Options that name an output; gather's is of what torchrun measured, and ab and demo write as validate does.
OUTPUTS = [
    (name, option)
    for name, words in FROZEN.items()
    for option in words
    if option in ("--output", "--save-cluster") and name not in ("gather", "ab", "demo")
]
TO_DIRECTORIES = ("import", "validate")
MEASURED = ("record", "calibrate")  # what they write cannot be had again


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inputs of every command, and temporary files beside them."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    cheap.save_inputs(inputs)
    cheap.without_ranks(monkeypatch)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return inputs


def heard(name: str, at: Path, *more: str) -> Said:
    output = ("-o", at / WRITES[name]) if name in WRITES else ()
    said = bucketsim(*cheap.commands(at)[name], *output, *more)
    assert said.code == 0 or name == "doctor", said.err  # exit 1 where the loop cannot close here
    assert all(ABOUT_THE_PROCESS.match(line) for line in said.err.splitlines()), said.err
    return said


def test_every_command_is_here() -> None:
    """But for the screen, which says where it is, and those in which another command speaks."""
    assert set(ANSWERS) == set(FROZEN) - {"ab", "dash", "box", "demo"}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_on_stdout_and_what_to_do_next_ends_stderr(name: str, at: Path) -> None:
    """In one line of commands that there are, with files that are there or have yet to be named."""
    said = heard(name, at)
    assert (ANSWERS[name] in said.out, "wrote" in said.out) == (True, False)
    *before, ahead = said.err.splitlines()
    assert not any(line.startswith("next: ") for line in before)
    if name == "doctor":  # whose machine may be one where nothing runs
        return
    assert ahead.startswith("next: ")
    assert ("--set" in ahead) == ("--set" in cheap.commands(at)[name])
    for line in re.findall(r"bucketsim ([^;(]+)", ahead):
        command, *words = shlex.split(line)
        assert {word for word in words if word.startswith("-")} <= set(FROZEN[command])
        *given, written = words if "-o" in words else [*words, ""]
        assert all(Path(word).exists() for word in given if "/" in word), ahead
        assert "/" not in written


@pytest.mark.parametrize("name", [name for name in ANSWERS if "--json" in FROZEN[name]])
def test_with_json_stdout_is_one_document_and_a_noun_reads_back(name: str, at: Path) -> None:
    said = heard(name, at, "--json")
    assert "next: " not in said.err
    document = json.loads(said.out)
    assert isinstance(document, dict)
    if document.get("kind") in KINDS:
        parse_document(document, KINDS[document["kind"]], "stdout")


def test_what_tune_recommends_is_simulated_as_it_was(at: Path) -> None:
    """And of another system the best size is told against its own default."""
    files, best = (cheap.W, "--hardware", cheap.H), at / "best.json"
    answer = json.loads(bucketsim("tune", *files, "--json", "-o", best).out)
    again = json.loads(bucketsim("simulate", *files, "--assignment", best, "--json").out)
    assert [again[key] for key in ("sync_end_ns", "buckets", "engine")] == [
        *(answer["report"][key] for key in ("sync_end_ns", "buckets")),
        "simpy",
    ]
    said = bucketsim("tune", *files, "--policy", "megatron", "-o", best)
    assert f"best: bucket_size={sim.load_assignment(best).settings['bucket_size']}" in said.out
    assert "its default: " in said.out


def test_rows_of_a_sweep_are_csv_and_the_same_by_several_processes(tmp_path: Path) -> None:
    what_ifs = ("--world-size", "2,8", "--precision", "recorded,bfloat16")
    words = ("sweep", cheap.W, "--hardware", cheap.H, "--caps", "4,8MiB,0.01GiB", *what_ifs, "--json")
    said = bucketsim(*words, "-o", tmp_path / "s.csv")
    rows = json.loads(said.out)["rows"]
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows)
    assert lines[0].split(",") == list(rows[0])
    assert {row["bucket_cap_mb"] for row in rows} >= {None, 4.0, 8.0, 10.24}
    assert [bucketsim(*words, "--jobs", jobs).out for jobs in (1, 2)] == [said.out] * 2


@pytest.mark.parametrize("columns", [None, "80"])
def test_no_figure_is_cut_at_any_width(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a row where no terminal sets the width; in one of eighty columns lines break."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    cells = [f"{number}.{number}" for number in range(1000, 1016)]
    title = "" if columns else "a title, " * 40
    table(title, by_place("name", *map(str, range(16))), [("a name of some words", *cells)])
    say("a sentence, " * 40)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "a sentence, " * 40
    if columns:
        assert max(map(len, lines)) <= 80
        assert sum(character.isdigit() for line in lines[1:] for character in line) >= 8 * 16
    else:
        assert lines[0] == title
        assert lines[2].split() == ["a", "name", "of", "some", "words", *cells]


# What a command suggests next leads to the link, and to the files, that its answer is about.

BOX = {"rates_bits": [10**9] * 4, "uplink_bits": None, "hosts": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("provenance", "where"),
    [
        ({"loopback": True}, "--ranks 2"),
        ({"place": "2 ranks by torchrun"}, "--ranks 2 --prepare"),
        ({"box": BOX}, "--box 4 --rate 1gbit"),
        (
            {"box": {**BOX, "rates_bits": [10**9, 5 * 10**8] * 2}},
            "--box 4 --rate 1gbit,500mbit,1gbit,500mbit",
        ),
        ({"box": {**BOX, "hosts": [0, 2]}}, "--ranks 2 --prepare"),  # of a box that is no longer made
        ({"box": BOX, "carried": {"cluster": "another"}}, "--ranks 2 --prepare"),
    ],
)
def test_a_replay_runs_where_the_hardware_was_measured(provenance: dict[str, Any], where: str) -> None:
    hardware = replace(sim.load_hardware(cheap.H), world_size=2, provenance=provenance)
    line = to_replay(Path("w.json"), Path("wire.json"), hardware, Path("best.json"))
    given = "bucketsim validate w.json --hardware wire.json --assignment best.json"
    assert line == f"{given} {where} -o measured"


# Files that are named, on what a path may be; all kinds of paths: tests/formats/test_files.py.


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes names, and not a byte more."""
    with small_disk(tmp_path / "home", "4k") as home:
        (home / "filler").write_bytes(b"x" * 4096)
        yield home


@pytest.mark.parametrize(("command", "option"), OUTPUTS)
def test_a_full_disk_is_one_line_and_keeps_what_was_measured(
    command: str, option: str, at: Path, full_disk: Path
) -> None:
    said = bucketsim(*cheap.commands(at)[command], option, full_disk / "made")
    assert said.code == 1
    (error,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert "cannot be written: No space left on device" in error
    assert "Traceback" not in said.err
    assert [one.name for one in full_disk.rglob("*") if one.is_file()] == ["filler"]
    if command in MEASURED:
        _, kept, folder = error.partition("; what was measured is kept in ")
        assert kept
        assert Path(folder).parent == at.parent / "temporary"
        assert "".join(path.read_text() for path in Path(folder).iterdir()).startswith("{")


@pytest.mark.parametrize(("command", "option"), [one for one in OUTPUTS if one[0] not in TO_DIRECTORIES])
def test_what_is_no_file_is_one_line_before_anything_is_done(command: str, option: str, at: Path) -> None:
    path = at.parent / "link"
    path.symlink_to(at)
    before = sorted(at.parent.rglob("*"))
    said = bucketsim(*cheap.commands(at)[command], option, path)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert said.err.startswith(f"error: {option}: {path}: cannot be written: it is no file")
    assert sorted(at.parent.rglob("*")) == before
    assert path.is_symlink()
