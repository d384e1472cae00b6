"""A cluster in a box: network namespaces as hosts, joined by veth pairs and bridges, shaped by tbf."""

import atexit
import itertools
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError, MachineError
from sim.machine import started_at
from sim.validator.hosts.signals import exit_on_signals
from sim.validator.ranks.process.processes import kill

_log = logging.getLogger(__name__)
_NUMBER = itertools.count()
_LATENCY_MS = 100
_OURS = re.compile(r"bs(\d+)\.(\d+)\.(\d+)[a-j]-\w+")
# A shell that waits until the process at the other end of its input is gone, and removes its namespaces.
_KEEPER = """
read -r _
for name in $(ip netns list); do
    case $name in "$1"-*)
        while pids=$(ip netns pids "$name") && [ -n "$pids" ]; do kill -9 $pids; sleep 0.1; done
        ip netns del "$name";;
    esac
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A network namespace (None: this machine's own), its address and its interface."""

    namespace: str | None = None
    address: str
    interface: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with to run on this host."""
        return () if self.namespace is None else ("ip", "netns", "exec", self.namespace)


def burst_bytes(rate_bits: int) -> int:
    """tbf's burst for a clean line: 128 kB at 1 Gbit/s, 256 kB from 4 Gbit/s (measured), at least 32 kB."""
    return max(32_000, min(256_000, 85_333 + 42_667 * rate_bits // 10**9))


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"box: {' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _check_machine(hosts: int) -> None:
    if hosts < 2 or hosts > 64:
        raise InputError(f"box: {hosts} hosts are not legal; give 2 to 64")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise MachineError(f"box: {' and '.join(missing)} not found; install iproute2")
    if os.geteuid() != 0:
        raise MachineError("box: needs root for network namespaces; run as root, or without a box")


class _Teardown:
    """Removes the namespaces that were made, and ends what runs in them, whatever ends this process.

    If this process is gone before it could (SIGKILL), a shell that it started beforehand does it.
    """

    def __init__(self, stem: str) -> None:
        self._names: list[str] = []
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, name: str) -> None:
        self._names.append(name)

    def run(self) -> None:
        while self._names:
            _remove(self._names[-1])
            self._names.pop()
        self._keeper.kill()
        self._keeper.communicate()


def processes_in(namespaces: Collection[str]) -> list[int]:
    """All processes in the given network namespaces; those that are gone have none."""
    places = {place for name in namespaces if (place := _network(Path("/run/netns", name))) is not None}
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _network(entry / "ns" / "net") in places
    ]


def _network(path: Path) -> tuple[int, int] | None:
    """Which network namespace ``path`` stands for; None where it, or the process, is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove(name: str) -> None:
    """End all that runs in a namespace, and delete it."""
    while pids := processes_in([name]):
        kill(pids)
        time.sleep(0.01)
    # Another box, or the keeper, may be removing the same name at this moment; gone is gone.
    subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)


@contextmanager
def box(rates_bits: Sequence[int]) -> Iterator[list[Host]]:
    """One namespace per rate, each host's link shaped to its rate (bit/s) in both directions.

    Two hosts of one rate share a veth pair; others meet on a switch.

    Names hold this process's number, so that boxes do not meet. On every exit (return, error, Ctrl-C,
    SIGTERM, SIGHUP, SIGKILL) whatever runs in the namespaces is ended, and they are removed; should something
    be left all the same, the next box removes it.

    Raises:
        InputError: a number of hosts other than 2 to 64.
        MachineError: not root, no iproute2, or the kernel refuses.
    """
    _check_machine(len(rates_bits))
    for name in remove_leftovers():
        _log.warning("removed network namespace %s, left by a bucketsim that was killed", name)
    letter = "abcdefghij"[next(_NUMBER) % 10]
    stem = f"bs{os.getpid()}.{started_at(os.getpid())}.{_process_namespace()}{letter}"
    teardown = _Teardown(stem)
    atexit.register(teardown.run)
    try:
        with exit_on_signals():
            yield _build(stem, rates_bits, teardown)
    finally:
        teardown.run()
        atexit.unregister(teardown.run)


def remove_leftovers() -> list[str]:
    """Delete the namespaces of boxes whose process runs no more, with what runs in them; returns their names.

    A name holds the number, the start and the PID namespace of its process: so a number that is in use again
    does not keep the box, and boxes of other containers are left alone.
    """
    removed = []
    here = _process_namespace()
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0] if line.strip() else ""
        ours = _OURS.fullmatch(name)
        if ours is not None and 0 < here == int(ours[3]) and started_at(int(ours[1])) != int(ours[2]):
            _remove(name)
            removed.append(name)
    return removed


def _process_namespace() -> int:
    """The number of this process's PID namespace; 0 if the system does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _build(stem: str, rates_bits: Sequence[int], teardown: _Teardown) -> list[Host]:
    names = [f"{stem}-{k}" for k in range(len(rates_bits))]
    for name in names:
        _namespace(name, teardown)
        _ip("-n", name, "link", "set", "lo", "up")
    if len(names) == 2 and rates_bits[0] == rates_bits[1]:
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1])
    else:
        _switch(f"{stem}-sw", names, rates_bits, teardown)
    hosts = []
    for k, (name, rate) in enumerate(zip(names, rates_bits, strict=True)):
        address = f"10.213.77.{k + 1}"
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _shape(name, "eth0", rate)
        hosts.append(Host(namespace=name, address=address, interface="eth0"))
    return hosts


def _namespace(name: str, teardown: _Teardown) -> None:
    _ip("netns", "add", name)
    teardown.add(name)


def _switch(switch: str, names: Sequence[str], rates_bits: Sequence[int], teardown: _Teardown) -> None:
    """A bridge in a namespace of its own with one port for each host, shaped towards the host."""
    _namespace(switch, teardown)
    _ip("-n", switch, "link", "add", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    for k, (name, rate) in enumerate(zip(names, rates_bits, strict=True)):
        _ip("link", "add", f"p{k}", "netns", switch, "type", "veth", "peer", "eth0", "netns", name)
        _plug(switch, f"p{k}", rate)


def _plug(switch: str, port: str, rate_bits: int) -> None:
    _ip("-n", switch, "link", "set", port, "master", "br0")
    _ip("-n", switch, "link", "set", port, "up")
    _shape(switch, port, rate_bits)


def _shape(namespace: str, device: str, rate_bits: int) -> None:
    _run(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
        *("rate", f"{rate_bits}bit", "burst", str(burst_bytes(rate_bits)), "latency", f"{_LATENCY_MS}ms"),
    )
