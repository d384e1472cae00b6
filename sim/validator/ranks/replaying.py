"""Replays candidates on real ranks, interleaved: what ``bucketsim validate`` runs on each rank."""

import gc
import random

from sim.validator.ranks.lanes.model_lanes import model_lanes
from sim.validator.ranks.lanes.paced_lanes import paced_lanes
from sim.validator.ranks.pacing.paced_module import sharpen_sleep
from sim.validator.ranks.pacing.stepping import Lane, gather
from sim.validator.ranks.rank import Rank

_LANES = {"paced": paced_lanes, "model": model_lanes}


def replay(rank: Rank) -> None:
    """Run every lane once in each round, in a shuffled order, and tell an event for each step.

    Warm-up rounds have numbers below 0.
    """
    sharpen_sleep()
    gc.disable()
    job = rank.job
    lanes = _LANES[job["mode"]](rank)
    shuffle = random.Random(job["seed"])
    for number in range(-job["warmup"], job["rounds"]):
        gc.collect()
        for lane in shuffle.sample(lanes, len(lanes)):
            rank.tell(
                "step",
                lane=lane.name,
                traced=lane.is_traced,
                round=number,
                ranks=gather(lane.step(), rank.world_size),
            )
        if number == -1:  # DDP has rebuilt its buckets (A2.6), and nothing has been measured yet
            _tell_buckets(rank, lanes)


def _tell_buckets(rank: Rank, lanes: list[Lane]) -> None:
    for lane in lanes:
        if lane.observe is not None:
            seen = gather(lane.observe(), rank.world_size)
            rank.tell("buckets", lane=lane.name, traced=lane.is_traced, ranks=seen)
