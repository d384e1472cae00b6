"""How long one collective of a given size lasts on real ranks, alone and back to back, on any device."""

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from sim.recorder.clocks import Clock, Stamp, clock_for
from sim.validator.ranks.pacing.spinning import keep_busy
from sim.validator.ranks.pacing.stepping import gather, keep_freed_memory, meet
from sim.validator.ranks.probes.settling import is_settled
from sim.validator.ranks.rank import Rank

_FEW = 4  # most repeats of a collective that only sharded systems send
_APART_S = 0.002  # longer than gloo's notice that a receive is posted travels from rank to rank
_IN_A_ROW = 4
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

    def run(self, *work: Callable[[], object]) -> list[Stamp]:
        """Do ``work``, one after the other; stamps before it and after each, which have been reached."""
        self.clock.settle()
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):  # a script of somebody else's may have set no device
                keep_busy(_HEAD_START_CYCLES)
        stamps = [self.clock.stamp()]
        for one in work:
            one()
            stamps.append(self.clock.stamp())
        self.clock.settle()
        return stamps

    def time(self, work: Callable[[], object]) -> int:
        """ns that ``work`` takes."""
        return self.clock.between_ns(*self.run(work))


def bench_of(rank: Rank) -> Bench:
    """That of the device that the job gives its ranks."""
    if rank.job.get("device", "cpu") == "cuda":
        return Bench(torch.device("cuda", torch.cuda.current_device()))
    return Bench(torch.device("cpu"))


