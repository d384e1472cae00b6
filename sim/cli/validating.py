"""validate, ab: assignments on real ranks, against the prediction or, in one's own model, DDP's default."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import sim
from sim.cli.judging import judge
from sim.cli.measuring import (
    Backend,
    Box,
    Device,
    Prepare,
    Ranks,
    Rate,
    choose_device,
    device_of_model,
    place_of,
    tell_commands,
)
from sim.cli.options import (
    CANDIDATES,
    CAPS,
    MEASURING,
    MODEL,
    WHERE,
    Arguments,
    AsJson,
    Dtype,
    HardwareFile,
    MaxError,
    Parts,
    WorkloadFile,
    argument,
    as_dict,
    choice,
    directory_option,
    flag,
    option,
    shared,
)
from sim.cli.predicting import tell_doubtful, tell_held
from sim.cli.printing import (
    HARDWARE,
    WORKLOAD,
    emit,
    line,
    note,
    print_table,
    progress,
    say,
    suggest,
    to_tune,
)
from sim.errors import InputError, SimError
from sim.formats import record_files
from sim.formats.documents import json_text, load
from sim.formats.files import make_directory, write_atomically
from sim.formats.record_files import box_in, recorded_step, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.devices import device_of_job
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_percent, in_ms

if TYPE_CHECKING:
    from sim.truth.recorded_job import RecordedJob
    from sim.truth.turns import AbTest
    from sim.validator.jobs import Candidate, Carrier, ReplayJob, UserModel
    from sim.validator.launch import Place

AB_FILE = "ab.json"
_LINK = (
    "real: between ranks; emulated: one rank, whose all-reduces wait as long as the curve of --hardware says."
)
Link = Annotated[Literal["real", "emulated"], shared(_LINK, kind=choice("real", "emulated"), panel=WHERE)]
Seed = Annotated[int, shared("Order of candidates within rounds.", panel=MEASURING)]


def validate(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    output: Path = directory_option("Directory of the record."),
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    caps: Sequence[float] = option(
        "Values of bucket_cap_mb to replay.", panel=CANDIDATES, kind=CAPS, default="1,4,10,25"
    ),
    assignment_file: list[Path] | None = option(
        "An assignment file to replay too; repeatable.", "--assignment", panel=CANDIDATES
    ),
    systems: bool = flag(
        "Replay each switch and hook of DDP and each textbook system, in place of caps.",
        "--systems",
        panel=CANDIDATES,
    ),
    model: str | None = option(
        "Your model, which returns (model, batch); default: backward sleeps through the recorded schedule.",
        panel=MODEL,
        metavar="MODULE:FACTORY",
    ),
    arg: Arguments = None,
    dtype: Dtype = None,
    device: Device = None,
    backend: Backend = None,
    link: Link = "real",
    prepare: Prepare = False,
    rounds: int = option("Rounds; each runs every candidate.", panel=MEASURING, default=10),
    seed: Seed = 0,
    parts: Parts = False,
    max_error: MaxError = None,
    as_json: AsJson = False,
) -> None:
    """Replay assignments on real ranks and compare them with the prediction."""
    from sim.validator.calibrate import measure_machine
    from sim.validator.jobs import ReplayJob
    from sim.validator.replay import prepare as prepare_replay
    from sim.validator.replay import replay

    if model is None and (arg or dtype):
        raise typer.BadParameter("--arg and --dtype belong to --model")
    if systems and (model is not None or link == "emulated" or device == "cuda"):
        raise typer.BadParameter("--systems: a paced replay over gloo; leave out --model, --device, --link")
    if prepare and (box is not None or max_error is not None or link == "emulated"):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --max-error, --link"
        )
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    place = _place(ranks, box, rate, link, hardware, hardware_file)
    user_model = _model(model, arg, dtype)
    if user_model is not None:
        device = device_of_model(device, device_of_job(workload), elsewhere=prepare)
    else:
        only_cpu = systems or box is not None or backend == "gloo"
        job_on = device_of_job(workload) or "cpu"
        device = choose_device(device, job_on, place.world_size, elsewhere=prepare, only_cpu=only_cpu)
    carrier = _carrier(device, backend, link, hardware)
    assignments = _assignments(assignment_file, workload, hardware.world_size)
    job = (
        None if user_model is None or parts or link == "emulated" else _job(workload_file, workload, hardware)
    )
    tell_doubtful(*((workload, hardware) if job is None else (job.workload, job.hardware)))
    if link == "emulated":
        note("measuring copies and launches of this machine")
        hardware = measure_machine(workload, hardware, device)
    there, expected, measured = _hardware_there(hardware, workload, place), workload, None
    if job is not None:
        tell_held(job, as_json=as_json)
        if job.own is not None:
            expected, there, measured = job.workload, job.hardware, recorded_step(workload_file)
    candidates = _candidates(user_model, assignments, expected, there, carrier, None if systems else caps)
    for candidate in candidates:
        assert candidate.assignment is not None
        sim.simulate(workload, there, candidate.assignment)  # what cannot be predicted is told beforehand
    ordered = ReplayJob(
        candidates=tuple(candidates),
        workload=workload,
        model=user_model,
        carrier=carrier,
        rounds=rounds,
        seed=seed,
    )
    if prepare:
        directory = start_record(output, workload, hardware)
        job_file = prepare_replay(ordered, directory, hardware.world_size)
        tell_commands(job_file, line("gather", directory))
        return
    directory = start_record(output, workload, hardware, measured)
    with _telling_what_is_kept(directory), progress("replaying") as report:
        replay(ordered, place, directory, progress=report)
    note(f"wrote {directory}")
    judge([directory], max_error, as_json)


def _model(model: str | None, arg: Any, dtype: str | None) -> "UserModel | None":
    from sim.validator.jobs import UserModel

    if model is None:
        return None
    return UserModel(factory=model, arguments=as_dict(arg, "--arg"), dtype=dtype)


def _place(
    ranks: int,
    box: int | None,
    rate: Sequence[int] | None,
    link: str,
    hardware: Hardware | None,
    hardware_file: Path | None,
) -> "Place":
    """Where ranks run, as many as the hardware is of. Raises ``InputError`` where that cannot be."""
    from sim.validator.calibrate import emulating_place

    if link == "emulated":
        if box is not None:
            raise InputError("--link emulated: one rank; leave out --box")
        if hardware is None:
            raise InputError("--link emulated: give WORKLOAD.json and the link's --hardware")
        return emulating_place(hardware)
    place = place_of(ranks, box, rate)
    if hardware is not None and place.world_size != hardware.world_size:
        raise InputError(
            f"{hardware_file}: world_size: {hardware.world_size} does not fit the replay's "
            f"{place.world_size} ranks; give --ranks {hardware.world_size}, and --prepare where torchrun or "
            f"srun starts them"
        )
    return place


def _carrier(device: str, backend: str | None, link: str, hardware: Hardware | None) -> "Carrier":
    from sim.validator.jobs import Carrier

    emulated = hardware if link == "emulated" else None
    return Carrier(device=device, backend=backend, emulated=emulated)  # type: ignore[arg-type]


def _job(workload_file: Path, workload: Workload, hardware: Hardware) -> "RecordedJob":
    from sim.truth.recorded_job import job_in_files

    return job_in_files(workload_file, workload, hardware)


def _assignments(
    files: list[Path] | None, workload: Workload | None, world_size: int
) -> dict[str, Assignment]:
    """Assignments by the names of their files, with the job's switches; those of other ranks are told."""
    found = {}
    for path in files or []:
        one = sim.load_assignment(path)
        made_for = None if one.made_for is None else one.made_for.world_size
        if made_for not in (None, world_size):
            note(
                f"{path.stem}: made for {made_for} ranks, and run on {world_size}: what it gains on so many "
                f"is not shown by this"
            )
        found[path.stem] = one if workload is None else as_the_job(workload, one)
    return found


