"""Sweeps: one workload on one machine under many caps and what-ifs, as tidy rows; and what to set by one."""

import multiprocessing
import operator
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from math import prod
from numbers import Real
from typing import Any, TypeVar

from sim.costs.service_time import check_factor, check_precision, check_ranks, scale
from sim.errors import InputError, MachineError, SimError
from sim.formats.documents import csv_text
from sim.metrics.step import overlap_ratio
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain, Plateau, Setting
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import Engine, simulate
from sim.units import MIB, cap_bytes, format_ms, format_number, format_percent

WHAT_IFS = ("world_size", "precision", "bandwidth", "latency", "backward")  # fields of a row
MAX_ROWS = 100_000
CAPS_MB = (
    *(0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10),
    *(12.5, 14, 16, 18, 20, 22.5, 25, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100),
    *(112, 128, 150, 175, 200, 225, 256, 300, 350, 400, 450, 512, 600, 700, 800, 900, 1024),
)

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One candidate of a sweep: the assignment, the what-ifs it was played under, and its figures.

    Flat and plain, so that rows are tidy: ``pandas.DataFrame(map(asdict, rows))``. ``label`` names the
    assignment. ``bucket_cap_mb`` (MiB) is None for DDP's default, its own point (A2.1); ``precision`` is a
    torch dtype of all gradients, None as they were recorded. ``bandwidth``, ``latency`` and ``backward`` are
    factors. Times in ns; ``largest_bucket_bytes`` in parameter bytes.
    """

    label: str
    bucket_cap_mb: float | None
    world_size: int
    precision: str | None
    bandwidth: float
    latency: float
    backward: float
    num_buckets: int
    largest_bucket_bytes: int
    step_ns: int
    sync_end_ns: int
    exposed_comm_ns: int
    overlap_ratio: float


def sweep(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float] | None = None,
    engine: Engine = "analytic",
    *,
    bandwidth: Sequence[float] = (1.0,),
    latency: Sequence[float] = (1.0,),
    backward: Sequence[float] = (1.0,),
    world_size: Sequence[int] | None = None,
    precision: Sequence[str | None] | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    max_rows: int = MAX_ROWS,
) -> tuple[SweepRow, ...]:
    """DDP's default and each explicit ``bucket_cap_mb`` under every combination of what-ifs: a row each.

    Rows come in the order of the product of world size, precision, bandwidth, latency, backward and cap, the
    default ahead of the caps. Caps that cut alike are simulated once. ``sim.scale`` says what each what-if
    does, and where it ends.

    Args:
        workload: what backward makes ready.
        hardware: what the machine carries.
        caps_mb: MiB; None is a range of round ones from 0.25 to what holds everything. May be empty.
        engine: ``analytic`` or ``simpy``; equal to the ns.
        bandwidth: factors on the wire's bandwidth.
        latency: factors on its latency.
        backward: factors on backward's duration.
        world_size: numbers of ranks in a ring; None is the measured one.
        precision: torch dtypes of all gradients, or None among them: as recorded.
        executor: any ``concurrent.futures.Executor`` (threads, processes, dask's ``client.get_executor()``),
            over which combinations of what-ifs are spread; rows are the same. None: this process.
        progress: called with (rows done, rows in all), in this thread.
        max_rows: more rows are refused.

    Raises:
        InputError: an axis that is empty, a value that is not legal or occurs twice, too many rows.
        MachineError: a worker of the executor died.
    """
    caps = [None, *_axis("caps_mb", default_caps(workload) if caps_mb is None else caps_mb, _cap)]

    def ranks(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = value
        check_ranks(hardware.world_size, number)
        return number

    def dtype(value: str | None) -> str | None:
        if value is not None:
            check_precision(workload, value)
        return value

    axes: dict[str, list[Any]] = {
        "world_size": [None] if world_size is None else _axis("world_size", world_size, ranks),
        "precision": [None] if precision is None else _axis("precision", precision, dtype),
        "bandwidth": _axis("bandwidth", bandwidth, partial(_factor, "bandwidth")),
        "latency": _axis("latency", latency, partial(_factor, "latency")),
        "backward": _axis("backward", backward, partial(_factor, "backward")),
    }
    lengths = {**{name: len(values) for name, values in axes.items()}, "caps and the default": len(caps)}
    total = prod(lengths.values())
    if total > max_rows:
        words = " x ".join(f"{length} {name}" for name, length in lengths.items() if length > 1)
        raise InputError(
            f"sweep: {total} rows ({words}) are more than {max_rows}; give fewer, or max_rows={total}"
        )
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    # What no engine reads is not sent to workers.
    lean = replace(workload, samples=(), provenance={}, extensions={})
    play = partial(_rows, lean, hardware, caps, engine)
    results: Generator[Iterable[SweepRow], None, None] = (
        (play(point) for point in points)
        if executor is None
        else spread(partial(_listed, play), points, executor)
    )
    rows: list[SweepRow] = []
    with closing(results):
        for part in results:
            for row in part:
                rows.append(row)
                if progress is not None:
                    progress(len(rows), total)
    return tuple(rows)


def _rows(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float | None],
    engine: Engine,
    what_ifs: Mapping[str, Any],
) -> Iterator[SweepRow]:
    """The rows under one combination of what-ifs (arguments of ``scale``), each layout simulated once."""
    scaled, machine = scale(workload, hardware, **what_ifs)
    played: dict[tuple[tuple[int, ...], ...], Timeline] = {}
    for cap in caps_mb:
        assignment = assign(scaled, bucket_cap_mb=cap)
        timeline = played.get(assignment.bucket_indices)
        if timeline is None:
            timeline = played[assignment.bucket_indices] = simulate(scaled, machine, assignment, engine)
        yield SweepRow(
            label="DDP default" if cap is None else f"bucket_cap_mb={format_number(cap, 6)}",
            bucket_cap_mb=cap,
            **{**what_ifs, "world_size": machine.world_size},
            num_buckets=len(assignment.bucket_indices),
            largest_bucket_bytes=max(assignment.bucket_bytes or (0,)),
            step_ns=timeline.step_ns,
            sync_end_ns=timeline.sync_end_ns,
            exposed_comm_ns=timeline.exposed_ns,
            overlap_ratio=overlap_ratio(timeline),
        )


def _listed(
    play: Callable[[Mapping[str, Any]], Iterator[SweepRow]], what_ifs: Mapping[str, Any]
) -> list[SweepRow]:
    """The rows as one task for a worker."""
    return list(play(what_ifs))


def default_caps(workload: Workload) -> list[float]:
    """Caps in MiB from 0.25 to what holds everything."""
    largest = float(max(1, -(-workload.total_bytes // MIB) + 1))
    caps = [float(cap) for cap in CAPS_MB]
    while caps[-1] < largest:
        caps.append(caps[-1] * 1.25)
    return [*(cap for cap in caps if cap < largest), largest]


def _axis(name: str, values: Iterable[Any], read: Callable[[Any], Any]) -> list[Any]:
    """The values of an axis, checked: none but ``caps_mb`` may be empty, and each occurs once."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    made: dict[Any, None] = {}
    for value in map(read, values):
        if value in made:
            raise InputError(f"{name}: {value!r} occurs twice; each value may occur once")
        made[value] = None
    if not made and name != "caps_mb":
        raise InputError(f"{name}: an empty axis is not legal; give at least one value")
    return list(made)


def _factor(name: str, value: Any) -> float:
    check_factor(name, value)
    return float(value)


def _cap(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"caps_mb: {value!r} is not legal; give numbers of MiB")
    cap_bytes(float(value))
    return float(value)


def process_pool(most: int | None = None) -> ProcessPoolExecutor:
    """A pool of spawned processes: ``most`` at most, and no more than there are cores.

    Spawned, since a fork of a process with threads (torch's, streamlit's) may hang. A spawned process imports
    the script that started it: what the script runs belongs under ``if __name__ == "__main__":``.
    """
    cores = os.cpu_count() or 1
    return ProcessPoolExecutor(
        max_workers=cores if most is None else max(1, min(most, cores)),
        mp_context=multiprocessing.get_context("spawn"),
    )


@contextmanager
def _for_the_parent(executor: Executor) -> Iterator[None]:
    """What ``executor`` starts here never gets Ctrl-C, which is for the parent: it shuts the pool down.

    Blocked for a moment, the parent gets it afterwards. A worker ended by Ctrl-C while starting breaks the
    pool, and a pool that breaks after its tasks were cancelled hangs in CPython 3.11 (gh-107219).
    """
    if not isinstance(executor, ProcessPoolExecutor) or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spread(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: Executor
) -> Generator[Result, None, None]:
    """``function`` of each task, in order, as results come in; on any error the rest is cancelled.

    Raises:
        SimError: as a worker raised it.
        MachineError: a worker died, or raised anything else.
    """
    futures: list[Future[Result]] = []
    try:
        with _for_the_parent(executor):
            futures.extend(executor.submit(function, task) for task in tasks)
        for future in futures:
            yield future.result()
    except SimError:
        raise
    except BrokenExecutor as error:
        raise MachineError(
            f"sweep: a worker process died ({error}); a script that sweeps needs its own lines under "
            'if __name__ == "__main__":, as each worker imports it'
        ) from error
    except Exception as error:
        raise MachineError(f"sweep: a worker of {type(executor).__name__} failed: {error!r}") from error
    finally:
        for future in futures:
            future.cancel()


def sweep_csv(rows: Iterable[SweepRow]) -> str:
    """A sweep as CSV: one row a candidate, times in ns; DDP's default has an empty ``bucket_cap_mb``."""
    return csv_text(map(asdict, rows), [field.name for field in fields(SweepRow)])


# MiB: the caps that people set most often, then others that they set.
ROUNDEST_MB = ((25, 1, 4, 10, 100), (2, 5, 8, 16, 20, 32, 50, 64, 128, 200, 256, 512, 1024, 0.5, 0.25))
TOLERANCE = 0.01  # of the best step, as of a plateau
FAR = 0.03  # of a step: caps that are further behind the best buckets are not what to set


def round_cap(rows: Sequence[SweepRow], plateau: Plateau | None = None) -> SweepRow | None:
    """The row of the cap to set: a round cap whose step is within 1 % of the best cap's; None without caps.

    Of several equally round caps it is the fastest; without a round one it is the fastest cap of all. See
    ``plateau.caps_mb`` for the other caps within 1 %, one of each layout.

    Args:
        rows: a sweep over caps, under what-ifs or switches that are the same in all of them.
        plateau: if given, only caps that cannot be told apart from the recommendation are taken, unless none
            of those within 1 % is such a cap.
    """
    caps = {row.bucket_cap_mb: row for row in rows if row.bucket_cap_mb}
    best_ns = min((row.step_ns for row in caps.values()), default=0)
    near = {cap: row for cap, row in caps.items() if row.step_ns <= best_ns * (1 + TOLERANCE)}
    if plateau is not None:
        alike = plateau.alike_mb
        near = {cap: near[cap] for cap in near if any(low <= cap <= high for low, high in alike)} or near
    for usual in (*ROUNDEST_MB, tuple(near)):
        round_ones = [near[cap] for cap in usual if cap in near]
        if round_ones:
            return min(round_ones, key=lambda row: row.step_ns)
    return None


def find_setting(
    rows: Sequence[SweepRow],
    *,
    default_ns: int,
    best_ns: int | None,
    gain: Gain | None = None,
    plateau: Plateau | None = None,
) -> Setting:
    """The easiest setting that comes near to the best buckets, by steps under the switches of the job.

    Nothing is to be set where the gain is not significant. The best buckets are to be set where no cap is
    faster than the default, or the round one is ``FAR`` behind them and can be told apart.

    Args:
        rows: a sweep over caps.
        default_ns: the step with what the job has: DDP's default, or its own buckets.
        best_ns: the step of the best buckets; None where they cannot be had.
        gain: of these very steps, where it is known.
        plateau: the caps that can be told apart from the best buckets, where that is known.
    """
    nothing = found = Setting(pick="default", step_ns=default_ns)
    if gain is not None and gain.significant is False:
        return nothing
    row = round_cap(rows, plateau)
    if row is not None and row.bucket_cap_mb is not None and row.step_ns < default_ns:
        cap_mb = row.bucket_cap_mb
        is_far = best_ns is not None and row.step_ns > best_ns * (1 + FAR)
        is_alike = (
            is_far
            and plateau is not None
            and plateau.decided_by == "noise"
            and any(low <= cap_mb <= high for low, high in plateau.alike_mb)
        )
        found = Setting(
            pick="cap",
            step_ns=row.step_ns,
            saved_ns=default_ns - row.step_ns,
            cap_mb=cap_mb,
            cap_step_ns=row.step_ns,
            behind_ns=None if best_ns is None else row.step_ns - best_ns,
            is_alike=is_alike,
        )
        if not is_far or is_alike:
            return found
    if best_ns is None or best_ns >= default_ns:
        return nothing
    return replace(found, pick="recommended", step_ns=best_ns, saved_ns=default_ns - best_ns)


def tell_setting(setting: Setting, against: str) -> str:
    """What to set, in one line; ``against``: what it is compared with, in words."""
    if setting.pick == "default":
        return f"nothing; keep {against}"
    saves = f"{format_ms(setting.step_ns)} a step, {format_ms(setting.saved_ns)} less than {against}"
    if setting.cap_mb is None:
        return f"the recommended buckets: {saves}; no one cap is faster than {against}"
    behind_ns = setting.behind_ns or 0
    best_ns = (setting.cap_step_ns or 0) - behind_ns
    behind = f"{format_ms(behind_ns)} ({format_percent(behind_ns / best_ns if best_ns else 0.0)}) more than"
    if setting.pick == "cap":
        alike = "; over steps as they vary the two cannot be told apart" if setting.is_alike else ""
        return (
            f"bucket_cap_mb={format_number(setting.cap_mb, 6)}: {saves} and {behind} the recommended "
            f"buckets{alike}"
        )
    return (
        f"the recommended buckets: {saves}; the best round cap, "
        f"bucket_cap_mb={format_number(setting.cap_mb, 6)}, takes "
        f"{behind} they do"
    )
