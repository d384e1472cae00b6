"""``bucketsim sweep``: what-ifs on the command line, tables for people, files for the rest."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sim
import sim.validator.replay
from app import launch
from sim.formats import documents
from sim.truth.turns import AbTest, Turns, judge_turns
from tests.cli import cheap
from tests.commands import Said, bucketsim
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


# ``bucketsim simulate --slowest``: another rank, by a factor or by its own workload.


WORDS = ("simulate", W, "--hardware", H)


def test_a_factor_and_a_file_say_the_same(tmp_path: Path) -> None:
    workload, hardware = sim.load_workload(W), sim.load_hardware(H)
    slower, _ = sim.scale(workload, hardware, backward=1.5)
    documents.save(tmp_path / "slow.json", slower)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload), slowest=slower))
    assert any(bucket.late_ns for bucket in report.buckets)
    for slowest in ("1.5", tmp_path / "slow.json"):
        said = bucketsim(*WORDS, "--slowest", slowest, "--json")
        assert (said.code, said.err) == (0, "")
        told = json.loads(said.out)
        assert told["sync_end_ns"] == report.sync_end_ns
        assert [bucket["late_ns"] for bucket in told["buckets"]] == [b.late_ns for b in report.buckets]
        assert told["verdict"] == report.verdict
        assert told["provenance"]["slowest"].startswith(workload.name)


# ``bucketsim estimate``: words in, a workload and what to think of it out.

GPT = ("estimate", "sim.recorder.models:gpt", "layers=1", "width=16", "heads=2", "vocab=32", "context=8")


def test_it_writes_a_workload_that_the_others_read(tmp_path: Path) -> None:
    said = bucketsim(*GPT, "tied=true", "--backward-ms", 87.35, "-o", tmp_path / "w.json", "--json")
    assert said.code == 0, said.err
    workload = sim.load_workload(tmp_path / "w.json")
    assert json.loads(said.out) == json.loads((tmp_path / "w.json").read_text())
    assert workload.estimated
    assert workload.band is not None
    assert workload.backward_ns == 87_350_000
    assert workload.provenance["arguments"]["tied"] is True
    assert sim.assign(workload, bucket_cap_mb=0).bucket_indices
    told = bucketsim(*GPT, "tied=true", "--backward-ms", 87.35, "-o", tmp_path / "w.json")
    assert "estimated, not recorded; a band of " in told.out
    assert workload.provenance["band"] in told.out
    assert "nine of ten ready times past the first tenth" in told.out


# What a command that takes long says of itself meanwhile, where no terminal shows a bar.


# ``bucketsim dash`` before it serves: a port that is taken, and Ctrl-C.


def test_a_port_that_is_taken_is_told_before_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = bucketsim("dash", "--port", port)
    assert said.code == 1
    assert said.err == (
        f"error: --port: {port} is not legal: Address already in use; give one that is free, or none\n"
    )


def test_ctrl_c_is_heard_while_the_server_starts(tmp_path: Path) -> None:
    """A streamlit that takes its time, in place of the real one."""
    package = tmp_path / "streamlit" / "web"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "cli.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    with subprocess.Popen(
        launch.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "interrupted\n")


# ab: what it says while it runs, and what a gain that is none is worth.

MS = 10**6


def ab(gain_ms: float) -> AbTest:
    """Twelve rounds in which the recommendation takes so much less."""
    steps = [200 * MS + 7 * MS * (number % 2) for number in range(12)]
    other = [step - round(gain_ms * MS) for step in steps]
    return judge_turns(Turns(default=steps, recommended=other, plain=[150 * MS]), name="m:f", world_size=2)


def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: AbTest) -> Said:
    def replay(*_: Any, progress: Any) -> None:
        progress(30, 90, "measuring")

    monkeypatch.setattr(sim.validator.replay, "replay", replay)
    monkeypatch.setattr(sim.validator.replay, "judge_ab", lambda *_: result)
    best = tmp_path / "best.json"
    best.write_text(sim.to_text(sim.assign(sim.load_workload(cheap.W))))
    said = bucketsim("ab", "m:f", "--assignment", best)
    assert said.code == 0, said.err
    return said


def test_hours_are_told_of_a_gain_that_is_significant_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = heard(tmp_path, monkeypatch, ab(10)).out
    assert saved.count("GPU-hours a day") == 1
    assert saved.splitlines()[-1].startswith("the recommendation saves 10.00 ms a step")
    none = heard(tmp_path, monkeypatch, ab(0)).out
    assert "hours" not in none
    assert "no significant difference over 12 rounds" in none
