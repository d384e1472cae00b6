"""simulate, explain, sweep: from files to figures, without torch; and one's own job, as others ask for it."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli import options, printing
from sim.cli.options import Kind, choice, file_option, option, write
from sim.cli.printing import Answer, note, progress, say, say_notes, table
from sim.columns import Column, by_place, ms, percent, plain, size
from sim.costs.doubts import rests_on
from sim.errors import InputError, SimError
from sim.formats.record_files import recorded_step
from sim.nouns.assignment import bucket_bytes
from sim.nouns.collective import Event, Explanation
from sim.nouns.hardware import Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import BucketRow, Iteration
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job, own_buckets
from sim.systems.simulate import simulated_step_ns
from sim.telling import tell_own_step
from sim.units import format_ms, format_number, format_percent, format_sizes, in_ms

if TYPE_CHECKING:
    from sim.truth.recorded_job import RecordedJob
    from sim.tuner.sweep import SweepRow

_ITERATIONS: dict[str, Iteration] = {"1": 1, "2": 2, "3": 3, "steady": "steady"}


# One's own job: as it ran, and held to the step that it took.


def load_job(
    workload_file: Path, hardware_file: Path, parts: bool, switches: dict[str, Any] | None = None
) -> "RecordedJob":
    """The job of both files: as it was recorded, but for ``switches`` that are given otherwise, and held to
    its own step but for ``parts``. What is doubtful is said by the answer.
    """
    from sim.truth.recorded_job import held_to  # with numba, which the start of a command is spared

    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    step = None if parts else recorded_step(workload_file)
    job = held_to(workload, hardware, step)
    return replace(job, workload=job.workload.with_switches(switches or {}))


def load_inputs(
    workload_file: Path, hardware_file: Path, parts: bool, switches: dict[str, Any] | None = None
) -> tuple[Workload, Hardware]:
    """Workload and machine of ``load_job``, and how they are held to its step, which is told."""
    job = load_job(workload_file, hardware_file, parts, switches)
    tell_held(job)
    return job.workload, job.hardware


def tell_held(job: "RecordedJob") -> None:
    """How the job ran, how far the parts were from its own step, and what made that come out; why not."""
    if job.workload.switches:
        told = ", ".join(f"{name}={value}" for name, value in job.workload.switches.items())
        say(f"switches: {told} (the job's own, and what --set gives)")
    try:
        if (buckets := own_buckets(job.workload)) is not None:
            took = format_ms(simulated_step_ns(job.workload, job.hardware, buckets))
            sizes = format_sizes(bucket_bytes(job.workload, buckets.bucket_indices))
            told = f"{len(buckets.bucket_indices)} of {sizes}, not those of DDP's default"
            say(f"the job's own buckets: {told}; a step with them: {took}")
    except SimError as error:  # what is asked may need none of the job's own
        note(f"no step with the job's own buckets: {error}")
    said, doubts = tell_own_step(job, " (--parts: without)")
    for line in said:
        say(line)
    for line in doubts:
        note(line)


# simulate


@options.answers
def simulate(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    policy: options.Policy = "ddp",
    bucket_cap_mb: options.BucketCap = None,
    set_: options.Settings = None,
    iteration: Any = option(
        "Of which iteration; default: all later ones.",
        kind=Kind("1|2|3|steady", lambda text: _ITERATIONS[choice(*_ITERATIONS).reader(text)]),
        default="steady",
    ),
    assignment_file: options.AssignmentFile = None,
    slowest: float | None = option("The slowest other rank: a factor on its backward.", min=1),
    parts: options.Parts = False,
) -> Answer:
    """Predict one step with given buckets: how long it is, and where the time goes."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts)
    given = options.settings(set_)
    if assignment_file is None:
        assignment = sim.assign(workload, policy, bucket_cap_mb, iteration=iteration, **given)
    elif policy != "ddp" or bucket_cap_mb is not None:
        raise InputError("--assignment: give it without a policy and caps; --set alone goes with it")
    else:
        assignment = as_the_job(workload, sim.load_assignment(assignment_file), **given)
    other = None
    if slowest is not None:
        other, _ = sim.scale(workload, hardware, backward=slowest)
        other = replace(other, name=f"{workload.name}, backward x {format_number(slowest, 6)}")
    report = sim.summarize(sim.simulate(workload, hardware, assignment, iteration=iteration, slowest=other))
    ahead = printing.to_tune(workload_file, hardware_file, policy, given)
    if assignment_file is not None:
        ahead = printing.to_replay(workload_file, hardware_file, hardware, assignment_file)
    return Answer(report, lambda: _print_report(report, workload), ahead)


