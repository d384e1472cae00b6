"""Starts ranks as processes of this machine, hands on what they tell, and names the one that fails."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, BinaryIO

from sim.errors import InputError, MachineError, ReplayError
from sim.formats.files import scratch_directory
from sim.nouns.checks import Legal
from sim.units import format_number
from sim.validator.jobs import Job, write_job

EVENTS_AT = "BUCKETSIM_EVENTS"  # the variable that tells ranks started here which file to append events to
EVENTS, FAILED = "events.jsonl", "failed-rank-{}.json"  # what ranks that others start leave beside their job
_BOX_PORT = 29_500
_POLL_S = 0.1
_BLAME_S = 15.0  # after a rank is seen to fail: how long others may take to say, or show, whose fault it is
_POLITE_S = 5.0
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


_LOOPBACK = Host(address="127.0.0.1", interface="lo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: over loopback, one rank a host in a box, or where another launcher put them.

    ``rates_bits`` are the links of a box's hosts in bit/s, one each; none: there is no box, but ``ranks``.
    ``spread`` says in words where another launcher put these.
    """

    ranks: int = 2
    rates_bits: tuple[int, ...] = ()
    spread: str | None = None

    def __post_init__(self) -> None:
        Legal(least=1).take("ranks", self.world_size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.rates_bits) or self.ranks

    def describe(self) -> str:
        """The place in words, for names and provenance."""
        if not self.rates_bits:
            return f"{self.ranks} rank{'s' * (self.ranks != 1)} {self.spread or 'over loopback'}"
        rates = self.rates_bits[:1] if len(set(self.rates_bits)) == 1 else self.rates_bits
        said = ", ".join(format_number(rate / 1e9, 6) for rate in rates)
        return f"{len(self.rates_bits)} hosts in a box, {said} Gbit/s"

    def document(self) -> dict[str, Any]:
        """The ``box`` that the ranks are in, for later predictions, or that they are over ``loopback``."""
        if not self.rates_bits:
            return {"loopback": True} if self.spread is None else {}
        hosts = list(range(len(self.rates_bits)))
        return {"box": {"rates_bits": list(self.rates_bits), "uplink_bits": None, "hosts": hosts}}


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``SystemExit`` meanwhile, as Ctrl-C raises; but in the main thread alone."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that the system gives to nobody else, at which a rank may serve the store.

    It is bound here, and not listened at: who says SO_REUSEADDR, as a store does, can listen at it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _start(
    host: Host,
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int | BinaryIO | None,
    inherits: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """A process on ``host``, in a session of its own, that ends when this one does.

    ``output``: where its stdout and stderr go; None: this process's.
    """
    return subprocess.Popen(
        [*host.prefix, *command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,
        pass_fds=inherits,
    )


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGKILL to each and to what it started, stopped or not; returns when they have ended."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def _first_to_fail(codes: Sequence[int | None]) -> tuple[int, int, str] | None:
    """Of exit codes by rank, minus the number of the signal for those that one ended: who failed first, in
    words too; a signal comes first."""
    failed = sorted((code > 0, rank, code) for rank, code in enumerate(codes) if code)
    if not failed:
        return None
    _, rank, code = failed[0]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return rank, code, f"rank {rank} {how}"


def run_ranks(place: Place, job: Job, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Run ``job`` on the ranks of ``place``; what rank 0 tells is handed to ``on_event``.

    Raises:
        ReplayError: a rank failed, died, hung or disagreed; named, with its reason.
        MachineError: the box cannot be made here.
    """
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        hosts, port = [_LOOPBACK] * place.world_size, _BOX_PORT
        if place.rates_bits:
            hosts = stack.enter_context(box(place.rates_bits))
        else:
            port = stack.enter_context(reserved_port())
        folder = stack.enter_context(scratch_directory())
        job_file = write_job(folder, job, place.world_size)
        # In memory: a disk that is full must not end a measurement, nor a pipe that nobody reads hold it up.
        events = stack.enter_context(os.fdopen(os.memfd_create("events"), "rb"))
        logs = [stack.enter_context(os.fdopen(os.memfd_create("log"), "w+b")) for _ in hosts]
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_kill, ranks)
        for rank, host in enumerate(hosts):
            environment = {
                **_seat(rank, len(hosts), hosts[0].address, port, local=True),
                "GLOO_SOCKET_IFNAME": host.interface,
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                "TMPDIR": str(folder),
                EVENTS_AT: f"/dev/fd/{events.fileno()}",
            }
            worker = (sys.executable, "-m", "sim.validator.worker", str(job_file))
            ranks.append(_start(host, worker, environment, logs[rank], [events.fileno()]))
        _watch(ranks, logs, events, on_event)


def _seat(rank: int, world_size: int, address: str, port: int, *, local: bool) -> dict[str, str]:
    """torchrun's variables of a rank; ``local``: all share one machine, else each has a host of its own."""
    here = (rank, world_size) if local else (0, 1)
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    return dict(zip(names, map(str, (rank, world_size, *here, address, port)), strict=True))


def events_in(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """The events that have come since the last call; a line that is not whole yet is left for the next."""
    while (line := stream.readline()).endswith(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            at = stream.tell() - len(line)
            raise ReplayError(f"{stream.name}: byte {at}: not a line of JSON; run the job again") from None
    stream.seek(-len(line), os.SEEK_CUR)


def named(failures: Sequence[Mapping[str, Any]]) -> str | None:
    """Of what ranks told of their end the first that names a rank; else the first; None: there is none."""
    for one in failures:
        if ranks := one["ranks"]:
            return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {one['reason']}"
    return failures[0]["reason"] if failures else None


def _watch(
    ranks: Sequence[subprocess.Popen[bytes]],
    logs: Sequence[BinaryIO],
    events: BinaryIO,
    on_event: Callable[[dict[str, Any]], None],
) -> None:
    """Hand on events until all ranks have ended.

    Raises:
        ReplayError: a rank failed. Named is the first that told a reason of its own, or whom the others miss,
            or that a signal ended; those that only lost touch are not to blame.
    """
    failures: list[dict[str, Any]] = []
    steps, is_finished = 0, False
    failed_at: float | None = None
    while True:
        codes = [one.poll() for one in ranks]  # before events are read: who has ended has told all
        for event in events_in(events):
            if event["event"] == "failed":
                failures.append(event)
                continue
            steps += event["event"] == "step"
            is_finished = is_finished or event["event"] == "finished"
            on_event(event)
        if any(one["ranks"] for one in failures):
            raise ReplayError(f"replay: {named(failures)}")
        ended = _first_to_fail(codes)
        if ended is not None and ended[1] < 0:
            raise ReplayError(f"replay: {ended[2]}, after step {steps}")
        if ended is not None or failures:
            failed_at = failed_at or time.monotonic()
            if None not in codes or time.monotonic() - failed_at > _BLAME_S:
                unsaid = "" if ended is None else f"{ended[2]}: {_last_line(logs[ended[0]])}"
                raise ReplayError(f"replay: {named(failures) or unsaid}")
        elif None not in codes:
            if not is_finished:
                raise ReplayError(f"replay: the ranks ended without a result: {_last_line(logs[0])}")
            return
        time.sleep(_POLL_S)


def _last_line(log: BinaryIO) -> str:
    said = os.pread(log.fileno(), 1 << 24, 0).decode(errors="replace")
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")


# A cluster in a box: hosts are namespaces, joined by veth pairs or a bridge, shaped by tbf. A host is a
# network and a process namespace, held by a process. When that ends, however this one does (even by SIGKILL),
# the kernel ends every process of the host and takes its interfaces along: there is nothing to clean up.


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


# Any command on the hosts of a box.


def run_in_box(place: Place, command: Sequence[str]) -> tuple[int, str] | None:
    """Run ``command`` once on each host of ``place``; None once all have ended well.

    Else the exit code of the rank that failed first as a shell gives it, for a signal 128 plus its number,
    and who that was in words. Rank 0 has this process's stdout and stderr; what other ranks print goes to
    this process's stderr, each line behind ``[rank1]:``. No rank has an input. When one fails, or this
    process is told to end, all that runs on the hosts gets SIGTERM; what is left when the ranks have ended,
    or five seconds later, SIGKILL.

    Raises:
        InputError: no such command. MachineError: the box cannot be made here.
    """
    if shutil.which(command[0]) is None:
        raise InputError(
            f"box: {command[0]!r} is not a command here; give it as for a shell, such as python train.py"
        )
    ranks: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        speakers = stack.enter_context(ThreadPoolExecutor(len(place.rates_bits)))
        hosts = stack.enter_context(box(place.rates_bits))
        stack.callback(_end, ranks, hosts)
        for rank, host in enumerate(hosts):
            process = _start(host, command, _environment(hosts, rank), subprocess.PIPE if rank else None)
            ranks.append(process)
            if process.stdout is not None:
                speakers.submit(_pass_on, rank, process.stdout)
        while True:
            codes = [one.poll() for one in ranks]
            if (ended := _first_to_fail(codes)) is not None:
                _, code, words = ended
                return (code if code > 0 else 128 - code), words
            if None not in codes:
                return None
            time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]], hosts: Sequence[Host]) -> None:
    """End what runs on ``hosts``, politely at first; the box ends the rest."""
    if any(one.poll() is None for one in ranks):
        for host in hosts:
            subprocess.run([*host.prefix, "sh", "-c", "kill -TERM -1"], capture_output=True, check=False)
    deadline = time.monotonic() + _POLITE_S
    while any(one.poll() is None for one in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _kill(ranks)


def _environment(hosts: Sequence[Host], rank: int) -> dict[str, str]:
    """The environment of a rank, as torchrun sets it with one rank a host.

    It also has torchrun's own settings (``PET_…``), for a torchrun that the rank starts. Threads and
    buffering are set only if the user has not set them.
    """
    count, address = str(len(hosts)), hosts[0].address
    return {
        **{name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")},
        **_seat(rank, len(hosts), address, _BOX_PORT, local=False),
        **{"GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": count},
        **{"PET_NNODES": count, "PET_NODE_RANK": str(rank), "PET_LOCAL_ADDR": hosts[rank].address},
        **{"PET_MASTER_ADDR": address, "PET_MASTER_PORT": str(_BOX_PORT)},
        "GLOO_SOCKET_IFNAME": hosts[rank].interface,
    }


def _pass_on(rank: int, stream: IO[bytes]) -> None:
    """What a rank prints to stderr, line by line; of a progress bar's line only its last state."""
    mark = f"[rank{rank}]:"
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
            # torch marks the lines of a traceback so itself.
            sys.stderr.write(f"{text}\n" if text.startswith(mark) else f"{mark} {text}\n")
            sys.stderr.flush()
