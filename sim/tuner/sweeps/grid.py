"""Sweeps: one workload on one machine under many caps and what-ifs, as tidy rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, islice

from sim.nouns.hardware import Hardware
from sim.nouns.rows import SweepRow
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import Engine
from sim.tuner.sweeps.axes import Grid, Point, make_grid
from sim.tuner.sweeps.batches import Batch, Figures, play_batches, play_task
from sim.tuner.sweeps.usual_caps import default_caps
from sim.tuner.sweeps.workers import process_pool, spread
from sim.units import format_number

MAX_ROWS = 100_000
# Simulated gradients, over all candidates, from which on a pool of processes pays: it starts in 0.7 s for
# SimPy and in 2 s for compiled code, for which writing a layout takes as long as playing it ten times.
POOL_FROM = 200_000
COMPILED_POOL_FROM = 10_000_000
LAYOUT_COST = 10
# Simulated gradients in one task: few enough to wait for, and enough to be worth sending to a worker.
TASK = 8_000
COMPILED_TASK = 100_000

Progress = Callable[[int, int], None]


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
    progress: Progress | None = None,
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
        engine: ``analytic``, which plays all machines of a layout at once, or ``simpy``; equal to the ns.
        bandwidth: factors on the wire's bandwidth.
        latency: factors on its latency.
        backward: factors on backward's duration.
        world_size: numbers of ranks in a ring; None is the measured one.
        precision: torch dtypes of all gradients, or None among them: as recorded.
        executor: any ``concurrent.futures.Executor`` (threads, processes, dask's ``client.get_executor()``);
            rows are the same. None: this process, and for large grids (``COMPILED_POOL_FROM``: some 60,000
            rows of 161 gradients) a pool of as many processes as there are cores. They are spawned: a script
            needs ``if __name__ == "__main__":``.
        progress: called with (simulations done, simulations in all), in this thread.
        max_rows: more rows are refused.

    Raises:
        InputError: an axis that is empty, a value that is not legal or occurs twice, too many rows.
        MachineError: a worker of the executor died.
    """
    grid = make_grid(
        workload,
        hardware,
        default_caps(workload) if caps_mb is None else caps_mb,
        bandwidth=bandwidth,
        latency=latency,
        backward=backward,
        world_size=world_size,
        precision=precision,
        max_rows=max_rows,
    )
    same_layout_as, batches = _layouts(workload, hardware, grid)
    figures: dict[tuple[float | None, Point], Figures] = {}
    total = sum(len(batch.points) for batch in batches)
    for batch, made in _played(workload, hardware, engine, batches, executor):
        figures.update(((batch.cap_mb, point), one) for point, one in zip(batch.points, made, strict=True))
        if progress is not None:
            progress(len(figures), total)
    return tuple(
        _row(hardware, point, cap, figures[same_layout_as[point.of_workload][cap], point])
        for point in grid.points
        for cap in grid.caps_mb
    )


def _row(hardware: Hardware, point: Point, cap: float | None, figures: Figures) -> SweepRow:
    return SweepRow(
        label="DDP default" if cap is None else f"bucket_cap_mb={format_number(cap, 6)}",
        bucket_cap_mb=cap,
        world_size=hardware.world_size if point.world_size is None else point.world_size,
        precision=point.precision,
        bandwidth=point.bandwidth,
        latency=point.latency,
        backward=point.backward,
        **figures._asdict(),
    )


def _layouts(
    workload: Workload, hardware: Hardware, grid: Grid
) -> tuple[dict[Point, dict[float | None, float | None]], list[Batch]]:
    """For each what-if that changes the workload, by cap the first cap with the same layout; and the batches
    to simulate: each layout once on each machine."""
    same_layout_as: dict[Point, dict[float | None, float | None]] = {}
    known: dict[object, dict[float | None, float | None]] = {}
    by_workload: dict[Point, list[Point]] = {}
    for point in grid.points:
        by_workload.setdefault(point.of_workload, []).append(point)
    batches = []
    for of_workload, points in by_workload.items():
        scaled, _ = of_workload.applied(workload, hardware)
        key = (of_workload.precision, scaled.order())  # all that a layout depends on
        if key not in known:
            first: dict[tuple[tuple[int, ...], ...], float | None] = {}
            known[key] = {
                cap: first.setdefault(assign(scaled, bucket_cap_mb=cap).bucket_indices, cap)
                for cap in grid.caps_mb
            }
        same_layout_as[of_workload] = known[key]
        batches += [Batch(cap_mb=cap, points=tuple(points)) for cap in dict.fromkeys(known[key].values())]
    return same_layout_as, batches


def _played(
    workload: Workload, hardware: Hardware, engine: Engine, batches: list[Batch], executor: Executor | None
) -> Iterator[tuple[Batch, list[Figures]]]:
    """Each batch, or a piece of it, with its figures, in order: in this process or on an executor."""
    # What no engine reads is not sent to workers.
    lean = replace(workload, samples=(), provenance={}, extensions={})
    size = len(workload.gradients)
    simulated = size * sum(len(batch.points) for batch in batches)
    compiled = engine == "analytic"
    if compiled:
        is_large = simulated + LAYOUT_COST * size * len(batches) >= COMPILED_POOL_FROM
    else:
        is_large = simulated >= POOL_FROM
    tasks = list(_tasks(batches, max(1, (COMPILED_TASK if compiled else TASK) // size)))
    with ExitStack() as stack:
        if executor is None and is_large:
            executor = stack.enter_context(process_pool(len(tasks)))
        if executor is None:
            pieces = list(chain.from_iterable(tasks))  # progress is told between them
            yield from zip(pieces, play_batches(lean, hardware, engine, pieces), strict=True)
            return
        play = partial(play_task, lean, hardware, engine)
        results = stack.enter_context(closing(spread(play, tasks, executor)))
        for task, made in zip(tasks, results, strict=True):
            yield from zip(task, made, strict=True)


def _tasks(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """The batches, split and gathered into tasks of at most ``most`` simulations."""
    singles = ((batch.cap_mb, point.of_workload, point) for batch in batches for point in batch.points)
    while chunk := list(islice(singles, most)):
        yield [
            Batch(cap_mb=cap, points=tuple(point for *_, point in together))
            for (cap, _), together in groupby(chunk, key=lambda single: single[:2])
        ]
