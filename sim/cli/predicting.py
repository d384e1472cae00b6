"""simulate, explain, sweep: from files to figures, without torch; and one's own job, as others ask for it."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.options import (
    CAPS,
    FACTORS,
    PREDICTING,
    WHAT_IF,
    WHOLES,
    AsJson,
    BucketCap,
    EngineName,
    HardwareFile,
    Jobs,
    Kind,
    Parts,
    Policy,
    Settings,
    WorkloadFile,
    choice,
    commas,
    file_option,
    option,
    settings,
    write,
)
from sim.cli.printing import (
    HARDWARE,
    emit,
    emit_noun,
    line,
    note,
    print_table,
    progress,
    say,
    say_notes,
    suggest,
    table,
    to_replay,
    to_tune,
)
from sim.columns import Column, ms, percent, plain, size
from sim.costs.doubts import doubts_about, is_refuted
from sim.errors import InputError
from sim.nouns.collective import Event, Explanation
from sim.nouns.hardware import Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import BucketRow, Iteration
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_ms, format_number, format_percent, in_ms

if TYPE_CHECKING:
    from sim.truth.recorded_job import RecordedJob
    from sim.truth.recorded_step import OwnStep
    from sim.tuner.sweep import SweepRow

_ITERATIONS: dict[str, Iteration] = {"1": 1, "2": 2, "3": 3, "steady": "steady"}


# One's own job: as it ran, and held to the step that it took.


def load_job(
    workload_file: Path, hardware_file: Path, switches: dict[str, Any] | None = None, *, parts: bool = False
) -> "RecordedJob":
    """The job of both files: as it was recorded, but for ``switches`` that are given otherwise."""
    from sim.truth.recorded_job import job_in_files  # with numba, which the start of a command is spared

    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    return job_in_files(workload_file, workload, hardware, parts=parts).with_switches(switches or {})


def load_inputs(
    workload_file: Path,
    hardware_file: Path,
    parts: bool = False,
    as_json: bool = False,
    switches: dict[str, Any] | None = None,
) -> tuple[Workload, Hardware]:
    """``load_job``, and ``tell_held``. What is doubtful is said by the answer."""
    job = load_job(workload_file, hardware_file, switches, parts=parts)
    tell_held(job, as_json=as_json)
    return job.workload, job.hardware


def tell_held(job: "RecordedJob", *, as_json: bool) -> None:
    """How the job ran, how far the parts were from its own step, and what made that come out; why not."""
    tell = note if as_json else say
    if job.switches:
        told = ", ".join(f"{name}={value}" for name, value in job.switches.items())
        tell(f"the job as it ran: {told} (--set: otherwise)")
    if job.own is None:
        if job.why_not:
            note(f"not held to the recorded step: {job.why_not}")
        return
    own = job.own
    if not as_json:
        _print_own_times(own)
    factors = (f"{one.name} {one.value:.3f} ({one.low:.2f} to {one.high:.2f})" for one in own.factors)
    held = "nearest to" if is_refuted(own.hardware) else "held to"
    tell(f"{held} the job's own recorded step: {', '.join(factors)} (--parts: without)")
    if own.recorder_ns:
        tell(
            f"{in_ms(own.recorder_ns)} ms of the recorded step are passes of the recorder over the buckets; "
            f"predictions are of the job without them"
        )
    for doubt in own.doubtful:
        note(f"doubtful: {doubt}")


def _print_own_times(own: "OwnStep") -> None:
    rows = []
    for time in own.times:
        cells = [time.what, in_ms(time.measured_ns)]
        for predicted_ns in (time.parts_ns, time.anchored_ns):
            error = (predicted_ns - time.measured_ns) / time.measured_ns if time.measured_ns else 0.0
            cells += [in_ms(predicted_ns), format_percent(error, sign=True)]
        rows.append(cells)
    title = f"the job's own step, recorded {own.steps} times, ms from the start of backward"
    print_table(title, ["", "measured", "parts alone", "error", "anchored", "error"], rows)


def tell_doubtful(workload: Workload, hardware: Hardware) -> None:
    """What the files say of themselves that cannot be relied on, where the answer is no place for it."""
    for doubt in doubts_about(workload, hardware):
        note(doubt)


# simulate


def _slowest(text: str) -> float | Path:
    try:
        factor = float(text)
    except ValueError:
        return Path(text)
    if not factor >= 1:
        raise ValueError(f"{text} is not legal; give a factor of 1 or more, or a workload file")
    return factor


def simulate(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    policy: Policy = "ddp",
    bucket_cap_mb: BucketCap = None,
    set_: Settings = None,
    iteration: Any = option(
        "Of which iteration; default: all later ones.",
        panel=PREDICTING,
        kind=Kind("1|2|3|steady", lambda text: _ITERATIONS[choice(*_ITERATIONS).reader(text)]),
        default="steady",
    ),
    assignment_file: Path | None = option(
        "An assignment file, such as tune writes, in place of caps.", "--assignment"
    ),
    slowest: float | None = option(
        "The slowest other rank: a factor on backward, or its workload file.",
        panel=PREDICTING,
        kind=Kind("FACTOR|W.json", _slowest),
    ),
    engine: EngineName = "simpy",
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict one step with given buckets: how long it is, and where the time goes."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    options = settings(set_)
    if assignment_file is None:
        assignment = sim.assign(workload, policy, bucket_cap_mb, iteration=iteration, **options)
    elif policy != "ddp" or bucket_cap_mb is not None:
        raise InputError("--assignment: give it without a policy and caps; --set alone goes with it")
    else:
        assignment = as_the_job(workload, sim.load_assignment(assignment_file), **options)
    other = None
    if isinstance(slowest, Path):
        other = sim.load_workload(slowest)
    elif slowest is not None:
        other, _ = sim.scale(workload, hardware, backward=slowest)
        other = replace(other, name=f"{workload.name}, backward x {format_number(slowest, 6)}")
    timeline = sim.simulate(workload, hardware, assignment, engine, iteration=iteration, slowest=other)
    report = sim.summarize(timeline)
    if as_json:
        emit_noun(report)
        return
    _print_report(report, workload)
    if assignment_file is None:
        suggest(to_tune(workload_file, hardware_file))
    else:
        suggest(to_replay(workload_file, hardware_file, hardware, assignment_file))


def _print_report(report: Report, workload: Workload) -> None:
    share = report.exposed_comm_ns / report.step_ns if report.step_ns else 0.0
    by_batch = report.exposed_by_micro_batch_ns if len(report.exposed_by_micro_batch_ns) > 1 else ()
    print_table(
        f"{workload.name}: {report.policy}, {len(report.buckets)} bucket(s)",
        ["figure", "value"],
        [
            ["step", format_ms(report.step_ns)],
            [
                "exposed communication",
                f"{format_ms(report.exposed_comm_ns)} ({format_percent(share)} of the step)",
            ],
            *([f"  of micro-batch {number}", format_ms(ns)] for number, ns in enumerate(by_batch, 1)),
            ["overlap", format_percent(report.overlap_ratio)],
            ["backward ends", format_ms(report.backward_end_ns)],
            ["gradients available", format_ms(report.sync_end_ns)],
        ],
    )
    print_table(
        "parts of the step",
        ["part", "ms", "of the step"],
        [
            [name, in_ms(ns), format_percent(ns / report.step_ns)]
            for name, ns in report.parts_ns.items()
            if report.step_ns
        ],
    )
    times = {"ready": "ready_ns", "launch": "launch_ns", "waited": "late_ns", "start": "start_ns"}
    times |= {"end": "end_ns", "available": "available_ns"}
    if not any(row.late_ns for row in report.buckets):
        del times["waited"]
    buckets: list[Column[BucketRow]] = [plain("bucket", "index"), size("size", "num_bytes")]
    buckets += [ms(name, field) for name, field in times.items()]
    table("buckets, from the start of backward", buckets, report.buckets)
    say(report.verdict)
    say_notes(report.notes)


# explain


def explain(
    workload_file: WorkloadFile,
    policy: Policy = "ddp",
    bucket_cap_mb: BucketCap = None,
    set_: Settings = None,
    ranks: int = option("World size.", min=1, default=2),
    iterations: int = option("How many iterations, from the first.", default=3),
    as_json: AsJson = False,
) -> None:
    """List every collective of iterations 1, 2 and 3 in order, with its bytes and what launches it."""
    told = sim.explain(
        sim.load_workload(workload_file),
        policy,
        world_size=ranks,
        iterations=iterations,
        bucket_cap_mb=bucket_cap_mb,
        **settings(set_),
    )
    if as_json:
        emit_noun(told)
    else:
        _print_explanation(told)
        suggest(line("simulate", workload_file, "--hardware", HARDWARE))


def _print_explanation(told: Explanation) -> None:
    """One table for each phase of a step, in order; iterations that are alike are told once."""
    ranks = f"{told.world_size} rank{'s' * (told.world_size != 1)}"
    _print_events(f"{told.workload}, {told.policy} on {ranks}", told.construction)
    for _, group in groupby(told.iterations, lambda step: (step.bucket_indices, step.events)):
        first, *others = group
        numbers = f"iterations {first.iteration} to {others[-1].iteration}" if others else ""
        buckets = len(first.bucket_indices)
        title = f"{numbers or f'iteration {first.iteration}'}, {buckets} bucket{'s' * (buckets != 1)}"
        _print_events(title, first.events)
    say_notes(*(step.notes for step in told.iterations))


def _kind(event: Event) -> str:
    if event.root is None:
        return event.kind
    return f"{event.kind} {'of' if event.kind == 'broadcast' else 'to'} {event.root}"


_EVENTS: tuple[Column[Event], ...] = (
    Column("collective", _kind),
    Column("elements", lambda event: event.elements, ","),
    plain("dtype", "dtype"),
    size("size", "num_bytes"),
    Column("for", lambda event: event.purpose if event.bucket is None else f"bucket {event.bucket}"),
    Column(
        "in the hook of", lambda event: "" if event.gradient is None else f"{event.gradient} {event.name}"
    ),
)


def _print_events(title: str, events: Sequence[Event]) -> None:
    if not events:
        say(f"{title}: nothing is sent")
    for (micro_batch, phase), group in groupby(events, lambda event: (event.micro_batch, event.phase)):
        where, alike = phase if micro_batch == 1 else f"micro-batch {micro_batch}, {phase}", list(group)
        columns = _EVENTS if any(event.gradient is not None for event in alike) else _EVENTS[:-1]
        table(f"{title}: {where}", columns, alike, words=[column.name for column in columns[4:]])


# sweep

MOST_LINES = 60
_DTYPES = commas(Kind("DTYPE", lambda text: None if text == "recorded" else text))


def sweep(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    caps: Sequence[float] | None = option("Caps; default: 0.25 MiB to all in one.", kind=CAPS),
    bandwidth: Sequence[float] = option("On the wire's bandwidth.", panel=WHAT_IF, kind=FACTORS, default="1"),
    latency: Sequence[float] = option("On the wire's latency.", panel=WHAT_IF, kind=FACTORS, default="1"),
    backward: Sequence[float] = option("On backward's duration.", panel=WHAT_IF, kind=FACTORS, default="1"),
    world_size: Sequence[int] | None = option(
        "Numbers of ranks in a ring; default: the measured.", panel=WHAT_IF, kind=WHOLES
    ),
    precision: Sequence[str | None] | None = option(
        "Dtypes of the gradients, such as recorded,bfloat16.", panel=WHAT_IF, kind=_DTYPES
    ),
    engine: EngineName = "analytic",
    jobs: Jobs = None,
    set_: Settings = None,
    parts: Parts = False,
    as_json: AsJson = False,
    output: Path | None = file_option("Write CSV here.", default=None),
) -> None:
    """Predict DDP's default and a range of bucket caps, under any combination of what-ifs."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json, settings(set_))
    with ExitStack() as stack:
        rows = sim.sweep(
            workload,
            hardware,
            caps,
            engine,
            bandwidth=bandwidth,
            latency=latency,
            backward=backward,
            world_size=world_size,
            precision=precision,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("simulating")),
        )
    if output is not None:
        write(output, sim.sweep_csv(rows))
    doubts = doubts_about(workload, hardware)
    if as_json:
        emit(json.dumps({"rows": [asdict(row) for row in rows], "notes": doubts}, indent=1))
        return
    _print_sweep(f"{workload.name} on {hardware.name}", rows)
    say_notes(doubts)
    suggest(to_tune(workload_file, hardware_file))


