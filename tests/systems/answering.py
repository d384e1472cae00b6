"""What every worker does around its cases: it meets its peers, answers one case after another, and ends."""

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist


def meet() -> tuple[int, int]:
    """This rank and how many there are, in a group over gloo; its arguments are CASES ANSWERS STORE."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.FileStore(sys.argv[3], world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return rank, world_size


def answer_each(answer: Callable[[Any], Any]) -> NoReturn:
    """Write what each case comes to, in the order given, and end the process."""
    gc.freeze()
    with open(f"{sys.argv[2]}.{dist.get_rank()}", "w") as file:
        for case in json.loads(Path(sys.argv[1]).read_text()):
            print(json.dumps(answer(case)), file=file, flush=True)
            gc.collect()  # a DDP is freed by cycle collection only, and its Reducer keeps its buckets
            dist.barrier()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit
