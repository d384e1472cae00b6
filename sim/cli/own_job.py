"""The inputs of a command that predicts one's own job: parts, and the recorded step that they are held to."""

from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.panels import PREDICTING
from sim.cli.printing import note, say, table
from sim.errors import InputError
from sim.formats.record_files import AS_RUN, recorded_step
from sim.nouns.hardware import Hardware
from sim.nouns.own_step import OwnStep
from sim.nouns.workload import Workload
from sim.units import in_ms

Parts = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Predict from workload and hardware alone, even where the job's own recorded step "
        f"({AS_RUN}) lies beside WORKLOAD.json.",
        rich_help_panel=PREDICTING,
    ),
]


def load_inputs(
    workload_file: Path, hardware_file: Path, parts: bool = False, as_json: bool = False
) -> tuple[Workload, Hardware]:
    """Both files, held to the step that was recorded with the workload; unless ``parts``, or there is none.

    What was found is told, as a table unless ``as_json``: how far the parts were from that step, and what
    made it come out.
    """
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    tell_doubtful(workload, hardware)
    own = None if parts else own_step_of(workload_file, workload, hardware)
    if own is None:
        return workload, hardware
    print_own_step(own, with_table=not as_json)
    return own.workload, own.hardware


def own_step_of(workload_file: Path, workload: Workload, hardware: Hardware) -> OwnStep | None:
    """The recorded step beside ``workload_file``, predicted and fitted; None, with a word, where not."""
    measured = recorded_step(workload_file)
    if measured is None or "own_step" in hardware.spread:
        return None
    try:
        return sim.own_step(workload, hardware, measured)
    except InputError as error:
        note(f"not held to the recorded step: {error}")
        return None


def print_own_step(own: OwnStep, with_table: bool = True) -> None:
    """How far the parts were from the recorded step, time by time, and what made it come out."""
    if with_table:
        _table(own)
    told = ", ".join(
        f"{factor.name} {factor.value:.3f} ({factor.low:.2f} to {factor.high:.2f})" for factor in own.factors
    )
    (say if with_table else note)(f"held to the job's own recorded step: {told} (--parts: without)")
    for line in own.doubtful:
        note(f"doubtful: {line}")


def _table(own: OwnStep) -> None:
    def cells(measured_ns: int, predicted_ns: int) -> list[str]:
        error = (predicted_ns - measured_ns) / measured_ns if measured_ns else 0.0
        return [in_ms(predicted_ns), f"{error:+.1%}"]

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
    """What the files say of themselves that cannot be relied on."""
    from sim.costs.doubts import doubts_about

    for line in doubts_about(workload, hardware):
        note(line)
