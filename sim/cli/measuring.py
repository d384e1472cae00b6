"""record, calibrate, validate, agree: what is measured, and how it compares."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli.printing import emit, emit_noun, note, progress, table, write
from sim.cli.simulating import AsJson, HardwareFile, WorkloadFile, _caps
from sim.errors import InputError
from sim.formats.documents import check_writable, json_text
from sim.nouns.comparison import Agreement
from sim.units import format_ms, format_size, parse_rate_bits, parse_size

Box = Annotated[int | None, typer.Option("--box", help="Hosts of a cluster in a box (root).")]
Rate = Annotated[str | None, typer.Option("--rate", help="The box's wire, such as 4gbit.")]
Ranks = Annotated[int, typer.Option("--ranks", help="Local ranks over loopback.")]
MISSED = 3


def record(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="Returns (model, batch) or a step.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the workload here.")],
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="key=value for the factory; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the workload.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Cast model and batch, such as bfloat16.")] = None,
    repeats: Annotated[int, typer.Option(help="Recorded iterations.")] = 10,
    warmup: Annotated[int, typer.Option(help="Dropped iterations.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Run a real model and write down when backward makes each gradient ready."""
    from sim.recorder import load_factory, parse_arguments
    from sim.recorder import record as record_step

    check_writable(output)
    arguments = parse_arguments(arg or [])
    made = load_factory(factory, arguments=arguments)
    with progress("recording") as report:
        workload = record_step(
            made,
            name=name or factory.rpartition(":")[2],
            device=device,
            dtype=dtype,
            warmup=warmup,
            repeats=repeats,
            progress=report,
            factory_spec=factory,
            arguments=arguments,
        )
    write(output, sim.to_text(workload))
    if as_json:
        emit_noun(workload)
    note(
        f"{workload.name}: {len(workload.gradients)} gradients, {workload.total_bytes / 1e6:.1f} MB; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}"
    )


def _place(ranks: int, box: int | None, rate: str | None) -> Any:
    from sim.validator.launch import Place

    return Place(ranks=ranks, box=box, rate_bits=None if rate is None else parse_rate_bits(rate))


def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the hardware here.")],
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    largest: Annotated[str, typer.Option(help="Largest message.")] = "256MiB",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the all-reduce curve, copies and launches of local ranks over gloo."""
    from sim.validator.calibrate import calibrate as measure

    check_writable(output)
    place = _place(ranks, box, rate)
    with progress("calibrating") as report:
        hardware = measure(place, largest=parse_size(largest), rounds=rounds, progress=report)
    write(output, sim.to_text(hardware))
    if as_json:
        emit_noun(hardware)
    top = hardware.all_reduce[-1]
    note(
        f"{hardware.name}: {top.num_bytes / top.duration_ns:.2f} GB/s at {format_size(top.num_bytes)}, "
        f"{format_ms(hardware.all_reduce[0].duration_ns)} at 4 KiB, launch "
        f"{hardware.launch_cost_ns / 1e3:.0f} us, channels share at {hardware.channel_slowdown:.2f}"
    )


def validate(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the record.")],
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    caps: Annotated[str, typer.Option(help="Explicit caps to replay, MiB.")] = "1,4,10,25",
    assignment_file: Annotated[
        list[Path] | None, typer.Option("--assignment", help="Further assignments; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measured rounds; each runs every candidate.")] = 10,
    seed: Annotated[int, typer.Option(help="Order of candidates within rounds.")] = 0,
    max_error: Annotated[
        float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay candidates on real ranks (DDP over gloo, paced) and compare with the prediction."""
    from sim.formats.records import start_record
    from sim.validator.replay import Candidate, check_replayable, replay

    _check_threshold(max_error)
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    place = _place(ranks, box, rate)
    if place.world_size != hardware.world_size:
        raise InputError(
            f"{hardware_file}: world_size: {hardware.world_size} does not fit the replay's "
            f"{place.world_size} ranks"
        )
    candidates = [
        Candidate(name="DDP default", assignment=sim.assign(workload)),
        *(
            Candidate(name=f"bucket_cap_mb={cap:g}", assignment=sim.assign(workload, bucket_cap_mb=cap))
            for cap in _caps(caps, "--caps") or []
        ),
        Candidate(name="single", assignment=sim.assign(workload, "single")),
    ]
    recommended = sim.tune(workload, hardware).assignment
    if recommended.ddp_kwargs:
        candidates.append(Candidate(name="recommended", assignment=recommended))
    else:
        note("the recommended buckets cannot be reached by a keyword of DDP; they are not replayed")
    for path in assignment_file or []:
        candidates.append(Candidate(name=path.stem, assignment=sim.load_assignment(path)))
    check_replayable(workload, candidates)
    directory = start_record(output, workload, hardware)
    with progress("replaying") as report:
        replay(workload, candidates, place, directory, rounds=rounds, seed=seed, progress=report)
    note(f"wrote {directory}")
    _judge(directory, max_error, as_json)


