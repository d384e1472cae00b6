"""One of two real gloo ranks under DDP: writes its flight recorder, DDP log and execution trace.

Arguments: rank, folder. The model is that of vectors T1 of RULES.md: ten parameters, buckets of 20448 and
20704 elements under a cap of 0.05 MiB, 41152 in the first iteration.
"""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver

DIMS = (64, 128, 96, 80, 112, 32)
ITERATIONS = 6


def main() -> None:
    """Train and write."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(DIMS)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = ExecutionTraceObserver().register_callback(str(folder / f"trace_{rank}.json"))
    for iteration in range(ITERATIONS):
        if iteration == ITERATIONS - 2:
            observer.start()
        values = ddp(torch.ones(2, DIMS[0]))
        values.masked_fill(torch.zeros_like(values).bool(), float("-inf")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    observer.stop()
    observer.unregister_callback()
    dist.barrier()
    (folder / f"recorder_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    log = ddp._get_ddp_logging_data()
    (folder / f"log_{rank}.json").write_text(json.dumps(dict(log)))
    (folder / f"printed_{rank}.txt").write_text(f"starting\n[rank{rank}]: DDP_LOGGING {dict(log)}\ndone\n")
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
