"""validate: assignments on real ranks, against the prediction or against each other."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sim
from sim.cli.judging import check_threshold, judge
from sim.cli.measuring import Box, LinkKind, Ranks, Rate, ReplayMode, Uplink, _place
from sim.cli.printing import emit, note, progress, table
from sim.cli.simulating import AsJson, _caps
from sim.cli.spreading import prepare_job
from sim.errors import InputError
from sim.formats.documents import json_text, write_atomically
from sim.formats.records import start_record
from sim.nouns.ab import AbTest
from sim.nouns.assignment import DDP_POLICIES, Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

if TYPE_CHECKING:
    from sim.validator.candidates import Candidate
    from sim.validator.carriers import Carrier
    from sim.validator.jobs import UserModel
    from sim.validator.launch import Place

AB_FILE = "ab.json"


def validate(
    context: typer.Context,
    workload_file: Annotated[
        Path | None, typer.Argument(metavar="WORKLOAD.json", help="A recorded workload; --ab needs none.")
    ] = None,
    hardware_file: Annotated[
        Path | None, typer.Option("--hardware", help="A calibrated hardware file; --ab needs none.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory of the record; --ab needs none.")
    ] = None,
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    uplink: Uplink = None,
    caps: Annotated[str, typer.Option(help="Explicit caps to replay, MiB.")] = "1,4,10,25",
    assignment_file: Annotated[
        list[Path] | None,
        typer.Option("--assignment", help="Further assignments; repeatable. With --ab: the one to test."),
    ] = None,
    systems: Annotated[
        bool,
        typer.Option("--systems", help="One candidate for each system and switch, instead of caps."),
    ] = False,
    mode: Annotated[
        ReplayMode, typer.Option(help="paced: the recorded schedule, slept; model: --model, for real.")
    ] = ReplayMode.PACED,
    families: Annotated[
        bool, typer.Option("--families", help="Replay what the tuner says that each knob and rule reaches.")
    ] = False,
    ab: Annotated[
        bool, typer.Option("--ab", help="DDP's default against --assignment in your own model (--model).")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:FACTORY", help="Your model: returns (model, batch).")
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="key=value for the factory; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where tensors lie and backward runs: cpu or cuda.")] = "cpu",
    backend: Annotated[
        str | None, typer.Option(help="gloo or nccl, in paced mode. [cpu: gloo; cuda: nccl]")
    ] = None,
    link: Annotated[
        LinkKind,
        typer.Option(help="real: between ranks; emulated: one rank, a hook that lasts as the curve says."),
    ] = LinkKind.REAL,
    dtype: Annotated[str | None, typer.Option(help="Cast model and batch, such as bfloat16.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples a rank and step; default the batch's leading dimension.")
    ] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only write the job, for torchrun or srun; then: gather.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Measured rounds; each runs every candidate. [10; --ab: 30]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Order of candidates within rounds.")] = 0,
    max_error: Annotated[
        float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay assignments on real ranks: against the prediction, or with --ab against DDP's default."""
    from sim.recorder import parse_arguments
    from sim.validator.carriers import Carrier, emulating_place, measure_machine
    from sim.validator.jobs import UserModel

    check_threshold(max_error)
    if (ab or mode is ReplayMode.MODEL) != (model is not None):
        raise typer.BadParameter("--model goes with --mode model or --ab, and they with it")
    if model is None and (arg or dtype):
        raise typer.BadParameter("--arg and --dtype belong to --model")
    if model is not None and backend is not None:
        raise typer.BadParameter("--backend belongs to paced mode; a model takes gloo on cpu, NCCL on cuda")
    is_emulated = link is LinkKind.EMULATED
    if is_emulated and (model is not None or box is not None or prepare or _is_given(context, "ranks")):
        raise typer.BadParameter(
            "--link emulated is one rank in paced mode: no --model, --box, --prepare, --ranks"
        )
    if systems and (model is not None or is_emulated or device != "cpu" or _is_given(context, "caps")):
        raise typer.BadParameter(
            "--systems is a paced replay over gloo: no --model, --device, --link, --caps"
        )
    if families and (systems or ab or _is_given(context, "caps")):
        raise typer.BadParameter("--families takes its candidates from the tuner: no --systems, --ab, --caps")
    if not ab and samples is not None:
        raise typer.BadParameter("--samples belongs to --ab")
    if ab and max_error is not None:
        raise typer.BadParameter("--max-error belongs to a comparison with the prediction, not to --ab")
    if prepare and (ab or box is not None or max_error is not None):
        raise typer.BadParameter("--prepare leaves ranks to torchrun or srun: no --ab, --box, --max-error")
    user_model = (
        None
        if model is None
        else UserModel(factory=model, arguments=parse_arguments(arg or []), device=device, dtype=dtype)
    )
    workload = None if workload_file is None else sim.load_workload(workload_file)
    hardware = None if hardware_file is None else sim.load_hardware(hardware_file)
    place: Place = (
        emulating_place(hardware)
        if is_emulated and hardware is not None
        else _place(ranks, box, rate, uplink)
    )
    if hardware is not None and not is_emulated and place.world_size != hardware.world_size:
        raise InputError(
            f"{hardware_file}: world_size: {hardware.world_size} does not fit the replay's "
            f"{place.world_size} ranks"
        )
    assignments = {path.stem: sim.load_assignment(path) for path in assignment_file or []}
    if rounds is None:
        rounds = 30 if ab else 10
    if ab:
        assert user_model is not None
        result = _run_ab(user_model, assignments, place, workload, hardware, output, rounds, seed, samples)
        _print_ab(result, as_json)
        return
    if workload is None or hardware is None or output is None:
        raise typer.BadParameter("give WORKLOAD.json, --hardware and -o (only --ab needs none of them)")
    carrier = Carrier(
        device=device if model is None else "cpu",
        backend=backend,
        emulated=hardware if is_emulated else None,
    )
    if is_emulated:
        note("measuring copies and launches of this machine")
        hardware = measure_machine(workload, hardware, device)
    if systems:
        candidates = _systems(assignments, workload, hardware)
    elif families:
        candidates = _families(user_model, assignments, workload, hardware)
    else:
        candidates = _candidates(user_model, assignments, workload, hardware, _caps(caps, "--caps"))
    for candidate in candidates:
        assert candidate.assignment is not None
        sim.simulate(workload, hardware, candidate.assignment)  # what cannot be predicted is told beforehand
    if prepare:
        prepare_job(workload, hardware, candidates, output, user_model, carrier, rounds, seed)
        return
    directory = _replay(user_model, carrier, candidates, place, workload, hardware, output, rounds, seed)
    judge([directory], max_error, as_json)


