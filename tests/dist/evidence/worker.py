"""Rank of ``RANK FOLDER WORLD_SIZE PORT``: the systems of the folder's job in turns, paced; what they did."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.ranks.lanes.paced_lanes import Modules
from sim.validator.ranks.pacing.paced_module import sharpen_sleep
from sim.validator.ranks.pacing.pacers import HostPacer
from sim.validator.ranks.pacing.replay_lane import Lane
from sim.validator.ranks.process.processes import keep_freed_memory
from tests.dist.evidence.paced_tree import PacedTree


def lane_of(candidate: dict[str, Any], made: Modules, job: dict[str, Any], weights: dict[str, Any]) -> Lane:
    """One system; ``weights`` gets the modules of one that shards parameters."""
    times = job["forward_ns"], job["optimizer_ns"]
    module = made.module()
    if candidate["policy"].startswith("zero"):
        from tests.dist.evidence.zero import zero_lane

        return zero_lane(candidate, module, job["groups"], job["optimizer_ns"])
    if candidate["policy"] == "megatron":
        from tests.dist.evidence.megatron import megatron_lane

        return megatron_lane(candidate, PacedTree(module, job["names"], job["modules"]), *times)
    from tests.dist.evidence.fsdp2 import fsdp2_lane

    tree = PacedTree(module, job["names"], job["modules"], copies=True)
    weights[candidate["name"]] = tree.root
    return fsdp2_lane(candidate, tree, job["units"][candidate["name"]], *times)


def main() -> None:
    rank, folder, world_size, port = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    keep_freed_memory()
    sharpen_sleep()
    dist.init_process_group("gloo")
    job = json.loads((folder / "job.json").read_text())
    pacer, weights = HostPacer(), dict[str, Any]()
    made = Modules(pacer, job)
    plain = made.module()
    for gradient in plain._gradients:  # of all lanes
        gradient.fill_(10.0 ** int(rank))
    lanes = [lane_of(candidate, made, job, weights) for candidate in job["candidates"]]
    pacer.settle(made.modules, plain, job["optimizer_ns"])
    rows = [{lane.name: lane.step() for lane in lanes} for _ in range(job["warmup"] + job["rounds"])]
    found = {
        lane.name: {
            "steps": [row[lane.name] for row in rows[job["warmup"] :]],
            "buckets": lane.observe(),
            "gradients": sorted(
                {value for one in weights[lane.name].parameters() for value in _own(one.grad)}
                if lane.name in weights
                else ()
            ),
        }
        for lane in lanes
        if lane.observe is not None
    }
    (folder / f"did.{rank}").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


def _own(gradient: Any) -> list[float]:
    values: list[float] = gradient.to_local().unique().tolist()
    return values


if __name__ == "__main__":
    main()
