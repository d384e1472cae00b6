"""The cluster in a box: made, shaped, and gone after every exit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from sim.validator.launch import box
from tests.commands import Said, bucketsim
from tests.dist.conftest import needs_box
from tests.dist.starting import holding, kill, networks, wait_for
from tests.effort import PATIENCE_S
from tests.ranks import SETTINGS, start

pytestmark = pytest.mark.dist


@needs_box
@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_reach_each_other_and_are_removed(hosts: int) -> None:
    with box([10**9] * hosts) as made:
        assert len(made) == hosts
        there = networks(os.getpid())
        assert len(there) == (2 if hosts == 2 else hosts + 1)
        target = made[-1].address
        connect = f"import socket; socket.create_connection(({target!r}, 9), timeout=600)"
        for words, expected in (
            ((sys.executable, "-c", connect), "refused"),  # nobody listens at a host that is reached
            (("tc", "qdisc", "show", "dev", "eth0"), "rate 1Gbit"),
        ):
            told = subprocess.run([*made[0].prefix, *words], capture_output=True, text=True, check=False)
            assert expected in told.stdout + told.stderr
    wait_for(lambda: not there & networks(), "the end of the namespaces")


# ``bucketsim box``: any command on each host, torchrun's environment, and nothing left after any end.


def in_box(*words: object, hosts: int = 2, rate: str = "500mbit") -> Said:
    """What ``bucketsim box … -- words`` says, run to its end."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        box = start("sim", ["box", hosts, "--rate", rate, "--", *words], err, out=out)
        code = ended(box)
        return Said(code=code, out=out.read_text(), err=err.read_text())


def ended(box: BaseProcess) -> int:
    """Its exit code, once it has ended."""
    box.join(PATIENCE_S)
    assert box.exitcode is not None, "it does not end"
    return box.exitcode


@contextmanager
def running(script: str, folder: Path, grace_s: float = PATIENCE_S) -> Iterator[BaseProcess]:
    """``bucketsim box`` under way, both ranks having come to ``touch $DIR/$RANK`` in the shell ``script``.

    ``$DIR`` is in the command line of whatever the script starts with it; ``grace_s`` is how long that may
    take to end when it is told to.
    """
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "endless").touch()
    words = ["box", 2, "--rate", "500mbit", "--", "sh", "-c", script, folder]
    with mock.patch.dict(SETTINGS, {"sim.validator.launch._POLITE_S": grace_s}):
        box = start("sim", words, folder / "said", {"DIR": str(folder), "TMPDIR": str(temporary)})
    assert box.pid is not None
    try:
        wait_for(lambda: all((folder / str(rank)).exists() for rank in range(2)), "both ranks")
        there = networks(box.pid)
        assert len(there) == 2
        yield box
        # All must be gone with it, or very soon after SIGKILL.
        wait_for(lambda: not holding(str(folder)), "the end of every process")
        wait_for(lambda: not there & networks(), "the end of every namespace")
        assert list(temporary.iterdir()) == []
    finally:
        box.kill()
        box.join()
        kill(holding(str(folder)))


