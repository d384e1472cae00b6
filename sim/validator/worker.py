"""What runs on each rank: ``python -m sim.validator.worker JOB.json``.

Started by ``bucketsim validate`` and ``calibrate`` on this machine, by torchrun or srun on many. Events go
to events.jsonl beside the job, written by rank 0; a failure to failed-rank-*.txt, named for its culprit.
"""

import errno
import gc
import json
import os
import platform
import shutil
import signal
import socket
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from sim.errors import InputError
from sim.machine import cpu_model, started_at
from sim.validator.ranks.pacing.cuda_pacing import check_apart, choose_gpu
from sim.validator.ranks.pacing.stepping import gather
from sim.validator.ranks.probes.local_probes import probe_machine
from sim.validator.ranks.probes.machine_probes import calibrate
from sim.validator.ranks.process import notices
from sim.validator.ranks.process.beats import Fault, Progress, start_pulse
from sim.validator.ranks.process.peers import Parent, Peers
from sim.validator.ranks.process.processes import die_with_parent
from sim.validator.ranks.process.seats import Seat, find_seat
from sim.validator.ranks.process.unanimity import Disagreement, check_unanimous, tell_all
from sim.validator.ranks.replaying import replay

WATCHED = "BUCKETSIM_PARENT"  # set, to its process id, by a parent that watches the job's folder
_TASKS = {"calibrate": calibrate, "probe": probe_machine, "replay": replay}
_QUIET_S = 120.0
_JOIN_S = 300
_FULL_BYTES = 1 << 16


class _Terminated(Exception):
    """SIGTERM, which launchers send to the ranks that are left when one has failed."""


class Rank:
    """This rank's place in the world, its job, and how it tells what happened."""

    def __init__(self, job: dict[str, Any], seat: Seat, folder: Path, store: Store) -> None:
        self.job = job
        self.rank = seat.rank
        self.world_size = seat.world_size
        self.progress = Progress()
        self._events = folder / notices.EVENTS
        self._store = store

    def tell(self, event: str, **content: Any) -> None:
        """Append one event to the job's event file (rank 0 only); every rank counts it as progress."""
        # In the first round each lane of a model compiles graphs of its own, which may take minutes.
        is_first = self.job.get("mode") == "model" and content.get("round") == -self.job["warmup"]
        self.progress.count(event, compiles=is_first)
        if self.rank == 0:
            with open(self._events, "a") as stream:
                stream.write(json.dumps({"event": event, **content}) + "\n")

    def must_agree(self, what: str, content: Any) -> None:
        """Raise ``Disagreement`` on every rank unless all call this with the same JSON ``content``."""
        check_unanimous(self._store, self.rank, self.world_size, what, content)


class _Life:
    """One rank from joining the others to its end, and what it says where that end is a failure."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._ending = threading.Lock()
        self._companions: Parent | Peers | None = None
        self._rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"

    def run(self) -> None:
        """Join the others, do the job, part from them."""
        seat = find_seat(os.environ)
        watched = WATCHED in os.environ
        if seat.rank == 0 and not watched:
            notices.clear(self._folder)
        if seat.world_size != self._job.get("world_size", seat.world_size):
            raise InputError(
                f"world size: {seat.world_size} ranks were started, but the job is for "
                f"{self._job['world_size']}"
            )
        store = _connect(seat, keeps=seat.keeps_store)
        rank = Rank(self._job, seat, self._folder, store)
        self._companions = (
            Parent(self._folder, seat.rank)
            if watched
            else Peers(
                _connect(seat, keeps=False),
                seat.rank,
                seat.world_size,
                self._job.get("quiet_s", _QUIET_S),
                0 if seat.launcher != "torchrun" else None,
                self.end,
            )
        )
        start_pulse(rank.progress, self._companions.post, self.fail)
        rank.must_agree("job", self._job)
        # A parent that watches started every rank on this machine, whatever torchrun calls local.
        place, neighbours = (
            (seat.rank, seat.world_size) if watched else (seat.local_rank, seat.local_world_size)
        )
        device = _choose_device(self._job, place, neighbours)
        if device is not None and "nccl" in self._job["backend"]:
            properties = torch.cuda.get_device_properties(device)
            gpu = str(getattr(properties, "uuid", f"of rank {seat.rank}"))  # no name: NCCL looks for itself
            check_apart(tell_all(store, seat.rank, seat.world_size, "gpu", gpu))
        dist.init_process_group(
            self._job["backend"],
            store=PrefixStore("ranks", store),
            rank=seat.rank,
            world_size=seat.world_size,
            timeout=timedelta(seconds=self._job.get("timeout_s", 60)),
        )
        rank.tell("started", **_about(rank, seat))
        _TASKS[self._job["task"]](rank)
        rank.tell("finished")
        # gloo's threads must not hold Python callbacks when the interpreter ends: drop every reducer
        # and wait for the other ranks before the process group goes.
        gc.collect()
        self._companions.stop()
        dist.barrier(device_ids=[device] if device is not None and "nccl" in self._job["backend"] else None)
        dist.destroy_process_group()

    def fail(self, error: Exception) -> NoReturn:
        """End this process with the culprit: this rank, or, where it only lost touch, the one it misses."""
        traceback.print_exception(error)
        reason = _in_words(error, self._folder)
        if isinstance(error, Disagreement):
            self.end(Fault(ranks=error.ranks, reason=str(error)))
        if not _lost_touch(error):
            self.end(Fault(ranks=(int(self._rank),), reason=reason))
        fault = None if self._companions is None else self._companions.who_is_missing()
        self.end(fault or Fault(ranks=(), reason=reason))

    def end(self, fault: Fault) -> NoReturn:
        """Say once who failed and why, here and to the other ranks, and end this process."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is about to end this process
        names = " and ".join(f"rank {rank}" for rank in fault.ranks) or f"rank {self._rank} is left alone"
        _print(f"{names}: {fault.reason}")
        try:
            for rank in fault.ranks:
                notices.post_failure(self._folder, rank, fault.reason)
            if not fault.ranks:
                notices.post_alone(self._folder, int(self._rank), fault.reason)
        except OSError as error:
            # Not as a rank's reason is printed: it must not be taken for why the ranks ended.
            _print(f"the reason is not kept in {self._folder}: {error}")
        if self._companions is not None:
            self._companions.tell(fault)
        os._exit(1)


