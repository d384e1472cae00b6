"""Which buckets a job should try: its link, measured between two steps, and what the simulator says of it."""

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.unison import Unison, backend_of
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.recorded import hardware_of
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.recommendation import Recommendation
from sim.nouns.recording import Recording
from sim.truth.recorded_job import job_in_recording
from sim.units import NS_PER_S
from sim.validator.ranks.probes import Bench

BUDGET_S = 2.0
_SMALLEST, _GROWTH, _MOST_ROUNDS, _PAIRS = 16 << 10, 4, 7, 3
_LEAST_PAIRED, _MOST_PAIRED = 1 << 20, 16 << 20  # timed two at once; an idle wire passes small ones too fast
_GLOO_CHANNELS = 2  # worker threads per process group: two collectives at once (A3.8)

Link = Mapping[str, Any]  # fields of a Hardware


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
        self.total_bytes = gradient_bytes(ddp)
        self.processor_share: dict[str, float] = {}  # of an all-reduce's duration, by size from 1 MiB on
        self._memory = self._bench.zeros(max(self.total_bytes, 2 * _LEAST_PAIRED) + 4)

    def time(self, size: int, count: int = 1) -> int:
        """``count`` all-reduces of ``size`` bytes at once, ns."""
        self._ranks.agree()
        spent = time.process_time()
        took = self._time(size, count)
        if count == 1 and size >= _LEAST_PAIRED:
            share = (time.process_time() - spent) * NS_PER_S / max(1, took)
            self.processor_share[str(size)] = round(share, 4)
        return self._ranks.over_ranks([took], longest=False)[0]

    def _time(self, size: int, count: int) -> int:
        tensors = self._memory[: count * max(1, size // 4)].chunk(count)

        def reduce() -> None:
            for work in [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in tensors]:
                work.wait()

        with self._ranks.collective():
            return self._bench.time(reduce)


def measure_link(probe: LinkProbe) -> Link:
    """Measure the link up to the size of all gradients together, or as far as ``BUDGET_S`` allows.

    All ranks call it at once. They decide by times that they share (the shortest over ranks, from the last
    arriver on), so that all measure the same sizes equally often.

    Returns:
        ``all_reduce``, medians of some rounds, and what two at once cost each other; in ``spread``, from
        1 MiB on, the processor time of all-reduces over their duration: most of what they take from a rank
        that computes.
    """
    left_ns = int(BUDGET_S * NS_PER_S)
    rounds: dict[int, list[int]] = defaultdict(list)
    probe.time(_SMALLEST)  # warms up
    for size in _sizes(probe.total_bytes):
        known = max(rounds, default=0)
        if known and 2 * rounds[known][0] * size // known > left_ns // 2:
            break
        probe.time(size)  # the first one of a size takes longer
        rounds[size].append(probe.time(size))
        left_ns -= 2 * rounds[size][0]
    pairs: list[float] = []
    largest = min(_MOST_PAIRED, probe.total_bytes // 2)
    paired = [size for size, times in rounds.items() if _LEAST_PAIRED <= size <= largest]
    paired = [size for size in paired if _PAIRS * 3 * rounds[size][0] <= left_ns // 2]
    for _ in range(_PAIRS if paired else 0):
        alone, both = probe.time(paired[-1]), probe.time(paired[-1], 2)
        pairs.append(both / max(1, alone))
        left_ns -= alone + both
    order = random.Random(0)
    for _ in range(_MOST_ROUNDS - 1):
        if sum(times[0] for times in rounds.values()) > left_ns:
            break
        for size in order.sample(sorted(rounds), len(rounds)):
            rounds[size].append(probe.time(size))
            left_ns -= rounds[size][-1]
    has_channels = bool(pairs) and probe.is_gloo
    return {
        "all_reduce": tuple(
            CurvePoint(num_bytes=size, duration_ns=round(median(times)))
            for size, times in sorted(rounds.items())
        ),
        "comm_channels": _GLOO_CHANNELS if has_channels else 1,
        "channel_slowdown": max(1.0, median(pairs)) if has_channels else 1.0,
        "shared_connection": has_channels,
        "spread": {"processor_share": probe.processor_share},
    }


def gradient_bytes(ddp: DistributedDataParallel) -> int:
    """Bytes of all gradients together."""
    return sum(one.nbytes for one in ddp.parameters() if one.requires_grad)


def _sizes(total: int) -> list[int]:
    """Sizes in bytes up to ``total``, each ``_GROWTH`` times the one before."""
    sizes = [max(4, min(_SMALLEST, total))]
    while sizes[-1] < total:
        sizes.append(min(total, sizes[-1] * _GROWTH))
    return sizes


def predict(folder: Path, link: Link, in_use: Sequence[Sequence[int]]) -> Recommendation:
    """The best buckets, by a prediction that is held to the job's own recorded step.

    The link is as it was measured; the rest of the machine (copies back, launches, broadcasts) is read off
    the recording of all ranks in ``folder``, where that has buckets. ``in_use`` are those that the job has.

    Raises:
        InputError, NotModelledError: a recording that no prediction can be made from.
    """
    recording = load_recording(folder)
    job = job_in_recording(recording, _hardware(recording, link))
    if job.own is None:
        raise InputError(f"the job's own step cannot be told: {job.why_not}")
    return job.with_buckets(in_use).tune()


def _hardware(recording: Recording, link: Link) -> Hardware:
    if recording.ranks[0].header.level == "full":
        base = hardware_of(recording)
    else:
        base = Hardware(name="link", world_size=recording.world_size, all_reduce=link["all_reduce"])
    return replace(base, name="the job's own link", provenance={"source": "sim.autotune"}, **link)
