"""validate, ab: assignments on real ranks, against the prediction or, in one's own model, DDP's default."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import sim
from sim.cli import measuring, options, printing
from sim.cli.judging import judge
from sim.cli.measuring import carrier_of, choose_device, place_of, to_gather
from sim.cli.options import argument, as_dict, choice, directory_option, option, shared
from sim.cli.predicting import tell_held
from sim.cli.printing import Answer, line, note, progress, say, suggest, table, wants_json
from sim.columns import by_place
from sim.costs.doubts import doubts_about
from sim.errors import InputError
from sim.formats import record_files
from sim.formats.documents import json_text
from sim.formats.files import make_directory, write_atomically
from sim.formats.record_files import box_in, recorded_step, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.devices import device_of_job
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import in_ms

if TYPE_CHECKING:
    from sim.truth.turns import AbTest
    from sim.validator.jobs import Candidate, Carrier, ReplayJob, UserModel
    from sim.validator.launch import Place

AB_FILE = "ab.json"
_LINK = (
    "real: between ranks; emulated: one rank, whose all-reduces wait as long as the curve of --hardware says."
)
Link = Annotated[
    Literal["real", "emulated"],
    shared(_LINK, kind=choice("real", "emulated"), panel=options.WHERE),
]


@options.answers
def validate(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    output: Path = directory_option("Directory of the record."),
    ranks: measuring.Ranks = 2,
    box: measuring.Box = None,
    rate: measuring.Rate = None,
    caps: Sequence[float] = option(
        "Values of bucket_cap_mb to replay.", kind=options.CAPS, default="1,4,10,25"
    ),
    assignment_file: list[Path] | None = option(
        "An assignment file to replay too; repeatable.", "--assignment"
    ),
    model: str | None = option(
        "Your model, which returns (model, batch); default: backward sleeps through the recorded schedule.",
        panel=options.MODEL,
        metavar="MODULE:FACTORY",
    ),
    arg: options.Arguments = None,
    dtype: options.Dtype = None,
    device: measuring.Device = None,
    backend: measuring.Backend = None,
    link: Link = "real",
    prepare: measuring.Prepare = False,
    rounds: int = option("Rounds; each runs every candidate.", default=10),
    parts: options.Parts = False,
    max_error: options.MaxError = None,
) -> Answer:
    """Replay assignments on real ranks and compare them with the prediction."""
    from sim.nouns.measurement import Record
    from sim.validator.jobs import ReplayJob
    from sim.validator.replay import prepare as prepare_replay
    from sim.validator.replay import replay

    if model is None and (arg or dtype):
        raise typer.BadParameter("--arg and --dtype belong to --model")
    if prepare and (box is not None or max_error is not None or link == "emulated"):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --max-error, --link"
        )
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    place, job_on = _place(ranks, box, rate, link, hardware), device_of_job(workload)
    if model is not None:
        device = choose_device(device, job_on, None, elsewhere=prepare, only_cpu=box is not None)
    else:
        gloo = box is not None or backend == "gloo"
        many = place.world_size
        device = choose_device(device, job_on or "cpu", many, elsewhere=prepare, only_cpu=gloo)
    carrier = carrier_of(device, backend, workload, hardware if link == "emulated" else None)
    assignments = _assignments(assignment_file or [], workload, hardware.world_size)
    apart = parts or model is None
    expected, there, is_held = _held(workload_file, workload, hardware, apart, carrier)
    measured = recorded_step(workload_file) if is_held else None
    if not is_held:
        calibrated_in = box_in(there.provenance, f"{there.name}: provenance")
        boxes: Any = {"calibrated_in": calibrated_in, "box": box_in(place.document(), "place")}
        of_place = Record(name=there.name, workload=workload, hardware=there, measurements=(), **boxes)
        hardware, there = there, sim.as_measured(of_place).hardware
    user_model = None if model is None else _model(model, arg, dtype)
    candidates = _candidates(user_model, assignments, expected, there, carrier, caps)
    for candidate in candidates:
        assert candidate.assignment is not None
        sim.simulate(workload, there, candidate.assignment)  # what cannot be predicted is told beforehand
    ordered = ReplayJob(
        candidates=tuple(candidates), workload=workload, model=user_model, carrier=carrier, rounds=rounds
    )
    directory = start_record(output, workload, hardware, measured)
    if prepare:
        return to_gather(prepare_replay(ordered, directory, hardware.world_size))
    with _telling_what_is_kept(directory), progress("replaying") as report:
        replay(ordered, place, directory, progress=report)
    note(f"wrote {directory}")
    return judge([directory], max_error)


def _model(factory: str, arg: Any, dtype: str | None) -> "UserModel":
    from sim.validator.jobs import UserModel

    return UserModel(factory=factory, arguments=as_dict(arg, "--arg"), dtype=dtype)


def _place(
    ranks: int, box: int | None, rate: Sequence[int] | None, link: str, hardware: Hardware | None
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
            f"{hardware.name}: world_size: {hardware.world_size} does not fit the replay's "
            f"{place.world_size} ranks; give --ranks {hardware.world_size}, and --prepare where torchrun or "
            f"srun starts them"
        )
    return place


def _held(
    file: Path, workload: Workload, hardware: Hardware, apart: bool, carrier: "Carrier"
) -> tuple[Workload, Hardware, bool]:
    """Both, held to the job's own step where there is one, unless ``apart``, and whether they are; what is
    doubtful of them is told. On an emulated link the machine is that link with the copies measured here."""
    is_held = False
    if not apart and carrier.emulated is None:
        from sim.truth.recorded_job import held_to

        job = held_to(workload, hardware, recorded_step(file))
        tell_held(job)
        workload, hardware, is_held = job.workload, job.hardware, job.is_held
    for doubt in doubts_about(workload, hardware):
        note(doubt)
    if carrier.emulated is not None:
        from sim.validator.calibrate import measure_machine

        note("measuring copies and launches of this machine")
        hardware = measure_machine(workload, hardware, carrier.device)
    return workload, hardware, is_held


def _assignments(files: list[Path], workload: Workload | None, ranks: int) -> dict[str, Assignment]:
    """Assignments by the names of their files, with the job's switches; those of other ranks are told."""
    found = {}
    for path in files:
        one = sim.load_assignment(path)
        made_for = None if one.made_for is None else one.made_for.world_size
        if made_for not in (None, ranks):
            note(f"{path.stem}: made for {made_for} ranks, and run on {ranks}: its gain there is not shown")
        found[path.stem] = one if workload is None else as_the_job(workload, one)
    return found


