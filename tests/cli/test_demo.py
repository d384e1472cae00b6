"""``bucketsim demo``: the loop in an empty folder, command by command; nothing is measured."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sim
from app import launch
from sim.cli import starting
from sim.cli.starting import Diagnosis
from tests.cli import cheap
from tests.cli.test_doctor import ALL
from tests.commands import Said, bucketsim

BOXLESS = replace(ALL, box_obstacle="needs root for network namespaces")
NO_RANKS = replace(ALL, platform="darwin", box_obstacle="needs Linux")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where everything is cheap."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(starting, "_RECORDING", cheap.W)
    cheap.without_ranks(monkeypatch)
    return tmp_path


def shown(monkeypatch: pytest.MonkeyPatch, machine: Diagnosis, *words: object) -> Said:
    monkeypatch.setattr(starting, "diagnose", lambda: machine)
    said = bucketsim("demo", *words)
    assert said.code == 0, said.err
    return said


def lines(said: Said) -> list[list[str]]:
    """The commands that were shown before they ran."""
    return [shlex.split(line)[2:] for line in said.err.splitlines() if line.startswith("$ bucketsim ")]


@pytest.mark.parametrize(("machine", "place"), [(ALL, "--box 2 --rate 4gbit"), (BOXLESS, "--ranks 2")])
def test_the_loop_closes_where_ranks_run(
    machine: Diagnosis, place: str, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = shown(monkeypatch, machine, "--no-dash")
    ran = lines(said)
    assert [words[0] for words in ran] == ["calibrate", "tune", "validate"]
    assert all(place in shlex.join(words) for words in (ran[0], ran[2]))
    made = empty / "bucketsim-demo"
    sim.load_assignment(made / "assignment.json").check_fits(sim.load_workload(made / "workload.json"))
    assert sim.load_record(made / "measured").measurements
    assert "recommended: 4 bucket(s)" in said.out
    assert "pairs in the right order" in said.out
    assert said.err.splitlines()[-1] == "next: bucketsim dash --watch bucketsim-demo"
    assert said.err.count("next: ") == 1
    assert ("needs root" in said.err) == (machine is BOXLESS)


def test_every_line_that_it_shows_runs_by_itself(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, ALL, "--no-dash", "-o", "first")
    for words in lines(said)[:2]:
        assert bucketsim(*words).code == 0


def test_without_ranks_it_shows_what_is_bundled(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_RECORDING", Path("workloads", "gpt-13.8M-cpu.json"))
    said = shown(monkeypatch, NO_RANKS, "--no-dash")
    assert [words[0] for words in lines(said)] == ["tune", "agree"]
    assert "No ranks can run here (real ranks need Linux)" in said.err
    assert "gain of the recommended buckets over DDP's default: measured" in said.out


def test_it_opens_the_dashboard_first_and_ends_with_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        launch,
        "command",
        lambda **asked: [sys.executable, "-c", f"print({asked['port']}, {str(asked['watch'])!r})"],
    )
    monkeypatch.setattr(starting, "_port", lambda asked: 8765)
    said = shown(monkeypatch, ALL)
    log = (empty / "bucketsim-demo" / "dashboard.log").read_text()
    assert log == "8765 bucketsim-demo\n"
    places = [
        said.err.index(words) for words in ("8765/?start=measured+run&record=", "1 of 3", "8765/validate")
    ]
    assert places == sorted(places)
    assert "next: " not in said.err


def test_it_hands_out_what_is_bundled(empty: Path) -> None:
    said = bucketsim("demo", "--files", "-o", "bundled")
    assert (said.code, said.out) == (0, "")
    assert {path.name for path in (empty / "bundled").iterdir()} == {"workloads", "hardware", "measured"}
    assert bucketsim("agree", "bundled/measured/gpt-box-2x1gbit").code == 0


def test_nothing_that_is_there_is_touched(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = empty / "bucketsim-demo" / "mine"
    kept.parent.mkdir()
    kept.write_text("mine")
    shown(monkeypatch, BOXLESS, "--no-dash")
    assert [path.name for path in kept.parent.iterdir()] == ["mine"]
    assert (empty / "bucketsim-demo-2" / "measured").is_dir()
    refused = bucketsim("demo", "-o", kept.parent)
    assert refused.code == 1
    assert f"--output: {kept.parent} holds files already; give a new or empty directory" in refused.err