def _connect(seat: Seat, *, keeps: bool) -> TCPStore:
    """A connection to the ranks' store, served by this rank where it ``keeps`` it.

    Waits for the store, not for all ranks, so that those that are there can say who is missing.
    """
    return TCPStore(
        seat.address,
        seat.port,
        seat.world_size,
        keeps,
        timedelta(seconds=_JOIN_S),
        wait_for_workers=False,
    )


def _choose_device(job: dict[str, Any], place: int, neighbours: int) -> int | None:
    """Set the GPU, or the share of the cores, of the rank at ``place`` among its machine's ``neighbours``.

    Returns the GPU's index. A paced rank gets one thread: it measures DDP and the wire, and must leave the
    cores alone.
    """
    if job.get("device", "cpu") == "cuda":
        device = choose_gpu(place)
        torch.cuda.set_device(device)
        return device
    share = (os.cpu_count() or 1) // neighbours
    torch.set_num_threads(max(1, share) if job.get("mode") == "model" else 1)
    return None


def _about(rank: Rank, seat: Seat) -> dict[str, Any]:
    """What is known of this run: how it was started, on which hosts, and rank 0's machine."""
    hosts = gather(socket.gethostname(), rank.world_size)
    return {
        "launcher": seat.launcher,
        "hosts": hosts,
        "environment": {
            "cpu": cpu_model(),
            "cpu_count": os.cpu_count(),
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            **({"gpu": torch.cuda.get_device_name()} if rank.job.get("device") == "cuda" else {}),
        },
    }


def _in_words(error: Exception, folder: Path) -> str:
    """An error as the reason of a failure; with the folder if a write to it found no room."""
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename:
        return said
    try:
        is_ours = shutil.disk_usage(folder).free < _FULL_BYTES
    except OSError:
        is_ours = False  # the folder is gone
    return f"{said}, writing to {folder}" if is_ours else said


def _lost_touch(error: Exception) -> bool:
    """Whether an error only says that another rank does not answer."""
    words = ("gloo/transport", "Connection closed by peer", "Connection reset", "Broken pipe", "NCCL")
    return isinstance(error, _Terminated | dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated("SIGTERM")


def main(job_path: str) -> NoReturn:
    """Run one job on this rank; the process ends with 0, or with 1 and a reason in the job's folder."""
    if WATCHED in os.environ:
        die_with_parent()
        if started_at(int(os.environ[WATCHED])) is None:
            os._exit(1)  # it was killed before this rank could ask to go with it
    else:
        signal.signal(signal.SIGTERM, _on_sigterm)
    path = Path(job_path).resolve()
    life = _Life(json.loads(path.read_text()), path.parent)
    try:
        life.run()
    except Exception as error:  # noqa: BLE001  (whatever a rank dies of must reach whoever waits for it)
        life.fail(error)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
