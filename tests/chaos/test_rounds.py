"""Hurts what starts processes, at random moments: ``make chaos ROUNDS=20 SEED=0``.

Loopback, own network namespaces (as root), own processes and own file systems only. Each round starts one
command, does it one harm, and asks: it ends in time, by a right answer or by one line that names what
happened; and no process, no temporary directory, no network namespace and no half file is left of it.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from sim.formats.documents import parse_text
from tests.cli import cheap
from tests.dist.starting import networks, wait_for
from tests.effort import PATIENCE_S
from tests.ranks import free_port
from tests.strategies import KINDS

pytestmark = [pytest.mark.dist, pytest.mark.slow]

ROUNDS, SEED = int(os.environ.get("ROUNDS", "10")), os.environ.get("SEED", "test")
MARK = "BUCKETSIM_CHAOS"
_GPT = ("sim.recorder.models:gpt", *("--arg", "layers=2"), *("--arg", "width=64"), *("--arg", "heads=2"))
_REPLAY = ("validate", str(cheap.W), "--hardware", str(cheap.H), "--rounds", "6", "--caps", "4")
_RANKS = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port")
_TORCHS_PATIENCE_S = 60  # the job's own, after which a rank that stands still is told to the others
_TRAINED = ("--steps", "60", "--width", "64", "--layers", "3", "--timeout", str(_TORCHS_PATIENCE_S))
_NAMED = ("error: ", "interrupted")
_BOX = ("--box", "2", "--rate", "4gbit")
_PAUSE_S = 2.0
KILLS = ("SIGKILL", "SIGTERM", "SIGINT")
PAUSES = ("stop", "pause", "slow")


def commands(out: Path) -> dict[str, list[str]]:
    """What is hurt, and where its output goes."""
    bucketsim = ["-m", "sim"]
    small = ("--largest", "1MiB", "--rounds", "2", "--budget", "0")
    calibrate = [*bucketsim, "calibrate", *small, "-o", str(out / "made.json")]
    validate = [*bucketsim, *_REPLAY, "-o", str(out / "made")]
    boxed = {"calibrate in a box": [*calibrate, *_BOX], "validate in a box": [*validate, *_BOX]}
    return {
        **{"calibrate": calibrate, "validate": validate},
        **(boxed if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc") else {}),
        "record": [*bucketsim, "record", *_GPT, "--repeats", "30", "-o", str(out / "made.json")],
        "autotune": [*_RANKS, str(free_port()), "-m", "sim.tuned", "-m", "sim.examples.train", *_TRAINED],
        "dash": [*bucketsim, "dash", "--port", str(free_port())],
    }


def family(mark: str, root: int) -> list[int]:
    """Our processes of one round, by their environment; the one that was started first."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return sorted(found, key=lambda pid: (pid != root, pid))


def send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def harm(draw: random.Random, kind: str, disks: list[Path], pids: list[int]) -> str:
    """Do one of the things that happen to a command, whose processes these are, the root first; in words."""
    if kind == "full disk":
        for disk in disks:
            with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
                while filler.write(b"x" * 4096):
                    pass
        return kind
    root, *others = pids
    victim = root if draw.random() < 0.4 or not others else draw.choice(others)
    if kind in KILLS:
        send(getattr(signal, kind), [victim])
    elif kind == "slow":
        for number, wait_s in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.1)) * 5:
            send(number, [victim])
            time.sleep(wait_s)
    else:
        send(signal.SIGSTOP, [victim])
        if kind == "pause" or victim == root:  # who is stopped himself can end nothing
            time.sleep(_PAUSE_S)
            send(signal.SIGCONT, [victim])
    return f"{kind} of {'the command' if victim == root else 'a process of its'}"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 2 MiB at ``folder``."""
    folder.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)), check=True)
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_what_is_hurt_ends_and_leaves_nothing(number: int) -> None:
    """One round of all harms; what fails tells all that was said."""
    draw = random.Random(f"{SEED} {number}")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folders = [home / "tmp", home / "out"]
        is_root = os.geteuid() == 0
        for folder in folders:
            stack.enter_context(small_disk(folder)) if is_root else folder.mkdir()
        name = draw.choice(sorted(commands(home)))
        kind = draw.choice(KILLS + PAUSES + ("full disk",) * is_root)
        with open(home / "said", "w+b") as said:
            process = subprocess.Popen(
                [sys.executable, *commands(home / "out")[name]],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=os.environ | {MARK: str(home), "TMPDIR": str(home / "tmp"), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                moment = draw.uniform(0.2, 12.0)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                done, there = "nothing: it had ended", set[str]()
                if process.poll() is None:
                    there = networks(process.pid)
                    done = harm(draw, kind, folders, family(str(home), process.pid))
                ends_well(name, process, f"{done}, {moment:.1f} s in", there, home)
            finally:
                send(signal.SIGKILL, family(str(home), process.pid))
                process.wait()


def ends_well(name: str, process: subprocess.Popen[bytes], done: str, there: set[str], home: Path) -> None:
    """In time, with one word of what happened, and without processes, networks and half files."""
    began = time.monotonic()
    if name == "dash" and process.poll() is None and "SIG" not in done:
        process.send_signal(signal.SIGTERM)  # it serves until it is told to end
    if name == "autotune" and done.startswith("stop"):
        # torchrun waits for good for a rank that stands still at the job's end, when all others have ended.
        with suppress(subprocess.TimeoutExpired):
            process.wait(3 * _TORCHS_PATIENCE_S)
        send(signal.SIGCONT, family(str(home), process.pid))
    code = process.wait(PATIENCE_S)
    took = time.monotonic() - began
    text = (home / "said").read_text(errors="replace")
    told = [line for line in text.splitlines() if line.startswith(_NAMED)]
    about = f"{name}, {done}, exit {code}:\n{text[-3000:]}"
    if name != "autotune":  # whose ranks are torchrun's, which says it in its own way
        assert code in (0, 1, 130, 143) or code < 0, about
        assert code != 1 or len(told) == 1, about
        assert "Traceback" not in text or "SIGINT" in done, about  # before Python has come to our first line
    wait_for(lambda: not family(str(home), process.pid), f"processes left of {about}")
    wait_for(lambda: not there & networks(), f"a network left of {about}")
    for path in (home / "out").rglob("*.json"):
        kind = json.loads(path.read_text())["kind"]
        parse_text(path.read_text(), KINDS[kind], path.name)
    halves = [path.name for path in (home / "out").rglob(".*")]
    assert not halves, f"{halves} left of {about}"
    print(f"{name}, {done}: exit {code} after {took:.1f} s: {told[-1] if told else '-'}")
