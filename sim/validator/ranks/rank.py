"""A rank among its peers: which one it is, what it tells, and who is missing where it waits in vain."""

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError

from sim.errors import InputError, ReplayError

_FIRST_PORT, _PORTS = 15_000, 15_000  # below the ports that Linux hands out by itself
_BRACKETS = re.compile(r"\[([^\],-]+)[^\]]*\]")
_JOIN = timedelta(seconds=300)
_ASKED_S = 5.0  # how long the store may take to answer who wants to know what is wrong
_LOOK_S, _CALM_S, _ANSWER_S, _LEAVE_S, _QUIET_S = 1.0, 2.0, 6.0, 8.0, 120.0


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's place among all, and where they meet.

    ``local_rank`` and ``local_world_size`` are its place among those of its machine; where nothing tells
    them, as in a pod that is given RANK and WORLD_SIZE only, they are ``rank`` and ``world_size``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    launcher: str

    @property
    def keeps_store(self) -> bool:
        """Whether this rank itself serves the store at ``address:port``; under torchrun the agent does."""
        return self.rank == 0 and self.launcher != "torchrun"


def first_host(node_list: str) -> str:
    """The first host of a SLURM node list: ``gpu[03-05,9],login`` is ``gpu03``."""
    first = re.split(r",(?![^\[]*\])", node_list)[0]
    host = _BRACKETS.sub(r"\1", first).strip()
    if not host or "[" in host or "]" in host:
        raise InputError(f"SLURM node list: {node_list!r} is not legal; give one such as node[01-03,7]")
    return host