def executor_of(jobs: int) -> Executor:
    """``jobs`` processes; one job is a thread of this process, which starts at once."""
    from sim.tuner.sweep import process_pool  # with what simulates, which other commands are spared

    return ThreadPoolExecutor(1) if jobs == 1 else process_pool(jobs)


def _print_sweep(title: str, rows: "tuple[SweepRow, ...]") -> None:
    """What-ifs that vary as columns; where it is long, the default and the best of each what-if only."""
    from sim.tuner.sweep import WHAT_IFS

    def what_ifs(row: "SweepRow") -> tuple[object, ...]:
        return tuple(getattr(row, name) for name in WHAT_IFS)

    best: dict[tuple[object, ...], SweepRow] = {}
    for row in rows:
        if row.step_ns < best.setdefault(what_ifs(row), row).step_ns:
            best[what_ifs(row)] = row

    def varied(name: str) -> "Column[SweepRow]":
        def told(row: "SweepRow") -> str:
            value = getattr(row, name)
            if value is None:
                return "recorded"
            return value if isinstance(value, str) else format_number(value, 6)

        return Column({"world_size": "ranks", "precision": "dtype"}.get(name, name), told)

    lines = rows
    if len(rows) > MOST_LINES:
        lines = tuple(row for row in rows if row.bucket_cap_mb is None or row is best[what_ifs(row)])
    table(
        title,
        (
            Column(
                "cap MiB",
                lambda row: "default" if row.bucket_cap_mb is None else format_number(row.bucket_cap_mb, 6),
            ),
            *(varied(name) for name in WHAT_IFS if len({getattr(row, name) for row in rows}) > 1),
            plain("buckets", "num_buckets"),
            size("largest", "largest_bucket_bytes"),
            ms("step", "step_ns"),
            ms("exposed", "exposed_comm_ns"),
            percent("overlap", "overlap_ratio"),
            Column("", lambda row: "best" if row.step_ns == best[what_ifs(row)].step_ns else ""),
        ),
        lines[:MOST_LINES],
    )
    if len(lines[:MOST_LINES]) < len(rows):
        cut = f", the first {MOST_LINES} lines" if len(lines) > MOST_LINES else ""
        say(f"{len(rows)} rows; shown are DDP's default and the best cap{cut}; -o FILE writes all as CSV")
