"""Starts the worker on local ranks through torch.distributed's elastic launch."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sim.errors import InputError
from sim.formats.files import scratch_directory, write_atomically
from sim.units import format_number
from sim.validator.hosts.boxed_hosts import Host, box
from sim.validator.hosts.signals import exit_on_signals
from sim.validator.hosts.watch import Launched, watch
from sim.validator.ranks.process.processes import die_with_parent, holding, kill

_BOX_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: over loopback, one rank a host in a box, or where another launcher put them.

    ``box`` is its number of hosts, ``rate_bits`` their links in bit/s (one for all, or one a host).
    ``spread`` says in words where another launcher put the ranks.
    """

    ranks: int = 2
    box: int | None = None
    rate_bits: int | tuple[int, ...] | None = None
    spread: str | None = None

    def __post_init__(self) -> None:
        if (self.box is None) != (self.rate_bits is None):
            raise InputError("box: --box and --rate go together; give both, such as --box 2 --rate 4gbit")
        if self.world_size < 1:
            raise InputError(f"ranks: {self.ranks} is not legal; give at least 1")
        if isinstance(self.rate_bits, tuple) and len(self.rate_bits) != self.box:
            raise InputError(
                f"rate: {len(self.rate_bits)} rates are not legal for {self.box} hosts; give one for all, or "
                f"one for each"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.box or self.ranks

    @property
    def rates_bits(self) -> tuple[int, ...]:
        """The rate of each host of the box, bit/s; empty over loopback."""
        if isinstance(self.rate_bits, tuple):
            return self.rate_bits
        return () if self.box is None or self.rate_bits is None else (self.rate_bits,) * self.box

    def describe(self) -> str:
        """The place in words, for names and provenance."""
        if not self.rates_bits:
            count = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
            return f"{count} {self.spread or 'over loopback'}"
        rates = self.rates_bits[:1] if len(set(self.rates_bits)) == 1 else self.rates_bits
        said = ", ".join(format_number(rate / 1e9, 6) for rate in rates)
        return f"{self.box} hosts in a box, {said} Gbit/s"

    def document(self) -> dict[str, Any]:
        """The ``box`` that the ranks are in, for later predictions; nothing over loopback."""
        if not self.rates_bits:
            return {}
        hosts = list(range(len(self.rates_bits)))
        return {"box": {"rates_bits": list(self.rates_bits), "uplink_bits": None, "hosts": hosts}}


@contextmanager
def _hosts(place: Place) -> Iterator[list[Host]]:
    if not place.rates_bits:
        yield [Host(address="127.0.0.1", interface="lo")]
        return
    with box(place.rates_bits) as hosts:
        yield hosts


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    place: Place,
    job: dict[str, Any],
    on_event: Callable[[dict[str, Any]], None],
    timeout_s: float,
) -> None:
    """Run a worker job on the ranks of ``place``; events that rank 0 writes are handed to ``on_event``.

    ``timeout_s`` is how long the ranks may be quiet before they make steps; steps then set the measure
    (``sim.validator.ranks.process.beats``).

    Raises:
        ReplayError: a rank failed, died, hung or disagreed; named, with its reason.
        MachineError: the box cannot be made here.
    """
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        hosts = stack.enter_context(_hosts(place))
        port = _free_port() if place.box is None else _BOX_PORT
        job = {**job, "world_size": place.world_size}
        launched, folder = stack.enter_context(started(hosts, place.world_size // len(hosts), port, job))
        watch(launched, folder, on_event, timeout_s)


_STOP_S = 10


@contextmanager
def started(
    hosts: Sequence[Host], ranks_per_host: int, port: int, job: dict[str, Any]
) -> Iterator[tuple[list[Launched], Path]]:
    """Ranks of ``job``, in the order of ``hosts``, that meet at ``port`` of the first.

    Yields their launchers, and the folder in which ranks leave what they say.

    When the context ends, whatever still runs of them is ended too, and the folder is gone.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_directory())
        job_file = folder / "job.json"
        write_atomically(job_file, json.dumps(job))
        launched: list[Launched] = []
        stack.callback(_stop, launched, job_file)
        for number, host in enumerate(hosts):
            first = number * ranks_per_host
            log = stack.enter_context(os.fdopen(os.memfd_create(f"host-{number}"), "w+b"))
            launched.append(
                Launched(
                    process=_start(host, number, hosts, ranks_per_host, port, job_file, log),
                    ranks=tuple(range(first, first + ranks_per_host)),
                    log=log,
                )
            )
        yield launched, folder


def _start(
    host: Host, number: int, hosts: Sequence[Host], ranks: int, port: int, job_file: Path, log: BinaryIO
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": host.interface,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(job_file.parent),
        "BUCKETSIM_PARENT": str(os.getpid()),
    }
    command = [
        *host.prefix,
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(hosts)), "--node-rank", str(number), "--nproc-per-node", str(ranks)),
        *("--master-addr", hosts[0].address, "--master-port", str(port), "--local-addr", host.address),
        *("--max-restarts", "0", "--monitor-interval", "1"),
        *("-m", "sim.validator.worker", str(job_file)),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _stop(launched: Sequence[Launched], job_file: Path) -> None:
    """SIGKILL whatever still runs this job, launchers first, and wait until it is gone."""
    for one in launched:
        one.process.kill()
        one.process.wait(timeout=_STOP_S)
    while ranks := holding(str(job_file)):
        kill(ranks)
