"""How long one collective of a given size lasts on real ranks, alone and back to back, on any device."""

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from sim.recorder.clocks import Clock, clock_for
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import gather, meet

_APART_S = 0.002  # longer than gloo's notice that a receive is posted travels from rank to rank
_HEAD_START_CYCLES = 2_000_000  # of a GPU: a millisecond or a little more


class Bench:
    """Where collectives are timed: on this rank's device, by its clock.

    On an accelerator its stream times them, as that of a training has them: it is kept busy until the host
    has launched what is timed, so that what the host takes for it is no part of a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock: Clock = clock_for(device)

    def zeros(self, num_bytes: int) -> torch.Tensor:
        """A float32 tensor of so many bytes, at least one element: ``[max(1, num_bytes // 4)]``."""
        return torch.zeros(max(1, num_bytes // 4), device=self.device)

    def time(self, work: Callable[[], object]) -> int:
        """ns that ``work`` takes."""
        self.clock.settle()
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):  # a script of somebody else's may have set no device
                torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        begun = self.clock.stamp()
        work()
        end = self.clock.stamp()
        self.clock.settle()
        return self.clock.between_ns(begun, end)


def times(kind: str, size: int, repeats: int, rank: Rank) -> list[int]:
    """``repeats`` collectives of a kind over all ranks, ns each; one before them warms up.

    ``size`` is in bytes: what is summed or sent on every rank, or what an all-gather leaves there. Counted is
    the rank that comes last, which waits for nobody; of broadcasts, which rank 0 may leave before others have
    their data, the slowest. To each all-gather another rank comes late on purpose. Of two ranks the late one
    sends half of its part before its notice that the other may send, so that the other starts late. In a job
    ranks always come far enough apart for that; in a loop of all-gathers they may or may not (A10.8).
    """
    bench = Bench(rank.device)
    is_sharded = kind in ("all_gather", "reduce_scatter")
    part = bench.zeros(size // rank.world_size)
    whole = bench.zeros(part.nbytes * rank.world_size if is_sharded else size)
    collective: Callable[[], object] = {
        "all_reduce": lambda: dist.all_reduce(whole, async_op=True).wait(),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }[kind]
    if repeats > 1 or kind != "all_reduce":
        collective()
    samples = []
    for repeat in range(repeats):
        if kind in ("broadcast", "all_gather"):
            meet()
        if kind == "all_gather" and rank.rank == repeat % rank.world_size:
            time.sleep(_APART_S)
        samples.append(bench.time(collective))
    if kind == "all_gather":
        rows = gather(samples, rank.world_size)
        return [rows[repeat % rank.world_size][repeat] for repeat in range(repeats)]
    return over_ranks(max if kind == "broadcast" else min, samples, rank)


def over_ranks(of: Callable[[Sequence[int]], int], samples: list[int], rank: Rank) -> list[int]:
    """Of each repeat one figure over ranks: the least is that of the last arriver, who waits for nobody."""
    return [of(column) for column in zip(*gather(samples, rank.world_size), strict=True)]