def find_seat(environment: Mapping[str, str]) -> Seat:
    """This process's seat: from torchrun's variables where RANK is set, else from SLURM's.

    In a SLURM job MASTER_ADDR and MASTER_PORT win where set; else ranks meet at the step's first host, where
    rank 0 runs in every distribution of srun but ``arbitrary``, at a port from the job's id.

    Raises:
        InputError: neither is there, or a variable is missing, or not a number, or no rank of its world.
    """

    def word(*names: str) -> str:
        found = next((environment[name] for name in names if environment.get(name)), None)
        if found is None:
            raise InputError(f"{names[-1]}: not set; start the worker with torchrun or srun")
        return found

    def number(name: str, default: int | None = None) -> int:
        if default is not None and name not in environment:
            return default
        if not word(name).isdecimal():
            raise InputError(f"{name}: {word(name)!r} is not legal; give a whole number >= 0")
        return int(word(name))

    if "RANK" in environment:
        rank, world_size = number("RANK"), number("WORLD_SIZE")
        local = number("LOCAL_RANK", rank), number("LOCAL_WORLD_SIZE", world_size)
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        launcher = "torchrun" if agent else "environment"
        seat = Seat(rank, world_size, *local, word("MASTER_ADDR"), number("MASTER_PORT"), launcher)
    elif "SLURM_PROCID" in environment:
        rank, world_size = number("SLURM_PROCID"), number("SLURM_NTASKS")
        a_node = -(-world_size // number("SLURM_NNODES", 1))
        local = number("SLURM_LOCALID"), number("SLURM_NTASKS_PER_NODE", a_node)
        nodes = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"
        address = environment.get("MASTER_ADDR") or first_host(word(*nodes))
        has_port = "MASTER_PORT" in environment
        port = number("MASTER_PORT") if has_port else _FIRST_PORT + number("SLURM_JOB_ID") % _PORTS
        seat = Seat(rank, world_size, *local, address, port, "slurm")
    else:
        raise InputError(
            "RANK: not set, and SLURM_PROCID neither; start the worker with torchrun or srun, or set RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    if rank >= world_size:
        raise InputError(f"rank: {rank} is not legal in a world of {world_size}; count from 0")
    return seat


def store_of(seat: Seat, *, keeps: bool = False) -> TCPStore:
    """A connection to the ranks' store, served by this rank where it ``keeps`` it.

    Waits for the store, not for all ranks, so that those that are there can say who is missing.
    """
    return TCPStore(seat.address, seat.port, seat.world_size, keeps, _JOIN, wait_for_workers=False)


class Fault(ReplayError):
    """Why the ranks end; ``ranks`` are those at fault, none where nobody can tell."""

    def __init__(self, ranks: Sequence[int], reason: str) -> None:
        super().__init__(reason)
        self.ranks = list(ranks)


class Rank:
    """This rank's place in the world, its job, and how it tells what happened.

    Args:
        job: what it is to do, one of ``sim.validator.jobs.Job``.
        rank: this one.
        world_size: number of ranks.
        events: the file that rank 0's events are appended to.
        store: what ranks that were given different jobs find that out through; None: there is no other rank.
    """

    def __init__(
        self,
        job: Any,
        rank: int = 0,
        world_size: int = 1,
        events: Path = Path(os.devnull),
        store: Store | None = None,
    ) -> None:
        self.job, self.rank, self.world_size = job, rank, world_size
        self._events, self._store = events, store
        self.moved_s = time.monotonic()

    @cached_property
    def device(self) -> torch.device:
        """Where the job's tensors lie here, as its main thread has set it: other threads begin with GPU 0."""
        is_gpu = self.job.carrier.device == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")

    def tell(self, event: str, **content: Any) -> None:
        """Append one event to the job's event file (rank 0 only); every rank counts it as progress."""
        self.moved_s = time.monotonic()
        if self.rank == 0:
            write_event(self._events, event, content)

    @property
    def patience_s(self) -> float:
        """How long the ranks may tell nothing, where no collective ends by torch's own timeout before."""
        return float(self.job.quiet_s or _QUIET_S)

    def must_agree(self, what: str, content: Any) -> None:
        """Raise ``Fault`` on every rank, naming the same, unless all call this with the same JSON.

        Each ``what`` may be used once.
        """
        if self._store is None:
            return
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self._store.set(f"{what}/{self.rank}", digest)
        digests = [self._store.get(f"{what}/{k}") for k in range(self.world_size)]
        if unlike := [k for k, one in enumerate(digests) if one != digests[0]]:
            names = ", ".join(map(str, unlike))
            raise Fault(unlike, f"another {what} than rank 0's on rank{'s' * (len(unlike) > 1)} {names}")


def write_event(path: Path, event: str, content: Mapping[str, Any]) -> None:
    """Append an event to a file, as a line of JSON. Raises ``OSError``, with the path."""
    try:
        with open(path, "a") as stream:
            stream.write(json.dumps({"event": event, **content}) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class Watch(threading.Thread):
    """Notices that the ranks stand still, and calls the roll: who does not answer is at fault.

    A rank answers from this thread, with the line of Python that its main thread is at, so one that computes,
    or waits for others, is there; one that is stopped or dead is not. While steps go by nothing is sent.

    Args:
        rank: this one; made on the main thread.
        seat: its seat.
        end: called with what was found out; must end the process.
        is_watched: whether who started the ranks sees how each ends.
    """

    def __init__(self, rank: Rank, seat: Seat, end: Any, is_watched: bool) -> None:
        super().__init__(name="watch", daemon=True)
        self._rank, self._seat, self._end, self._is_watched = rank, seat, end, is_watched
        self._store = store_of(seat)
        self._asking = ThreadPoolExecutor(2)  # of a server that is stopped some questions have no timeout
        self._main, self._parent = threading.get_ident(), os.getppid()
        self._calling = threading.Lock()
        self.is_over = False

    def run(self) -> None:
        """Look once a second; answer who calls; call where nothing has been told for too long."""
        try:
            while not self.is_over:
                self._look(time.monotonic() - self._rank.moved_s, self._rank.patience_s)
                time.sleep(_LOOK_S)
        except Exception as error:  # noqa: BLE001  (a rank that is not watched must not go on)
            self._end(Fault([self._rank.rank], f"{type(error).__name__}: {error}"))

    def _look(self, still_s: float, patience_s: float) -> None:
        if os.getppid() != self._parent:
            os._exit(1)  # whoever started this rank was killed, and nobody waits for it
        if still_s > patience_s:
            self._end(self.call_the_roll(f"nothing heard from the ranks for {patience_s:.0f} s"))
        elif still_s > _CALM_S:
            try:
                if self._ask(self._store.check, ["called"]):
                    self._answer()
            except TimeoutError:
                return  # whose server is paused for a moment
            except DistError as error:
                if not self.is_over:
                    self._end(self._lost(error))

    def call_the_roll(self, reason: str) -> Fault:
        """Who does not answer within some seconds, if anybody."""
        with self._calling:
            places: dict[int, str] = {}
            missing = list(range(self._rank.world_size))
            try:
                self._ask(self._store.set, "called", "")
                self._answer()
                deadline = time.monotonic() + _ANSWER_S
                while missing and time.monotonic() < deadline:
                    time.sleep(_LOOK_S / 5)
                    for rank in [one for one in missing if self._ask(self._store.check, [f"at/{one}"])]:
                        places[rank] = self._ask(self._store.get, f"at/{rank}").decode()
                        missing.remove(rank)
            except (DistError, TimeoutError) as error:
                return self._lost(error, f"no sign of life; {reason}; ")
            said = "; ".join(f"rank {rank} {place}" for rank, place in sorted(places.items()))
            return Fault(missing, f"{'no sign of life; ' if missing else ''}{reason}: {said}")

    def leave(self) -> None:
        """Say that this rank ends; the one that keeps the store stays while others may ask who is here."""
        with suppress(DistError, TimeoutError):
            self._ask(self._store.set, f"left/{self._rank.rank}", "")
            left = [f"left/{rank}" for rank in range(self._seat.world_size)]
            until = time.monotonic() + _LEAVE_S * self._seat.keeps_store
            while time.monotonic() < until and not self._ask(self._store.check, left):
                time.sleep(_LOOK_S / 5)  # not the store's own wait, in which this rank could not answer

    def _answer(self) -> None:
        frame = sys._current_frames()[self._main]
        file = Path(frame.f_code.co_filename).name
        where = f"in {frame.f_code.co_name} ({file}:{frame.f_lineno})"
        self._ask(self._store.set, f"at/{self._rank.rank}", where)

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any:
        """The store's answer. Raises ``DistError`` where it is gone, ``TimeoutError`` where it is stopped."""
        return self._asking.submit(question, *about).result(_ASKED_S)

    def _lost(self, error: Exception, reason: str = "") -> Fault:
        """The store does not answer: the fault of the rank that serves it.

        Of none where a launcher serves it, or where that rank has ended, perhaps with a reason of its own,
        and is watched.
        """
        is_told = self._seat.launcher == "torchrun" or (isinstance(error, DistError) and self._is_watched)
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Fault([] if is_told else [0], f"{reason}the ranks' store is gone: {first_line}")
