"""The cluster in a box: made, shaped, and gone after every exit."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sim.errors import InputError, MachineError
from sim.validator import box as box_module
from sim.validator.box import box, burst_bytes
from tests.dist.conftest import needs_box

pytestmark = pytest.mark.dist


def namespaces(pid: int | None = None) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    stem = f"bs{pid or os.getpid()}"
    return [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(stem)]


def test_bursts_that_were_measured() -> None:
    assert burst_bytes(10**9) == 128_000
    assert burst_bytes(4 * 10**9) == 256_000
    assert burst_bytes(10 * 10**9) == 256_000


@pytest.mark.parametrize("hosts", [0, 1, 65])
def test_refuses_odd_numbers_of_hosts(hosts: int) -> None:
    with pytest.raises(InputError, match="2 to 64"), box(hosts, 10**9):
        pass


def test_refuses_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(box_module.shutil, "which", lambda tool: f"/sbin/{tool}")
    with pytest.raises(MachineError, match="root"), box(2, 10**9):
        pass


@needs_box
@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_reach_each_other_and_are_removed(hosts: int) -> None:
    with box(hosts, 10**9) as made:
        assert len(made) == hosts
        assert len(namespaces()) >= hosts
        target = made[-1].address
        heard = subprocess.run(
            [*made[0].prefix, sys.executable, "-c", _CONNECT, target],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        # Nobody listens there, so a host that is reached refuses the connection.
        assert heard.stdout.strip() == "refused", heard
        shaped = subprocess.run(
            [*made[0].prefix, "tc", "qdisc", "show", "dev", "eth0"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "tbf" in shaped.stdout
        assert "rate 1Gbit" in shaped.stdout
    assert namespaces() == []


_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=10)
except ConnectionRefusedError:
    print("refused")
"""


_STAY = """
import time
from sim.validator.box import box
with box(2, 10**9):
    print("up", flush=True)
    time.sleep(60)
"""


@needs_box
def test_removed_after_an_error() -> None:
    def fail() -> None:
        with box(2, 10**9):
            assert namespaces()
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert namespaces() == []


@needs_box
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_removed_after_a_signal(sent: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STAY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    assert namespaces(process.pid)
    process.send_signal(sent)
    process.wait(timeout=20)
    deadline = time.monotonic() + 5
    while namespaces(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert namespaces(process.pid) == []
