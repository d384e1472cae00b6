"""validate: assignments on real ranks, against the prediction or against each other."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

import sim
from sim.cli.ab_testing import AbOrder, prepare_ab_test, print_ab, recommended_of, run_ab_test
from sim.cli.judging import MaxError, check_threshold, judge
from sim.cli.measuring import LinkKind, ReplayMode
from sim.cli.next_steps import HARDWARE, WORKLOAD, suggest, telling_what_is_kept, to_apply, to_tune
from sim.cli.on_device import Backend, Device, device_of_model, device_of_pacing
from sim.cli.options import (
    CANDIDATES,
    MEASURING,
    MODEL,
    WHERE,
    AsJson,
    argument,
    caps_of,
    directory_option,
    flag,
    option,
)
from sim.cli.own_job import Parts, tell_doubtful, tell_held
from sim.cli.placing import (
    Box,
    Prepare,
    Ranks,
    Rate,
    hardware_there,
    place_of,
    tell_other_ranks,
)
from sim.cli.printing import note, progress
from sim.cli.spreading import prepare_job
from sim.errors import InputError
from sim.formats.record_files import recorded_step, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job

if TYPE_CHECKING:
    from sim.validator.candidates.candidate import Candidate
    from sim.validator.candidates.carriers import Carrier
    from sim.validator.candidates.replay_jobs import UserModel
    from sim.validator.launch import Place


def validate(
    context: typer.Context,
    workload_file: Path | None = argument("A recorded workload; --ab needs none.", "WORKLOAD.json"),
    hardware_file: Path | None = option("A calibrated hardware file; --ab needs none.", "--hardware"),
    output: Path | None = directory_option("Directory of the record; --ab needs none.", default=None),
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    caps: str = option(
        "Values of bucket_cap_mb to replay, MiB.", "--caps", panel=CANDIDATES, default="1,4,10,25"
    ),
    assignment_file: list[Path] | None = option(
        "An assignment file to replay too; repeatable. With --ab: the one to test.", "--assignment"
    ),
    systems: bool = flag(
        "Replay each switch and hook of DDP and each textbook system, in place of caps.",
        "--systems",
        panel=CANDIDATES,
    ),
    mode: ReplayMode = option(
        "paced: backward sleeps through the recorded schedule; model: your --model computes.",
        panel=MODEL,
        default=ReplayMode.PACED,
    ),
    ab: bool = flag(
        "Compare DDP's default with --assignment in your own model (--model).", "--ab", panel=MODEL
    ),
    model: str | None = option("Your model: returns (model, batch).", panel=MODEL, metavar="MODULE:FACTORY"),
    arg: list[str] | None = option(
        "An argument for the factory; repeatable.", "--arg", panel=MODEL, metavar="KEY=VALUE"
    ),
    device: Device = None,
    backend: Backend = None,
    link: LinkKind = option(
        "real: between ranks; emulated: one rank, whose all-reduces wait as long as the curve says.",
        panel=WHERE,
        default=LinkKind.REAL,
    ),
    dtype: str | None = option("Cast model and batch, such as bfloat16.", panel=MODEL),
    samples: int | None = option(
        "Samples per rank and step; default: the batch's leading dimension.", panel=MODEL
    ),
    prepare: Prepare = False,
    rounds: int | None = option(
        "Rounds; each runs every candidate. Default: 10, with --ab 30.", panel=MEASURING
    ),
    seed: int = option("Order of candidates within rounds.", panel=MEASURING, default=0),
    steps_only: bool = flag(
        "With --model: measure steps alone, not the times of buckets; takes half the time.",
        "--steps-only",
        panel=MODEL,
    ),
    parts: Parts = False,
    max_error: MaxError = None,
    as_json: AsJson = False,
) -> None:
    """Replay assignments on real ranks and compare them with the prediction, or with DDP's default (--ab)."""
    from sim.recorder.factory import parse_arguments
    from sim.validator.candidates.carriers import Carrier, emulating_place, measure_machine
    from sim.validator.candidates.replay_jobs import UserModel
    from sim.validator.replay import replay

    check_threshold(max_error)
    if (ab or mode is ReplayMode.MODEL) != (model is not None):
        raise typer.BadParameter("--model: give it with --mode model or with --ab, and these only with it")
    if model is None and (arg or dtype):
        raise typer.BadParameter("--arg and --dtype belong to --model")
    is_emulated = link is LinkKind.EMULATED
    if is_emulated and (box is not None or prepare or _is_given(context, "ranks")):
        raise typer.BadParameter("--link emulated: one rank; leave out --box, --prepare, --ranks")
    if is_emulated and (workload_file is None or hardware_file is None):
        raise typer.BadParameter("--link emulated: give WORKLOAD.json and the link's --hardware")
    if systems and (
        model is not None or is_emulated or device not in (None, "cpu") or _is_given(context, "caps")
    ):
        raise typer.BadParameter(
            "--systems: a paced replay over gloo; leave out --model, --device, --link, --caps"
        )
    if not ab and samples is not None:
        raise typer.BadParameter("--samples belongs to --ab")
    if ab and max_error is not None:
        raise typer.BadParameter("--max-error belongs to a comparison with the prediction, not to --ab")
    if steps_only and (model is None or ab):
        raise typer.BadParameter("--steps-only: give it with --model, and without --ab")
    if prepare and (box is not None or max_error is not None or (ab and as_json)):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --max-error, and with --ab --json"
        )
    workload = None if workload_file is None else sim.load_workload(workload_file)
    hardware = None if hardware_file is None else sim.load_hardware(hardware_file)
    place: Place = (
        emulating_place(hardware) if is_emulated and hardware is not None else place_of(ranks, box, rate)
    )
    user_model = None
    if model is not None:
        device = device_of_model(device, workload, elsewhere=prepare)
        arguments = parse_arguments(arg or [])
        user_model = UserModel(factory=model, arguments=arguments, dtype=dtype)
    else:
        only_cpu = systems or box is not None or backend == "gloo"
        device = device_of_pacing(device, workload, place.world_size, elsewhere=prepare, only_cpu=only_cpu)
    carrier = Carrier(device=device, backend=backend, emulated=hardware if is_emulated else None)
    if hardware is not None and not is_emulated and place.world_size != hardware.world_size:
        raise InputError(
            f"{hardware_file}: world_size: {hardware.world_size} does not fit the replay's "
            f"{place.world_size} ranks; give --ranks {hardware.world_size}, and --prepare where torchrun or "
            f"srun starts them"
        )
    assignments = {path.stem: sim.load_assignment(path) for path in assignment_file or []}
    tell_other_ranks(assignments, place.world_size if hardware is None else hardware.world_size)
    if workload is not None:
        assignments = {name: as_the_job(workload, one) for name, one in assignments.items()}
    if rounds is None:
        rounds = 30 if ab else 10
    job = None
    if workload_file is not None and workload is not None and hardware is not None:
        if user_model is not None and not parts and not is_emulated:
            from sim.truth.recorded_job import job_in_files

            job = job_in_files(workload_file, workload, hardware)
        tell_doubtful(*((workload, hardware) if job is None else (job.workload, job.hardware)))
        if is_emulated:
            note("measuring copies and launches of this machine")
            hardware = measure_machine(workload, hardware, device)
    if ab:
        assert user_model is not None
        if job is not None:
            workload, hardware = job.workload, job.hardware
        recommended = recommended_of(assignments, workload, hardware)
        order = AbOrder(user_model, carrier, recommended, rounds, seed, samples)
        if prepare:
            prepare_ab_test(order, place, workload, hardware, output)
            return
        result = run_ab_test(order, place, workload, hardware, output)
        print_ab(result, as_json)
        if result.significant and result.gain_ns > 0 and not as_json:
            suggest(_after_ab(assignment_file, workload_file, hardware_file))
        return
    if workload_file is None or workload is None or hardware is None or output is None:
        raise typer.BadParameter("give WORKLOAD.json, --hardware and -o (only --ab needs none of them)")
    there, expected = hardware_there(hardware, workload, place), workload
    measured = None
    if job is not None:
        tell_held(job, with_table=not as_json)
        if job.own is not None:
            expected, there, measured = job.workload, job.hardware, recorded_step(workload_file)
    if systems:
        candidates = _systems(assignments, workload, there)
    else:
        candidates = _candidates(user_model, assignments, expected, there, carrier, caps_of(caps, "--caps"))
    for candidate in candidates:
        assert candidate.assignment is not None
        sim.simulate(workload, there, candidate.assignment)  # what cannot be predicted is told beforehand
    if prepare:
        prepare_job(workload, hardware, candidates, output, user_model, carrier, rounds, seed, not steps_only)
        return
    directory = start_record(output, workload, hardware, measured)
    with telling_what_is_kept(directory), progress("replaying") as report:
        replay(
            workload,
            candidates,
            place,
            directory,
            model=user_model,
            carrier=carrier,
            rounds=rounds,
            seed=seed,
            probed=not steps_only,
            progress=report,
        )
    note(f"wrote {directory}")
    judge([directory], max_error, as_json)