def _candidates(
    model: "UserModel | None",
    assignments: dict[str, Assignment],
    workload: Workload,
    hardware: Hardware,
    caps: list[float] | None,
) -> "list[Candidate]":
    from sim.validator.candidates import Candidate, standing_candidates
    from sim.validator.replayable import check_replayable

    candidates = standing_candidates(workload, caps or [], sim.tune(workload, hardware).assignment)
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates, "paced" if model is None else "model")
    return candidates


def _families(
    model: "UserModel | None", assignments: dict[str, Assignment], workload: Workload, hardware: Hardware
) -> "list[Candidate]":
    """The recommendation, and what each knob of DDP's and each rule of other systems reaches."""
    from sim.validator.candidates import Candidate
    from sim.validator.replayable import check_replayable

    answer = sim.tune(workload, hardware)
    names = {"default": "DDP default", "bucket_indices": "recommended"}
    candidates = [
        Candidate(name=names.get(name, name), assignment=family.assignment)
        for name, family in answer.families.items()
        if family.assignment.policy in DDP_POLICIES and name != "bucket_cap_mb_list"  # the recommended ones
    ]
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates, "paced" if model is None else "model")
    return candidates


def _systems(assignments: dict[str, Assignment], workload: Workload, hardware: Hardware) -> "list[Candidate]":
    from sim.validator.candidates import Candidate
    from sim.validator.every_system import every_system
    from sim.validator.replayable import check_replayable

    every = every_system(workload, hardware)
    for reason in dict.fromkeys(every.left_out.values()):
        names = [name for name, why in every.left_out.items() if why == reason]
        note(f"left out: {', '.join(names)}: {reason}")
    candidates = [
        *every.candidates,
        *(Candidate(name=name, assignment=one) for name, one in assignments.items()),
    ]
    check_replayable(workload, candidates)
    return candidates


