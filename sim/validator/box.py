"""A cluster in a box: hosts are namespaces, joined by veth pairs or a bridge, shaped by tbf.

A host is a network and a process namespace, held by a process. When that ends, however this one does (SIGKILL
included), the kernel ends every process of the host and takes its interfaces along: there is nothing to clean
up, and no name to collide.
"""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sim.errors import InputError, MachineError

_LATENCY_MS = 100
_END_S = 5.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # before any fork: a child that has yet to exec must load nothing
# Tells that it has come to its namespaces; then reads from a pipe that closes when this process is gone.
_HELD = "echo; read -r _"
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where a rank runs: what a command begins with to run there, its address and its interface."""

    prefix: tuple[str, ...] = ()
    address: str
    interface: str


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends, even by SIGKILL."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def burst_bytes(rate_bits: int) -> int:
    """tbf's burst for a clean line: 128 kB at 1 Gbit/s, 256 kB from 4 Gbit/s (measured), at least 32 kB."""
    return max(32_000, min(256_000, 85_333 + 42_667 * rate_bits // 10**9))


@contextmanager
def box(rates_bits: Sequence[int]) -> Iterator[list[Host]]:
    """One host per rate, each host's link shaped to its rate (bit/s) in both directions.

    Two hosts of one rate share a veth pair; others meet on a switch. What runs on the hosts ends with them.

    Raises:
        InputError: a number of hosts other than 2 to 64.
        MachineError: not root, no iproute2 or util-linux, or the kernel refuses.
    """
    if len(rates_bits) < 2 or len(rates_bits) > 64:
        raise InputError(f"box: {len(rates_bits)} hosts are not legal; give 2 to 64")
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise MachineError(f"box: {tool} not found; install {package}")
    if os.geteuid() != 0:
        raise MachineError("box: needs root for network namespaces; run as root, or without a box")
    with ExitStack() as stack:
        held = [stack.enter_context(_namespace()) for _ in rates_bits]
        if len(held) == 2 and rates_bits[0] == rates_bits[1]:
            _join(held[0], "eth0", held[1])
        else:
            switch = stack.enter_context(_namespace())
            _run_in(switch, "ip link add br0 type bridge")
            _run_in(switch, "ip link set br0 up")
            for number, (one, rate) in enumerate(zip(held, rates_bits, strict=True)):
                _join(switch, f"p{number}", one)
                _run_in(switch, f"ip link set p{number} master br0 up")
                _shape(switch, f"p{number}", rate)
        hosts = []
        for number, (one, rate) in enumerate(zip(held, rates_bits, strict=True)):
            address = f"10.213.77.{number + 1}"
            _run_in(one, "ip link set lo up")
            _run_in(one, f"ip addr add {address}/24 dev eth0")
            _run_in(one, "ip link set eth0 up")
            _shape(one, "eth0", rate)
            hosts.append(Host(prefix=_prefix(one), address=address, interface="eth0"))
        yield hosts


@contextmanager
def _namespace() -> Iterator[int]:
    """A network, a process namespace and a /proc of it; yields the process that is in all but the second."""
    holder = subprocess.Popen(
        ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", _HELD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    assert holder.stdout is not None
    try:
        if not holder.stdout.readline():
            raise MachineError(f"box: unshare failed: {holder.communicate()[1].decode().strip()}")
        yield holder.pid
    finally:
        try:
            holder.communicate(timeout=_END_S)  # closes the pipe; returns when every process there is gone
        except subprocess.TimeoutExpired:  # somebody has stopped it
            holder.kill()
            holder.communicate()


def _prefix(pid: int) -> tuple[str, ...]:
    """What runs a command where ``_namespace`` yielded ``pid``, in this process's working directory."""
    pids = f"--pid=/proc/{pid}/ns/pid_for_children"
    return ("nsenter", f"--target={pid}", "--net", "--mount", pids, "env", f"--chdir={os.getcwd()}")


def _run_in(pid: int, command: str) -> None:
    _run(command, _prefix(pid))


def _run(command: str, prefix: Sequence[str] = ()) -> None:
    done = subprocess.run([*prefix, *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"box: {command} failed: {done.stderr.strip() or done.stdout.strip()}")


def _join(one: int, interface: str, other: int) -> None:
    """A veth pair: ``interface`` of one namespace and ``eth0`` of the other."""
    _run(f"ip link add {interface} netns {one} type veth peer eth0 netns {other}")
    _run_in(one, f"ip link set {interface} up")


def _shape(pid: int, interface: str, rate_bits: int) -> None:
    tbf = f"tbf rate {rate_bits}bit burst {burst_bytes(rate_bits)} latency {_LATENCY_MS}ms"
    _run_in(pid, f"tc qdisc add dev {interface} root {tbf}")
