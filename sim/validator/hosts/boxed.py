"""Runs any command on each host of a box, as torchrun starts a rank there, and ends all that it started."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import IO

from sim.errors import InputError
from sim.validator.hosts.boxed_hosts import Host, box, processes_in
from sim.validator.hosts.launch import Place
from sim.validator.ranks.process.processes import die_with_parent, kill

_GRACE_S = 5.0
_LOOK_S = 0.1
_PORT = "29500"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The rank that failed first, and its exit code, or minus the number of the signal that ended it."""

    rank: int
    code: int

    @property
    def exit_code(self) -> int:
        """The exit code as a shell gives it: for a signal, 128 plus its number."""
        return 128 - self.code if self.code < 0 else self.code

    def describe(self) -> str:
        """The failure in words."""
        if self.code < 0:
            return f"rank {self.rank} was killed by {signal.Signals(-self.code).name}"
        return f"rank {self.rank} ended with exit code {self.code}"


def environment(hosts: Sequence[Host], rank: int) -> dict[str, str]:
    """The environment of a rank, as torchrun sets it with one rank a host.

    It also has torchrun's own settings (``PET_…``), for a torchrun that the rank starts. Threads and
    buffering are set only if the user has not set them.
    """
    count, address = str(len(hosts)), hosts[0].address
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        **{"RANK": str(rank), "WORLD_SIZE": count, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        **{"GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": count},
        **{"ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": count, "ROLE_NAME": "default"},
        **{"MASTER_ADDR": address, "MASTER_PORT": _PORT},
        **{"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"},
        **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "False"},
        **{"PET_NNODES": count, "PET_NODE_RANK": str(rank)},
        **{"PET_MASTER_ADDR": address, "PET_MASTER_PORT": _PORT, "PET_LOCAL_ADDR": hosts[rank].address},
        "GLOO_SOCKET_IFNAME": hosts[rank].interface,
    }


def run_in_box(place: Place, command: Sequence[str]) -> Failure | None:
    """Run ``command`` once on each host of ``place``; None once all have ended well.

    Rank 0 has this process's stdout and stderr; what other ranks print goes to this process's stderr, each
    line behind ``[rank1]:``. No rank has an input. When one fails, or this process is told to end, the others
    and all that they started get SIGTERM, and SIGKILL five seconds later.

    Raises:
        InputError: no such command. MachineError: the box cannot be made here.
    """
    if shutil.which(command[0]) is None:
        raise InputError(
            f"box: {command[0]!r} is not a command here; give it as for a shell, such as python train.py"
        )
    with ExitStack() as stack:
        hosts = stack.enter_context(box(place.rates_bits))
        ranks = _Ranks([host.namespace for host in hosts if host.namespace is not None])
        stack.callback(ranks.end)
        for rank, host in enumerate(hosts):
            ranks.start(rank, [*host.prefix, *command], environment(hosts, rank))
        return ranks.wait()


class _Ranks:
    """Ranks that run: what they say is passed on, and how they end is noted."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self._namespaces = namespaces
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._failure: Failure | None = None

    def start(self, rank: int, command: Sequence[str], environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank else None,
            stderr=subprocess.STDOUT if rank else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._running[rank] = process
        self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, partial(self._ended, rank))
        if process.stdout is not None:
            said = _Said(rank, process.stdout)
            self._selector.register(process.stdout, selectors.EVENT_READ, partial(self._heard, said))

    def wait(self) -> Failure | None:
        """Wait until all have ended, or one has failed."""
        while self._running and self._failure is None:
            self._look(None)
        return self._failure

    def end(self) -> None:
        """End what runs in the namespaces, politely at first, and pass on its last words."""
        deadline = time.monotonic() + _GRACE_S
        for pid in processes_in(self._namespaces):
            _terminate(pid)
        while processes_in(self._namespaces) and time.monotonic() < deadline:
            self._look(_LOOK_S)
        for process in self._running.values():
            process.kill()  # it may not have come to its namespace yet
        while pids := processes_in(self._namespaces):
            kill(pids)
        while self._running or self._look(0):
            self._look(_LOOK_S)

    def _look(self, timeout_s: float | None) -> bool:
        """Handle what has happened, or happens within ``timeout_s``; return whether anything did."""
        happened = self._selector.select(timeout_s)
        for key, _ in happened:
            key.data(key.fileobj)
        return bool(happened)

    def _ended(self, rank: int, descriptor: int) -> None:
        code = self._running.pop(rank).wait()
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if code and self._failure is None:
            self._failure = Failure(rank=rank, code=code)

    def _heard(self, said: "_Said", stream: IO[bytes]) -> None:
        if not said.pass_on():
            self._selector.unregister(stream)
            stream.close()


class _Said:
    """Passes on what a rank prints to stderr, line by line; of a progress bar's line only the last state."""

    def __init__(self, rank: int, stream: IO[bytes]) -> None:
        self._mark = f"[rank{rank}]:"
        self._descriptor = stream.fileno()
        self._rest = b""

    def pass_on(self) -> bool:
        """Pass on what is there; False once the rank has closed its end."""
        block = os.read(self._descriptor, 1 << 16)
        *lines, rest = (self._rest + block).split(b"\n")
        self._rest = _last_state(rest)
        if not block and rest:
            lines, self._rest = [rest], b""
        for line in lines:
            text = _last_state(line).rstrip(b"\r").decode(errors="replace")
            # torch marks the lines of a traceback so itself.
            sys.stderr.write(text + "\n" if text.startswith(self._mark) else f"{self._mark} {text}\n")
        sys.stderr.flush()
        return bool(block)


def _last_state(line: bytes) -> bytes:
    """The part of ``line`` behind its last carriage return, which a terminal would show."""
    return line[line.rfind(b"\r", 0, -1) + 1 :]


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
