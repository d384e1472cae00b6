"""The inputs of a command that predicts one's own job: as it ran, and held to the step that it took."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sim
from sim.cli.options import PREDICTING
from sim.cli.printing import note, say, table
from sim.formats.record_files import AS_RUN
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_percent, in_ms

if TYPE_CHECKING:
    from sim.truth.recorded_job import RecordedJob
    from sim.truth.recorded_step import OwnStep

Parts = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Predict from workload and hardware alone, even where the job's own recorded step "
        f"({AS_RUN}) lies beside WORKLOAD.json.",
        rich_help_panel=PREDICTING,
    ),
]


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
    """``load_job``; what was found is told, as a table unless ``as_json``: how far the parts were from the
    recorded step, and what made it come out. What is doubtful is said by the answer.
    """
    job = load_job(workload_file, hardware_file, switches, parts=parts)
    tell_held(job, with_table=not as_json)
    return job.workload, job.hardware


def tell_held(job: "RecordedJob", with_table: bool = True) -> None:
    """How the job ran, how far the parts were from its own step, and what made that come out; why not."""
    if job.switches:
        told = ", ".join(f"{name}={value}" for name, value in job.switches.items())
        (say if with_table else note)(f"the job as it ran: {told} (--ddp: otherwise)")
    if job.own is not None:
        _print_own_step(job.own, with_table)
    elif job.why_not:
        note(f"not held to the recorded step: {job.why_not}")


def _print_own_step(own: "OwnStep", with_table: bool) -> None:
    from sim.costs.doubts import doubts_about_step

    if with_table:
        _table(own)
    told = ", ".join(
        f"{factor.name} {factor.value:.3f} ({factor.low:.2f} to {factor.high:.2f})" for factor in own.factors
    )
    doubted = doubts_about_step(own.hardware)  # which the answer, or ``tell_doubtful``, says
    held = (
        "nearest to the job's own recorded step, and not it"
        if doubted
        else "held to the job's own recorded step"
    )
    (say if with_table else note)(f"{held}: {told} (--parts: without)")
    if own.recorder_ns:
        took = f"{in_ms(own.recorder_ns)} ms of the recorded step are passes of the recorder over the buckets"
        (say if with_table else note)(f"{took}; predictions are of the job without them")
    for line in own.doubtful:
        if line not in doubted:
            note(f"doubtful: {line}")


def _table(own: "OwnStep") -> None:
    def cells(measured_ns: int, predicted_ns: int) -> list[str]:
        error = (predicted_ns - measured_ns) / measured_ns if measured_ns else 0.0
        return [in_ms(predicted_ns), format_percent(error, sign=True)]

    table(
        f"the job's own step, recorded {own.steps} times, ms from the start of backward",
        ["", "measured", "parts alone", "error", "anchored", "error"],
        [
            [
                time.what,
                in_ms(time.measured_ns),
                *cells(time.measured_ns, time.parts_ns),
                *cells(time.measured_ns, time.anchored_ns),
            ]
            for time in own.times
        ],
    )


def tell_doubtful(workload: Workload, hardware: Hardware) -> None:
    """What the files say of themselves that cannot be relied on, where the answer is no place for it."""
    from sim.costs.doubts import doubts_about

    for line in doubts_about(workload, hardware):
        note(line)