def agree(
    directory: Annotated[Path, typer.Argument(metavar="RECORD", help="Directory of a measured record.")],
    max_error: Annotated[
        float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a measured record again with the model of today."""
    _check_threshold(max_error)
    _judge(directory, max_error, as_json)


def _check_threshold(max_error: float | None) -> None:
    if max_error is not None and not 0 <= max_error < math.inf:
        raise InputError(f"--max-error: {max_error} is not legal; give a percentage >= 0")


def _judge(directory: Path, max_error: float | None, as_json: bool) -> None:
    record = sim.load_record(directory)
    agreement = sim.agreement(record)
    without = sim.agreement(record, copies=False)
    if as_json:
        emit(json_text(_agreement_document(agreement, without)))
    else:
        _print_agreement(agreement, without)
    incomplete = [m.name for m in record.measurements if not m.complete]
    if incomplete:
        note(f"incomplete: {', '.join(incomplete)}")
    if max_error is not None and agreement.worst_step_error > max_error / 100:
        note(f"missed: worst step error {agreement.worst_step_error:.2%} > {max_error:g} %")
        raise typer.Exit(MISSED)


def _agreement_document(agreement: Agreement, without: Agreement) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(agreement)
    document["without_copies"] = {
        "median_step_error": without.median_step_error,
        "worst_step_error": without.worst_step_error,
    }
    return document


def _percent(value: float | None, sign: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def _print_agreement(agreement: Agreement, without: Agreement) -> None:
    bare = {row.name: row for row in without.rows}
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    table(
        f"{agreement.name}: measured against predicted",
        ["candidate", "buckets", "step ms", "95 % interval", "predicted", "error", "no copies"],
        [
            [
                row.name,
                str(len(row.bucket_indices)),
                f"{row.measured_step_ns / 1e6:.2f}",
                f"{row.step_low_ns / 1e6:.1f}-{row.step_high_ns / 1e6:.1f}",
                f"{row.predicted_step_ns / 1e6:.2f}",
                _percent(row.step_error),
                _percent(bare[row.name].step_error),
            ]
            for row in rows
        ],
    )
    table(
        "",
        ["candidate", "exposed ms", "predicted", "error", "bucket ends", "probe"],
        [
            [
                row.name,
                f"{row.measured_exposed_ns / 1e6:.2f}",
                f"{row.predicted_exposed_ns / 1e6:.2f}",
                _percent(row.exposed_error),
                _percent(row.median_bucket_end_error, sign=False),
                _percent(row.probe_effect),
            ]
            for row in rows
        ],
    )
    note(
        f"step error: median {agreement.median_step_error:.2%}, worst {agreement.worst_step_error:.2%} "
        f"(without copies in the model: {without.median_step_error:.2%}, {without.worst_step_error:.2%})"
    )
    note(
        f"exposed communication error: median {_percent(agreement.median_exposed_error, sign=False)}; bucket "
        f"ends: median {_percent(agreement.median_bucket_end_error, sign=False)}"
    )
    note(
        f"order: {agreement.order_right} of {agreement.order_pairs} pairs right, "
        f"{agreement.order_within_noise} within noise; best measured: {agreement.best_measured}, best "
        f"predicted: {agreement.best_predicted}"
        f"{' (within noise of it)' if agreement.best_within_noise else ''}"
    )
    note(f"{'within' if agreement.passed else 'outside'} the rule: {agreement.rule}")
