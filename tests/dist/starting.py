"""Starts ranks as users do, for tests that then hurt them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.formats.record_files import start_record
from sim.nouns.workload import Workload
from sim.validator.candidates.candidate import Candidate
from sim.validator.gathering import prepare
from sim.validator.hosts import launch
from sim.validator.hosts.boxed_hosts import Host
from sim.validator.hosts.launch import _free_port
from sim.validator.ranks.process.processes import holding, kill
from tests.effort import PATIENCE_S
from tests.handmade import wired
from tests.ranks import start

MS = 1_000_000
FLAT = wired({1 << 20: 2 * MS, 16 << 20: 20 * MS}, name="two ranks", comm_channels=2)


def quickened(workload: Workload) -> Workload:
    """The same at a tenth of the pace and a fourth of the size."""
    return replace(
        workload,
        gradients=tuple(
            replace(one, shape=(256, 256), num_bytes=1 << 18, ready_ns=(one.ready_ns or 0) // 10)
            for one in workload.gradients
        ),
        forward_ns=workload.forward_ns // 10,
        backward_ns=workload.backward_ns // 10,
    )


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Poll until ``is_so``."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come in {PATIENCE_S:.0f} s"
        time.sleep(0.1)


class Validation:
    """``bucketsim validate`` as a process, with 2 ranks and more rounds than any test waits for."""

    def __init__(self, workload: Workload, folder: Path, *options: str, jobs: Path | None = None) -> None:
        self.record = folder / "record"
        self.jobs = jobs or folder / "jobs"
        self.jobs.mkdir(exist_ok=True)
        (folder / "w.json").write_text(sim.to_text(workload))
        (folder / "h.json").write_text(sim.to_text(FLAT))
        self._said = folder / "said.txt"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sim", "validate", str(folder / "w.json")),
                *("--hardware", str(folder / "h.json"), "-o", str(self.record)),
                *("--rounds", "5000", "--caps", "1", *options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=open(self._said, "w"),  # noqa: SIM115
            env=os.environ | {"TMPDIR": str(self.jobs)},
        )

    def __enter__(self) -> "Validation":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        kill(self.leftovers())

    def has_measured(self) -> bool:
        """Whether every lane has been measured at least once."""
        assert self.process.poll() is None, self._said.read_text()
        events = [path.read_text() for path in self.jobs.glob("bucketsim-*/events.jsonl")]
        return any('"round": 1,' in text for text in events)

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


def ranks_of(word: str) -> dict[int, int]:
    """Processes by rank among those with ``word`` in their command line."""
    found = {}
    for pid in holding(word):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        for line in environment.split("\0"):
            if line.startswith("RANK="):
                found[int(line.removeprefix("RANK="))] = pid
    return found


def prepared(workload: Workload, folder: Path, rounds: int = 2) -> Path:
    """A record with a job for two ranks and one candidate."""
    directory = start_record(folder, workload, FLAT)
    candidates = [Candidate(name="default", assignment=sim.assign(workload))]
    prepare(workload, candidates, directory, 2, rounds=rounds)
    return directory


def seat(rank: int, port: int) -> dict[str, str]:
    """What one rank of two, started by hand, has to be told."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def worker(directory: Path, rank: int, port: int) -> subprocess.Popen[str]:
    """One rank of two, started by hand."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim.validator.worker", str(directory / "job.json")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | seat(rank, port),
    )


class ForkedLauncher:
    """To who watches it a launcher's process; its two ranks are quickly started."""

    def __init__(self, job: Path, port: int) -> None:
        watched = {"OMP_NUM_THREADS": "1", "TMPDIR": str(job.parent), "BUCKETSIM_PARENT": str(os.getpid())}
        self._ranks = [
            start("sim.validator.worker", [job], job.parent / f"said.{rank}", watched | seat(rank, port))
            for rank in range(2)
        ]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        codes = [rank.exitcode for rank in self._ranks]
        self.returncode = None if None in codes else next(filter(None, codes), 0)
        return self.returncode

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def wait(self, timeout: float) -> None:
        for rank in self._ranks:
            rank.join(timeout)


def forks_ranks(patch: pytest.MonkeyPatch) -> None:
    """From now on two ranks over loopback are forked, where torchrun would start Python thrice."""

    def fork(host: Host, number: int, hosts: object, ranks: int, port: int, job: Path, log: object) -> Any:
        assert (host.interface, number, ranks) == ("lo", 0, 2)
        return ForkedLauncher(job, port)

    patch.setattr(launch, "_start", fork)


def forked_to_their_ends(folders: Sequence[Path]) -> list[tuple[int, str]]:
    """Exit code and words of each of two ranks, whose jobs are in these folders, quickly started."""
    port = _free_port()
    said = [folder / f"said.{rank}" for rank, folder in enumerate(folders)]
    ranks = [
        start("sim.validator.worker", [folder / "job.json"], said[rank], seat(rank, port))
        for rank, folder in enumerate(folders)
    ]
    for one in ranks:
        one.join(PATIENCE_S)
        one.kill()
        one.join()
    return [(one.exitcode or 0, path.read_text()) for one, path in zip(ranks, said, strict=True)]
