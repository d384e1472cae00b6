"""What runs on each rank: ``python -m sim.validator.worker JOB.json``.

Started by ``bucketsim validate`` and ``calibrate`` on this machine, by torchrun or srun on many. There rank 0
writes events to events.jsonl beside the job, and a rank that fails its reason to failed-rank-*.json.
"""

import gc
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from sim.errors import InputError, MachineError
from sim.machine import cpu_model
from sim.validator.jobs import read_job
from sim.validator.launch import EVENTS, EVENTS_AT, FAILED
from sim.validator.ranks.model import model_lanes
from sim.validator.ranks.paced import paced_lanes
from sim.validator.ranks.probes import calibrate
from sim.validator.ranks.rank import Fault, Rank, Seat, Watch, find_seat, store_of, write_event
from sim.validator.ranks.step import gather, run_rounds, sharpen_sleep

_TIMEOUT_S = 60.0


class _Terminated(Exception):
    """SIGTERM, which launchers send to the ranks that are left when one has failed."""


class _Life:
    """One rank from joining the others to its end, and what it says where that end is a failure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started_here = os.environ.get(EVENTS_AT)  # by a process that watches
        self._name = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
        self._ending = threading.Lock()
        self._watch: Watch | None = None

    def run(self, path: Path) -> None:
        """Join the others, do the job, part from them."""
        job, world_size = read_job(path)
        seat = find_seat(os.environ)
        if seat.rank == 0 and not self._started_here:
            for left in (*self._folder.glob(EVENTS), *self._folder.glob(FAILED.format("*"))):
                left.unlink()  # of an earlier run of the same job
        if seat.world_size != world_size:
            raise InputError(
                f"world size: {seat.world_size} ranks were started, but the job is for {world_size}"
            )
        store = store_of(seat, keeps=seat.keeps_store)
        events = Path(self._started_here or self._folder / EVENTS)
        rank = Rank(job, seat.rank, seat.world_size, events, store)
        self._watch = Watch(rank, seat, self.end, is_watched=self._started_here is not None)
        self._watch.start()
        rank.must_agree("job", asdict(job))
        _take_device(job, seat)
        dist.init_process_group(
            job.carrier.groups,
            store=PrefixStore("ranks", store),
            rank=seat.rank,
            world_size=seat.world_size,
            timeout=timedelta(seconds=job.quiet_s or _TIMEOUT_S),
        )
        rank.tell("started", **_about(rank, seat))
        sharpen_sleep()
        gc.disable()
        if job.task == "calibrate":
            calibrate(rank)
        else:
            run_rounds(rank, (paced_lanes if job.mode == "paced" else model_lanes)(rank))
        rank.tell("finished")
        # gloo's threads must not hold Python callbacks when the interpreter ends: drop every reducer
        # and wait for the other ranks before the process group goes.
        gc.collect()
        self._watch.is_over = True
        dist.barrier(device_ids=None if rank.device.index is None else [rank.device.index])
        dist.destroy_process_group()

    def fail(self, error: Exception) -> NoReturn:
        """End with the culprit: this rank, or, where it only lost touch, the one that it misses."""
        traceback.print_exception(error)
        if isinstance(error, Fault):
            self.end(error)
        reason = f"{type(error).__name__}: {error}"
        if not _lost_touch(error):
            self.end(Fault([int(self._name)], reason))
        reason = f"rank {self._name} lost touch with the others: {reason}"
        self.end(Fault([], reason) if self._watch is None else self._watch.call_the_roll(reason))

    def end(self, fault: Fault) -> NoReturn:
        """Say once who failed and why, to who started this rank and to the others, and end this process."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is about to end this process
        names = " and ".join(f"rank {rank}" for rank in fault.ranks) or f"rank {self._name} is left alone"
        sys.stderr.write(f"{names}: {fault}\n")
        path = Path(self._started_here or self._folder / FAILED.format(self._name))
        try:
            write_event(path, "failed", {"ranks": fault.ranks, "reason": str(fault), "at": time.time()})
        except OSError as error:
            sys.stderr.write(f"the reason is not kept: {error}\n")
        if self._watch and not self._started_here:
            self._watch.leave()
        os._exit(1)


def _take_device(job: Any, seat: Seat) -> None:
    """Set the GPU, or the share of the cores, of a rank among its machine's.

    Launchers show a rank all GPUs of the machine, or its own only, so that their number says nothing of how
    many ranks there may be. A paced rank gets one thread: it measures DDP and the wire, and must leave the
    cores alone.
    """
    if job.carrier.device == "cpu":
        share = (os.cpu_count() or 1) // seat.local_world_size
        torch.set_num_threads(max(1, share) if getattr(job, "mode", "paced") == "model" else 1)
    elif gpus := torch.cuda.device_count():
        torch.cuda.set_device(seat.local_rank % gpus)
    else:
        raise MachineError(f"device: cuda is not here; torch {torch.__version__} sees 0 GPUs")


def _about(rank: Rank, seat: Seat) -> dict[str, Any]:
    """What is known of this run: how it was started, on which hosts, and rank 0's machine."""
    return {
        "launcher": seat.launcher,
        "hosts": gather(socket.gethostname(), rank.world_size),
        "environment": {
            "cpu": cpu_model(),
            "cpu_count": os.cpu_count(),
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            **({"gpu": torch.cuda.get_device_name()} if rank.device.type == "cuda" else {}),
        },
    }


def _lost_touch(error: Exception) -> bool:
    """Whether an error only says that another rank does not answer."""
    words = ("gloo/transport", "Connection closed by peer", "Connection reset", "Broken pipe", "NCCL")
    return isinstance(error, _Terminated | dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated("SIGTERM")


def main(job_path: str) -> NoReturn:
    """Run one job on this rank; the process ends with 0, or with 1 and a reason in the job's folder."""
    if EVENTS_AT not in os.environ:
        signal.signal(signal.SIGTERM, _on_sigterm)
    path = Path(job_path).resolve()
    life = _Life(path.parent)
    try:
        life.run(path)
    except Exception as error:  # noqa: BLE001  (whatever a rank dies of must reach whoever waits for it)
        life.fail(error)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