def _hardware_there(hardware: Hardware, workload: Workload, place: "Place") -> Hardware:
    """``hardware`` as predicted for ``place``: what cannot be predicted is told before it is measured."""
    from sim.truth.scoring import as_measured

    record = Record(
        name=place.describe(),
        workload=workload,
        hardware=hardware,
        measurements=(),
        box=box_in(place.document(), "place"),
        calibrated_in=box_in(hardware.provenance, f"{hardware.name}: provenance"),
    )
    return as_measured(record).hardware


def _candidates(
    model: "UserModel | None",
    assignments: dict[str, Assignment],
    workload: Workload,
    hardware: Hardware,
    carrier: "Carrier",
    caps: Sequence[float] | None,
) -> "list[Candidate]":
    """What is replayed: the standing ones with ``caps``, or every system without; and ``assignments``."""
    from sim.validator.candidates import check_replayable, every_system, standing_candidates
    from sim.validator.jobs import Candidate

    if caps is not None:
        candidates = standing_candidates(workload, list(caps), sim.tune(workload, hardware).assignment)
    else:
        candidates, left_out = every_system(workload, hardware)
        for reason in dict.fromkeys(left_out.values()):
            names = ", ".join(name for name, why in left_out.items() if why == reason)
            note(f"left out: {names}: {reason}")
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates, "paced" if model is None else "model", carrier)
    return candidates


