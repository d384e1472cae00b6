"""``bucketsim sweep``: what-ifs on the command line, tables for people, files for the rest."""

import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.commands import bucketsim
from tests.effort import PATIENCE_S

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"
FILES = (W, "--hardware", H)
WHAT_IFS = ("--world-size", "2,8", "--precision", "recorded,bfloat16", "--bandwidth", "1,0.5")


def rows_of(*words: str) -> list[dict[str, Any]]:
    said = bucketsim("sweep", *FILES, *words, "--json")
    assert said.code == 0, said.err
    rows: list[dict[str, Any]] = json.loads(said.out)["rows"]
    return rows


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_jobs_change_nothing(jobs: str) -> None:
    assert rows_of("--jobs", jobs, *WHAT_IFS) == rows_of(*WHAT_IFS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bandwidth", "1,,2"], "--bandwidth: '1,,2' is not legal; give values with commas between them"),
        (["--bandwidth", "fast"], "--bandwidth: 'fast' is not legal; could not convert string to float"),
        (["--world-size", "2.5"], "--world-size: '2.5' is not legal; invalid literal"),
        (["--caps", "5apples"], "bucket cap: '5apples' is not legal"),
    ],
)
def test_bad_input_is_named_in_one_line(words: list[str], said: str) -> None:
    answer = bucketsim("sweep", *FILES, *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {said}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--max-rows", "0"], ["--jobs", "many"]])
def test_counts_below_one_are_usage(words: list[str]) -> None:
    assert bucketsim("sweep", *FILES, *words).code == 2


def test_a_progress_bar_on_a_terminal_only() -> None:
    """stderr is a terminal, stdout is not: a bar that leaves nothing behind, and one document."""
    command = [sys.executable, "-m", "sim", "sweep", str(W), "--hardware", str(H), "--json", "--bandwidth"]
    leader, follower = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # a terminal that nobody holds any more
            while chunk := os.read(leader, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with subprocess.Popen(
        [*command, "1,2,3"], stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"}
    ) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(follower)
    reader.join()
    os.close(leader)
    shown = b"".join(chunks).decode()
    assert process.returncode == 0
    assert len(json.loads(out)["rows"]) > 50
    assert "simulating" in shown
    assert "\x1b[" in shown
    done = subprocess.run([*command, "1,2,3"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert (done.stdout.encode(), done.stderr) == (out, "")
