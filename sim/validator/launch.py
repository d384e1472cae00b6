"""Starts the worker on local ranks through torch.distributed's elastic launch, and watches over it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sim.errors import InputError, ReplayError
from sim.validator.box import Host, box
from sim.validator.signals import exit_on_signals

_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: over loopback, or in a box of ``box`` hosts with a wire of ``rate_bits`` bit/s."""

    ranks: int = 2
    box: int | None = None
    rate_bits: int | None = None

    def __post_init__(self) -> None:
        if (self.box is None) != (self.rate_bits is None):
            raise InputError("box: --box and --rate go together; give both, such as --box 2 --rate 4gbit")
        if self.world_size < 1:
            raise InputError(f"ranks: {self.ranks} is not legal; give at least 1")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.box or self.ranks

    def describe(self) -> str:
        """The place in words, for names and provenance."""
        if self.box is None or self.rate_bits is None:
            return f"{self.ranks} ranks over loopback"
        return f"{self.box} hosts in a box, {self.rate_bits / 1e9:g} Gbit/s"


@contextmanager
def _hosts(place: Place) -> Iterator[list[Host]]:
    if place.box is None or place.rate_bits is None:
        yield [Host(prefix=(), address="127.0.0.1", interface="lo")]
        return
    with box(place.box, place.rate_bits) as hosts:
        yield hosts


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    host: Host, number: int, hosts: int, per_host: int, master: str, port: int, job: Path, log: TextIO
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": host.interface,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_ERROR_FILE": f"{log.name}.error",
        "TMPDIR": str(job.parent),
    }
    command = [
        *host.prefix,
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(hosts), "--node-rank", str(number), "--nproc-per-node", str(per_host)),
        *("--master-addr", master, "--master-port", str(port), "--local-addr", host.address),
        *("--max-restarts", "0", "--monitor-interval", "1"),
        *("-m", "sim.validator.worker", str(job)),
    ]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
    )


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, sent)
                except ProcessLookupError:
                    continue
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            time.sleep(_POLL_S)


def _why(folder: Path) -> str:
    """The reason a rank gave before it died, else the last line that any rank printed."""
    first = sorted(folder.glob("failed-rank-*.txt"), key=lambda path: path.stat().st_mtime_ns)
    for path in first:
        return f"rank {path.stem.rsplit('-', 1)[1]}: {path.read_text().strip()}"
    lines = [
        line
        for path in sorted(folder.glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1].strip() if lines else "no rank said why"


def run_ranks(
    place: Place, job: dict[str, Any], on_event: Callable[[dict[str, Any]], None], timeout_s: float
) -> None:
    """Run a worker job on the ranks of ``place``; events that rank 0 writes are handed to ``on_event``.

    Raises:
        ReplayError: a rank failed (named, with its reason) or nothing came for ``timeout_s`` seconds.
        MachineError: the box cannot be made here.
    """
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bucketsim-")))
        events = folder / "events.jsonl"
        job_file = folder / "job.json"
        job_file.write_text(json.dumps({**job, "events": str(events), "folder": str(folder)}))
        hosts = stack.enter_context(_hosts(place))
        port = _free_port() if place.box is None else 29500
        per_host = place.ranks if place.box is None else 1
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_stop, processes)
        for number, host in enumerate(hosts):
            log = stack.enter_context(open(folder / f"host-{number}.log", "w"))
            processes.append(
                _start(host, number, len(hosts), per_host, hosts[0].address, port, job_file, log)
            )
        _watch(processes, events, folder, on_event, timeout_s)


def _watch(
    processes: list[subprocess.Popen[bytes]],
    events: Path,
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    timeout_s: float,
) -> None:
    position, heard = 0, time.monotonic()
    finished = False
    while True:
        running = [process for process in processes if process.poll() is None]
        if events.exists():
            with open(events) as stream:
                stream.seek(position)
                for line in stream:
                    if not line.endswith("\n"):
                        break
                    position += len(line.encode())
                    heard = time.monotonic()
                    event = json.loads(line)
                    finished = finished or event.get("event") == "finished"
                    on_event(event)
        failed = [process.returncode for process in processes if process.returncode]
        if failed:
            raise ReplayError(f"replay: a rank failed: {_why(folder)}")
        if not running:
            if not finished:
                raise ReplayError(f"replay: the ranks ended without a result: {_why(folder)}")
            return
        if time.monotonic() - heard > timeout_s:
            raise ReplayError(f"replay: nothing heard from the ranks for {timeout_s:.0f} s: {_why(folder)}")
        time.sleep(_POLL_S)