@needs_box
def test_the_environment_is_torchruns(tmp_path: Path) -> None:
    assert in_box("sh", "-c", 'env -0 > "$1/$RANK"', "sh", tmp_path, hosts=3).code == 0
    for rank in range(3):
        lines = (tmp_path / str(rank)).read_text().strip("\0").split("\0")
        there = dict(line.split("=", 1) for line in lines)
        expected = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
        assert {name: there[name] for name in expected} == {name: str(n) for name, n in expected.items()}
        assert (there["MASTER_ADDR"], there["MASTER_PORT"]) == ("10.213.77.1", "29500")
        assert there["GLOO_SOCKET_IFNAME"] == "eth0"
        assert there["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
        assert there["PATH"] == os.environ["PATH"]


_ALL_REDUCE = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
took = []
for _ in range(6):
    tensor = torch.full((1 << 18,), dist.get_rank() + 1.0)
    dist.barrier()
    began = time.monotonic()
    dist.all_reduce(tensor)
    took.append(time.monotonic() - began)
print(min(took), int(tensor[0]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@needs_box
@pytest.mark.parametrize(
    ("rate", "bits"), [pytest.param("100mbit", 100e6, marks=pytest.mark.slow), ("25mbit,100mbit", 25e6)]
)
def test_an_all_reduce_takes_what_the_slowest_wire_allows(rate: str, bits: float) -> None:
    said = in_box(sys.executable, "-c", _ALL_REDUCE, rate=rate)
    assert said.code == 0, said.err
    seconds, total = said.out.split()
    assert total == "3"
    # Each of two ranks sends as much as it has; the shortest of six, on a machine that may be busy.
    wire_s = (1 << 20) * 8 / bits
    assert 0.9 * wire_s < float(seconds) < 1.4 * wire_s
    # torch may warn beforehand that addresses have no names there.
    last = [line for line in said.err.splitlines() if line.startswith("[rank1]: ")][-1]
    assert last.split()[-1] == "3"


@needs_box
def test_who_says_what_where() -> None:
    script = 'echo out $RANK; echo err $RANK >&2; printf "1 %%\\r2 %%\\r\\n[rank1]: marked\\nno end"'
    said = in_box("sh", "-c", script)
    assert said.out.startswith("out 0\n")
    assert "rank1" not in said.out.replace("[rank1]: marked", "")
    of_rank_1 = {f"[rank1]: {line}" for line in ("out 1", "err 1", "2 %", "marked", "no end")}
    assert {"err 0", *of_rank_1} <= set(said.err.splitlines())


@needs_box
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("true", 0, ""),
        ("exit $((RANK * 7))", 7, "rank 1 ended with exit code 7"),
        ("[ $RANK = 0 ] && exit 3; exec sleep 1000", 3, "rank 0 ended with exit code 3"),
        ("[ $RANK = 1 ] && kill -SEGV $$; exec sleep 1000", 139, "rank 1 was killed by SIGSEGV"),
        ('test "$*" = "-x --debug -- y"', 0, ""),
    ],
)
def test_the_exit_code_is_the_scripts(script: str, code: int, words: str) -> None:
    said = in_box("sh", "-c", script, "sh", "-x", "--debug", "--", "y")
    assert (said.code, words in said.err) == (code, True), said.err
    assert ("error: " in said.err) == bool(code)


# tail -f never ends, and has the folder in its command line.
HANGS = 'touch $DIR/$RANK; exec tail -f "$DIR/endless"'
FORKS = 'setsid tail -f "$DIR/endless" & tail -f "$DIR/endless" & touch $DIR/$RANK; wait'
STOPS = 'tail -f "$DIR/endless" & kill -STOP $!; touch $DIR/$RANK; wait'
IGNORES = "trap '' TERM INT HUP; " + FORKS


@needs_box
@pytest.mark.parametrize(
    ("script", "sent", "code"),
    [
        (HANGS, signal.SIGINT, 130),
        (FORKS, signal.SIGTERM, 143),
        (STOPS, signal.SIGKILL, -9),
        (IGNORES, signal.SIGINT, 130),
        (IGNORES, signal.SIGTERM, 143),
        (IGNORES, signal.SIGHUP, 129),
        (IGNORES, signal.SIGKILL, -9),
    ],
)
def test_a_signal_ends_everything(script: str, sent: signal.Signals, code: int, tmp_path: Path) -> None:
    with running(script, tmp_path, 0.5 if script == IGNORES else PATIENCE_S) as box:
        assert box.pid is not None
        os.kill(box.pid, sent)
        assert ended(box) == code


@needs_box
@pytest.mark.parametrize("script", [FORKS, IGNORES])
def test_a_rank_that_dies_ends_everything(script: str, tmp_path: Path) -> None:
    one = "touch $DIR/1; while [ ! -e $DIR/go ]; do sleep 0.1; done; exit 5"
    dies = f"[ $RANK = 0 ] || {{ {one}; }}; {script}"
    with running(dies, tmp_path, 0.5 if script == IGNORES else PATIENCE_S) as box:
        (tmp_path / "go").touch()
        assert ended(box) == 5


@pytest.mark.parametrize(
    ("hosts", "command", "message"),
    [
        (2, "./nonsuch.py", "'./nonsuch.py' is not a command here"),
        *((hosts, "true", f"{hosts} hosts are not legal; give 2 to 64") for hosts in (1, 65)),
    ],
)
def test_what_no_box_runs_is_refused(hosts: int, command: str, message: str) -> None:
    said = bucketsim("box", hosts, "--rate", "1gbit", "--", command)
    assert (said.code, message in said.err) == (1, True), said.err
