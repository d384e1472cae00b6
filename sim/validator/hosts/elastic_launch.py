"""Starts a job's ranks on hosts, through torch.distributed's elastic launch, and ends them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sim.formats.files import scratch_directory, write_atomically
from sim.validator.hosts.boxed_hosts import Host
from sim.validator.hosts.watch import Launched
from sim.validator.ranks.process.processes import die_with_parent, holding, kill

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