def _candidates(
    model: "UserModel | None",
    assignments: dict[str, Assignment],
    workload: Workload,
    hardware: Hardware,
    carrier: "Carrier",
    caps: Sequence[float],
) -> "list[Candidate]":
    """What is replayed: the standing ones with ``caps``, and ``assignments``."""
    from sim.validator.candidates import check_replayable, standing_candidates
    from sim.validator.jobs import Candidate

    candidates = standing_candidates(workload, list(caps), sim.tune(workload, hardware).assignment)
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates, "paced" if model is None else "model", carrier)
    return candidates


@contextmanager
def _telling_what_is_kept(directory: Path | None) -> Iterator[None]:
    """Where the block is stopped or fails, say what it left in ``directory``, and how to go on from there."""
    try:
        yield
    except BaseException:
        if directory is not None and any(directory.glob("measurement-*.json")):
            note(f"what was measured is kept in {directory}, marked incomplete")
            is_record = (directory / record_files.WORKLOAD).exists()
            agree = f"{line('agree', directory)}; " if is_record else ""
            suggest(f"{agree}to measure all rounds: the same command with another -o")
        raise


# ab


@options.answers
def ab(
    model: str = argument("Your model: returns (model, batch).", "MODULE:FACTORY"),
    assignment_file: options.AssignmentFile = None,
    workload_file: Path | None = option(
        "A recorded workload: what is measured is held to its prediction.", "--workload"
    ),
    hardware_file: Path | None = option("The hardware file to predict for.", "--hardware"),
    output: Path | None = directory_option("Directory of the measurements.", default=None),
    ranks: measuring.Ranks = 2,
    box: measuring.Box = None,
    rate: measuring.Rate = None,
    arg: options.Arguments = None,
    dtype: options.Dtype = None,
    device: measuring.Device = None,
    backend: measuring.Backend = None,
    link: Link = "real",
    prepare: measuring.Prepare = False,
    rounds: int = option("Rounds; each runs both.", default=30),
    parts: options.Parts = False,
) -> Answer:
    """Measure DDP's default and one assignment in turns, in your own model: is the gain there?"""
    from sim.validator.replay import ab_job, judge_ab, replay
    from sim.validator.replay import prepare as prepare_replay

    if prepare and (box is not None or wants_json.get() or link == "emulated"):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --json, --link"
        )
    if prepare and output is None:
        raise typer.BadParameter("--prepare: give -o, a directory that all hosts see")
    workload = None if workload_file is None else sim.load_workload(workload_file)
    hardware = None if hardware_file is None else sim.load_hardware(hardware_file)
    place = _place(ranks, box, rate, link, hardware)
    job_on = None if workload is None else device_of_job(workload)
    device = choose_device(device, job_on, None, elsewhere=prepare, only_cpu=box is not None)
    carrier = carrier_of(device, backend, workload, hardware if link == "emulated" else None)
    files = [] if assignment_file is None else [assignment_file]
    many = place.world_size if hardware is None else hardware.world_size  # of an emulated link, too
    (given,) = _assignments(files, workload, many).values() or (None,)
    predicted = directory = None
    if workload_file is not None and workload is not None and hardware is not None:
        workload, hardware, _ = _held(workload_file, workload, hardware, parts, carrier)
        given = sim.tune(workload, hardware).assignment if given is None else given
        predicted = sim.gain(workload, hardware, given)
        directory = None if output is None else start_record(output, workload, hardware)
    if given is None:
        raise typer.BadParameter("give --assignment, or --workload and --hardware to tune for")
    if output is not None and directory is None:  # no record, without a prediction to hold it against
        directory = output
        make_directory(output)
        if any(output.iterdir()):
            raise InputError(f"{output}: holds files already; give a new or empty directory")
    ordered = ab_job(
        given,
        model=_model(model, arg, dtype),
        carrier=carrier,
        workload=workload,
        rounds=rounds,
    )
    if prepare:
        assert directory is not None
        return to_gather(prepare_replay(ordered, directory, place.world_size))
    note(f"A/B: {rounds} rounds on {place.world_size} ranks; DDP's default and the assignment take turns")
    with _telling_what_is_kept(directory), progress("A/B") as report:
        measured = replay(ordered, place, directory, progress=report)
    result = judge_ab(ordered, measured, predicted)
    ahead = printing.to_tune(workload_file or printing.WORKLOAD, hardware_file or printing.HARDWARE)
    if assignment_file is not None:
        ahead = f"in the training script: ddp_model = sim.apply(model, {str(assignment_file)!r})"
    return _compared(result, directory, ahead if result.significant and result.gain_ns > 0 else "")


