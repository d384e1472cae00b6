"""Micro-runs on real ranks that measure the machine: what ``bucketsim calibrate`` runs on each rank.

None of them replays a candidate: the curve comes from bare all-reduces, copies and launches from small paced
modules of their own. Collectives are timed alike on every device; what a host's processor and memory share
with gloo is measured on the CPU alone. A probe is a row of ``PROBES``; what its samples say of a machine is a
row of ``sim.validator.calibrate``.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from threading import Event, Thread
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.nouns.hardware import CurvePoint, Hardware
from sim.recorder.clocks import Stamp
from sim.validator.jobs import CalibrationJob, ProbeJob
from sim.validator.ranks.collectives import ReduceCurve, bench_of, tell_others, times
from sim.validator.ranks.cuda import keep_logger_from_waiting
from sim.validator.ranks.paced import PacedModule, Pacer, pacer_for, tensors_of
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import build
from sim.validator.ranks.step import common_start, gather, meet, run_step, sleep_until

_MIB = 1 << 20
_SPACING_NS = {"cpu": 4_000_000, "cuda": 200_000}  # between gradients: more than DDP's hook costs the host
# A transformer layer's kind of tensors: large weights beside small biases and norms, whose cost is the call.
_MODEL_BYTES = 12 * [2 * _MIB, 4096, _MIB, 4096, _MIB // 2, 4096]
_SWEEP_BYTES = 192 * _MIB
_SMALL_BYTES, _SMALL_COUNT = 4096, 24
_CHUNKS_BESIDE = 8
_SHARDED_ROUNDS = 3
_SEARCHED = 128
_SEARCHED_SPACING_NS = 400_000
_COPIES_PER_ROUND = 4
_FRESH_BUCKETS = 2  # iterations whose buckets were never touched: the first, and the first after the rebuild
_DROPPED = 3
_HEAD_STARTS = 4
_LARGEST_BESIDE_BYTES = 256 * _MIB
_SHARE_NS = 300_000_000  # about how long a turn of all-reduces lasts
_SHARE_TURNS = 8
_SIDE = {
    "cpu": 256,
    "cuda": 2048,
}  # of matrices: a product takes a millisecond of a core, 20 to 200 us of a GPU
_PAIRED = (2, *(1, 2, 2, 1) * 2)  # numbers of all-reduces at once, one after the other; the first warms up
_COPIES_S, _OTHERS_S = 12.0, 20.0  # about what copies take in each round, and all that follows the rounds
_FREE_LINK = Hardware(
    name="free", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=0),), comm_channels=1
)


def calibrate(rank: Rank) -> None:
    """Measure curves, channel sharing, copies, launches and what slows what, one event each."""
    job: CalibrationJob = rank.job
    curve, others = ReduceCurve(rank), PROBES[job.carrier.device] if job.rounds else {}
    total, begun, left_s = job.rounds + len(others), time.monotonic(), 0.0
    further = f", then up to {job.budget_s / 60:.1f} min for sizes that scatter"
    for index in range(job.rounds):
        left_s = left_s or _estimated_s(rank)
        left = f"curve, about {left_s / 60:.1f} min left{further}"
        rank.tell("progress", done=index, total=total, what=left)
        curve.measure(job.sizes)
        tell_others(rank, with_sharded=index < _SHARDED_ROUNDS)
        if job.carrier.groups == "gloo":
            for size in job.pair_sizes:
                rank.tell("pair", num_bytes=size, **_time_pairs(size, rank))
        if job.carrier.device == "cpu":
            rank.tell("copies", **_copies_beside(rank))
        left_s = (time.monotonic() - begun) / (index + 1) * (job.rounds - index - 1) + _OTHERS_S
    for number, (what, probe) in enumerate(others.items()):
        rank.tell("progress", done=job.rounds + number, total=total, what=what)
        rank.tell(what, **probe(rank))
    curve.settle()


def probe_machine(rank: Rank) -> None:
    """Measure copies of a workload's tensors into and out of buckets, and launches over a link of no time."""
    job: ProbeJob = rank.job
    pacer = pacer_for(rank)
    rank.tell("copies", **copies(pacer, tensors_of(job.workload, pacer.device), job.repeats))
    rank.tell("launches", **launches(pacer, job.repeats, is_emulated=True))


def _estimated_s(rank: Rank) -> float:
    """About how long all rounds will take, from a few all-reduces; the same on every rank."""
    job: CalibrationJob = rank.job
    pilot = 4 * _MIB
    took_s = min(times("all_reduce", pilot, 3, rank)) / 1e9
    curve = sum(size * job.repeats_of(size) for size in job.sizes)
    sharded = 3 * _SHARDED_ROUNDS * sum(size * min(4, job.repeats_of(size)) for size in job.sharded_sizes)
    pairs = sum(_PAIRED) * sum(job.pair_sizes)
    copies_s = job.rounds * _COPIES_S if job.carrier.device == "cpu" else 0.0
    return float((job.rounds * (curve + pairs) + sharded) / pilot * took_s + copies_s + _OTHERS_S)