def repeats_of(size: int, job: dict[str, Any]) -> int:
    """Repeats of a message of ``size`` bytes in a round: small ones have more, since they scatter most."""
    return int(max(1, min(job["small_repeats"], job["bytes_per_round"] // max(size, 1))))


class ReduceCurve:
    """Times all-reduces of every size in rounds, and tells an event for each size, with its samples in ns.

    Each round has its own order of sizes, so that other work on the machine does not always meet the same
    size. Every rank holds the same samples and shuffles alike, so that all agree on what is measured next.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._bench = bench_of(rank)
        self._rounds: dict[int, list[list[int]]] = {size: [] for size in rank.job["sizes"]}
        self._order = random.Random(0)

    def measure(self, sizes: Sequence[int]) -> None:
        """Time each of ``sizes`` in one round."""
        for size in self._order.sample(sizes, len(sizes)):
            samples = time_all_reduces(size, repeats_of(size, self._rank.job), self._rank, self._bench)
            self._rounds[size].append(samples)
            self._rank.tell("all_reduce", num_bytes=size, samples_ns=samples)

    def settle(self) -> None:
        """Repeat sizes whose samples scatter too much, until none does or the job's ``budget_s`` is spent."""
        begun, budget_s = time.monotonic(), self._rank.job["budget_s"]
        while open_sizes := [size for size, rounds in self._rounds.items() if not is_settled(rounds)]:
            spent_s = torch.tensor([time.monotonic() - begun])
            dist.broadcast(spent_s, src=0)
            if spent_s.item() >= budget_s:
                return
            what = f"again, as they scatter: {len(open_sizes)} of {len(self._rounds)} sizes"
            self._rank.tell("progress", done=round(spent_s.item()), total=round(budget_s), what=what)
            self.measure(open_sizes)


def tell_broadcasts(rank: Rank) -> None:
    """Time a round of broadcasts, as of DDP's buffers; tell an event for each size, with samples in ns."""
    bench = bench_of(rank)
    for size in rank.job["broadcast_sizes"]:
        samples = time_broadcasts(size, repeats_of(size, rank.job), rank, bench)
        rank.tell("broadcast", num_bytes=size, samples_ns=samples)


def few_of(size: int, job: dict[str, Any]) -> int:
    """Repeats of a collective of ``size`` bytes that only sharded systems send."""
    return min(_FEW, repeats_of(size, job))


def tell_zero_curves(rank: Rank) -> None:
    """Time all-gathers and reduce-scatters, which sharded systems send (A5.7, A5.11, A9.3, A10.4).

    Tells an event for each kind and size, with its samples in ns.
    """
    keep_freed_memory()
    bench = bench_of(rank)
    for size in rank.job["zero_sizes"]:
        few = few_of(size, rank.job)
        rank.tell("all_gather", num_bytes=size, samples_ns=time_all_gathers(size, few, rank, bench))
        rank.tell("reduce_scatter", num_bytes=size, samples_ns=time_reduce_scatters(size, few, rank, bench))


def time_all_reduces(size: int, repeats: int, rank: Rank, bench: Bench) -> list[int]:
    """All-reduces of ``size`` bytes, ns each; if there are several, one before them warms up."""
    tensor = bench.zeros(size)
    if repeats > 1:
        dist.all_reduce(tensor)
    samples = [bench.time(lambda: dist.all_reduce(tensor, async_op=True).wait()) for _ in range(repeats)]
    return shortest(samples, rank)


def time_broadcasts(size: int, repeats: int, rank: Rank, bench: Bench) -> list[int]:
    """Broadcasts of ``size`` bytes from rank 0, ns each: of the slowest rank, as rank 0 may return before
    others have their data."""
    tensor = bench.zeros(size)
    dist.broadcast(tensor, src=0)
    samples = []
    for _ in range(repeats):
        meet()
        samples.append(bench.time(lambda: dist.broadcast(tensor, src=0)))
    return [max(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def time_all_gathers(size: int, repeats: int, rank: Rank, bench: Bench) -> list[int]:
    """All-gathers that leave ``size`` bytes on every rank, ns each; each time one rank comes late on purpose.

    Of two ranks the late one sends half of its part before its notice that the other may send, so that the
    other starts late. In a job ranks always come far enough apart for that; in a loop of all-gathers they
    may or may not (A10.8).
    """
    part = bench.zeros(size // rank.world_size)
    whole = bench.zeros(part.nbytes * rank.world_size)
    dist.all_gather_into_tensor(whole, part)
    return _time_apart(lambda: dist.all_gather_into_tensor(whole, part), repeats, rank, bench)


def queued_gathers(rank: Rank) -> dict[str, list[int]]:
    """Time one all-gather, and several queued on one channel: ns of the first, and of each further one."""
    bench, group, found = bench_of(rank), one_channel(), dict[str, list[int]](alone_ns=[], queued_ns=[])
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
                _time_apart(partial(gathers, count), rank.world_size, rank, bench) for count in (1, _IN_A_ROW)
            )
            found["alone_ns"] += one
            found["queued_ns"] += [
                (all_ns - first_ns) // (_IN_A_ROW - 1) for all_ns, first_ns in zip(row, one, strict=True)
            ]
    return found


def time_reduce_scatters(size: int, repeats: int, rank: Rank, bench: Bench) -> list[int]:
    """Reduce-scatters of ``size`` bytes on every rank, ns each."""
    part = bench.zeros(size // rank.world_size)
    whole = bench.zeros(part.nbytes * rank.world_size)
    dist.reduce_scatter_tensor(part, whole)
    samples = [bench.time(lambda: dist.reduce_scatter_tensor(part, whole)) for _ in range(repeats)]
    return shortest(samples, rank)


def _time_apart(collective: Callable[[], object], repeats: int, rank: Rank, bench: Bench) -> list[int]:
    """ns of a collective on the rank that comes to it late; in each repeat another rank does."""
    samples = []
    for repeat in range(repeats):
        meet()
        if rank.rank == repeat % rank.world_size:
            time.sleep(_APART_S)
        samples.append(bench.time(collective))
    rows = gather(samples, rank.world_size)
    return [rows[repeat % rank.world_size][repeat] for repeat in range(repeats)]


def shortest(samples: list[int], rank: Rank) -> list[int]:
    """For each call, the shortest duration over ranks: that of the last arriver, which waits for nobody."""
    return [min(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def mean_over_ranks(samples: list[int], rank: Rank) -> list[int]:
    """For each repeat, the mean over ranks."""
    return [sum(column) // len(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


_made: dict[tuple[tuple[int, ...], ...], Any] = {}


def one_channel(groups: Sequence[Sequence[int]] = ()) -> Any:
    """The group of all ranks, or of ``groups`` the one with this rank, with one worker thread.

    It is made once, by all ranks together; each rank is in one of ``groups``.
    """
    parts = tuple(map(tuple, groups)) or (tuple(range(dist.get_world_size())),)
    if parts not in _made:
        by_ranks = {part: dist.new_group(list(part), backend="gloo") for part in parts}
        ranks = next(part for part in parts if dist.get_rank() in part)
        group: Any = by_ranks[ranks]
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._threads = 1
        options._devices = [
            gloo.create_device(interface=interface) if interface else gloo.create_default_device()
        ]
        store = PrefixStore(f"one channel of {ranks}", dist.distributed_c10d._get_default_store())
        made = gloo(store, ranks.index(dist.get_rank()), len(ranks), options)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, made)
        _made[parts] = group
    return _made[parts]
