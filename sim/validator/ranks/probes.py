"""Micro-runs on real ranks that measure the machine: what ``bucketsim calibrate`` runs on each rank.

None of them replays a candidate: the curve comes from bare all-reduces, copies and launches from small paced
modules of their own. A probe is a row of a table at the end, and tells fields of a Hardware, with scatter.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.nouns.hardware import CURVES, GLOO_CHANNELS, CurvePoint, Hardware
from sim.recorder.clocks import Clock, clock_for
from sim.units import MIB
from sim.validator import curves
from sim.validator.curves import Found, together
from sim.validator.jobs import CalibrationJob
from sim.validator.ranks.link import keeps_time, link_of
from sim.validator.ranks.paced import PacedModule, count_hooks, paced_module, tensors_of
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import build
from sim.validator.ranks.step import (
    Recorder,
    common_start,
    from_first,
    gather,
    keep_freed_memory,
    meet,
    run_step,
    sleep_until,
)

_SPACING_NS = {"cpu": 4_000_000, "cuda": 200_000}  # between gradients: more than DDP's hook costs the host
# A transformer layer's kind of tensors: large weights beside small biases and norms, whose cost is the call.
_MODEL_BYTES = 12 * [2 * MIB, 4096, MIB, 4096, MIB // 2, 4096]
_SWEEP_BYTES = 192 * MIB
_SMALL_BYTES, _SMALL_COUNT = 4096, 24
_CHUNKS_BESIDE = 8
_LARGEST_BROADCAST_BYTES, _LARGEST_SHARDED_BYTES = MIB, 64 * MIB
_SHARDED_ROUNDS, _SHARDED_REPEATS = 3, 4
_SEARCHED, _SEARCHED_SPACING_NS = 128, 400_000
_COPIES_PER_ROUND = 4
_FRESH_BUCKETS = 2  # iterations whose buckets were never touched: the first, and the first after the rebuild
_DROPPED = 3
_HEAD_STARTS = 4
_LARGEST_BESIDE_BYTES = 256 * MIB
_SHARE_NS, _SHARE_TURNS = 150_000_000, 8  # about how long a turn of all-reduces lasts
_SIDE = 256  # of matrices: a product takes a millisecond or a few
_PAIRED = (2, *(1, 2, 2, 1) * 2)  # numbers of all-reduces at once, one after the other; the first warms up
_APART_S = 0.002  # longer than gloo's notice that a receive is posted travels from rank to rank
_HEAD_START_CYCLES = 2_000_000  # of a GPU: a millisecond or a little more
_FREE_LINK = Hardware(
    name="free", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=0),), comm_channels=1
)


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
        return torch.zeros(max(1, num_bytes // 4), dtype=torch.float32, device=self.device)

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
    if repeats > 1 or kind != "all_reduce" or whole.is_cuda:  # NCCL connects ranks in its first, by size
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


def calibrate(rank: Rank) -> None:
    """Measure curves, channel sharing, copies, launches and what slows what, and tell what they come to."""
    job, rounds, begun = rank.job, _Rounds(rank), time.monotonic()
    probes: dict[str, _Probe] = {}  # where all-reduces alone are asked for, or a GPU's kernels keep no time
    if job.carrier.emulated:
        probes = _ANYWHERE
    elif job.rounds and rank.device.type == "cpu":
        probes = _ON_HOST
    elif job.rounds and all(gather(keeps_time(rank.device), rank.world_size)):
        probes = _ANYWHERE
    total = job.rounds + len(probes)
    for number in range(job.rounds):
        left_s = (time.monotonic() - begun) / max(1, number) * (job.rounds - number)
        left = f"curve, about {left_s / 60:.1f} min left" if number else "curve"
        rank.tell("progress", done=number, total=total, what=left)
        rounds.run(number)
    found = rounds.found()
    for number, (what, probe) in enumerate(probes.items(), job.rounds):
        rank.tell("progress", done=number, total=total, what=what)
        found.append(probe(rank))
    rounds.settle()
    fields, spread = together(*(curves.curve(*one) for one in rounds.times.items()), *found)
    rank.tell("measured", fields=fields, spread=spread)


class _Rounds:
    """What rounds measure: ``times`` of collectives by kind and size; of two at once, and copies beside one.

    Each round has its own order of sizes, so that other work on the machine does not always meet the same
    size. Every rank holds the same samples and shuffles alike, so that all agree on what is measured next.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank, self._chance = rank, random.Random(0)
        self._job: CalibrationJob = rank.job
        self.times: dict[str, dict[int, list[list[int]]]] = {name: defaultdict(list) for name in CURVES}
        self._pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._copied: dict[str, list[int]] = defaultdict(list)

    def run(self, number: int) -> None:
        """One round."""
        rank, job = self._rank, self._job
        self._reduce(job.sizes)
        for size in [size for size in job.sizes if size <= _LARGEST_BROADCAST_BYTES][::4]:
            self._add("broadcast", size, job.repeats_of(size))
        if number < _SHARDED_ROUNDS:  # what sharded systems send (A5.7, A9.3, A10.4)
            keep_freed_memory()
            for size in [size for size in job.sizes if size <= _LARGEST_SHARDED_BYTES][::2]:
                for kind in ("all_gather", "reduce_scatter"):
                    self._add(kind, size, min(_SHARDED_REPEATS, job.repeats_of(size)))
        for size in job.pair_sizes if not job.carrier.uses_nccl else ():
            self._pairs[size] += _pairs(size, rank)
        for name, samples in _copies_beside(rank).items() if rank.device.type == "cpu" else ():
            self._copied[name] += samples

    def settle(self) -> None:
        """Repeat all-reduces whose samples scatter too much, until none does or the job's time is spent."""
        begun, reduces, sizes = time.monotonic(), self.times["all_reduce"], self._job.sizes
        while scattered := [size for size in sizes if not curves.is_settled(reduces[size])]:
            spent_s = from_first(round(time.monotonic() - begun))
            if spent_s >= self._job.budget_s:
                return
            what = f"again, as they scatter: {len(scattered)} of {len(sizes)} sizes"
            self._rank.tell("progress", done=spent_s, total=round(self._job.budget_s), what=what)
            self._reduce(scattered)

    def found(self) -> list[Found]:
        """What pairs and copies come to, where there are any."""
        found = [_of_pairs(self._pairs)] if self._pairs else []
        return [*found, *([_of_copies(sum(_MODEL_BYTES), self._copied)] if self._copied else [])]

    def _reduce(self, sizes: Sequence[int]) -> None:
        for size in self._chance.sample(sizes, len(sizes)):
            self._add("all_reduce", size, self._job.repeats_of(size))

    def _add(self, kind: str, size: int, repeats: int) -> None:
        self.times[kind][size].append(times(kind, size, repeats, self._rank))
        self._rank.tell("timed", kind=kind, num_bytes=size)