def _print_report(report: Report, workload: Workload) -> None:
    def of_step(ns: int) -> str:
        return format_percent(ns / report.step_ns if report.step_ns else 0.0)

    exposed_ns, by_batch = report.exposed_comm_ns, report.exposed_by_micro_batch_ns
    figures = {
        "step": format_ms(report.step_ns),
        "exposed communication": f"{format_ms(exposed_ns)} ({of_step(exposed_ns)} of the step)",
        **{f"  of micro-batch {at}": format_ms(ns) for at, ns in enumerate(by_batch, 1) if len(by_batch) > 1},
        "overlap": format_percent(report.overlap_ratio),
        "backward ends": format_ms(report.backward_end_ns),
        "gradients available": format_ms(report.sync_end_ns),
    }
    title = f"{workload.name}: {report.policy}, {len(report.buckets)} bucket(s)"
    table(title, by_place("figure", "value"), figures.items())
    parts = [(name, in_ms(ns), of_step(ns)) for name, ns in report.parts_ns.items()]
    table("parts of the step", by_place("part", "ms", "of the step"), parts)
    late = any(row.late_ns for row in report.buckets)
    table("buckets, from the start of backward", _BUCKETS if late else _BUCKETS[:-1], report.buckets)
    say(report.verdict)
    say_notes(report.notes)


_BUCKETS: tuple[Column[BucketRow], ...] = (
    plain("bucket", "index"),
    size("size", "num_bytes"),
    *(ms(name, f"{name}_ns") for name in ("ready", "launch", "start", "end", "available")),
    ms("waited", "late_ns"),
)


# explain


@options.answers
def explain(
    workload_file: options.WorkloadFile,
    policy: options.Policy = "ddp",
    bucket_cap_mb: options.BucketCap = None,
    set_: options.Settings = None,
    ranks: int = option("World size.", min=1, default=2),
    iterations: int = option("How many iterations, from the first.", default=3),
) -> Answer:
    """List every collective of iterations 1, 2 and 3 in order, with its bytes and what launches it."""
    told = sim.explain(
        sim.load_workload(workload_file),
        policy,
        world_size=ranks,
        iterations=iterations,
        bucket_cap_mb=bucket_cap_mb,
        **options.settings(set_),
    )
    ahead = printing.line("simulate", workload_file, "--hardware", printing.HARDWARE)
    return Answer(told, lambda: _print_explanation(told), ahead)


def _print_explanation(told: Explanation) -> None:
    """One table for each phase of a step, in order; iterations that are alike are told once."""
    _print_events(f"{told.workload}, {told.policy} on {told.world_size} rank(s)", told.construction)
    for _, group in groupby(told.iterations, lambda step: (step.bucket_indices, step.events)):
        first, *others = group
        which = f"iterations {first.iteration} to {others[-1].iteration}" if others else ""
        which = which or f"iteration {first.iteration}"
        _print_events(f"{which}, {len(first.bucket_indices)} bucket(s)", first.events)
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

_MOST_LINES = 60
_DTYPES = options.commas(Kind("DTYPE", lambda text: None if text == "recorded" else text))


def _what_if(words: str, **more: Any) -> Any:
    how: dict[str, Any] = {"kind": options.FACTORS, "default": "1"}
    return option(words, panel=options.WHAT_IF, **(how | more))


