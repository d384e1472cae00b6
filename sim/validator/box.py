"""A cluster in a box: network namespaces as hosts, joined by veth pairs and a bridge, shaped by tbf."""

import atexit
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sim.errors import InputError, MachineError
from sim.validator.signals import exit_on_signals

_NUMBER = itertools.count()
_LATENCY_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One namespace: how to run a command in it, its address and its interface."""

    prefix: tuple[str, ...]
    address: str
    interface: str


def burst_bytes(rate_bits: int) -> int:
    """tbf's burst for a clean line: 128 kB at 1 Gbit/s, 256 kB from 4 Gbit/s (measured), at least 32 kB."""
    return max(32_000, min(256_000, 85_333 + 42_667 * rate_bits // 10**9))


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"box: {' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")


def _check_machine(hosts: int) -> None:
    if hosts < 2 or hosts > 64:
        raise InputError(f"box: {hosts} hosts are not legal; give 2 to 64")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise MachineError(f"box: {' and '.join(missing)} not found; install iproute2")
    if os.geteuid() != 0:
        raise MachineError("box: needs root for network namespaces; run as root or without --box")


class _Teardown:
    """Undoes what was made, once, in reverse order, whatever ends the process."""

    def __init__(self) -> None:
        self._commands: list[tuple[str, ...]] = []

    def add(self, *command: str) -> None:
        self._commands.append(command)

    def run(self) -> None:
        while self._commands:
            subprocess.run(self._commands.pop(), capture_output=True, check=False)


@contextmanager
def box(hosts: int, rate_bits: int) -> Iterator[list[Host]]:
    """``hosts`` namespaces on one bridge, each end shaped to ``rate_bits`` (bit/s) in both directions.

    Names carry the process id, so that boxes do not meet; everything is removed on every exit that
    Python sees (return, error, Ctrl-C, SIGTERM, SIGHUP).

    Raises:
        MachineError: not root, no iproute2, or the kernel refuses.
    """
    _check_machine(hosts)
    number = next(_NUMBER)
    stem = f"bs{os.getpid()}{'abcdefghij'[number % 10]}"
    teardown = _Teardown()
    atexit.register(teardown.run)
    try:
        with exit_on_signals():
            yield _build(stem, hosts, rate_bits, teardown)
    finally:
        teardown.run()
        atexit.unregister(teardown.run)


def _build(stem: str, hosts: int, rate_bits: int, teardown: _Teardown) -> list[Host]:
    """Two hosts share one veth pair; more meet on a bridge in a namespace of its own."""
    made: list[Host] = []
    names = [f"{stem}-{k}" for k in range(hosts)]
    for name in names:
        _ip("netns", "add", name)
        teardown.add("ip", "netns", "del", name)
        _ip("-n", name, "link", "set", "lo", "up")
    if hosts == 2:
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1])
    else:
        switch = f"{stem}-sw"
        _ip("netns", "add", switch)
        teardown.add("ip", "netns", "del", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for k, name in enumerate(names):
            _ip("link", "add", f"p{k}", "netns", switch, "type", "veth", "peer", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"p{k}", "master", "br0")
            _ip("-n", switch, "link", "set", f"p{k}", "up")
            _shape(switch, f"p{k}", rate_bits)
    for k, name in enumerate(names):
        address = f"10.213.77.{k + 1}"
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _shape(name, "eth0", rate_bits)
        made.append(Host(prefix=("ip", "netns", "exec", name), address=address, interface="eth0"))
    return made


def _shape(namespace: str, device: str, rate_bits: int) -> None:
    _run(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
        *("rate", f"{rate_bits}bit", "burst", str(burst_bytes(rate_bits)), "latency", f"{_LATENCY_MS}ms"),
    )
