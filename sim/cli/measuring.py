"""record, calibrate, validate: what is measured on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli.judging import check_threshold, judge
from sim.cli.printing import emit_noun, note, progress, write
from sim.cli.simulating import AsJson, HardwareFile, WorkloadFile, _caps
from sim.errors import InputError
from sim.formats.documents import check_writable
from sim.units import format_ms, format_size, parse_rate_bits, parse_size

Box = Annotated[int | None, typer.Option("--box", help="Hosts of a cluster in a box (root).")]
Rate = Annotated[str | None, typer.Option("--rate", help="The box's wire, such as 4gbit.")]
Ranks = Annotated[int, typer.Option("--ranks", help="Local ranks over loopback.")]


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

    check_threshold(max_error)
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
    judge(directory, max_error, as_json)
