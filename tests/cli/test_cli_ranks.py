"""bucketsim ranks: options, files, tables and JSON."""

from dataclasses import replace
from pathlib import Path

import pytest

import sim
from sim.nouns.ranks import RankGroup, Ranks
from tests.bench.machines import machine, model
from tests.commands import bucketsim


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    workload, hardware = tmp_path / "w.json", tmp_path / "h.json"
    workload.write_text(sim.to_text(model(30, "affine")))
    hardware.write_text(sim.to_text(replace(machine("affine"), world_size=16)))
    return workload, hardware


def test_options_become_a_file_that_says_the_same(files: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "ranks.json"
    words = ("ranks", files[0], "--hardware", files[1])
    options = ("--pace-spread", 0.1, "--slow", "0-3=1.2", "--samples", 20, "--json")
    one = bucketsim(*words, *options, "-o", kept)
    two = bucketsim(*words, kept, "--samples", 20, "--json")
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert one.out == two.out
    assert sim.load_ranks(kept).pace_spread == 0.1


def test_groups_are_files_beside_the_file_of_ranks(files: tuple[Path, Path], tmp_path: Path) -> None:
    workload = sim.load_workload(files[0])
    slower, _ = sim.scale(workload, sim.load_hardware(files[1]), backward=2.0)
    (tmp_path / "older.json").write_text(sim.to_text(slower))
    kept = tmp_path / "ranks.json"
    kept.write_text(
        sim.to_text(Ranks(name="mixed", groups=(RankGroup(first=4, count=4, workload="older.json"),)))
    )
    said = bucketsim("ranks", files[0], kept, "--hardware", files[1], "--samples", 5)
    assert said.code == 0, said.err
    assert "older.json" in said.out
    there = tmp_path / "there" / "moved.json"
    there.parent.mkdir()
    again = bucketsim("ranks", files[0], kept, "--hardware", files[1], "--samples", 5, "-o", there)
    assert again.code == 0, again.err
    assert sim.load_ranks(there).groups[0].workload == "../older.json"
    back = bucketsim("ranks", files[0], there, "--hardware", files[1], "--samples", 5, "--json")
    assert back.code == 0, back.err
    (tmp_path / "older.json").unlink()
    gone = bucketsim("ranks", files[0], kept, "--hardware", files[1], "--samples", 5)
    assert gone.code == 1
    assert f"{kept}: groups.0.workload: " in " ".join(gone.err.split())
    assert "older.json" in gone.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--slow", "3"), "--slow: '3' is not legal; give RANK=FACTOR"),
        (("--slow", "5-3=2"), "--slow: '5-3=2' is not legal"),
        (("--slow", "16=2"), "slow.0: ranks 16 to 16 are not legal; the hardware has world_size 16"),
        (("--stalls", "0.1"), "--stalls: '0.1' is not legal; give P,MS"),
        (("--stalls", "0.1,inf"), "--stalls: '0.1,inf' is not legal; give P,MS"),
        (("--caps", "1,,2"), "--caps: '1,,2' is not legal"),
        (("--caps", "1", "--bucket-cap-mb", "2"), "--caps: give one of"),
        (("--pace-jitter", "9"), "pace_jitter: 9"),
        (("--samples", "0"), "samples: 0 is not legal"),
    ],
)
def test_a_fault_is_one_line(files: tuple[Path, Path], words: tuple[str, ...], complaint: str) -> None:
    said = bucketsim("ranks", files[0], "--hardware", files[1], *words)
    assert said.code == 1
    assert complaint in " ".join(said.err.split())
    assert said.out == ""


def test_a_file_and_options_do_not_mix(files: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "ranks.json"
    kept.write_text(sim.to_text(Ranks(name="r")))
    said = bucketsim("ranks", files[0], kept, "--hardware", files[1], "--pace-jitter", 0.1)
    assert (said.code, "RANKS.json: give it alone" in said.err) == (1, True)


@pytest.mark.parametrize("caps", [(), ("--caps", "1,25")])
def test_a_figure(files: tuple[Path, Path], tmp_path: Path, caps: tuple[str, ...]) -> None:
    page = tmp_path / "ranks.html"
    words = ("ranks", files[0], "--hardware", files[1], "--pace-jitter", 0.05, "--samples", 20, *caps)
    assert bucketsim(*words, "--figure", page).code == 0
    assert "plotly" in page.read_text()