def _after_ab(assignments: list[Path] | None, workload: Path | None, hardware: Path | None) -> str:
    """How a gain that was shown gets into training: by the assignment's file, or by making one."""
    return to_apply(assignments[0]) if assignments else to_tune(workload or WORKLOAD, hardware or HARDWARE)


def _candidates(
    model: "UserModel | None",
    assignments: dict[str, Assignment],
    workload: Workload,
    hardware: Hardware,
    carrier: "Carrier",
    caps: list[float] | None,
) -> "list[Candidate]":
    from sim.validator.candidates.candidate import Candidate, check_replayable, standing_candidates

    candidates = standing_candidates(workload, caps or [], sim.tune(workload, hardware).assignment)
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates, "paced" if model is None else "model", carrier)
    return candidates


def _systems(assignments: dict[str, Assignment], workload: Workload, hardware: Hardware) -> "list[Candidate]":
    from sim.validator.candidates.candidate import Candidate, check_replayable, every_system

    candidates, left_out = every_system(workload, hardware)
    for reason in dict.fromkeys(left_out.values()):
        note(f"left out: {', '.join(name for name, why in left_out.items() if why == reason)}: {reason}")
    candidates += [Candidate(name=name, assignment=one) for name, one in assignments.items()]
    check_replayable(workload, candidates)
    return candidates


def _is_given(context: typer.Context, option: str) -> bool:
    """Whether ``option`` stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
