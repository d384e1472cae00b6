"""What a command that takes long says of itself meanwhile, where no terminal shows a bar."""

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from sim.cli import printing
from sim.clock.machine_code import compiled
from tests.cli import cheap
from tests.commands import process

TUNE = ("tune", cheap.W, "--hardware", cheap.H)
FIRST = "compiling loops: once after an installation, some half a minute"


def loops(folder: Path) -> ModuleType:
    """A module of two loops that nobody has compiled yet."""
    (folder / "loops.py").write_text("def twice(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n")
    spec = importlib.util.spec_from_file_location("loops", folder / "loops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loops_are_told_as_they_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "_EVERY_S", 0.0)
    made = loops(tmp_path)
    twice, half = compiled(made.twice), compiled(made.half)
    with printing.telling_of_compilation():
        assert (twice(2), half(2)) == (4, 1.0)
        told = capsys.readouterr().err.splitlines()
        assert twice(3) == 6  # compiled before
    assert told[0] == FIRST
    assert [re.sub(r"\d+ s", "", line) for line in told[1:]] == ["compiling loops: after "]
    assert twice(1.5) == 3.0  # nobody listens any more
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_first_tune_of_an_installation_says_why_it_waits(tmp_path: Path) -> None:
    kept = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (process("-m", "sim", *TUNE, env=kept) for _ in range(2))
    assert first.err.splitlines()[0] == FIRST
    assert "compiling" not in second.err
    assert first.out == second.out
