"""How much all-reduces, and computing on the host beside them, slow each other down."""

import time
from collections.abc import Callable
from statistics import median
from threading import Event, Thread
from typing import Self

import torch
import torch.distributed as dist

from sim.validator.ranks.pacing.stepping import gather
from sim.validator.ranks.probes.curve_probes import bench_of, time_all_reduces
from sim.validator.ranks.process.rank_like import RankLike

_SHARE_NS = 300_000_000  # about how long a turn of all-reduces lasts
_SHARE_TURNS = 8
_SIDE = 256  # of the matrices: a product takes about a millisecond, of one core


def beside_compute(rank: RankLike) -> dict[str, dict[int, float]]:
    """``shares`` and ``slowdowns`` of all-reduces, by their size in bytes (``pair_sizes``); means over ranks.

    A thread of each rank multiplies matrices, in turns alone and beside all-reduces. The share is the part of
    the thread's products a second that is lost beside all-reduces. It counts interrupts too, which no process
    is charged with, and is 0 if the host has cores to spare. The slow-down is the factor by which the same
    all-reduces take longer beside the products than alone.
    """
    shares, slowdowns = {}, {}

    def mean(value: float) -> float:
        return round(float(sum(gather(value, rank.world_size))) / rank.world_size, 4)

    with _Multiplying() as multiplying:
        for size in rank.job["pair_sizes"]:
            tensor = torch.zeros(size // 4)
            repeats = max(1, round(_SHARE_NS / max(time_all_reduces(size, 2, rank, bench_of(rank)))))
            rates, times = [], []
            for _ in range(_SHARE_TURNS):
                begun = time.monotonic()
                _all_reduces(tensor, repeats)
                alone_s = time.monotonic() - begun
                dist.barrier()
                both_s, both_rate = multiplying.beside(_all_reduces, tensor, repeats)
                dist.barrier()
                _, alone_rate = multiplying.beside(time.sleep, both_s)
                dist.barrier()
                rates.append((alone_rate, both_rate))
                times.append((alone_s, both_s))
            (alone_rate, both_rate), (alone_s, both_s) = (
                map(median, zip(*turns, strict=True)) for turns in (rates, times)
            )
            shares[size] = max(0.0, mean(1 - both_rate / alone_rate))
            slowdowns[size] = max(1.0, mean(both_s / alone_s))
    return {"shares": shares, "slowdowns": slowdowns}


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
        torch.set_num_threads(threads)  # a new Python thread begins with torch's default
        matrix, product = torch.rand(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)
        while self._goes.wait() and not self._ends:
            torch.mm(matrix, matrix, out=product)
            self._count += 1
