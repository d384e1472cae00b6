"""How long one collective of a given size lasts on real ranks, alone and back to back, on any device."""

import random
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from sim.recorder.clocks import Clock, Stamp, clock_for
from sim.validator.curves import is_settled
from sim.validator.jobs import CalibrationJob
from sim.validator.ranks.cuda import keep_busy
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import gather, keep_freed_memory, meet

_FEW = 4  # most repeats of a collective that only sharded systems send
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
    if rank.job.carrier.device == "cuda":
        return Bench(torch.device("cuda", torch.cuda.current_device()))
    return Bench(torch.device("cpu"))


def times(kind: str, size: int, repeats: int, rank: Rank) -> list[int]:
    """``repeats`` collectives of a kind over all ranks, ns each; one before them warms up.

    ``size`` is in bytes: what is summed or sent on every rank, or what an all-gather leaves there. Counted is
    the rank that comes last, which waits for nobody; of broadcasts, which rank 0 may leave before others have
    their data, the slowest. To each all-gather another rank comes late on purpose. Of two ranks the late one
    sends half of its part before its notice that the other may send, so that the other starts late. In a job
    ranks always come far enough apart for that; in a loop of all-gathers they may or may not (A10.8).
    """
    bench = bench_of(rank)
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
    rows = gather(samples, rank.world_size)
    if kind == "all_gather":
        return [rows[repeat % rank.world_size][repeat] for repeat in range(repeats)]
    return [(max if kind == "broadcast" else min)(column) for column in zip(*rows, strict=True)]


def tell_others(rank: Rank, with_sharded: bool) -> None:
    """Time a round of broadcasts, as of DDP's buffers, and of what sharded systems send (A5.7, A9.3, A10.4).

    Tells an event for each kind and size, with its samples in ns.
    """
    job: CalibrationJob = rank.job
    sent = [("broadcast", size, job.repeats_of(size)) for size in job.broadcast_sizes]
    if with_sharded:
        keep_freed_memory()
        few = {size: min(_FEW, job.repeats_of(size)) for size in job.sharded_sizes}
        sent += [(kind, size, n) for size, n in few.items() for kind in ("all_gather", "reduce_scatter")]
    for kind, size, repeats in sent:
        rank.tell(kind, num_bytes=size, samples_ns=times(kind, size, repeats, rank))


class ReduceCurve:
    """Times all-reduces of every size in rounds, and tells an event for each size, with its samples in ns.

    Each round has its own order of sizes, so that other work on the machine does not always meet the same
    size. Every rank holds the same samples and shuffles alike, so that all agree on what is measured next.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._job: CalibrationJob = rank.job
        self._rounds: dict[int, list[list[int]]] = {size: [] for size in self._job.sizes}
        self._order = random.Random(0)

    def measure(self, sizes: Sequence[int]) -> None:
        """Time each of ``sizes`` in one round."""
        for size in self._order.sample(sizes, len(sizes)):
            samples = times("all_reduce", size, self._job.repeats_of(size), self._rank)
            self._rounds[size].append(samples)
            self._rank.tell("all_reduce", num_bytes=size, samples_ns=samples)

    def settle(self) -> None:
        """Repeat sizes whose samples scatter too much, until none does or the job's ``budget_s`` is spent."""
        begun, budget_s = time.monotonic(), self._job.budget_s
        while open_sizes := [size for size, rounds in self._rounds.items() if not is_settled(rounds)]:
            spent_s = torch.tensor([time.monotonic() - begun])
            dist.broadcast(spent_s, src=0)
            if spent_s.item() >= budget_s:
                return
            what = f"again, as they scatter: {len(open_sizes)} of {len(self._rounds)} sizes"
            self._rank.tell("progress", done=round(spent_s.item()), total=round(budget_s), what=what)
            self.measure(open_sizes)
