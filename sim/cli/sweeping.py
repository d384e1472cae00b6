"""sweep: one workload under many caps and what-ifs, as a table, CSV or JSON."""

import json
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import sim
from sim.cli.next_steps import suggest, to_tune
from sim.cli.output_options import file_option, write
from sim.cli.own_job import Parts, load_inputs
from sim.cli.panels import PREDICTING, WHAT_IF
from sim.cli.printing import emit, progress, say, table
from sim.cli.simulating import (
    AsJson,
    DdpSwitches,
    Engine,
    EngineName,
    HardwareFile,
    WorkloadFile,
    ddp_switches,
)
from sim.costs.doubts import doubts_about
from sim.errors import InputError
from sim.nouns.rows import WHAT_IFS, SweepRow
from sim.units import format_number, format_percent, format_size, in_ms, parse_cap_mb

MOST_LINES = 60
_HEADS = {"world_size": "ranks", "precision": "dtype"}

Value = TypeVar("Value")
MaxRows = Annotated[int, typer.Option(min=1, help="Refuse more rows than these.", rich_help_panel=PREDICTING)]


def sweep(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    caps: Annotated[
        str | None, typer.Option(help="Caps in MiB, comma-separated; default: 0.25 MiB to all in one.")
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="Factors on the wire's bandwidth, comma-separated.", rich_help_panel=WHAT_IF)
    ] = "1",
    latency: Annotated[
        str, typer.Option(help="Factors on the wire's latency, comma-separated.", rich_help_panel=WHAT_IF)
    ] = "1",
    backward: Annotated[
        str, typer.Option(help="Factors on backward's duration, comma-separated.", rich_help_panel=WHAT_IF)
    ] = "1",
    world_size: Annotated[
        str | None,
        typer.Option(
            help="Numbers of ranks in a ring, comma-separated; default: the measured.",
            rich_help_panel=WHAT_IF,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Dtypes of the gradients, such as recorded,bfloat16; default: recorded.",
            rich_help_panel=WHAT_IF,
        ),
    ] = None,
    engine: EngineName = Engine.ANALYTIC,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes, at most one a core, over which what-ifs are spread; default: 1.",
            rich_help_panel=PREDICTING,
        ),
    ] = None,
    max_rows: MaxRows = 100_000,
    ddp: DdpSwitches = None,
    parts: Parts = False,
    as_json: AsJson = False,
    output: Annotated[Path | None, file_option("Write CSV here.")] = None,
) -> None:
    """Predict DDP's default and a range of bucket caps, under any combination of what-ifs."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json, ddp_switches(ddp))
    axes: dict[str, Any] = {
        "bandwidth": values_of("--bandwidth", bandwidth, float),
        "latency": values_of("--latency", latency, float),
        "backward": values_of("--backward", backward, float),
        "world_size": None if world_size is None else values_of("--world-size", world_size, int),
        "precision": None if precision is None else values_of("--precision", precision, _dtype),
    }
    with ExitStack() as stack:
        rows = sim.sweep(
            workload,
            hardware,
            None if caps is None else values_of("--caps", caps, parse_cap_mb),
            engine.value,
            **axes,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("simulating")),
            max_rows=max_rows,
        )
    if output is not None:
        write(output, sim.sweep_csv(rows))
    doubts = doubts_about(workload, hardware)
    if as_json:
        emit(json.dumps({"rows": [asdict(row) for row in rows], "notes": doubts}, indent=1))
    else:
        print_rows(f"{workload.name} on {hardware.name}", rows)
        for line in doubts:
            say(f"note: {line}")
        suggest(to_tune(workload_file, hardware_file))


def print_rows(title: str, rows: tuple[SweepRow, ...]) -> None:
    """A sweep for people: what-ifs that vary as columns; where it is long, the default and the best only."""
    best = _best(rows)
    lines = rows
    if len(rows) > MOST_LINES:
        lines = tuple(row for row in rows if row.bucket_cap_mb is None or row is best[_what_ifs(row)])
    varied = [name for name in WHAT_IFS if len({getattr(row, name) for row in rows}) > 1]
    shown = lines[:MOST_LINES]
    table(
        title,
        [
            "cap MiB",
            *(_HEADS.get(name, name) for name in varied),
            "buckets",
            "largest",
            "step ms",
            "exposed ms",
            "overlap",
            "",
        ],
        [
            [
                "default" if row.bucket_cap_mb is None else format_number(row.bucket_cap_mb, 6),
                *(_word(getattr(row, name)) for name in varied),
                str(row.num_buckets),
                format_size(row.largest_bucket_bytes),
                in_ms(row.step_ns),
                in_ms(row.exposed_comm_ns),
                format_percent(row.overlap_ratio),
                "best" if row.step_ns == best[_what_ifs(row)].step_ns else "",
            ]
            for row in shown
        ],
    )
    if len(shown) < len(rows):
        cut = f", the first {MOST_LINES} lines" if len(shown) < len(lines) else ""
        say(f"{len(rows)} rows; shown are DDP's default and the best cap{cut}; -o FILE writes all as CSV")


def _what_ifs(row: SweepRow) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in WHAT_IFS)


def _best(rows: tuple[SweepRow, ...]) -> dict[tuple[object, ...], SweepRow]:
    """The fastest row under each combination of what-ifs, the first of equals."""
    best: dict[tuple[object, ...], SweepRow] = {}
    for row in rows:
        known = best.setdefault(_what_ifs(row), row)
        if row.step_ns < known.step_ns:
            best[_what_ifs(row)] = row
    return best


def _word(value: float | str | None) -> str:
    if value is None:
        return "recorded"
    return value if isinstance(value, str) else format_number(value, 6)


def _dtype(text: str) -> str | None:
    return None if text == "recorded" else text


def values_of(option: str, text: str, read: Callable[[str], Value]) -> list[Value]:
    """The values of an axis, with commas between them. Raises ``InputError`` naming the option."""
    made = []
    for part in text.split(","):
        if not part.strip():
            raise InputError(f"{option}: {text!r} is not legal; give values with commas between them")
        try:
            made.append(read(part.strip()))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{option}: {part.strip()!r} is not legal; {error}") from error
    return made


def executor_of(jobs: int) -> Executor:
    """``jobs`` processes; one job is a thread of this process, which starts at once."""
    from sim.tuner.sweep import process_pool  # with what simulates, which other commands are spared

    return ThreadPoolExecutor(1) if jobs == 1 else process_pool(jobs)