def _pairs(size: int, rank: Rank) -> Iterable[tuple[int, int]]:
    """One all-reduce alone and two at once, interleaved, warm; ns from first launch to last end."""
    bench = Bench(rank.device)
    tensors = [bench.zeros(size) for _ in range(2)]
    counted: dict[int, list[int]] = {1: [], 2: []}

    def reduce(count: int) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:count]]:
            work.wait()

    for count in _PAIRED:
        counted[count].append(bench.time(partial(reduce, count)))
    del counted[2][0]  # the first warms up
    return zip(*(over_ranks(min, samples, rank) for samples in counted.values()), strict=True)


def _of_pairs(pairs: Mapping[int, list[tuple[int, int]]]) -> Found:
    """gloo's worker threads send through one connection (A3.8)."""
    ratios = {}
    for size, each in sorted(pairs.items()):
        alone, both = map(median, zip(*each, strict=True))
        ratios[str(size)] = round(both / alone, 4)
    stretch = max(1.0, round(median(ratios.values()), 4))
    fields = {"comm_channels": GLOO_CHANNELS, "shared_connection": True, "channel_slowdown": stretch}
    return fields, {"channel_slowdown": ratios}


def _mean(samples: list[int], rank: Rank) -> list[int]:
    """The mean over ranks of each repeat."""
    return over_ranks(lambda column: sum(column) // len(column), samples, rank)


def _module(tensors: Sequence[Tensor], spacing_ns: int | None = None) -> PacedModule:
    """A paced module whose gradients come one after the other, ``spacing_ns`` apart."""
    spacing_ns = spacing_ns or _SPACING_NS[tensors[0].device.type]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    order = list(range(len(tensors)))[::-1]
    due = [spacing_ns * (place + 1) for place in range(len(tensors) + 1)]
    return paced_module(tensors, gradients, order, due, spacing_ns)


def _tensors(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    return [torch.full((size // 4,), 0.5, device=device) for size in sizes]


def _lasting(duration_ns: int, rank: Rank) -> Tensor:
    """A tensor whose all-reduce lasts some ``duration_ns``; the same size on every rank."""
    pilot = 8 * MIB
    took = min(times("all_reduce", pilot, 4, rank))
    size = from_first(min(_LARGEST_BESIDE_BYTES, pilot * duration_ns // max(1, took)))
    return Bench(rank.device).zeros(size)


def _copies(
    rank: Rank,
    tensors: Sequence[Tensor],
    repeats: int,
    beside: Callable[[], object] | None = None,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[int]]:
    """Copies of gradients like ``tensors`` into one bucket of DDP's, and out of it after backward; in ns.

    ``copy_in`` is how much later the compute lane ends than without DDP, ``copy_out`` the time from the
    end of backward until all gradients are available, both with the noop hook, which launches nothing. Caches
    are swept before each step: a training step touches more memory than they hold, so its gradients and
    buckets are cold.

    ``beside`` begins at the start of steps of their own, and ``wait`` waits for its end. Then ``copy_in``
    is that of DDP without a hook, and ``hooked`` and ``hooked_beside`` are copies with the noop hook,
    alone and beside it.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4, device=rank.device)
    plain, noop, stock = (_module(tensors) for _ in range(3))
    cap_mb = sum(tensor.nbytes for tensor in tensors) // MIB + 2
    noop_ddp, stock_ddp = (build(one, {"bucket_cap_mb": cap_mb}) for one in (noop, stock))
    noop_ddp.register_comm_hook(None, noop_hook)
    count_hooks([noop, stock], plain)
    lanes: dict[str, partial[dict[str, Any]]] = {
        "plain": partial(run_step, plain, plain),
        "hooked": partial(run_step, noop_ddp, noop),
    }
    if beside is not None:
        lanes["copy_in"] = partial(run_step, stock_ddp, stock)
        lanes["hooked_beside"] = partial(run_step, noop_ddp, noop, at_start=beside)
    found: dict[str, list[int]] = {name: [] for name in (*lanes, "copy_out")}  # over ranks
    for repeat in range(_FRESH_BUCKETS + repeats):
        rows = {}
        for name, step in lanes.items():
            broom.add_(1)
            rows[name] = step()
        wait()
        if repeat < _FRESH_BUCKETS:
            continue
        for name, row in rows.items():
            found[name].append(row["backward_end"] - rows["plain"]["backward_end"])
        found["copy_out"].append(rows["hooked"]["sync_end"] - rows["hooked"]["backward_end"])
    return {name: _mean(samples, rank) for name, samples in found.items()}


def _of_copies(num_bytes: int, found: Mapping[str, list[int]]) -> Found:
    copy_in, copy_out = found.get("copy_in", found["hooked"]), found["copy_out"]
    rates = together(curves.rate("copy_in", num_bytes, copy_in), curves.rate("copy_out", num_bytes, copy_out))
    if "hooked_beside" not in found:
        return rates
    return together(rates, curves.slowdown("copy_in", found["hooked"], found["hooked_beside"]))


def _copies_beside(rank: Rank) -> dict[str, list[int]]:
    """``_copies`` of a model's kind of tensors, alone and beside all-reduces; means over ranks.

    Large and small tensors are mixed as in real models, so that the bandwidth holds the cost of the calls
    too. Every call allocates anew, since how fast memory is depends on where it lies.
    """
    sent = _lasting(len(_MODEL_BYTES) * _SPACING_NS["cpu"], rank).chunk(_CHUNKS_BESIDE)
    works: list[Any] = []

    def reduce_beside() -> None:
        works.extend(dist.all_reduce(tensor, async_op=True) for tensor in sent)

    def wait() -> None:
        while works:
            works.pop().wait()

    return _copies(rank, _tensors(_MODEL_BYTES, rank.device), _COPIES_PER_ROUND, reduce_beside, wait)


def _copies_alone(rank: Rank) -> Found:
    """``_copies`` of the job's tensors, or of a model's kind."""
    workload = rank.job.workload
    tensors = _tensors(_MODEL_BYTES, rank.device) if workload is None else tensors_of(workload, rank.device)
    found = _copies(rank, tensors, rank.job.copy_repeats)
    return _of_copies(sum(tensor.nbytes for tensor in tensors), found)


def _launches(rank: Rank) -> Found:
    """What one launch takes, with a small bucket for each gradient.

    On the CPU it is the processor time of a gradient's hooks, minus theirs with one bucket for all. On a GPU
    it is the time from a bucket's being ready to the end of a collective that lasts no time on its stream.
    There, and where a link is emulated, that is carried by a communication hook.
    """
    on_host, stamp = rank.device.type == "cpu", clock_for(rank.device).stamp
    tensors = _tensors([_SMALL_BYTES] * _SMALL_COUNT, rank.device)
    plain, each, whole = (_module(tensors) for _ in range(3))
    each_ddp, whole_ddp = build(each, {"bucket_cap_mb": 1 / MIB}), build(whole, {"bucket_cap_mb": 1})
    recorder = None
    if rank.job.carrier.emulated or not on_host:
        link = link_of(_FREE_LINK, rank.device)
        recorder, other = Recorder(stamp, launch=link), Recorder(stamp, launch=link)
        each_ddp.register_comm_hook(None, recorder.hook)
        whole_ddp.register_comm_hook(None, other.hook)
    count_hooks([each, whole], plain)
    samples: list[int] = []
    for repeat in range(_DROPPED + rank.job.copy_repeats):
        apart, as_one = run_step(each_ddp, each, recorder), run_step(whole_ddp, whole)
        if repeat < _DROPPED:
            continue
        if on_host:
            pairs = zip(apart["hooks"][:-1], as_one["hooks"][:-1], strict=True)
            samples += [one - other for one, other in pairs]
        else:
            samples += [end - ready for ready, _, end in apart["buckets"]]
    return together(({"launch_blocks_compute": on_host}, {}), curves.cost("launch_cost_ns", samples))


def _copies_out(rank: Rank) -> Found:
    """Copies in one go, as finalize makes them, and an all-reduce: each alone, and both at once.

    The all-reduce is launched up to some ms before the copies begin (``_HEAD_STARTS`` different times, in
    turn), and lasts longer than they do.
    """
    broom, spacing_ns = torch.zeros(_SWEEP_BYTES // 4), _SPACING_NS["cpu"]
    sources = _tensors(_MODEL_BYTES, rank.device)
    targets = [torch.empty_like(source) for source in sources]
    reduced = _lasting(5 * spacing_ns, rank)
    found: list[tuple[int, ...]] = []  # of copies and all-reduces alone, then beside each other

    def once(copies: bool, reduces: bool, head_start_ns: int) -> tuple[int, int]:
        broom.add_(1)
        start = common_start()
        sleep_until(start)
        reduction: Any = dist.all_reduce(reduced, async_op=True).get_future() if reduces else None
        ended = reduction.then(lambda _: time.monotonic_ns()) if reduces else None
        begun = sleep_until(start + head_start_ns)
        if copies:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
        copied = time.monotonic_ns() - begun
        return copied, 0 if ended is None else ended.wait() - start

    for repeat in range(2 * rank.job.copy_repeats + 2):
        head_start_ns = repeat % _HEAD_STARTS * spacing_ns // _HEAD_STARTS
        alone, _ = once(True, False, head_start_ns)
        _, undisturbed = once(False, True, head_start_ns)
        copied, disturbed = once(True, True, head_start_ns)
        if repeat >= 2:
            found.append((alone, undisturbed, copied, disturbed))
    copy, comm, copy_beside, comm_beside = (_mean(list(one), rank) for one in zip(*found, strict=True))
    extra = [beside - alone for alone, beside in zip(comm, comm_beside, strict=True)]
    _, spread = curves.slowdown("comm_copy_out", comm, comm_beside)
    fields = {"comm_copy_out_slowdown": curves.held_up(copy_beside, extra)}
    return together(curves.slowdown("copy_out", copy, copy_beside), (fields, spread))


def _additions(rank: Rank) -> Found:
    """Gradients added in place to others, as micro-batches and Megatron-Core's hooks do."""
    broom, found = torch.zeros(_SWEEP_BYTES // 4), []
    sources = _tensors(_MODEL_BYTES, rank.device)
    targets = [torch.zeros_like(source) for source in sources]
    for repeat in range(rank.job.copy_repeats + 2):
        broom.add_(1)
        sleep_until(common_start())
        begun = time.thread_time_ns()
        for target, source in zip(targets, sources, strict=True):
            target.add_(source)
        if repeat >= 2:
            found.append(time.thread_time_ns() - begun)
    return curves.rate("accumulate", sum(_MODEL_BYTES), _mean(found, rank))


def _search(rank: Rank) -> Found:
    """What DDP's search for unused parameters costs a parameter; nothing is sent.

    Two like modules take steps in turns, of which one searches. A forward is the processor time of the main
    thread, a hook that of autograd's thread, so that other work of the cores does not matter. The last hook
    is left out: it launches the map of used parameters.
    """
    small = _tensors([_SMALL_BYTES] * _SEARCHED, rank.device)
    module, searching = (_module(small, _SEARCHED_SPACING_NS) for _ in range(2))
    pairs = [(build(module, {}), module), (build(searching, {"find_unused_parameters": True}), searching)]
    for ddp, paced in pairs:
        ddp.register_comm_hook(None, noop_hook)
        paced.watch_hooks()
    search, mark = [], []
    for repeat in range(_DROPPED + 2 * rank.job.copy_repeats):
        without, beside = (run_step(ddp, paced) for ddp, paced in pairs)
        if repeat >= _DROPPED:
            search.append((beside["forward"] - without["forward"]) // _SEARCHED)
            extra = sum(beside["hooks"][:-1]) - sum(without["hooks"][:-1])
            mark.append(extra // (_SEARCHED - 1))
    costs = (
        curves.cost("search_unused_ns", _mean(search, rank)),
        curves.cost("mark_used_ns", _mean(mark, rank)),
    )
    return together(*costs)


def _beside_compute(rank: Rank) -> Found:
    """What computing and all-reduces take from each other on a host, by size; means over ranks.

    A thread of each rank multiplies matrices with as many of torch's threads as this one, in turns alone and
    beside all-reduces. The share is the part of the products a second that is lost beside all-reduces. It
    counts interrupts too, which no process is charged with, and is 0 if the host has cores to spare. The
    slow-down is how many times as long the same all-reduces take.
    """
    goes, ends, made = Event(), Event(), [0]
    matrix = torch.rand(2 * [_SIDE])

    def multiply(threads: int) -> None:
        torch.set_num_threads(threads)  # a new Python thread begins with torch's default
        product = torch.empty_like(matrix)
        while goes.wait() and not ends.is_set():
            torch.mm(matrix, matrix, out=product)
            made[0] += 1

    def beside(work: Callable[..., object], *arguments: object) -> tuple[float, float]:
        """How long ``work`` took, s, and how many products were made in a second of it."""
        before, begun = made[0], time.monotonic()
        goes.set()
        work(*arguments)
        goes.clear()
        took_s = time.monotonic() - begun
        return took_s, (made[0] - before) / took_s

    def reduce(tensor: Tensor, repeats: int) -> None:
        for _ in range(repeats):
            dist.all_reduce(tensor)

    def mean(value: float) -> float:
        return round(float(sum(gather(value, rank.world_size))) / rank.world_size, 4)

    thread = Thread(target=multiply, args=(torch.get_num_threads(),), daemon=True)
    thread.start()
    shares, slowdowns = {}, {}
    for size in rank.job.pair_sizes:
        tensor = Bench(rank.device).zeros(size)
        repeats = max(1, round(_SHARE_NS / max(times("all_reduce", size, 2, rank))))
        turns = []
        for _ in range(_SHARE_TURNS):
            begun = time.monotonic()
            reduce(tensor, repeats)
            alone_s = time.monotonic() - begun
            meet()
            both_s, both_rate = beside(reduce, tensor, repeats)
            meet()
            _, alone_rate = beside(time.sleep, both_s)
            meet()
            turns.append((alone_s, both_s, alone_rate, both_rate))
            rank.moved_s = time.monotonic()  # on a busy machine all turns together take minutes
        alone_s, both_s, alone_rate, both_rate = map(median, zip(*turns, strict=True))
        shares[str(size)] = max(0.0, mean(1 - both_rate / alone_rate))
        slowdowns[str(size)] = max(1.0, mean(both_s / alone_s))
    ends.set()
    goes.set()
    thread.join()
    fields = {
        "compute_slowdown": round(1 / (1 - min(0.95, median(shares.values()))), 4),
        "comm_slowdown": median(slowdowns.values()),
    }
    # They are a model's: a paced replay's machine has none unless they are asked for.
    spread = {"host_share": shares, "comm_beside_compute": slowdowns}
    return fields if rank.job.computes else {}, spread


_Probe = Callable[[Rank], Found]
# Copies and launches: all that is measured of a GPU, and beside a link that is emulated. How long kernels and
# collectives hold each other up depends on the job's kernels (sim/DECISIONS.md): its recorded step tells.
_ANYWHERE: dict[str, _Probe] = {"copies": _copies_alone, "launches": _launches}
_ON_HOST: dict[str, _Probe] = {  # copies are measured in each round, beside all-reduces
    "launches": _launches,
    "copies out": _copies_out,
    "additions": _additions,
    "search": _search,
    "host": _beside_compute,
}