def gather_ab_test(job: "ReplayJob", directory: Path) -> Answer:
    """What the ranks of a prepared job measured, against the prediction where there is one."""
    from sim.validator.replay import gather_record, judge_ab

    predicted, recommended = None, job.candidates[1].assignment
    if (directory / record_files.WORKLOAD).exists():
        workload = sim.load_workload(directory / record_files.WORKLOAD)
        hardware = sim.load_hardware(directory / record_files.HARDWARE)
        assert recommended is not None
        predicted = sim.gain(workload, hardware, recommended)
    return _compared(judge_ab(job, gather_record(directory), predicted), directory)


def _compared(result: "AbTest", directory: Path | None, ahead: str = "") -> Answer:
    """What an A/B test came to, which is written to ``directory``."""
    document = {"schema_version": 1, "kind": "ab", **asdict(result)}
    if directory is not None:
        write_atomically(directory / AB_FILE, json_text(document))
        note(f"wrote {directory}")
    return Answer(document, lambda: _print_ab(result), ahead)


def _print_ab(result: "AbTest") -> None:
    steps_ns = result.default_step_ns, result.recommended_step_ns, result.plain_step_ns
    names = ("DDP default", "recommended", "without communication")
    title = f"{result.name}: {result.world_size} ranks, {result.rounds} rounds"
    table(title, by_place("", "step ms"), zip(names, map(in_ms, steps_ns), strict=True))
    say(result.sentence)
    if result.predicted_gain_ns is not None:
        said = f"predicted: {in_ms(result.predicted_gain_ns, '+.2f')} ms a step"
        if result.predicted_low_ns is None or result.predicted_high_ns is None:
            met = "nothing that varies is known, so that it has no interval"
        else:
            low, high = (in_ms(ns, "+.2f") for ns in (result.predicted_low_ns, result.predicted_high_ns))
            said += f", 95 % interval {low} to {high} ms"
            met = "measured and predicted agree within their intervals"
            if not result.prediction_met:
                met = "what was measured lies outside it: measure and record again before you rely on others"
        say(f"{said}; {met}")
