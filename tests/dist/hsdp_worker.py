"""Run by torchrun on 2 x 2 ranks: what the paced lane of HSDP reduces; rank 0 prints JSON."""

import json
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.ranks.lanes.fsdp2_lanes import fsdp2_lane
from sim.validator.ranks.pacing.paced_tree import PacedTree
from tests.dist.test_paced_tree import MS, made


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tree: PacedTree = made(copies=True)
    for gradient in tree.paced._gradients:
        gradient.fill_(10.0 ** dist.get_rank())
    candidate = {"name": "hsdp", "policy": "fully_shard", "settings": {"replicas": 2}}
    lane = fsdp2_lane(candidate, tree, ["blocks.0", "blocks.1"], 4 * MS, 0)
    for _ in range(3):
        lane.step()
    mine = sorted(
        {value for one in tree.root.parameters() for value in one.grad.to_local().unique().tolist()}
    )
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    if dist.get_rank() == 0:
        print(json.dumps({"gradients": found, "reduced": lane.observe()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