@options.answers
def sweep(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    caps: options.Caps = None,
    bandwidth: Sequence[float] = _what_if("On the wire's bandwidth."),
    latency: Sequence[float] = _what_if("On the wire's latency."),
    backward: Sequence[float] = _what_if("On backward's duration."),
    world_size: Sequence[int] | None = _what_if(
        "Numbers of ranks in a ring; default: the measured.", kind=options.WHOLES, default=None
    ),
    precision: Sequence[str | None] | None = _what_if(
        "Dtypes of the gradients, such as recorded,bfloat16.", kind=_DTYPES, default=None
    ),
    jobs: options.Jobs = None,
    set_: options.JobSwitches = None,
    parts: options.Parts = False,
    output: Path | None = file_option("Write CSV here.", default=None),
) -> Answer:
    """Predict DDP's default and a range of bucket caps, under any combination of what-ifs."""
    given = options.settings(set_)
    workload, hardware = load_inputs(workload_file, hardware_file, parts, given)
    with ExitStack() as stack:
        rows = sim.sweep(
            workload,
            hardware,
            caps,
            bandwidth=bandwidth,
            latency=latency,
            backward=backward,
            world_size=world_size,
            precision=precision,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("simulating")),
        )
    write(output, sim.sweep_csv(rows))
    wires = [gradient.on_wire for gradient in workload.gradients]
    played = sim.simulate(workload, hardware, sim.assign(workload), "analytic")
    notes = (*rests_on(hardware, [*wires, sum(wires)]), *sim.summarize(played).notes)

    def show() -> None:
        _print_sweep(f"{workload.name} on {hardware.name}", rows)
        say_notes(notes)

    document = {"rows": [asdict(row) for row in rows], "notes": notes}
    return Answer(document, show, printing.to_tune(workload_file, hardware_file, given=given))


def executor_of(jobs: int) -> Executor:
    """``jobs`` processes; one job is a thread of this process, which starts at once."""
    from sim.tuner.sweep import process_pool  # with what simulates, which other commands are spared

    return ThreadPoolExecutor(1) if jobs == 1 else process_pool(jobs)


def _told(value: object) -> str:
    return format_number(value, 6) if isinstance(value, int | float) else str(value or "recorded")


def _print_sweep(title: str, rows: "tuple[SweepRow, ...]") -> None:
    """What-ifs that vary as columns; where it is long, the default and the best of each what-if only."""
    from sim.tuner.sweep import WHAT_IFS

    def what_ifs(row: "SweepRow") -> tuple[object, ...]:
        return tuple(getattr(row, name) for name in WHAT_IFS)

    best: dict[tuple[object, ...], SweepRow] = {}
    for row in rows:
        if row.step_ns < best.setdefault(what_ifs(row), row).step_ns:
            best[what_ifs(row)] = row
    lines = rows
    if len(rows) > _MOST_LINES:
        lines = tuple(row for row in rows if row.bucket_cap_mb is None or row is best[what_ifs(row)])
    varied = [name for name in WHAT_IFS if len({getattr(row, name) for row in rows}) > 1]
    columns: list[Column[SweepRow]] = [
        Column("cap MiB", lambda row: "default" if row.bucket_cap_mb is None else _told(row.bucket_cap_mb)),
        *(
            Column(name.replace("_", " "), lambda row, name=name: _told(getattr(row, name)))  # type: ignore[misc]
            for name in varied
        ),
        plain("buckets", "num_buckets"),
        size("largest", "largest_bucket_bytes"),
        ms("step", "step_ns"),
        ms("exposed", "exposed_comm_ns"),
        percent("overlap", "overlap_ratio"),
        Column("", lambda row: "best" if row.step_ns == best[what_ifs(row)].step_ns else ""),
    ]
    table(title, columns, lines[:_MOST_LINES])
    if len(lines[:_MOST_LINES]) < len(rows):
        cut = f", the first {_MOST_LINES} lines" if len(lines) > _MOST_LINES else ""
        say(f"{len(rows)} rows; shown are DDP's default and the best cap{cut}; -o FILE writes all as CSV")
