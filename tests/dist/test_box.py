"""The cluster in a box: made, shaped, and gone after every exit."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from sim.errors import InputError
from sim.machine import started_at
from sim.validator.hosts.boxed_hosts import Host, box, processes_in, remove_leftovers
from tests.dist.conftest import needs_box
from tests.dist.starting import wait_for
from tests.effort import PATIENCE_S

pytestmark = pytest.mark.dist


def namespaces(pid: int | None = None) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    stem = f"bs{pid or os.getpid()}."
    return [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(stem)]


@pytest.mark.parametrize("hosts", [0, 1, 65])
def test_refuses_odd_numbers_of_hosts(hosts: int) -> None:
    with pytest.raises(InputError, match="2 to 64"), box([10**9] * hosts):
        pass


@needs_box
@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_reach_each_other_and_are_removed(hosts: int) -> None:
    with box([10**9] * hosts) as made:
        assert len(made) == hosts
        assert len(namespaces()) >= hosts
        target = made[-1].address
        heard = subprocess.run(
            [*made[0].prefix, sys.executable, "-c", _CONNECT, target],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
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
    socket.create_connection((sys.argv[1], 9), timeout=600)
except ConnectionRefusedError:
    print("refused")
"""


_STAY = """
import time
from sim.validator.hosts.boxed_hosts import box
with box([10**9] * 2):
    print("up", flush=True)
    time.sleep(3600)
"""


@needs_box
def test_a_killed_process_leaves_no_namespace_and_nothing_in_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", _STAY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    names = namespaces(process.pid)
    assert len(names) == 2
    inside = [subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"]) for name in names]
    wait_for(lambda: len(processes_in(names)) == 2, "a process in each namespace")
    process.kill()
    process.wait()
    assert [one.wait(timeout=PATIENCE_S) for one in inside] == [-signal.SIGKILL] * 2
    wait_for(lambda: not namespaces(process.pid), "the end of the namespaces")


@needs_box
def test_what_was_left_all_the_same_is_removed_by_the_next_box() -> None:
    """Whoever makes a box removes what was left, tests beside this one too: so it is not left until then."""
    here = os.stat("/proc/self/ns/pid").st_ino
    holder = subprocess.Popen(["sleep", "1000"])
    begun = started_at(holder.pid)
    held, others = (f"bs{holder.pid}.{begun}.{place}a-made" for place in (here, here + 1))
    ours, used_again = (f"bs{os.getpid()}.{start}.{here}a-made" for start in (started_at(os.getpid()), 1))
    for one in (held, others, ours, used_again):
        subprocess.run(["ip", "netns", "add", one], check=True)
    with subprocess.Popen(["ip", "netns", "exec", held, "sleep", "1000"]) as inside:
        wait_for(lambda: processes_in([held]) == [inside.pid], "a process in the namespace")
        holder.kill()
        holder.wait()
        with box([10**9] * 2):
            assert inside.wait(timeout=PATIENCE_S) == -signal.SIGKILL
            assert namespaces(holder.pid) == [others]
            assert used_again not in namespaces()
            remove_leftovers()
            assert ours in namespaces()  # in use
            assert len(namespaces()) == 3
    for one in (others, ours):
        subprocess.run(["ip", "netns", "del", one], check=True)


_RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 7000)) as server:
    print("up", flush=True)
    connection, _ = server.accept()
    connection.recv(1)
    began = time.monotonic()
    while connection.recv(1 << 20):
        pass
    print(began, time.monotonic())
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as connection:
    print("up", flush=True)
    sys.stdin.readline()
    block = bytes(1 << 18)
    for _ in range(int(sys.argv[2]) >> 18):
        connection.sendall(block)
"""
_MBIT = 10**6


def started(host: Host, program: str, *words: str) -> subprocess.Popen[str]:
    """A program on a host, once it says that it is up."""
    command = [*host.prefix, sys.executable, "-c", program, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    return process


def seconds_to_send(hosts: Sequence[Host], pairs: Sequence[tuple[int, int]], num_bytes: int) -> float:
    """From the first byte that came to the last, ``num_bytes`` for each (sender, receiver) at once."""
    receivers = [started(hosts[to], _RECEIVE, hosts[to].address) for _, to in pairs]
    senders = [started(hosts[by], _SEND, hosts[to].address, str(num_bytes)) for by, to in pairs]
    for sender in senders:
        assert sender.stdin is not None
        sender.stdin.write("go\n")
        sender.stdin.flush()
    told = [receiver.communicate(timeout=PATIENCE_S)[0].split() for receiver in receivers]
    for sender in senders:
        sender.communicate(timeout=PATIENCE_S)
    return max(float(end) for _, end in told) - min(float(began) for began, _ in told)


def check_rate(
    hosts: Sequence[Host], pairs: Sequence[tuple[int, int]], num_bytes: int, rate_bits: int
) -> None:
    """Never faster than the wire of ``rate_bits``, with 4.5 % of protocol, and nearly as fast.

    A busy machine sends slower now and then: one of many tries has to be as fast.
    """
    wire_s = num_bytes * len(pairs) * 8 / rate_bits
    for _ in range(30):
        seconds = seconds_to_send(hosts, pairs, num_bytes)
        assert seconds > 0.8 * wire_s
        if seconds < 1.3 * wire_s:
            return
    pytest.fail(f"{seconds:.2f} s in place of {wire_s:.2f} s")


@needs_box
def test_each_host_has_its_own_rate() -> None:
    with box([100 * _MBIT, 100 * _MBIT, 25 * _MBIT]) as hosts:
        for pair, rate in {(0, 1): 100 * _MBIT, (0, 2): 25 * _MBIT, (2, 1): 25 * _MBIT}.items():
            check_rate(hosts, [pair], rate // 8, rate)
