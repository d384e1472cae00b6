"""What runs on each rank: ``python -m sim.validator.worker JOB.json`` under torch.distributed's launch."""

import gc
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.probes import calibrate
from sim.validator.replaying import replay

_TASKS = {"calibrate": calibrate, "replay": replay}


class Rank:
    """This rank's place in the world, its job, and how it tells the parent what happened."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def tell(self, event: str, **content: Any) -> None:
        """Append one event to the job's event file (rank 0 only)."""
        if self.rank == 0:
            with open(self.job["events"], "a") as stream:
                stream.write(json.dumps({"event": event, **content}) + "\n")


def main(job_path: str) -> None:
    """Run one job on this rank; a failure is written where the parent looks for it."""
    job = json.loads(Path(job_path).read_text())
    try:
        torch.set_num_threads(1)
        dist.init_process_group(job["backend"], timeout=timedelta(seconds=job.get("timeout_s", 60)))
        rank = Rank(job)
        _TASKS[job["task"]](rank)
        rank.tell("finished")
        # gloo's threads must not hold Python callbacks when the interpreter ends: drop every reducer
        # and wait for the other ranks before the process group goes.
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001  (whatever a rank dies of must reach the parent)
        rank_number = os.environ.get("RANK", "?")
        reason = f"{type(error).__name__}: {error}"
        Path(job["folder"], f"failed-rank-{rank_number}.txt").write_text(reason)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