@contextmanager
def _telling_what_is_kept(directory: Path | None) -> Iterator[None]:
    """Where the block is stopped or fails, say what it left in ``directory``, and how to go on from there."""
    try:
        yield
    except BaseException as end:
        if directory is not None:
            _tell_kept(directory, was_stopped=isinstance(end, KeyboardInterrupt))
        raise


def _tell_kept(directory: Path, *, was_stopped: bool) -> None:
    try:
        kept = [load(path, Measurement) for path in sorted(directory.glob("measurement-*.json"))]
    except SimError:
        return  # what ended the command is the one thing to tell
    if not kept:
        if was_stopped:
            note("nothing was measured yet: the same command begins anew")
        return
    counts = sorted(len(one.iterations) for one in kept)
    rounds = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    note(f"kept in {directory}, marked incomplete: {rounds} rounds of {', '.join(one.name for one in kept)}")
    is_record = (directory / record_files.WORKLOAD).exists()
    agree = f"{line('agree', directory)}; " if is_record else ""
    suggest(f"{agree}to measure all rounds: the same command with another -o")


# ab


def ab(
    model: str = argument("Your model: returns (model, batch).", "MODULE:FACTORY", default=...),
    assignment_file: Path | None = option(
        "The assignment to test; default: the best for --workload and --hardware.", "--assignment"
    ),
    workload_file: Path | None = option(
        "A recorded workload: what is measured is held to its prediction.", "--workload"
    ),
    hardware_file: Path | None = option("The hardware file to predict for.", "--hardware"),
    output: Path | None = directory_option("Directory of the measurements.", default=None),
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    arg: Arguments = None,
    dtype: Dtype = None,
    samples: int | None = option(
        "Samples per rank and step; default: the batch's leading dimension.", panel=MODEL
    ),
    device: Device = None,
    backend: Backend = None,
    link: Link = "real",
    prepare: Prepare = False,
    rounds: int = option("Rounds; each runs both.", panel=MEASURING, default=30),
    seed: Seed = 0,
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Measure DDP's default and one assignment in turns, in your own model: is the gain there?"""
    from sim.validator.calibrate import measure_machine
    from sim.validator.replay import ab_job, judge_ab, replay
    from sim.validator.replay import prepare as prepare_replay

    if prepare and (box is not None or as_json or link == "emulated"):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --json, --link"
        )
    if prepare and output is None:
        raise typer.BadParameter("--prepare: give -o, a directory that all hosts see")
    workload = None if workload_file is None else sim.load_workload(workload_file)
    hardware = None if hardware_file is None else sim.load_hardware(hardware_file)
    place = _place(ranks, box, rate, link, hardware, hardware_file)
    device = device_of_model(device, None if workload is None else device_of_job(workload), elsewhere=prepare)
    carrier = _carrier(device, backend, link, hardware)
    files = None if assignment_file is None else [assignment_file]
    (given,) = _assignments(files, workload, place.world_size).values() or (None,)
    if workload_file is not None and workload is not None and hardware is not None:
        if not parts and link == "real":
            job = _job(workload_file, workload, hardware)
            workload, hardware = job.workload, job.hardware
        tell_doubtful(workload, hardware)
        if link == "emulated":
            note("measuring copies and launches of this machine")
            hardware = measure_machine(workload, hardware, device)
        given = sim.tune(workload, hardware).assignment if given is None else given
    if given is None:
        raise typer.BadParameter("give --assignment, or --workload and --hardware to tune for")
    predicted = None if workload is None or hardware is None else sim.gain(workload, hardware, given)
    directory = None if output is None else _ab_directory(output, workload, hardware)
    user_model = _model(model, arg, dtype)
    assert user_model is not None
    ordered = ab_job(
        given,
        model=user_model,
        carrier=carrier,
        workload=workload,
        rounds=rounds,
        seed=seed,
        samples_per_rank=samples,
    )
    if prepare:
        assert directory is not None
        job_file = prepare_replay(ordered, directory, place.world_size)
        tell_commands(job_file, line("gather", directory))
        return
    note(f"A/B: {rounds} rounds on {place.world_size} ranks; DDP's default and the assignment take turns")
    with _telling_what_is_kept(directory), progress("A/B") as report:
        measured = replay(ordered, place, directory, progress=report)
    result = judge_ab(ordered, measured, predicted)
    if directory is not None:
        write_atomically(directory / AB_FILE, json_text(_ab_document(result)))
        note(f"wrote {directory}")
    _print_ab(result, as_json)
    if result.significant and result.gain_ns > 0 and not as_json:
        apply = f"in the training script: ddp_model = sim.apply(model, {str(assignment_file)!r})"
        tune = to_tune(workload_file or WORKLOAD, hardware_file or HARDWARE)
        suggest(apply if assignment_file is not None else tune)


