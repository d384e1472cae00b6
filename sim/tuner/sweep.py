"""Sweeps: one workload on one machine under many caps and what-ifs, as tidy rows."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from math import prod
from numbers import Real
from typing import Any

from sim.costs.service_time import scale
from sim.errors import InputError, MachineError
from sim.formats.documents import csv_text
from sim.metrics.step import overlap_ratio
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import Engine, simulate
from sim.units import MIB, cap_bytes, format_number

WHAT_IFS = ("world_size", "precision", "bandwidth", "latency", "backward")  # fields of a row
MAX_ROWS = 100_000
CAPS_MB = (
    *(0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10),
    *(12.5, 14, 16, 18, 20, 22.5, 25, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100),
    *(112, 128, 150, 175, 200, 225, 256, 300, 350, 400, 450, 512, 600, 700, 800, 900, 1024),
)


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
        InputError: an axis that is empty, a value that is not legal, too many rows.
        MachineError: a worker of the executor died.
    """
    axes: dict[str, list[Any]] = {
        "world_size": [None] if world_size is None else _axis("world_size", world_size),
        "precision": [None] if precision is None else _axis("precision", precision),
        "bandwidth": _axis("bandwidth", bandwidth),
        "latency": _axis("latency", latency),
        "backward": _axis("backward", backward),
    }
    for name, values in axes.items():
        if not values:
            raise InputError(f"{name}: an empty axis is not legal; give at least one value")
        for value in values:  # what is not legal is refused ahead of all workers
            scale(workload, hardware, **{name: value})
    caps = [None, *_axis("caps_mb", default_caps(workload) if caps_mb is None else caps_mb)]
    for cap in caps[1:]:
        if isinstance(cap, bool) or not isinstance(cap, Real):
            raise InputError(f"caps_mb: {cap!r} is not legal; give numbers of MiB")
        cap_bytes(float(cap))
    total = prod(map(len, axes.values())) * len(caps)
    if total > max_rows:
        raise InputError(f"sweep: {total} rows are more than {max_rows}; give fewer, or max_rows={total}")
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    # What no engine reads is not sent to workers.
    lean, rows = replace(workload, samples=(), provenance={}, extensions={}), list[SweepRow]()
    with closing(spread(partial(_rows, lean, hardware, caps, engine), points, executor)) as results:
        for rows_of_one in results:
            for row in rows_of_one:
                rows.append(row)
                if progress is not None:
                    progress(len(rows), total)
    return tuple(rows)


def _axis(name: str, values: Iterable[Any]) -> list[Any]:
    """The values of an axis, plain numbers where numpy made them."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    return [value.item() if hasattr(value, "item") else value for value in values]


def _rows(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float | None],
    engine: Engine,
    what_ifs: dict[str, Any],
) -> list[SweepRow]:
    """The rows under one combination of what-ifs (arguments of ``scale``), each layout simulated once."""
    scaled, machine = scale(workload, hardware, **what_ifs)
    played: dict[tuple[tuple[int, ...], ...], Timeline] = {}
    rows = []
    for cap in caps_mb:
        assignment = assign(scaled, bucket_cap_mb=cap)
        buckets = assignment.bucket_indices
        if buckets not in played:
            played[buckets] = simulate(scaled, machine, assignment, engine)
        timeline = played[buckets]
        rows.append(
            SweepRow(
                label="DDP default" if cap is None else f"bucket_cap_mb={format_number(cap, 6)}",
                bucket_cap_mb=cap,
                **{**what_ifs, "world_size": machine.world_size},
                num_buckets=len(buckets),
                largest_bucket_bytes=max(assignment.bucket_bytes or (0,)),
                step_ns=timeline.step_ns,
                sync_end_ns=timeline.sync_end_ns,
                exposed_comm_ns=timeline.exposed_ns,
                overlap_ratio=overlap_ratio(timeline),
            )
        )
    return rows


def default_caps(workload: Workload) -> list[float]:
    """Caps in MiB from 0.25 to what holds everything."""
    largest, caps = float(max(1, -(-workload.total_bytes // MIB) + 1)), [float(cap) for cap in CAPS_MB]
    while caps[-1] < largest:
        caps.append(caps[-1] * 1.25)
    return [*(cap for cap in caps if cap < largest), largest]


def process_pool(most: int) -> ProcessPoolExecutor:
    """A pool of spawned processes: ``most`` at most, and no more than there are cores.

    Spawned, since a fork of a process with threads (torch's, streamlit's) may hang. A spawned process imports
    the script that started it: what the script runs belongs under ``if __name__ == "__main__":``. Ctrl-C is
    for the parent, which shuts the pool down: one that a process met while it starts would break the pool,
    and may leave the parent waiting.
    """
    pool = ProcessPoolExecutor(
        max_workers=max(1, min(most, os.cpu_count() or 1)),
        mp_context=multiprocessing.get_context("spawn"),
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool.submit(int)  # starts all processes, which have it blocked from birth
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pool


def spread(
    function: Callable[[Any], Any], tasks: Sequence[Any], executor: Executor | None
) -> Generator[Any, None, None]:
    """``function`` of each task, in order, as results come in; None: in this process. On any error, and where
    nobody waits any more, the rest is cancelled.

    Raises:
        MachineError: a worker died.
    """
    try:
        yield from (map if executor is None else executor.map)(function, tasks)
    except BrokenExecutor as error:
        raise MachineError(
            f"sweep: a worker process died ({error}); a script that sweeps needs its own lines under "
            'if __name__ == "__main__":, as each worker imports it'
        ) from error


def sweep_csv(rows: Iterable[SweepRow]) -> str:
    """A sweep as CSV: one row a candidate, times in ns; DDP's default has an empty ``bucket_cap_mb``."""
    return csv_text(map(asdict, rows), [field.name for field in fields(SweepRow)])
