"""What ``find_unused_parameters`` adds per parameter: to a forward, and to each hook (A3.13)."""

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.ranks.pacing.paced_module import PacedModule
from sim.validator.ranks.pacing.stepping import run_step
from sim.validator.ranks.probes.curve_probes import mean_over_ranks
from sim.validator.ranks.process.rank_like import RankLike
from sim.validator.ranks.wrapping.building import build

_DROPPED = 3


def time_search(module: PacedModule, searching: PacedModule, rank: RankLike, repeats: int) -> dict[str, Any]:
    """Times steps of two like modules under DDP in turns, of which one searches; neither sends anything.

    A forward is the processor time of the main thread, a hook that of autograd's thread, so that other work
    of the cores does not matter. The last hook is left out: it launches the map of used parameters.

    Returns:
        ns a parameter, one sample a step, mean over ranks: ``search_ns`` and ``mark_ns``.
    """
    count = len(module.order)
    pairs = [(build(module, {}), module), (build(searching, {"find_unused_parameters": True}), searching)]
    for ddp, paced in pairs:
        ddp.register_comm_hook(None, noop_hook)
        paced.watch_hooks()
    found: dict[str, list[int]] = {"search_ns": [], "mark_ns": []}
    for repeat in range(_DROPPED + repeats):
        without, beside = (run_step(ddp, paced, 0) for ddp, paced in pairs)
        if repeat >= _DROPPED:
            found["search_ns"].append((beside["forward"] - without["forward"]) // count)
            extra = sum(beside["hooks"][:-1]) - sum(without["hooks"][:-1])
            found["mark_ns"].append(extra // (count - 1))
    return {name: mean_over_ranks(samples, rank) for name, samples in found.items()}
