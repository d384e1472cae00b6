"""validate --ab: what it says while it runs, and what a gain that is none is worth."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sim
import sim.validator.abtest
from sim.cli import printing
from sim.nouns.ab import AbTest
from sim.truth.turns import Turns, judge_turns
from tests.cli import cheap
from tests.commands import Said, bucketsim

MS = 10**6


def ab(gain_ms: float) -> AbTest:
    """Twelve rounds in which the recommendation takes so much less."""
    steps = [200 * MS + 7 * MS * (number % 2) for number in range(12)]
    other = [step - round(gain_ms * MS) for step in steps]
    return judge_turns(Turns(default=steps, recommended=other, plain=[150 * MS]), name="m:f", world_size=2)


def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: AbTest) -> Said:
    def run_ab(*_: Any, progress: Any, **__: Any) -> AbTest:
        progress(30, 90, "measuring")
        return result

    monkeypatch.setattr(sim.validator.abtest, "run_ab", run_ab)
    best = tmp_path / "best.json"
    best.write_text(sim.to_text(sim.assign(sim.load_workload(cheap.W))))
    said = bucketsim("validate", "--ab", "--model", "m:f", "--assignment", best)
    assert said.code == 0, said.err
    return said


def test_a_line_comes_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(printing, "time", SimpleNamespace(monotonic=lambda: now))
    with printing.progress("A/B") as report:
        for now in range(26):
            report(now, 25)
    assert capsys.readouterr().err.splitlines() == ["A/B: 40% after 10 s", "A/B: 80% after 20 s"]


def test_hours_are_told_of_a_gain_that_is_significant_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = heard(tmp_path, monkeypatch, ab(10)).out
    assert saved.count("GPU-hours a day") == 1
    assert saved.splitlines()[-1].startswith("the recommendation saves 10.00 ms a step")
    none = heard(tmp_path, monkeypatch, ab(0)).out
    assert "hours" not in none
    assert "no significant difference over 12 rounds" in none
