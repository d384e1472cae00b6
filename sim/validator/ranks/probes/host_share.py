"""What all-reduces take of a rank that computes on the host meanwhile."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from threading import Event, Thread
from typing import Self

import torch
import torch.distributed as dist

from sim.validator.ranks.pacing.stepping import gather
from sim.validator.ranks.probes.curve_probes import time_all_reduces
from sim.validator.ranks.process.rank_like import RankLike

_SHARE_NS = 300_000_000  # a turn of all-reduces beside which a rank multiplies, about
_SHARE_TURNS = 8
_SIDE = 256  # of the matrices: a product takes about a millisecond, of one core


def host_shares(sizes: Sequence[int], rank: RankLike) -> dict[int, float]:
    """Of all-reduces of each size, the share of a computing rank that they take; the mean over ranks.

    All ranks multiply in a thread, in turns alone and beside all-reduces: the share is what they multiply
    less in a second. That counts what the kernel receives in interrupts, which no process is charged with,
    and nothing where the host has cores to spare.
    """
    found = {}
    with _Multiplying() as multiplying:
        for size in sizes:
            tensor = torch.zeros(size // 4)
            repeats = max(1, round(_SHARE_NS / max(time_all_reduces(size, 2, rank))))
            alone, beside = [], []
            for _ in range(_SHARE_TURNS):
                took_s, rate = multiplying.beside(_all_reduces, tensor, repeats)
                beside.append(rate)
                dist.barrier()
                _, rate = multiplying.beside(time.sleep, took_s)
                alone.append(rate)
                dist.barrier()
            share = 1 - median(beside) / median(alone)
            found[size] = round(max(0.0, sum(gather(share, rank.world_size)) / rank.world_size), 4)
    return found


def _all_reduces(tensor: torch.Tensor, repeats: int) -> None:
    for _ in range(repeats):
        dist.all_reduce(tensor)


class _Multiplying:
    """A thread that multiplies matrices while it is asked to, with as many threads of torch's as this one."""

    def __init__(self) -> None:
        self._count, self._goes, self._ends = 0, Event(), False
        self._thread = Thread(target=self._run, args=(torch.get_num_threads(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._goes.set()
        self._thread.join()

    def beside(self, work: Callable[..., object], *arguments: object) -> tuple[float, float]:
        """How long ``work`` took, s, and how many products were made in a second of it."""
        before, begun = self._count, time.monotonic()
        self._goes.set()
        work(*arguments)
        self._goes.clear()
        took_s = time.monotonic() - begun
        return took_s, (self._count - before) / took_s

    def _run(self, threads: int) -> None:
        torch.set_num_threads(threads)  # else a thread of Python's has the default
        matrix, product = torch.rand(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)
        while self._goes.wait() and not self._ends:
            torch.mm(matrix, matrix, out=product)
            self._count += 1
