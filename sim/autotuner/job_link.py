"""What an all-reduce takes in the job's own process group: measured between two steps, within seconds."""

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.unison import Unison, backend_of
from sim.nouns.hardware import CurvePoint
from sim.validator.ranks.probes.curve_probes import Bench

BUDGET_S = 2.0
_SMALLEST = 16 << 10
_GROWTH = 4
_MOST_ROUNDS = 7
_PAIRED_BYTES = 1 << 20, 16 << 20  # sizes timed two at once; an idle wire passes small ones too fast
_PAIRS = 3
_GLOO_CHANNELS = 2  # worker threads per process group: two collectives at once (A3.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLink:
    """The ``curve`` of all-reduces, medians of some rounds; from 1 MiB on also, by size, ``processor_share``:
    their processor time over their duration, most of what they take from a rank that computes."""

    curve: tuple[CurvePoint, ...]
    channels: int = 1
    channel_slowdown: float = 1.0
    processor_share: dict[str, float] = field(default_factory=dict)


class LinkProbe:
    """All-reduces of zeros in the job's group; it holds as much memory as all gradients together.

    Nothing else of ours is sent over that group. All ranks begin each of them together, and it lasts as long
    as on the rank that came last. On a GPU its stream times it, as that of a training has it: what the host
    takes to launch it and to hear of its end is no part of it.

    Raises:
        RuntimeError: the device has not so much memory.
    """

    def __init__(self, ddp: DistributedDataParallel, ranks: Unison) -> None:
        self._group, self._ranks, self._bench = ddp.process_group, ranks, Bench(ddp.device)
        self.is_gloo = backend_of(ddp) == "gloo"
        self.total_bytes = sum(p.numel() * p.element_size() for p in ddp.parameters() if p.requires_grad)
        self.processor_share: dict[int, float] = {}
        self._memory = self._bench.zeros(max(self.total_bytes, 2 * _PAIRED_BYTES[0]) + 4)

    def time(self, size: int) -> int:
        """One all-reduce of ``size`` bytes, ns."""
        self._ranks.agree()
        spent = time.process_time()
        took = self._time(size, 1)
        self.processor_share[size] = round((time.process_time() - spent) * 1e9 / max(1, took), 4)
        return self._ranks.quickest([took])[0]

    def time_pair(self, size: int) -> tuple[int, int]:
        """ns of one all-reduce of ``size`` bytes alone, and of two at once."""
        times = []
        for count in (1, 2):
            self._ranks.agree()
            times.append(self._time(size, count))
        alone, both = self._ranks.quickest(times)
        return alone, both

    def _time(self, size: int, count: int) -> int:
        tensors = self._memory[: count * max(1, size // 4)].chunk(count)

        def reduce() -> None:
            works = [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

        with self._ranks.collective():
            return self._bench.time(reduce)


def measure_link(probe: LinkProbe) -> JobLink:
    """Measure the link up to the size of all gradients together, or as far as ``BUDGET_S`` allows.

    All ranks call it at once. They decide by times that they share (the shortest over ranks, from the last
    arriver on), so that all measure the same sizes equally often.
    """
    left_ns = int(BUDGET_S * 1e9)
    rounds: dict[int, list[int]] = defaultdict(list)
    probe.time(_SMALLEST)  # warms up
    for size in _sizes(probe.total_bytes):
        known = max(rounds, default=0)
        if known and 2 * rounds[known][0] * size // known > left_ns // 2:
            break
        probe.time(size)  # the first one of a size takes longer
        rounds[size].append(probe.time(size))
        left_ns -= 2 * rounds[size][0]
    paired: list[tuple[int, int]] = []
    least, most = _PAIRED_BYTES
    affordable = (
        size
        for size, times in rounds.items()
        if least <= size <= min(most, probe.total_bytes // 2) and _PAIRS * 3 * times[0] <= left_ns // 2
    )
    at_once = max(affordable, default=least)
    while at_once in rounds and len(paired) < _PAIRS and 3 * rounds[at_once][0] <= left_ns:
        paired.append(probe.time_pair(at_once))
        left_ns -= sum(paired[-1])
    order = random.Random(0)
    for _ in range(_MOST_ROUNDS - 1):
        if sum(times[0] for times in rounds.values()) > left_ns:
            break
        for size in order.sample(sorted(rounds), len(rounds)):
            rounds[size].append(probe.time(size))
            left_ns -= rounds[size][-1]
    has_channels = bool(paired) and probe.is_gloo
    return JobLink(
        curve=tuple(
            CurvePoint(num_bytes=size, duration_ns=round(median(times)))
            for size, times in sorted(rounds.items())
        ),
        channels=_GLOO_CHANNELS if has_channels else 1,
        channel_slowdown=max(1.0, median(both / max(1, alone) for alone, both in paired))
        if has_channels
        else 1.0,
        processor_share={
            str(size): share for size, share in probe.processor_share.items() if size >= _PAIRED_BYTES[0]
        },
    )


def _sizes(total: int) -> list[int]:
    """Sizes in bytes up to ``total``, each ``_GROWTH`` times the one before."""
    sizes = [max(4, min(_SMALLEST, total))]
    while sizes[-1] * _GROWTH < total:
        sizes.append(sizes[-1] * _GROWTH)
    if sizes[-1] < total:
        sizes.append(total)
    return sizes