def _is_given(context: typer.Context, option: str) -> bool:
    """Whether ``option`` stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _replay(
    model: "UserModel | None",
    carrier: "Carrier",
    candidates: "list[Candidate]",
    place: "Place",
    workload: Workload,
    hardware: Hardware,
    output: Path,
    rounds: int,
    seed: int,
) -> Path:
    from sim.validator.replay import replay

    directory = start_record(output, workload, hardware)
    with progress("replaying") as report:
        replay(
            workload,
            candidates,
            place,
            directory,
            model=model,
            carrier=carrier,
            rounds=rounds,
            seed=seed,
            progress=report,
        )
    note(f"wrote {directory}")
    return directory


def _run_ab(
    model: "UserModel",
    assignments: dict[str, Assignment],
    place: "Place",
    workload: Workload | None,
    hardware: Hardware | None,
    output: Path | None,
    rounds: int,
    seed: int,
    samples: int | None,
) -> AbTest:
    from sim.validator.abtest import run_ab

    if len(assignments) > 1 or not (assignments or (workload and hardware)):
        raise typer.BadParameter("--ab: give one --assignment, or WORKLOAD.json and --hardware to tune for")
    if assignments:
        (recommended,) = assignments.values()
    else:
        assert workload is not None
        assert hardware is not None
        recommended = sim.tune(workload, hardware).assignment
    directory = None if output is None else _ab_directory(output, workload, hardware)
    with progress("A/B") as report:
        result = run_ab(
            model,
            recommended,
            place,
            workload=workload,
            directory=directory,
            rounds=rounds,
            seed=seed,
            samples_per_rank=samples,
            predicted_gain_ns=_predicted_gain_ns(workload, hardware, recommended),
            progress=report,
        )
    if directory is not None:
        write_atomically(directory / AB_FILE, json_text(_ab_document(result)))
        note(f"wrote {directory}")
    return result


def _ab_directory(output: Path, workload: Workload | None, hardware: Hardware | None) -> Path:
    """A directory for the measurements: a record, where there is a prediction to hold them against."""
    if workload is not None and hardware is not None:
        return start_record(output, workload, hardware)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be made: {error.strerror or error}") from None
    if any(output.iterdir()):
        raise InputError(f"{output}: holds files already; give a new or empty directory")
    return output


def _predicted_gain_ns(
    workload: Workload | None, hardware: Hardware | None, recommended: Assignment
) -> int | None:
    if workload is None or hardware is None:
        return None
    steps = [
        sim.summarize(sim.simulate(workload, hardware, one)).step_ns
        for one in (sim.assign(workload), recommended)
    ]
    return steps[0] - steps[1]


def _ab_document(result: AbTest) -> dict[str, Any]:
    return {"schema_version": 1, "kind": "ab", **asdict(result)}


def _print_ab(result: AbTest, as_json: bool) -> None:
    if as_json:
        emit(json_text(_ab_document(result)))
        return

    def row(name: str, step_ns: int, samples_per_s: float | None) -> list[str]:
        return [name, f"{step_ns / 1e6:.2f}", "-" if samples_per_s is None else f"{samples_per_s:.1f}"]

    table(
        f"{result.name}: {result.world_size} ranks, {result.rounds} rounds",
        ["", "step ms", "samples/s"],
        [
            row("DDP default", result.default_step_ns, result.default_samples_per_s),
            row("recommended", result.recommended_step_ns, result.recommended_samples_per_s),
            row("without communication", result.plain_step_ns, None),
        ],
    )
    note(
        f"gain: {result.gain_ns / 1e6:+.2f} ms a step ({result.gain_fraction:+.2%}), 95 % interval "
        f"{result.gain_low_ns / 1e6:+.2f} to {result.gain_high_ns / 1e6:+.2f} ms; "
        f"{result.gpu_hours_saved_per_day:+.3g} GPU-hours a day"
    )
    if result.predicted_gain_ns is not None:
        note(f"predicted: {result.predicted_gain_ns / 1e6:+.2f} ms a step")
    note(result.sentence)