def _time_pairs(size: int, rank: Rank) -> dict[str, list[int]]:
    """One all-reduce alone and two at once, interleaved, warm; ns from first launch to last end."""
    bench = bench_of(rank)
    tensors = [bench.zeros(size) for _ in range(2)]
    counted: dict[int, list[int]] = {1: [], 2: []}

    def reduce(count: int) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:count]]:
            work.wait()

    for count in _PAIRED:
        counted[count].append(bench.time(partial(reduce, count)))
    del counted[2][0]  # the first warms up
    return {"alone_ns": _over_ranks(min, counted[1], rank), "both_ns": _over_ranks(min, counted[2], rank)}


def _over_ranks(of: Callable[[Sequence[int]], int], samples: list[int], rank: Rank) -> list[int]:
    """Of each repeat one figure over ranks: the least is that of the last arriver, who waits for nobody."""
    return [of(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def _mean(column: Sequence[int]) -> int:
    return sum(column) // len(column)


def _means(found: dict[str, list[int]], rank: Rank) -> dict[str, list[int]]:
    """The mean over ranks of each repeat, by ``name_ns``."""
    return {f"{name}_ns": _over_ranks(_mean, samples, rank) for name, samples in found.items()}


def _module(pacer: Pacer, tensors: Sequence[Tensor], spacing_ns: int | None = None) -> PacedModule:
    """A paced module whose gradients come one after the other, ``spacing_ns`` apart."""
    spacing_ns = spacing_ns or _SPACING_NS[pacer.device.type]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    order = list(range(len(tensors)))[::-1]
    due = [spacing_ns * (place + 1) for place in range(len(tensors) + 1)]
    return pacer.module(tensors, gradients, order, due, spacing_ns)


def _tensors(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    return [torch.full((size // 4,), 0.5, device=device) for size in sizes]


def _lasting(duration_ns: int, rank: Rank) -> Tensor:
    """A tensor whose all-reduce lasts some ``duration_ns``; the same size on every rank."""
    pilot = 8 * _MIB
    took = min(times("all_reduce", pilot, 4, rank))
    size = min(_LARGEST_BESIDE_BYTES, pilot * duration_ns // max(1, took))
    agreed = torch.tensor([size])
    dist.broadcast(agreed, src=0)
    return bench_of(rank).zeros(int(agreed.item()))


def _begin_reducing(tensor: Tensor) -> torch.futures.Future[int]:
    """Launch an all-reduce; the future holds when it ended, ns."""
    future: torch.futures.Future[Any] = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda _: time.monotonic_ns())


def copies(
    pacer: Pacer,
    tensors: Sequence[Tensor],
    repeats: int,
    beside: Callable[[], object] | None = None,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Copies of gradients like ``tensors`` into one bucket of DDP's, and out of it after backward; in ns.

    ``copy_in_ns`` is how much later the compute lane ends than without DDP, ``copy_out_ns`` the time from the
    end of backward until all gradients are available, both with the noop hook, which launches nothing. Caches
    are swept before each step: a training step touches more memory than they hold, so its gradients and
    buckets are cold.

    ``beside`` begins at the start of steps of their own, and ``wait`` waits for its end. Then ``copy_in_ns``
    is that of DDP without a hook, and ``hooked_ns`` and ``hooked_beside_ns`` are copies with the noop hook,
    alone and beside it.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4, device=pacer.device)
    copy_bytes = sum(tensor.nbytes for tensor in tensors)
    plain, noop, stock = (_module(pacer, tensors) for _ in range(3))
    noop_ddp, stock_ddp = (build(one, {"bucket_cap_mb": copy_bytes // _MIB + 2}) for one in (noop, stock))
    noop_ddp.register_comm_hook(None, noop_hook)
    lanes: dict[str, tuple[Any, PacedModule, Callable[[], object] | None]] = {
        "plain": (plain, plain, None),
        "hooked": (noop_ddp, noop, None),
    }
    if beside is not None:
        lanes = {**lanes, "copy_in": (stock_ddp, stock, None), "hooked_beside": (noop_ddp, noop, beside)}
    for model, _, _ in lanes.values():
        keep_logger_from_waiting(model)
    pacer.settle([noop, stock], plain)
    found: dict[str, list[int]] = {f"{name}_ns": [] for name in (*lanes, "copy_out")}
    for repeat in range(_FRESH_BUCKETS + repeats):
        rows = {}
        for name, (model, module, at_start) in lanes.items():
            broom.add_(1)
            rows[name] = run_step(model, module, at_start=at_start)
        wait()
        if repeat < _FRESH_BUCKETS:
            continue
        for name, row in rows.items():
            found[f"{name}_ns"].append(row["backward_end"] - rows["plain"]["backward_end"])
        found["copy_out_ns"].append(rows["hooked"]["sync_end"] - rows["hooked"]["backward_end"])
    del found["plain_ns"]
    if beside is None:
        found["copy_in_ns"] = found.pop("hooked_ns")
    return {"copy_bytes": copy_bytes, **found}


def _copies_beside(rank: Rank) -> dict[str, Any]:
    """``copies`` of a model's kind of tensors, alone and beside all-reduces; means over ranks.

    Large and small tensors are mixed as in real models, so that the bandwidth holds the cost of the calls
    too. Every call allocates anew, since how fast memory is depends on where it lies.
    """
    pacer = pacer_for(rank)
    sent = _lasting(len(_MODEL_BYTES) * _SPACING_NS["cpu"], rank).chunk(_CHUNKS_BESIDE)
    works: list[Any] = []

    def reduce_beside() -> None:
        works.extend(dist.all_reduce(tensor, async_op=True) for tensor in sent)

    def wait() -> None:
        while works:
            works.pop().wait()

    found = copies(pacer, _tensors(_MODEL_BYTES, pacer.device), _COPIES_PER_ROUND, reduce_beside, wait)
    copy_bytes = found.pop("copy_bytes")
    return {"copy_bytes": copy_bytes, **_means({name[:-3]: each for name, each in found.items()}, rank)}


def _copies_on_gpu(rank: Rank) -> dict[str, Any]:
    pacer = pacer_for(rank)
    return copies(pacer, _tensors(_MODEL_BYTES, pacer.device), rank.job.copy_repeats)


def launches(pacer: Pacer, repeats: int, *, is_emulated: bool) -> dict[str, Any]:
    """Samples of what one launch takes, ns, with a small bucket for each gradient.

    On the CPU it is the processor time of a gradient's hooks, minus theirs with one bucket for all. On a GPU
    it is the time from a bucket's being ready to the end of a collective that lasts no time on its stream.
    There, and where a link ``is_emulated``, that is carried by a communication hook.
    """
    on_host = pacer.device.type == "cpu"
    tensors = _tensors([_SMALL_BYTES] * _SMALL_COUNT, pacer.device)
    plain, each, whole = (_module(pacer, tensors) for _ in range(3))
    each_ddp, whole_ddp = build(each, {"bucket_cap_mb": 1 / _MIB}), build(whole, {"bucket_cap_mb": 1})
    recorder = None
    if is_emulated or not on_host:
        link = pacer.link(_FREE_LINK)
        recorder = None if on_host else pacer.recorder(link)
        each_ddp.register_comm_hook(None, link.hook if recorder is None else recorder.hook)
        whole_ddp.register_comm_hook(None, link.hook)
    for ddp in (each_ddp, whole_ddp):
        keep_logger_from_waiting(ddp)
    pacer.settle([each, whole], plain)
    samples: list[int] = []
    for repeat in range(_DROPPED + repeats):
        apart, together = run_step(each_ddp, each, recorder), run_step(whole_ddp, whole)
        if repeat < _DROPPED:
            continue
        if on_host:
            pairs = zip(apart["hooks"][:-1], together["hooks"][:-1], strict=True)
            samples += [one - other for one, other in pairs]
        else:
            samples += [end - ready for ready, _, end in apart["buckets"]]
    return {"samples_ns": samples, "blocks_compute": on_host}


def _launches(rank: Rank) -> dict[str, Any]:
    return launches(pacer_for(rank), rank.job.copy_repeats, is_emulated=False)


def _copies_out(rank: Rank) -> dict[str, Any]:
    """Copies in one go, as finalize makes them, and an all-reduce: each alone, and both at once.

    ns per repeat: ``copy_ns`` and ``copy_beside_ns`` for the copies, ``comm_ns`` and ``comm_beside_ns`` for
    the all-reduce. It is launched up to some ms before the copies begin (``_HEAD_STARTS`` different times, in
    turn), and lasts longer than they do.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4)
    spacing_ns = _SPACING_NS["cpu"]
    sources = _tensors(_MODEL_BYTES, broom.device)
    targets = [torch.empty_like(source) for source in sources]
    reduced = _lasting(5 * spacing_ns, rank)
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

    for repeat in range(2 * rank.job.copy_repeats + 2):
        head_start_ns = repeat % _HEAD_STARTS * spacing_ns // _HEAD_STARTS
        alone, _ = once(True, False, head_start_ns)
        _, undisturbed = once(False, True, head_start_ns)
        copied, disturbed = once(True, True, head_start_ns)
        if repeat >= 2:
            for name, value in zip(found, (alone, undisturbed, copied, disturbed), strict=True):
                found[name].append(value)
    return _means(found, rank)


def _additions(rank: Rank) -> dict[str, Any]:
    """Gradients added in place to others, as micro-batches and Megatron-Core's hooks do, ns per repeat."""
    broom = torch.zeros(_SWEEP_BYTES // 4)
    sources = _tensors(_MODEL_BYTES, broom.device)
    targets = [torch.zeros_like(source) for source in sources]
    found = []
    for repeat in range(rank.job.copy_repeats + 2):
        broom.add_(1)
        sleep_until(common_start())
        begun = time.thread_time_ns()
        for target, source in zip(targets, sources, strict=True):
            target.add_(source)
        if repeat >= 2:
            found.append(time.thread_time_ns() - begun)
    return {"num_bytes": sum(_MODEL_BYTES), "samples_ns": _over_ranks(_mean, found, rank)}


def _search(rank: Rank) -> dict[str, Any]:
    """What DDP's search for unused parameters costs, on many small parameters; nothing is sent.

    Two like modules take steps in turns, of which one searches.

    A forward is the processor time of the main thread, a hook that of autograd's thread, so that other work
    of the cores does not matter. The last hook is left out: it launches the map of used parameters.

    Returns:
        ns a parameter, one sample a step, mean over ranks: ``search_ns`` and ``mark_ns``.
    """
    small = _tensors([_SMALL_BYTES] * _SEARCHED, torch.device("cpu"))
    module, searching = (_module(Pacer(), small, _SEARCHED_SPACING_NS) for _ in range(2))
    pairs = [(build(module, {}), module), (build(searching, {"find_unused_parameters": True}), searching)]
    for ddp, paced in pairs:
        ddp.register_comm_hook(None, noop_hook)
        paced.watch_hooks()
    found: dict[str, list[int]] = {"search": [], "mark": []}
    for repeat in range(_DROPPED + 2 * rank.job.copy_repeats):
        without, beside = (run_step(ddp, paced) for ddp, paced in pairs)
        if repeat >= _DROPPED:
            found["search"].append((beside["forward"] - without["forward"]) // _SEARCHED)
            extra = sum(beside["hooks"][:-1]) - sum(without["hooks"][:-1])
            found["mark"].append(extra // (_SEARCHED - 1))
    return _means(found, rank)


def _beside_compute(rank: Rank) -> dict[str, Any]:
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
        for size in rank.job.pair_sizes:
            tensor = torch.zeros(size // 4)
            repeats = max(1, round(_SHARE_NS / max(times("all_reduce", size, 2, rank))))
            rates, lengths = [], []
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
                lengths.append((alone_s, both_s))
            (alone_rate, both_rate), (alone_s, both_s) = (
                map(median, zip(*turns, strict=True)) for turns in (rates, lengths)
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
        side = _SIDE["cpu"]
        matrix, product = torch.rand(side, side), torch.empty(side, side)
        while self._goes.wait() and not self._ends:
            torch.mm(matrix, matrix, out=product)
            self._count += 1


def _compute_on_stream(rank: Rank) -> dict[str, Any]:
    """Matrix products on a GPU's stream and an all-reduce: each alone, and both at once; ns per repeat.

    Beside an all-reduce run as many products as last half of it, so that each of them is slowed; beside
    products that last three times as long runs an all-reduce.
    """
    bench, reduced, side = bench_of(rank), _lasting(40_000_000, rank), _SIDE["cuda"]
    left = torch.randn(side, side, device=bench.device, dtype=torch.bfloat16)
    out, stream = torch.empty_like(left), torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]

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
            with torch.cuda.stream(stream):
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
    for repeat in range(rank.job.copy_repeats + 2):
        computing, undisturbed = once(few, False)[0], once(0, True)[1]
        slowed, disturbed = once(few, True)[0], once(6 * few, True)[1]
        if repeat >= 2:
            for name, value in zip(found, (computing, undisturbed, slowed, disturbed), strict=True):
                found[name].append(value // (few if name.startswith("compute") else 1))
    return _means(found, rank)


# By device; the copies of ranks that send beside them are measured in each round.
PROBES: dict[str, dict[str, Callable[[Rank], dict[str, Any]]]] = {
    "cpu": {
        "launches": _launches,
        "copies out": _copies_out,
        "additions": _additions,
        "search": _search,
        "host": _beside_compute,
    },
    "cuda": {"copies": _copies_on_gpu, "launches": _launches, "compute": _compute_on_stream},
}
