"""What a command runs on, and what it says meanwhile: processes, a terminal, a port, ranks of its own."""

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
from sim.truth.turns import AbTest, Turns, judge_turns
from tests.cli import cheap
from tests.commands import bucketsim
from tests.effort import PATIENCE_S

FILES = (cheap.W, "--hardware", cheap.H)
GPT = ("estimate", "sim.recorder.models:gpt", "layers=1", "width=16", "heads=2", "vocab=32", "context=8")
MS = 10**6


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_jobs_change_nothing(jobs: str) -> None:
    what_ifs = ("--world-size", "2,8", "--precision", "recorded,bfloat16", "--bandwidth", "1,0.5", "--json")
    alone, by_jobs = (bucketsim("sweep", *FILES, *what_ifs, *more) for more in ((), ("--jobs", jobs)))
    assert (alone.code, by_jobs.out) == (0, alone.out)


def test_a_progress_bar_on_a_terminal_only() -> None:
    """stderr is a terminal, stdout is not: a bar that leaves nothing behind, and one document."""
    command = [sys.executable, "-m", "sim", "sweep", *map(str, FILES), "--json", "--bandwidth", "1,2,3"]
    leader, follower = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # a terminal that nobody holds any more
            while chunk := os.read(leader, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environment) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(follower)
    reader.join()
    os.close(leader)
    shown = b"".join(chunks).decode()
    assert process.returncode == 0
    assert len(json.loads(out)["rows"]) > 50
    assert "simulating" in shown
    assert "\x1b[" in shown
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert (done.stdout.encode(), done.stderr) == (out, "")


def test_a_step_beside_a_slower_rank() -> None:
    workload, hardware = sim.load_workload(cheap.W), sim.load_hardware(cheap.H)
    slower, _ = sim.scale(workload, hardware, backward=1.5)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload), slowest=slower))
    assert any(bucket.late_ns for bucket in report.buckets)
    told = json.loads(bucketsim("simulate", *FILES, "--slowest", 1.5, "--json").out)
    assert told["sync_end_ns"] == report.sync_end_ns
    assert [bucket["late_ns"] for bucket in told["buckets"]] == [b.late_ns for b in report.buckets]
    assert told["verdict"] == report.verdict
    assert told["provenance"]["slowest"].startswith(workload.name)


def test_an_estimate_is_a_workload_that_others_read(tmp_path: Path) -> None:
    words = (*GPT, "tied=true", "--backward-ms", 87.35, "-o", tmp_path / "w.json")
    said = bucketsim(*words, "--json")
    assert said.code == 0, said.err
    workload = sim.load_workload(tmp_path / "w.json")
    assert json.loads(said.out) == json.loads((tmp_path / "w.json").read_text())
    assert (workload.estimated, workload.backward_ns) == (True, 87_350_000)
    assert workload.provenance["arguments"]["tied"] is True
    assert sim.assign(workload, bucket_cap_mb=0).bucket_indices
    assert workload.provenance["band"] in bucketsim(*words).out


# ``bucketsim dash`` before it serves: a port that is taken, and Ctrl-C.


def test_a_port_that_is_taken_is_told_before_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = bucketsim("dash", "--port", port)
    assert said.code == 1
    assert said.err.startswith(f"error: --port: {port} is not legal: Address already in use")


def test_ctrl_c_is_heard_while_the_server_starts(tmp_path: Path) -> None:
    """A streamlit that takes its time, in place of the real one."""
    package = tmp_path / "streamlit" / "web"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "cli.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(launch.command(), env=environment, **piped) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "interrupted\n")


# ab: what a gain that is none is worth.


def ab(gain_ms: float) -> AbTest:
    """Twelve rounds in which the recommendation takes so much less."""
    steps = [200 * MS + 7 * MS * (number % 2) for number in range(12)]
    other = [step - round(gain_ms * MS) for step in steps]
    return judge_turns(Turns(default=steps, recommended=other, plain=[150 * MS]), name="m:f", world_size=2)


@pytest.mark.parametrize("gain_ms", [10, 0])
def test_hours_are_told_of_a_gain_that_is_significant_alone(
    gain_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.validator.replay, "replay", lambda *_, progress: progress(30, 90, "measuring"))
    monkeypatch.setattr(sim.validator.replay, "judge_ab", lambda *_: ab(gain_ms))
    best = tmp_path / "best.json"
    best.write_text(sim.to_text(sim.assign(sim.load_workload(cheap.W))))
    said = bucketsim("ab", "m:f", "--assignment", best)
    assert said.code == 0, said.err
    assert said.out.count("GPU-hours a day") == bool(gain_ms)
    assert ("no significant difference over 12 rounds" in said.out) == (not gain_ms)
