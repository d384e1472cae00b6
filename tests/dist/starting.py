"""Starts ranks as users do, for tests that then hurt them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.formats.record_files import start_record
from sim.nouns.workload import Buffer, Workload
from sim.validator import launch
from sim.validator.jobs import Candidate, ReplayJob
from sim.validator.launch import Host
from sim.validator.replay import prepare
from tests.effort import PATIENCE_S
from tests.handmade import wired
from tests.ranks import free_port, start

MS = 1_000_000
FLAT = wired({1 << 20: 2 * MS, 16 << 20: 20 * MS}, name="two ranks", comm_channels=2)


def shrunk(workload: Workload, unused: int = 0, pace: int = 3) -> Workload:
    """The same, ``pace`` times as quick and a third of the size, ``unused`` first parameters out of use."""
    return replace(
        workload,
        gradients=tuple(
            replace(
                gradient,
                shape=(256, 256 + gradient.index),
                num_bytes=256 * (256 + gradient.index) * 4,
                ready_ns=None if gradient.index < unused else (gradient.ready_ns or 0) // pace,
            )
            for gradient in workload.gradients
        ),
        forward_ns=3 * MS,
        backward_ns=workload.backward_ns // pace,
        buffers=(Buffer(dtype="float32", num_bytes=4096),),
    )


# ---- processes


def processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def holding(word: str) -> list[int]:
    """Processes with ``word`` in their command line, this one excepted; zombies have none."""
    found = []
    for entry in processes():
        with suppress(OSError):
            if int(entry.name) != os.getpid() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def ranks_of(word: str) -> dict[int, int]:
    """Processes by rank among those with ``word`` in their command line."""
    found = {}
    for pid in holding(word):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"):
                if line.startswith("RANK="):
                    found[int(line.removeprefix("RANK="))] = pid
    return found


def kill(pids: Sequence[int]) -> None:
    """SIGKILL to each that still runs; it reaches stopped processes too."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def networks(pid: int | None = None) -> set[str]:
    """The network namespaces of the boxes that process ``pid`` has made; None: those of every process."""
    children = " ".join(one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/children")).split()
    found = set()
    for place in processes() if pid is None else (Path("/proc", child) for child in children):
        with suppress(OSError):
            if pid is not None or (place / "cmdline").read_bytes().startswith(b"unshare"):
                found.add(os.readlink(place / "ns" / "net"))
    return found - {os.readlink("/proc/self/ns/net")}  # which its other children are in


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Poll until ``is_so``."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come in {PATIENCE_S:.0f} s"
        time.sleep(0.1)


# ---- jobs


class Validation:
    """``bucketsim validate`` as a process, with 2 ranks that have measured every lane at least once, and more
    rounds than any test waits for."""

    def __init__(self, workload: Workload, folder: Path, *options: str, jobs: Path | None = None) -> None:
        self.record, self.jobs, self._said = folder / "record", jobs or folder / "jobs", folder / "said.txt"
        self.jobs.mkdir(exist_ok=True)
        (folder / "w.json").write_text(sim.to_text(workload))
        (folder / "h.json").write_text(sim.to_text(FLAT))
        words = ["validate", folder / "w.json", "--hardware", folder / "h.json", "-o", self.record]
        words += ["--rounds", "5000", "--caps", "1", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sim", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=open(self._said, "w"),  # noqa: SIM115
            env=os.environ | {"TMPDIR": str(self.jobs)},
        )

    def __enter__(self) -> "Validation":
        try:
            wait_for(lambda: self.process.poll() is not None or '"round": 1,' in self.told(), "a round")
            assert self.process.poll() is None, self._said.read_text()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        kill(self.leftovers())

    def told(self) -> str:
        """The events so far."""
        with suppress(OSError):
            for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
                with suppress(OSError):
                    if "memfd:events" in os.readlink(descriptor):
                        return descriptor.read_text()
        return ""

    def rank(self, number: int) -> int:
        """The process of a rank."""
        return ranks_of(str(self.jobs))[number]

    def ends(self) -> tuple[int, str]:
        """Exit code, and what was said on stderr: long before its rounds would be over."""
        code = self.process.wait(timeout=PATIENCE_S)
        return code, self._said.read_text()

    def leftovers(self) -> list[int]:
        """Processes that still work on the job."""
        return holding(str(self.jobs))


def order(workload: Workload | None, candidates: Sequence[Candidate], **options: Any) -> ReplayJob:
    """A replay of ``candidates``."""
    return ReplayJob(workload=workload, candidates=tuple(candidates), **options)


def prepared(workload: Workload, folder: Path, rounds: int = 2) -> Path:
    """A record with a job for two ranks and one candidate."""
    directory = start_record(folder, workload, FLAT)
    default = Candidate(name="default", assignment=sim.assign(workload))
    prepare(order(workload, [default], rounds=rounds), directory, 2)
    return directory


# ---- ranks


def seat(rank: int, port: int) -> dict[str, str]:
    """What one rank of two, started by hand, has to be told."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **address}


class _Forked:
    """To who watches it a rank's process, quickly started."""

    def __init__(self, host: Host, words: Sequence[str], told: dict[str, str], *_: object) -> None:
        assert host.interface == "lo"
        fd = told["BUCKETSIM_EVENTS"].removeprefix("/dev/fd/")
        events = {"BUCKETSIM_EVENTS": f"/proc/{os.getpid()}/fd/{fd}"}
        job = Path(words[-1])
        self._rank = start("sim.validator.worker", [job], job.parent / f"said.{told['RANK']}", told | events)

    def poll(self) -> int | None:
        return self._rank.exitcode

    def end(self) -> None:
        self._rank.kill()
        self._rank.join()


def forks_ranks(patch: pytest.MonkeyPatch) -> None:
    """From now on ranks over loopback are forked from a process that has imported what they need."""
    patch.setattr(launch, "_start", _Forked)
    patch.setattr(launch, "_kill", lambda ranks: [rank.end() for rank in ranks])


def forked(module: str, words: Sequence[Sequence[object]], folders: Sequence[Path]) -> list[tuple[int, str]]:
    """Exit code and words of each of two ranks of a module, quickly started."""
    port = free_port()
    said = [folder / f"said.{rank}" for rank, folder in enumerate(folders)]
    ranks = [
        start(module, given, said[rank], {**seat(rank, port), "LOCAL_RANK": str(rank)})
        for rank, given in enumerate(words)
    ]
    for one in ranks:
        one.join(PATIENCE_S)
        one.kill()
        one.join()
    return [(one.exitcode or 0, path.read_text()) for one, path in zip(ranks, said, strict=True)]


def forked_to_their_ends(folders: Sequence[Path]) -> list[tuple[int, str]]:
    """The same of two ranks whose jobs are in these folders."""
    return forked("sim.validator.worker", [[folder / "job.json"] for folder in folders], folders)