def gather_ab_test(job: "ReplayJob", directory: Path, as_json: bool) -> None:
    """What the ranks of a prepared job measured, against the prediction where there is one."""
    from sim.validator.replay import gather_record, judge_ab

    predicted = None
    if (directory / record_files.WORKLOAD).exists():
        workload = sim.load_workload(directory / record_files.WORKLOAD)
        hardware = sim.load_hardware(directory / record_files.HARDWARE)
        recommended = job.candidates[1].assignment
        assert recommended is not None
        predicted = sim.gain(workload, hardware, recommended)
    result = judge_ab(job, gather_record(directory), predicted)
    write_atomically(directory / AB_FILE, json_text(_ab_document(result)))
    _print_ab(result, as_json)


def _ab_directory(output: Path, workload: Workload | None, hardware: Hardware | None) -> Path:
    """A directory for the measurements: a record, where there is a prediction to hold them against."""
    if workload is not None and hardware is not None:
        return start_record(output, workload, hardware)
    make_directory(output)
    if any(output.iterdir()):
        raise InputError(f"{output}: holds files already; give a new or empty directory")
    return output


def _ab_document(result: "AbTest") -> dict[str, Any]:
    return {"schema_version": 1, "kind": "ab", **asdict(result)}


def _print_ab(result: "AbTest", as_json: bool) -> None:
    """For people, or as one JSON document."""
    if as_json:
        emit(json_text(_ab_document(result)))
        return
    rows = (
        ("DDP default", result.default_step_ns, result.default_samples_per_s),
        ("recommended", result.recommended_step_ns, result.recommended_samples_per_s),
        ("without communication", result.plain_step_ns, None),
    )
    print_table(
        f"{result.name}: {result.world_size} ranks, {result.rounds} rounds",
        ["", "step ms", "samples/s"],
        [[name, in_ms(ns), "-" if per_s is None else f"{per_s:.1f}"] for name, ns, per_s in rows],
    )
    say(
        f"gain: {result.gain_ns / 1e6:+.2f} ms a step "
        f"({format_percent(result.gain_fraction, 2, sign=True)}), 95 % interval "
        f"{result.gain_low_ns / 1e6:+.2f} to {result.gain_high_ns / 1e6:+.2f} ms"
    )
    if result.predicted_gain_ns is not None:
        say(f"predicted: {_predicted_words(result, result.predicted_gain_ns)}")
    say(result.sentence)


def _predicted_words(result: "AbTest", gain_ns: int) -> str:
    """The predicted gain, its interval, and whether what was measured is in it."""
    said = f"{gain_ns / 1e6:+.2f} ms a step"
    if result.predicted_low_ns is None or result.predicted_high_ns is None:
        return f"{said}; nothing that varies is known, so that it has no interval"
    low, high = result.predicted_low_ns / 1e6, result.predicted_high_ns / 1e6
    said += f", 95 % interval {low:+.2f} to {high:+.2f} ms"
    if result.prediction_met:
        return f"{said}; measured and predicted agree within their intervals"
    return (
        f"{said}; what was measured lies outside it: the calibration or the recording does not hold for this "
        f"run, so measure and record again before you rely on other predictions"
    )
