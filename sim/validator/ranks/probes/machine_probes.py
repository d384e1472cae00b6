"""Micro-runs on real ranks that measure the machine: what ``bucketsim calibrate`` runs on each rank.

None of them replays a candidate: the curve comes from bare all-reduces, copies and launches from small paced
modules of their own. Collectives are timed alike on every device; what a host's processor and memory share
with gloo is measured on the CPU alone.
"""

import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from threading import Event, Thread
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.recorder.clocks import Stamp
from sim.validator.ranks.lanes.paced_lanes import pacer_for
from sim.validator.ranks.pacing.paced_module import PacedModule, sharpen_sleep, sleep_until
from sim.validator.ranks.pacing.stepping import common_start, gather, meet, run_step, set_baseline
from sim.validator.ranks.probes.curve_probes import (
    ReduceCurve,
    bench_of,
    few_of,
    mean_over_ranks,
    queued_gathers,
    repeats_of,
    shortest,
    tell_broadcasts,
    tell_zero_curves,
    time_all_reduces,
)
from sim.validator.ranks.probes.local_probes import local_costs
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.wrapping.wrap import build

_MIB = 1 << 20
_SPACING_NS = 4_000_000
# A transformer layer's kind of tensors: large weights beside small biases and norms, whose cost is the call.
_MODEL_BYTES = 12 * [2 * _MIB, 4096, _MIB, 4096, _MIB // 2, 4096]
_SWEEP_BYTES = 192 * _MIB
_CHUNKS_BESIDE = 8
_ZERO_ROUNDS = 3
_SEARCHED = 128
_SEARCHED_SPACING_NS = 400_000
_FRESH_BUCKETS = 2  # iterations whose buckets were never touched: the first, and the first after the rebuild
_HEAD_STARTS = 4
_LARGEST_BESIDE_BYTES = 256 * _MIB
_SIDE = 2048  # of matrices on a GPU, of bfloat16: a product takes some 20 to 200 us
_PAIRED = (2, *(1, 2, 2, 1) * 2)  # numbers of all-reduces at once, one after the other; the first warms up
_COPIES_S, _OTHERS_S = 12.0, 20.0  # about what copies take in each round, and all that follows the rounds


def calibrate(rank: Rank) -> None:
    """Measure curves, channel sharing, copies, launches and what slows what, one event each."""
    sharpen_sleep()
    gc.disable()
    job = rank.job
    measure: dict[str, Callable[[Rank], dict[str, Any]]] = {
        **{"launches": _launches, "copies out": _copies_out, "additions": _additions},
        **{"gathers": queued_gathers, "search": _search, "host": beside_compute, "compute": _compute},
    }
    if job["device"] == "cuda":
        measure = {"local": _local, "compute": _compute_on_stream}
    last = [what for what in measure if what != "compute" or job["computes"]]
    curve = ReduceCurve(rank)
    if job["everything"]:
        rounds, begun = job["rounds"], time.monotonic()
        total, left_s = rounds + len(last), _estimated_s(rank)
        further = f", then up to {job['budget_s'] / 60:.1f} min for sizes that scatter"
        for index in range(rounds):
            left = f"curve, about {left_s / 60:.1f} min left{further}"
            rank.tell("progress", done=index, total=total, what=left)
            _round(rank, curve, index)
            left_s = (time.monotonic() - begun) / (index + 1) * (rounds - index - 1) + _OTHERS_S
        for number, what in enumerate(last):
            rank.tell("progress", done=rounds + number, total=total, what=what)
            rank.tell(what, **measure[what](rank))
    curve.settle()


def _estimated_s(rank: Rank) -> float:
    """About how long all rounds will take, from a few all-reduces; the same on every rank."""
    job = rank.job
    pilot = 4 * _MIB
    took_s = min(time_all_reduces(pilot, 3, rank, bench_of(rank))) / 1e9
    rounds: int = job["rounds"]
    curve = sum(size * repeats_of(size, job) for size in job["sizes"])
    zero = _ZERO_ROUNDS * sum(size * few_of(size, job) for size in job["zero_sizes"])
    pairs: int = sum(_PAIRED) * sum(job["pair_sizes"])
    sent = rounds * (curve + pairs) + 3 * zero
    copies_s = rounds * _COPIES_S if job["device"] == "cpu" else 0.0
    return float(sent / pilot * took_s + copies_s + _OTHERS_S)


def _round(rank: Rank, curve: ReduceCurve, index: int) -> None:
    job = rank.job
    curve.measure(job["sizes"])
    tell_broadcasts(rank)
    if index < _ZERO_ROUNDS:
        tell_zero_curves(rank)
    if job["backend"] == "gloo":
        for size in job["pair_sizes"]:
            rank.tell("pair", num_bytes=size, **_time_pairs(size, rank))
    if job["device"] == "cpu":
        rank.tell("copies", **_copies(rank))


def _time_pairs(size: int, rank: Rank) -> dict[str, list[int]]:
    """One all-reduce alone and two at once, interleaved, warm; ns from first launch to last end."""
    bench = bench_of(rank)
    tensors = [bench.zeros(size) for _ in range(2)]
    times: dict[int, list[int]] = {1: [], 2: []}

    def reduce(count: int) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:count]]:
            work.wait()

    for count in _PAIRED:
        times[count].append(bench.time(partial(reduce, count)))
    del times[2][0]  # the first warms up
    return {"alone_ns": shortest(times[1], rank), "both_ns": shortest(times[2], rank)}


