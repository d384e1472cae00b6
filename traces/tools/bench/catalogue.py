"""All benchmarks as data: what is timed, at which sizes, and what its answer is worth."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sim.clock import play, simpy_clock
from sim.systems.registry import assign, write
from sim.tuner.caps import cap_curve
from sim.tuner.optimum import Optimum, exact_optimum, find_optimum
from sim.tuner.problem import Buckets, Problem
from sim.tuner.recommend import tune
from sim.tuner.sweep import sweep
from sim.units import format_ms
from tests.machines import MACHINES, machine, model
from traces.tools.bench.peers import fit_alpha_beta, fuse_in_cycles, merge_wisely
from traces.tools.bench.plain_dp import earliest_finish

Timed = Callable[[], Any]

SMALL, LARGE = (161, 1_000), (161, 1_000, 10_000)
SWEPT = {"bandwidth": tuple(np.geomspace(0.25, 4, 8)), "latency": tuple(np.geomspace(0.25, 4, 8))}
CAPS_MB = tuple(np.geomspace(0.25, 64, 30).round(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a table.

    ``prepare`` makes, for a number of tensors, what is timed; ``judge`` says in a few words what its answer
    is worth. ``is_reference``: the others of its table are given as multiples of it. ``units``, such as
    candidates, are what one call gets through.
    """

    table: str
    row: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Timed]
    judge: Callable[[int, Any], str] | None = None
    is_reference: bool = False
    units: int | None = None
    unit: str = ""


@cache
def _problem(name: str, count: int) -> Problem:
    return Problem(model(count, name), machine(name))


@cache
def _default(name: str, count: int) -> Buckets:
    return assign(model(count, name)).bucket_indices


@cache
def best(name: str, count: int) -> Optimum:
    """The best buckets, never worse than any baseline."""
    workload, hardware = model(count, name), machine(name)
    baselines = [merge_wisely(workload, *fit_alpha_beta(hardware)), fuse_in_cycles(workload)]
    return find_optimum(_problem(name, count), [_default(name, count), *baselines])


def _above_best(name: str, count: int, buckets: Buckets) -> str:
    """How much later all gradients are there than they could be."""
    least = best(name, count).sync_end_ns
    above = _problem(name, count).sync_end_ns(buckets) - least
    return "the best" if above == 0 else f"{above / least:+.2%}, {_amount(above)}"


def _gap(name: str, count: int, found: Optimum) -> str:
    """What is proved about an answer."""
    above = found.sync_end_ns - found.at_least_ns
    if found.is_proved:
        return "proved optimal" if above == 0 else f"proved optimal, to {_amount(above)}"
    return f"at most {above / found.at_least_ns:.2%}, {_amount(above)} above the optimum"


def _amount(ns: int) -> str:
    """A difference of times: next to nothing in ns, all else in ms."""
    return f"{ns} ns" if abs(ns) < 10_000 else format_ms(ns)


def _best_buckets(name: str) -> Iterator[Entry]:
    """Every way to cut, on one machine."""
    hardware = machine(name)
    is_exact = name != "two channels"
    large = LARGE if hardware.copy_out_bytes_per_s is None else SMALL
    common = {"table": f"Best buckets: {MACHINES[name]}"}

    def search(count: int) -> Timed:
        problem = _problem(name, count)
        upper = problem.sync_end_ns(_default(name, count))
        return partial(exact_optimum, problem, upper)

    def whole(count: int) -> Timed:
        default = [_default(name, count)]
        return lambda: find_optimum(Problem(model(count, name), hardware), default)

    def plain(count: int) -> Timed:
        return partial(earliest_finish, Problem(model(count, name), hardware))

    def merge(count: int) -> Timed:
        return lambda: merge_wisely(model(count, name), *fit_alpha_beta(hardware))

    if is_exact:
        yield Entry(
            **common,
            row="exact search",
            sizes=large,
            prepare=search,
            judge=lambda count, found: _above_best(name, count, found.buckets),
            is_reference=True,
        )
    yield Entry(
        **common,
        row="from the workload to the answer and its proof" if is_exact else "search and its bound",
        sizes=large,
        prepare=whole,
        judge=partial(_gap, name),
        is_reference=not is_exact,
    )
    rules = {
        "dynamic programme in numpy, O(n^2)": (LARGE, plain),
        "MG-WFBP's merge": (large, merge),
        "Horovod's fusion, 128 MiB and 1 ms": (
            large,
            lambda count: partial(fuse_in_cycles, model(count, name)),
        ),
        "DDP's default": (
            large,
            lambda count: lambda: assign(model(count, name)).bucket_indices,
        ),
    }
    for row, (sizes, prepare) in rules.items():
        yield Entry(**common, row=row, sizes=sizes, prepare=prepare, judge=partial(_above_best, name))


