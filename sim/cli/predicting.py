"""simulate, explain, sweep: from files to figures, without torch."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.next_steps import suggest, to_replay, to_simulate, to_tune
from sim.cli.options import (
    PREDICTING,
    WHAT_IF,
    AsJson,
    BucketCap,
    BucketCapList,
    DdpSwitches,
    Engine,
    EngineName,
    FirstBucket,
    Fsdp2Switches,
    HardwareFile,
    MaxRows,
    MegatronSwitches,
    PolicyName,
    ReduceBucketSize,
    WorkloadFile,
    ZeroSwitches,
    _switches,
    caps_of,
    ddp_switches,
    file_option,
    option,
    values_of,
    write,
)
from sim.cli.own_job import Parts, load_inputs
from sim.cli.printing import emit, emit_noun, progress, say, table
from sim.costs.doubts import doubts_about
from sim.errors import InputError
from sim.nouns.collective import Event, ExplainedIteration, Explanation
from sim.nouns.hardware import Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_ms, format_number, format_percent, format_size, in_ms, parse_cap_mb

if TYPE_CHECKING:
    from sim.tuner.sweep import SweepRow


def _iteration(text: str) -> Iteration:
    if text == "steady":
        return "steady"
    if text in ("1", "2", "3"):
        return int(text)
    raise InputError(f"--iteration: {text!r} is not legal; give steady, 1, 2 or 3")


def _given(
    policy: str,
    bucket_cap_mb: str | None,
    first_bucket_mb: str | None,
    bucket_cap_mb_list: str | None,
    ddp: list[str] | None,
    zero: list[str] | None,
    reduce_bucket_size: int | None,
    megatron: list[str] | None,
    fsdp: list[str] | None,
) -> dict[str, Any]:
    """What ``sim.assign`` and ``sim.explain`` are called with."""
    is_zero = policy.startswith("zero")
    if (zero or reduce_bucket_size is not None) and not is_zero:
        raise InputError(f"--zero and --reduce-bucket-size: belong to zero1 and zero2, not to {policy!r}")
    if megatron and policy != "megatron":
        raise InputError(f"--megatron: belongs to megatron, not to {policy!r}")
    if fsdp and policy != "fully_shard":
        raise InputError(f"--fsdp: belongs to fully_shard, not to {policy!r}")
    own = "--zero" if is_zero else {"megatron": "--megatron", "fully_shard": "--fsdp"}.get(policy)
    if ddp and own:
        raise InputError(f"--ddp: belongs to DistributedDataParallel, not to {policy!r}; give {own}")
    options = ddp_switches(ddp)
    for option_name, pairs in (("--zero", zero), ("--megatron", megatron), ("--fsdp", fsdp)):
        options |= _switches(option_name, pairs or [])
    if (units := options.get("units")) is not None:
        options["units"] = str(units)  # names of modules, some of which are numbers
    if reduce_bucket_size is not None:
        if "reduce_bucket_size" in options:
            raise InputError("--zero: reduce_bucket_size has an option of its own: --reduce-bucket-size")
        options["reduce_bucket_size"] = reduce_bucket_size
    return {
        "policy": policy,
        "bucket_cap_mb": None if bucket_cap_mb is None else parse_cap_mb(bucket_cap_mb),
        "first_bucket_mb": None if first_bucket_mb is None else parse_cap_mb(first_bucket_mb),
        "bucket_cap_mb_list": caps_of(bucket_cap_mb_list, "--bucket-cap-mb-list"),
        **options,
    }


def simulate(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    policy: PolicyName = "ddp",
    bucket_cap_mb: BucketCap = None,
    first_bucket_mb: FirstBucket = None,
    bucket_cap_mb_list: BucketCapList = None,
    ddp: DdpSwitches = None,
    zero: ZeroSwitches = None,
    reduce_bucket_size: ReduceBucketSize = None,
    megatron: MegatronSwitches = None,
    fsdp: Fsdp2Switches = None,
    iteration: str = option(
        "1, 2, 3, or steady for all later iterations.", panel=PREDICTING, default="steady"
    ),
    assignment_file: Path | None = option(
        "An assignment file, such as tune writes, in place of caps.", "--assignment"
    ),
    slowest: str | None = option(
        "The slowest other rank: a factor on backward, or its workload file.", panel=PREDICTING
    ),
    engine: EngineName = Engine.SIMPY,
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict one step with given buckets: how long it is, and where the time goes."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    number = _iteration(iteration)
    caps = (bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list)
    others = (zero, reduce_bucket_size, megatron, fsdp)
    caps_and_switches = (*caps, ddp, *others)
    if assignment_file is not None:
        if policy != "ddp" or any(given is not None for given in (*caps, *others)):
            raise InputError("--assignment: give it without a policy and caps; --ddp alone goes with it")
        assignment = as_the_job(workload, sim.load_assignment(assignment_file), **ddp_switches(ddp))
    else:
        assignment = sim.assign(workload, iteration=number, **_given(policy, *caps_and_switches))
    other = None if slowest is None else _slowest(slowest, workload, hardware)
    timeline = sim.simulate(workload, hardware, assignment, engine.value, iteration=number, slowest=other)
    report = sim.summarize(timeline)
    if as_json:
        emit_noun(report)
    else:
        print_report(report, workload)
        if assignment_file is None:
            suggest(to_tune(workload_file, hardware_file))
        else:
            suggest(to_replay(workload_file, hardware_file, hardware, assignment_file))


def _slowest(text: str, workload: Workload, hardware: Hardware) -> Workload:
    """The workload as the slowest other rank runs it, from a factor or a file."""
    try:
        factor = float(text)
    except ValueError:
        return sim.load_workload(text)
    if not factor >= 1:
        raise InputError(f"--slowest: {text!r} is not legal; give a factor of 1 or more, or a workload file")
    slower, _ = sim.scale(workload, hardware, backward=factor)
    return replace(slower, name=f"{workload.name}, backward x {format_number(factor, 6)}")


def explain(
    workload_file: WorkloadFile,
    policy: PolicyName = "ddp",
    bucket_cap_mb: BucketCap = None,
    first_bucket_mb: FirstBucket = None,
    bucket_cap_mb_list: BucketCapList = None,
    ddp: DdpSwitches = None,
    zero: ZeroSwitches = None,
    reduce_bucket_size: ReduceBucketSize = None,
    megatron: MegatronSwitches = None,
    fsdp: Fsdp2Switches = None,
    ranks: int = option("World size.", min=1, default=2),
    iterations: int = option("How many iterations, from the first.", default=3),
    as_json: AsJson = False,
) -> None:
    """List every collective of iterations 1, 2 and 3 in order, with its bytes and what launches it."""
    workload = sim.load_workload(workload_file)
    caps = (bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list)
    given = _given(policy, *caps, ddp, zero, reduce_bucket_size, megatron, fsdp)
    told = sim.explain(workload, world_size=ranks, iterations=iterations, **given)
    if as_json:
        emit_noun(told)
    else:
        print_explanation(told)
        suggest(to_simulate(workload_file))


def print_report(report: Report, workload: Workload) -> None:
    """A report for people."""
    share = report.exposed_comm_ns / report.step_ns if report.step_ns else 0.0
    table(
        f"{workload.name}: {report.policy}, {len(report.buckets)} bucket(s)",
        ["figure", "value"],
        [
            ["step", format_ms(report.step_ns)],
            [
                "exposed communication",
                f"{format_ms(report.exposed_comm_ns)} ({format_percent(share)} of the step)",
            ],
            *(
                [f"  of micro-batch {number}", format_ms(exposed)]
                for number, exposed in enumerate(report.exposed_by_micro_batch_ns, start=1)
                if len(report.exposed_by_micro_batch_ns) > 1
            ),
            ["overlap", format_percent(report.overlap_ratio)],
            ["backward ends", format_ms(report.backward_end_ns)],
            ["gradients available", format_ms(report.sync_end_ns)],
        ],
    )
    table(
        "parts of the step",
        ["part", "ms", "of the step"],
        [
            [name, in_ms(took), format_percent(took / report.step_ns)]
            for name, took in report.parts_ns.items()
            if report.step_ns
        ],
    )
    waits = ["waited"] if any(row.late_ns for row in report.buckets) else []
    table(
        "buckets (ms from the start of backward)",
        ["bucket", "size", "ready", "launch", *waits, "start", "end", "available"],
        [
            [
                str(row.index),
                format_size(row.num_bytes),
                *(
                    in_ms(time)
                    for time in (
                        *(row.ready_ns, row.launch_ns),
                        *((row.late_ns,) if waits else ()),
                        *(row.start_ns, row.end_ns, row.available_ns),
                    )
                ),
            ]
            for row in report.buckets
        ],
    )
    say(report.verdict)
    for line in report.notes:
        say(f"note: {line}")


def print_explanation(told: Explanation) -> None:
    """One table for each phase of a step, in order; iterations that are alike are told once."""
    ranks = f"{told.world_size} rank{'s' * (told.world_size != 1)}"
    _print_events(f"{told.workload}, {told.policy} on {ranks}", told.construction)
    for _, group in groupby(told.iterations, lambda step: (step.bucket_indices, step.events)):
        alike = list(group)
        _print_events(_title(alike), alike[0].events)
    for line in dict.fromkeys(line for step in told.iterations for line in step.notes):
        say(f"note: {line}")


def _title(alike: Sequence[ExplainedIteration]) -> str:
    first, last, buckets = alike[0].iteration, alike[-1].iteration, len(alike[0].bucket_indices)
    numbers = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    return f"{numbers}, {buckets} bucket{'s' * (buckets != 1)}"


def _print_events(title: str, events: Sequence[Event]) -> None:
    if not events:
        table("", [f"{title}: nothing is sent"], [])
    for (micro_batch, phase), group in groupby(events, lambda event: (event.micro_batch, event.phase)):
        where = phase if micro_batch == 1 else f"micro-batch {micro_batch}, {phase}"
        _print_phase(f"{title}: {where}", tuple(group))


def _print_phase(title: str, events: Sequence[Event]) -> None:
    by_hooks = any(event.gradient is not None for event in events)
    columns = ["collective", "elements", "dtype", "size", "for", *["in the hook of"] * by_hooks]
    rows = [[*_cells(event), *[_trigger(event)] * by_hooks] for event in events]
    table(title, columns, rows, words=columns[4:])


def _cells(event: Event) -> list[str]:
    kind: str = event.kind
    if event.root is not None:
        kind = f"{kind} {'of' if kind == 'broadcast' else 'to'} {event.root}"
    what = event.purpose if event.bucket is None else f"bucket {event.bucket}"
    return [kind, f"{event.elements:,}", event.dtype, format_size(event.num_bytes), what]


def _trigger(event: Event) -> str:
    return "" if event.gradient is None else f"{event.gradient} {event.name}"


MOST_LINES = 60
_HEADS = {"world_size": "ranks", "precision": "dtype"}


def sweep(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    caps: str | None = option("Caps in MiB, comma-separated; default: 0.25 MiB to all in one."),
    bandwidth: str = option("Factors on the wire's bandwidth, comma-separated.", panel=WHAT_IF, default="1"),
    latency: str = option("Factors on the wire's latency, comma-separated.", panel=WHAT_IF, default="1"),
    backward: str = option("Factors on backward's duration, comma-separated.", panel=WHAT_IF, default="1"),
    world_size: str | None = option(
        "Numbers of ranks in a ring, comma-separated; default: the measured.", panel=WHAT_IF
    ),
    precision: str | None = option(
        "Dtypes of the gradients, such as recorded,bfloat16; default: recorded.", panel=WHAT_IF
    ),
    engine: EngineName = Engine.ANALYTIC,
    jobs: int | None = option(
        "Processes, at most one a core, over which what-ifs are spread; default: 1.", panel=PREDICTING, min=1
    ),
    max_rows: MaxRows = 100_000,
    ddp: DdpSwitches = None,
    parts: Parts = False,
    as_json: AsJson = False,
    output: Path | None = file_option("Write CSV here.", default=None),
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


def print_rows(title: str, rows: "tuple[SweepRow, ...]") -> None:
    """A sweep for people: what-ifs that vary as columns; where it is long, the default and the best only."""
    from sim.tuner.sweep import WHAT_IFS

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


def _what_ifs(row: "SweepRow") -> tuple[object, ...]:
    from sim.tuner.sweep import WHAT_IFS

    return tuple(getattr(row, name) for name in WHAT_IFS)


def _best(rows: "tuple[SweepRow, ...]") -> "dict[tuple[object, ...], SweepRow]":
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


def executor_of(jobs: int) -> Executor:
    """``jobs`` processes; one job is a thread of this process, which starts at once."""
    from sim.tuner.sweep import process_pool  # with what simulates, which other commands are spared

    return ThreadPoolExecutor(1) if jobs == 1 else process_pool(jobs)