def _module(sizes: list[int], spacing_ns: int = _SPACING_NS) -> PacedModule:
    """A paced module whose gradients come one after the other, ``spacing_ns`` apart."""
    tensors = [torch.full((size // 4,), 0.5) for size in sizes]
    gradients = [torch.full((size // 4,), 0.5) for size in sizes]
    order = list(range(len(sizes)))[::-1]
    due = [spacing_ns * (place + 1) for place in range(len(sizes) + 1)]
    return PacedModule(tensors, gradients, order, due, forward_ns=_SPACING_NS)


def _excess(row: dict[str, Any], module: PacedModule) -> list[int]:
    """What DDP's hooks took, ns per gradient in ready order."""
    return [max(0, hook - base) for hook, base in zip(row["hooks"], module.schedule.baseline_ns, strict=True)]


def _lasting(duration_ns: int, rank: Rank) -> torch.Tensor:
    """A tensor whose all-reduce lasts some ``duration_ns``; the same size on every rank."""
    bench, pilot = bench_of(rank), 8 * _MIB
    took = min(time_all_reduces(pilot, 4, rank, bench))
    size = min(_LARGEST_BESIDE_BYTES, pilot * duration_ns // max(1, took))
    agreed = torch.tensor([size])
    dist.broadcast(agreed, src=0)
    return bench.zeros(int(agreed.item()))


def _begin_reducing(tensor: torch.Tensor) -> torch.futures.Future[int]:
    """Launch an all-reduce; the future holds when it ended, ns."""
    future: torch.futures.Future[Any] = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda _: time.monotonic_ns())


def _copies(rank: Rank) -> dict[str, Any]:
    """Copies into buckets, alone and beside all-reduces, and copies out after backward, alone; ns per repeat.

    ``copy_in_ns`` is how much later the compute lane of stock DDP with one bucket ends than without DDP.
    ``hooked_ns`` and ``hooked_beside_ns`` are the same with the noop hook, which launches nothing, alone and
    beside all-reduces. ``copy_out_ns`` is the time from the end of backward, with the noop hook. Caches are
    swept before each step: a training step touches more memory than they hold, so its gradients and buckets
    are cold. Large and small tensors are mixed as in real models, so that the bandwidth holds the cost of the
    calls too. Every call allocates anew, since how fast memory is depends on where it lies.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4)
    plain, stock, noop = (_module(_MODEL_BYTES) for _ in range(3))
    whole = {"bucket_cap_mb": sum(_MODEL_BYTES) // _MIB + 2}
    stock_ddp = build(stock, whole)
    noop_ddp = build(noop, whole)
    noop_ddp.register_comm_hook(None, noop_hook)
    set_baseline([stock, noop], plain, 0, repeats=4)
    beside = _lasting(len(_MODEL_BYTES) * _SPACING_NS, rank).chunk(_CHUNKS_BESIDE)
    works: list[Any] = []

    def reduce_beside() -> None:
        works.extend(dist.all_reduce(tensor, async_op=True) for tensor in beside)

    found: dict[str, list[int]] = {name: [] for name in ("copy_in", "hooked", "hooked_beside", "copy_out")}
    for repeat in range(_FRESH_BUCKETS + rank.job["copies_per_round"]):
        rows = []
        for model, module, at_start in (
            (plain, plain, None),
            (stock_ddp, stock, None),
            (noop_ddp, noop, None),
            (noop_ddp, noop, reduce_beside),
        ):
            broom.add_(1)
            rows.append(run_step(model, module, 0, at_start=at_start))
        while works:
            works.pop().wait()
        if repeat >= _FRESH_BUCKETS:
            without = rows[0]["backward_end"]
            for name, row in zip(("copy_in", "hooked", "hooked_beside"), rows[1:], strict=True):
                found[name].append(row["backward_end"] - without)
            found["copy_out"].append(rows[2]["sync_end"] - rows[2]["backward_end"])
    return {
        "copy_bytes": sum(_MODEL_BYTES),
        **{f"{name}_ns": mean_over_ranks(samples, rank) for name, samples in found.items()},
    }


def _launches(rank: Rank) -> dict[str, Any]:
    """Launch cost on the autograd thread: one small bucket per gradient against one bucket for all."""
    plain, each, whole = (_module([4096] * 24) for _ in range(3))
    each_ddp = build(each, {"bucket_cap_mb": 1 / _MIB})
    whole_ddp = build(whole, {"bucket_cap_mb": 1})
    set_baseline([each, whole], plain, 0, repeats=6)
    costs: list[int] = []
    for repeat in range(rank.job["copy_repeats"] + 3):
        apart = _excess(run_step(each_ddp, each, 0), each)
        together = _excess(run_step(whole_ddp, whole, 0), whole)
        if repeat >= 3:
            costs += [one - other for one, other in zip(apart[:-1], together[:-1], strict=True)]
    return {"samples_ns": costs}


def _search(rank: Rank) -> dict[str, Any]:
    """What DDP's search for unused parameters costs, measured on many small parameters."""
    one, other = (_module([4096] * _SEARCHED, _SEARCHED_SPACING_NS) for _ in range(2))
    return time_search(one, other, rank, 2 * rank.job["copy_repeats"])


def _copies_out(rank: Rank) -> dict[str, Any]:
    """Copies in one go, as finalize makes them, and an all-reduce: each alone, and both at once.

    ns per repeat: ``copy_ns`` and ``copy_beside_ns`` for the copies, ``comm_ns`` and ``comm_beside_ns`` for
    the all-reduce. It is launched up to some ms before the copies begin (``_HEAD_STARTS`` different times, in
    turn), and lasts longer than they do.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4)
    sources = [torch.full((size // 4,), 0.5) for size in _MODEL_BYTES]
    targets = [torch.empty_like(source) for source in sources]
    reduced = _lasting(_SPACING_NS * 5, rank)
    found: dict[str, list[int]] = {"copy": [], "comm": [], "copy_beside": [], "comm_beside": []}

    def once(copies: bool, reduces: bool, head_start_ns: int) -> tuple[int, int]:
        broom.add_(1)
        start = common_start()
        sleep_until(start)
        reduction = _begin_reducing(reduced) if reduces else None
        begun = sleep_until(start + head_start_ns)
        if copies:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
        copied = time.monotonic_ns() - begun
        return copied, 0 if reduction is None else reduction.wait() - start

    for repeat in range(2 * rank.job["copy_repeats"] + 2):
        head_start_ns = repeat % _HEAD_STARTS * _SPACING_NS // _HEAD_STARTS
        alone, _ = once(True, False, head_start_ns)
        _, undisturbed = once(False, True, head_start_ns)
        copied, disturbed = once(True, True, head_start_ns)
        if repeat >= 2:
            for name, value in zip(found, (alone, undisturbed, copied, disturbed), strict=True):
                found[name].append(value)
    return {f"{name}_ns": mean_over_ranks(samples, rank) for name, samples in found.items()}


def _additions(rank: Rank) -> dict[str, Any]:
    """Gradients added in place to others, as micro-batches and Megatron-Core's hooks do, ns per repeat."""
    broom = torch.zeros(_SWEEP_BYTES // 4)
    sources = [torch.full((size // 4,), 0.5) for size in _MODEL_BYTES]
    targets = [torch.zeros_like(source) for source in sources]
    found = []
    for repeat in range(rank.job["copy_repeats"] + 2):
        broom.add_(1)
        sleep_until(common_start())
        begun = time.thread_time_ns()
        for target, source in zip(targets, sources, strict=True):
            target.add_(source)
        if repeat >= 2:
            found.append(time.thread_time_ns() - begun)
    return {"num_bytes": sum(_MODEL_BYTES), "samples_ns": mean_over_ranks(found, rank)}


def _compute(rank: Rank) -> dict[str, Any]:
    """A matrix multiplication that computes for real and an all-reduce: each alone, and both at once.

    ns per repeat; every rank computes, as in training. The product is repeated until it lasts about as
    long as the all-reduce, and both are timed per unit of work while the other is under way.
    """
    reduced = _lasting(_SPACING_NS * 10, rank)
    left, right = torch.rand(192, 192), torch.rand(192, 192)
    out = torch.empty(192, 192)

    def products(until: int) -> tuple[int, int]:
        """Multiply until the time given; (products, ns)."""
        begun, count = time.monotonic_ns(), 0
        while (now := time.monotonic_ns()) < until:
            torch.mm(left, right, out=out)
            count += 1
        return count, now - begun

    def once(computes: bool, reduces: bool, lasting_ns: int) -> tuple[int, int]:
        start = common_start()
        sleep_until(start)
        reduction = _begin_reducing(reduced) if reduces else None
        per_product = 0
        if computes:
            count, took = products(start + lasting_ns)
            per_product = took // max(1, count)
        return per_product, 0 if reduction is None else reduction.wait() - start

    found: dict[str, list[int]] = {"compute": [], "comm": [], "compute_beside": [], "comm_beside": []}
    lasting = 10 * _SPACING_NS
    for repeat in range(rank.job["copy_repeats"] + 2):
        alone, _ = once(True, False, lasting)
        _, undisturbed = once(False, True, lasting)
        slowed, _ = once(True, True, undisturbed)
        _, disturbed = once(True, True, 3 * undisturbed)
        if repeat >= 2:
            for name, value in zip(found, (alone, undisturbed, slowed, disturbed), strict=True):
                found[name].append(value)
    return {f"{name}_ns": mean_over_ranks(samples, rank) for name, samples in found.items()}


def _local(rank: Rank) -> dict[str, Any]:
    """Copies of DDP's and launches on a GPU, as ``local_costs`` tells them."""
    shapes = [[size // 4] for size in _MODEL_BYTES]
    return local_costs(pacer_for(rank), shapes, ["float32"] * len(shapes), rank.job["copy_repeats"])


def _compute_on_stream(rank: Rank) -> dict[str, Any]:
    """Matrix products on a GPU's stream and an all-reduce: each alone, and both at once; as ``_compute``.

    Beside an all-reduce run as many products as last half of it, so that each of them is slowed; beside
    products that last three times as long runs an all-reduce.
    """
    bench, reduced = bench_of(rank), _lasting(_SPACING_NS * 10, rank)
    left = torch.randn(_SIDE, _SIDE, device=bench.device, dtype=torch.bfloat16)
    out, side = torch.empty_like(left), torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]

    def once(count: int, reduces: bool) -> tuple[int, int]:
        """ns of ``count`` products and of the all-reduce, 0 of what does not run."""
        works: list[Any] = []
        ends: list[Stamp] = []

        def launch() -> None:
            if reduces:
                works.append(dist.all_reduce(reduced, async_op=True))

        def multiply() -> None:
            for _ in range(count):
                torch.mm(left, left, out=out)

        def finish() -> None:
            with torch.cuda.stream(side):
                for work in works:
                    work.wait()
                    ends.append(bench.clock.stamp())

        meet()
        begun, _, computed, _ = bench.run(launch, multiply, finish)
        took = [bench.clock.between_ns(begun, end) for end in ends]
        return bench.clock.between_ns(begun, computed) if count else 0, sum(took)

    once(1, True)
    product_ns, alone_ns = once(8, False)[0] // 8, once(0, True)[1]
    few = max(1, alone_ns // (2 * product_ns))
    found: dict[str, list[int]] = {"compute": [], "comm": [], "compute_beside": [], "comm_beside": []}
    for repeat in range(rank.job["copy_repeats"] + 2):
        computing, undisturbed = once(few, False)[0], once(0, True)[1]
        slowed, disturbed = once(few, True)[0], once(6 * few, True)[1]
        if repeat >= 2:
            for name, value in zip(found, (computing, undisturbed, slowed, disturbed), strict=True):
                found[name].append(value // (few if name.startswith("compute") else 1))
    return {f"{name}_ns": mean_over_ranks(samples, rank) for name, samples in found.items()}


_DROPPED = 3


def time_search(module: PacedModule, searching: PacedModule, rank: Rank, repeats: int) -> dict[str, Any]:
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


_SHARE_NS = 300_000_000  # about how long a turn of all-reduces lasts
_SHARE_TURNS = 8
_SIDE = 256  # of the matrices: a product takes about a millisecond, of one core


def beside_compute(rank: Rank) -> dict[str, dict[int, float]]:
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
                meet()
                both_s, both_rate = multiplying.beside(_all_reduces, tensor, repeats)
                meet()
                _, alone_rate = multiplying.beside(time.sleep, both_s)
                meet()
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
