"""How long one collective of a given size lasts on real ranks, alone and back to back."""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.ranks.pacing.stepping import gather
from sim.validator.ranks.probes.settling import is_settled
from sim.validator.ranks.process.one_channel import one_channel
from sim.validator.ranks.process.processes import keep_freed_memory
from sim.validator.ranks.process.rank_like import RankLike

_FEW = 4  # repeats of the collectives that only ZeRO sends, and those mostly large
_APART_S = 0.002  # more than a notice takes from rank to rank
_IN_A_ROW = 4


def repeats_of(size: int, job: dict[str, Any]) -> int:
    """More repeats for small messages, whose times scatter most; large ones are paid for by the byte."""
    return int(max(1, min(job["small_repeats"], job["bytes_per_round"] // max(size, 1))))


class ReduceCurve:
    """All-reduces of every size, round by round in a shuffled order, an event for each with its samples in
    ns.

    A burst of something else on the machine so meets all sizes, and no size in all rounds. Every rank holds
    the same samples and shuffles alike, so that all agree on what is measured next.
    """

    def __init__(self, rank: RankLike) -> None:
        self._rank = rank
        self._rounds: dict[int, list[list[int]]] = {size: [] for size in rank.job["sizes"]}
        self._order = random.Random(0)

    def measure(self, sizes: Sequence[int]) -> None:
        """One round."""
        for size in self._order.sample(sizes, len(sizes)):
            samples = time_all_reduces(size, repeats_of(size, self._rank.job), self._rank)
            self._rounds[size].append(samples)
            self._rank.tell("all_reduce", num_bytes=size, samples_ns=samples)

    def settle(self) -> None:
        """Further rounds of the sizes that are not settled, while the job's budget of time lasts."""
        begun, budget_s = time.monotonic(), self._rank.job["budget_s"]
        while open_sizes := [size for size, rounds in self._rounds.items() if not is_settled(rounds)]:
            spent_s = torch.tensor([time.monotonic() - begun])
            dist.broadcast(spent_s, src=0)
            if spent_s.item() >= budget_s:
                return
            what = f"again, as they scatter: {len(open_sizes)} of {len(self._rounds)} sizes"
            self._rank.tell("progress", done=round(spent_s.item()), total=round(budget_s), what=what)
            self.measure(open_sizes)


def tell_broadcasts(rank: RankLike) -> None:
    """One round of broadcasts, as buffers are sent: an event for each size, with its samples in ns."""
    for size in rank.job["broadcast_sizes"]:
        samples = time_broadcasts(size, repeats_of(size, rank.job), rank)
        rank.tell("broadcast", num_bytes=size, samples_ns=samples)


def few_of(size: int, job: dict[str, Any]) -> int:
    """Repeats of the collectives that only ZeRO sends."""
    return min(_FEW, repeats_of(size, job))


def tell_zero_curves(rank: RankLike) -> None:
    """One round of the curves of what only sharded systems send (A5.7, A5.11, A9.3, A10.4)."""
    keep_freed_memory()
    for size in rank.job["zero_sizes"]:
        few = few_of(size, rank.job)
        rank.tell("all_gather", num_bytes=size, samples_ns=time_all_gathers(size, few, rank))
        rank.tell("reduce", num_bytes=size, samples_ns=time_reduces(size, few, rank))
        rank.tell("reduce_scatter", num_bytes=size, samples_ns=time_reduce_scatters(size, few, rank))


def time_all_reduces(size: int, repeats: int, rank: RankLike) -> list[int]:
    """All-reduces of ``size`` bytes, ns each; a single one is large enough to need no other to warm up."""
    tensor = torch.full((max(1, size // 4),), 0.5)
    samples = []
    if repeats > 1:
        dist.all_reduce(tensor)
    for _ in range(repeats):
        samples.append(_took_ns(lambda: dist.all_reduce(tensor, async_op=True).wait()))
        tensor.mul_(0.5)
    return shortest(samples, rank)


def time_broadcasts(size: int, repeats: int, rank: RankLike) -> list[int]:
    """Broadcasts of ``size`` bytes from rank 0, ns each."""
    tensor = torch.full((max(1, size // 4),), 0.5)
    return _time_rooted(lambda: dist.broadcast(tensor, src=0), repeats, rank)


def time_reduces(size: int, repeats: int, rank: RankLike) -> list[int]:
    """Reductions of ``size`` bytes to rank 0, ns each."""
    tensor = torch.zeros(max(1, size // 4))
    return _time_rooted(lambda: dist.reduce(tensor, dst=0), repeats, rank)


def time_all_gathers(size: int, repeats: int, rank: RankLike) -> list[int]:
    """All-gathers that leave ``size`` bytes on every rank, ns each, of ranks that come apart.

    Between two ranks gloo tells a peer that it may send behind what it sends itself, if the peer was there
    before: half of what the peer sends then comes later. In a job ranks do not come within a notice of each
    other; in a loop they may, or may not, for as long as it lasts (A10.8).
    """
    part = torch.full((max(1, size // 4 // rank.world_size),), 0.5)
    whole = torch.empty(part.numel() * rank.world_size)
    dist.all_gather_into_tensor(whole, part)
    return _time_apart(lambda: dist.all_gather_into_tensor(whole, part), repeats, rank)


def queued_gathers(rank: RankLike) -> dict[str, list[int]]:
    """All-gathers on one channel, one alone and some in a row: ns of one, and of each behind another."""
    group, found = one_channel(), dict[str, list[int]](alone_ns=[], queued_ns=[])
    keep_freed_memory()
    for size in rank.job["pair_sizes"][:2]:
        parts = [torch.full((max(1, size // 4 // rank.world_size),), 0.5) for _ in range(_IN_A_ROW)]
        wholes = [torch.empty(part.numel() * rank.world_size) for part in parts]

        def gathers(count: int, parts: Any = parts, wholes: Any = wholes) -> None:
            pairs = list(zip(wholes, parts, strict=True))[:count]
            for work in [dist.all_gather_into_tensor(*pair, group=group, async_op=True) for pair in pairs]:
                work.wait()

        gathers(_IN_A_ROW)
        for _ in range(_FEW // 2):
            one, row = (
                _time_apart(partial(gathers, count), rank.world_size, rank) for count in (1, _IN_A_ROW)
            )
            found["alone_ns"] += one
            found["queued_ns"] += [
                (all_ns - first_ns) // (_IN_A_ROW - 1) for all_ns, first_ns in zip(row, one, strict=True)
            ]
    return found


def time_reduce_scatters(size: int, repeats: int, rank: RankLike) -> list[int]:
    """Reduce-scatters of ``size`` bytes on every rank, ns each."""
    part = torch.empty(max(1, size // 4 // rank.world_size))
    whole = torch.zeros(part.numel() * rank.world_size)
    dist.reduce_scatter_tensor(part, whole)
    return shortest([_took_ns(lambda: dist.reduce_scatter_tensor(part, whole)) for _ in range(repeats)], rank)


def _took_ns(collective: Callable[[], object]) -> int:
    start = time.monotonic_ns()
    collective()
    return time.monotonic_ns() - start


def _time_apart(collective: Callable[[], object], repeats: int, rank: RankLike) -> list[int]:
    """A collective to which one rank comes later than the others, each in turn: what it takes that rank."""
    samples = []
    for repeat in range(repeats):
        dist.barrier()
        if rank.rank == repeat % rank.world_size:
            time.sleep(_APART_S)
        samples.append(_took_ns(collective))
    rows = gather(samples, rank.world_size)
    return [rows[repeat % rank.world_size][repeat] for repeat in range(repeats)]


def shortest(samples: list[int], rank: RankLike) -> list[int]:
    """Per call, the shortest duration over ranks: from the last arriver on, that is the transfer."""
    return [min(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def mean_over_ranks(samples: list[int], rank: RankLike) -> list[int]:
    """Per repeat, the mean over ranks."""
    return [sum(column) // len(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def _time_rooted(collective: Callable[[], object], repeats: int, rank: RankLike) -> list[int]:
    """A collective in which a rank may return before others have what they get: the slowest rank tells."""
    collective()
    samples = []
    for _ in range(repeats):
        dist.barrier()
        samples.append(_took_ns(collective))
    return [max(column) for column in zip(*gather(samples, rank.world_size), strict=True)]