def _all_caps(name: str) -> Entry:
    def prepare(count: int) -> Timed:
        problem = _problem(name, count)

        return partial(cap_curve, problem)

    return Entry(
        table="Every distinct layout of bucket_cap_mb: found and scored",
        row=MACHINES[name],
        sizes=SMALL,
        prepare=prepare,
        judge=lambda _, scores: f"{len(scores.steps_ns):,} layouts",
    )


def _engines(name: str) -> Iterator[Entry]:
    common = {"table": f"One candidate, DDP's default: {MACHINES[name]}", "sizes": SMALL}

    def engine(play: Callable[[Any], Any]) -> Callable[[int], Timed]:
        def prepare(count: int) -> Timed:
            (program,) = write(model(count, name), machine(name), assign(model(count, name)))
            return partial(play, program)

        return prepare

    def score(count: int) -> Timed:
        workload, hardware, buckets = model(count, name), machine(name), _default(name, count)
        return lambda: Problem(workload, hardware).sync_end_ns(buckets)

    ends = [
        ("SimPy engine", simpy_clock.play, False),
        ("analytic engine", play.play, True),
    ]
    for row, clock, is_reference in ends:
        yield Entry(
            **common,
            row=row,
            prepare=engine(clock),
            judge=lambda _, outcome: f"{outcome.sync_end_ns} ns",
            is_reference=is_reference,
        )
    yield Entry(
        **common,
        row="the tuner's problem, from the workload on",
        prepare=score,
        judge=lambda _, end: f"{end} ns",
    )


def _sweep(name: str) -> Entry:
    def prepare(count: int) -> Timed:
        return lambda: sweep(model(count, name), machine(name), CAPS_MB, **SWEPT)

    return Entry(
        table="Sweep: caps x bandwidth x latency, in this process",
        row=MACHINES[name],
        sizes=SMALL[:1],
        prepare=prepare,
        judge=lambda _, rows: f"{len(rows):,} rows",
        units=(len(CAPS_MB) + 1) * len(SWEPT["bandwidth"]) * len(SWEPT["latency"]),
        unit="row",
    )


def _tune(name: str) -> Entry:
    return Entry(
        table="sim.tune, all of it",
        row=MACHINES[name],
        sizes=SMALL if name != "two channels" else SMALL[:1],
        prepare=lambda count: partial(tune, model(count, name), machine(name)),
        judge=lambda _, made: "proved optimal" if made.proved_optimal else "not proved",
    )


ENTRIES: tuple[Entry, ...] = (
    *(entry for name in MACHINES for entry in _best_buckets(name)),
    *(_all_caps(name) for name in ("affine", "two channels")),
    *(entry for name in ("affine", "two channels") for entry in _engines(name)),
    *(_sweep(name) for name in ("affine", "two channels")),
    *(_tune(name) for name in ("affine", "measured", "two channels")),
)


FEWEST, MOST, ENOUGH_S = 3, 100, 0.1  # rounds of an entry, and after what time there need not be more
_WARM = 13  # tensors: of a kernel that is to be compiled


def rows() -> Iterator[dict[str, Any]]:
    """Every entry at every size, in processor time: all run in one thread, others' work is not in it."""
    for entry in ENTRIES:
        entry.prepare(_WARM)()
        for size in entry.sizes:
            seconds, answer = _rounds(entry.prepare(size))
            yield {
                "table": entry.table,
                "row": entry.row,
                "size": size,
                "seconds": seconds,
                "is_reference": entry.is_reference,
                "units": entry.units,
                "unit": entry.unit,
                "worth": "" if entry.judge is None else entry.judge(size, answer),
            }


def _rounds(run: Timed) -> tuple[list[float], Any]:
    """Seconds of each round, all of them counted, and what the last one answered."""
    seconds: list[float] = []
    gc.disable()
    try:
        while len(seconds) < FEWEST or (sum(seconds) < ENOUGH_S and len(seconds) < MOST):
            began = time.process_time()
            answer = run()
            seconds.append(time.process_time() - began)
    finally:
        gc.enable()
    return seconds, answer
