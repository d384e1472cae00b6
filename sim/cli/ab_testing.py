"""validate --ab: DDP's default against one assignment in the user's own model, and how that is shown."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import sim
from sim.cli.next_steps import telling_what_is_kept
from sim.cli.placing import tell_commands
from sim.cli.printing import emit, note, progress, say, table
from sim.errors import InputError
from sim.formats.documents import json_text
from sim.formats.files import make_directory, write_atomically
from sim.formats.record_files import HARDWARE, WORKLOAD, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_percent, in_ms

if TYPE_CHECKING:
    from sim.truth.turns import AbTest
    from sim.validator.candidates.carriers import Carrier
    from sim.validator.candidates.replay_jobs import UserModel
    from sim.validator.launch import Place

AB_FILE = "ab.json"


@dataclass(frozen=True, slots=True)
class AbOrder:
    """What is compared with DDP's default, in which model, and how often."""

    model: "UserModel"
    carrier: "Carrier"
    recommended: Assignment
    rounds: int
    seed: int
    samples_per_rank: int | None


def recommended_of(
    assignments: dict[str, Assignment], workload: Workload | None, hardware: Hardware | None
) -> Assignment:
    """The one assignment that is given, or what is best for the workload on the hardware."""
    if len(assignments) > 1 or not (assignments or (workload and hardware)):
        raise typer.BadParameter("--ab: give one --assignment, or WORKLOAD.json and --hardware to tune for")
    if assignments:
        (given,) = assignments.values()
        return given
    assert workload is not None
    assert hardware is not None
    return sim.tune(workload, hardware).assignment


def run_ab_test(
    order: AbOrder,
    place: "Place",
    workload: Workload | None,
    hardware: Hardware | None,
    output: Path | None,
) -> "AbTest":
    """Measure, write down where ``output`` says so, and return what was found."""
    from sim.validator.abtest import run_ab

    predicted = None if not (workload and hardware) else sim.gain(workload, hardware, order.recommended)
    directory = None if output is None else _ab_directory(output, workload, hardware)
    note(
        f"A/B: {order.rounds} rounds on {place.world_size} ranks; DDP's default and the assignment take turns"
    )
    with telling_what_is_kept(directory), progress("A/B") as report:
        result = run_ab(
            order.model,
            order.recommended,
            place,
            carrier=order.carrier,
            workload=workload,
            directory=directory,
            rounds=order.rounds,
            seed=order.seed,
            samples_per_rank=order.samples_per_rank,
            predicted=predicted,
            progress=report,
        )
    if directory is not None:
        _write(directory, result)
        note(f"wrote {directory}")
    return result


def prepare_ab_test(
    order: AbOrder,
    place: "Place",
    workload: Workload | None,
    hardware: Hardware | None,
    output: Path | None,
) -> None:
    """Write the job for ranks that torchrun or srun starts, and say how to run it."""
    from sim.validator.abtest import prepare_ab

    if output is None:
        raise typer.BadParameter("--prepare: give -o, a directory that all hosts see")
    directory = _ab_directory(output, workload, hardware)
    job_file = prepare_ab(
        order.model,
        order.recommended,
        directory,
        place.world_size,
        carrier=order.carrier,
        workload=workload,
        rounds=order.rounds,
        seed=order.seed,
        samples_per_rank=order.samples_per_rank,
    )
    tell_commands(job_file, f"bucketsim gather {directory}")


def gather_ab_test(directory: Path, as_json: bool) -> None:
    """What its ranks measured, against the prediction where it was prepared with one."""
    from sim.validator.abtest import gather_ab, recommended_in

    predicted = None
    if (directory / WORKLOAD).exists():
        inputs = sim.load_workload(directory / WORKLOAD), sim.load_hardware(directory / HARDWARE)
        predicted = sim.gain(*inputs, recommended_in(directory))
    result = gather_ab(directory, predicted)
    _write(directory, result)
    print_ab(result, as_json)


def _write(directory: Path, result: "AbTest") -> None:
    write_atomically(directory / AB_FILE, json_text(_ab_document(result)))


def _ab_directory(output: Path, workload: Workload | None, hardware: Hardware | None) -> Path:
    """A directory for the measurements: a record, where there is a prediction to hold them against."""
    if workload is not None and hardware is not None:
        return start_record(output, workload, hardware)
    make_directory(output)
    if any(output.iterdir()):
        raise InputError(f"{output}: holds files already; give a new or empty directory")
    return output


def _predicted_words(result: "AbTest") -> str:
    """The predicted gain, its interval, and whether what was measured is in it."""
    assert result.predicted_gain_ns is not None
    said = f"{result.predicted_gain_ns / 1e6:+.2f} ms a step"
    if result.predicted_low_ns is None or result.predicted_high_ns is None:
        return f"{said}; nothing that varies is known, so that it has no interval"
    said += (
        f", 95 % interval {result.predicted_low_ns / 1e6:+.2f} to {result.predicted_high_ns / 1e6:+.2f} ms"
    )
    if result.prediction_met:
        return f"{said}; measured and predicted agree within their intervals"
    return (
        f"{said}; what was measured lies outside it: the calibration or the recording does not hold for this "
        f"run, so measure and record again before you rely on other predictions"
    )


def _ab_document(result: "AbTest") -> dict[str, Any]:
    return {"schema_version": 1, "kind": "ab", **asdict(result)}


def print_ab(result: "AbTest", as_json: bool) -> None:
    """For people, or as one JSON document."""
    if as_json:
        emit(json_text(_ab_document(result)))
        return

    def row(name: str, step_ns: int, samples_per_s: float | None) -> list[str]:
        return [name, in_ms(step_ns), "-" if samples_per_s is None else f"{samples_per_s:.1f}"]

    table(
        f"{result.name}: {result.world_size} ranks, {result.rounds} rounds",
        ["", "step ms", "samples/s"],
        [
            row("DDP default", result.default_step_ns, result.default_samples_per_s),
            row("recommended", result.recommended_step_ns, result.recommended_samples_per_s),
            row("without communication", result.plain_step_ns, None),
        ],
    )
    say(
        f"gain: {result.gain_ns / 1e6:+.2f} ms a step "
        f"({format_percent(result.gain_fraction, 2, sign=True)}), 95 % interval "
        f"{result.gain_low_ns / 1e6:+.2f} to {result.gain_high_ns / 1e6:+.2f} ms"
    )
    if result.predicted_gain_ns is not None:
        say(f"predicted: {_predicted_words(result)}")
    say(result.sentence)
