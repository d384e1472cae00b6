"""record, estimate, calibrate, gather: what is measured on this machine, or by ranks that others start."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import sim
from sim.cli import options, printing
from sim.cli.judging import judge
from sim.cli.options import MS, Kind, Pair, argument, as_dict, choice, file_option, option, shared
from sim.cli.printing import Answer, emit, note, progress, say, wants_json
from sim.errors import InputError, MachineError
from sim.formats.files import check_directory, check_writable
from sim.nouns.checks import Legal
from sim.nouns.devices import device_of_job
from sim.nouns.gpus import GPUS
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size, parse_size

if TYPE_CHECKING:
    from sim.validator.jobs import Carrier
    from sim.validator.launch import Place

# Where ranks run, and on what: of calibrate, validate and ab.

_BOX = "Ranks in a cluster in a box: so many network namespaces, a rank each (root)."
_RATE = "The box's wire, such as 4gbit; or a rate for each host: 4gbit,1gbit."
_RANKS = "Local ranks over loopback; with --prepare the ranks that torchrun or srun will start."
_PREPARE = "Only write the job, to be run by torchrun or srun and read by bucketsim gather."
_DEVICE = (
    "Where tensors lie and backward runs. Default: as the workload says that the job does; where nothing "
    "says it, on GPUs where there are enough."
)
_BACKEND = "Default: the one that the workload was recorded over; else gloo on cpu, nccl on cuda."
Ranks = Annotated[int, shared(_RANKS)]
Box = Annotated[int | None, shared(_BOX)]
Rate = Annotated[Sequence[int] | None, shared(_RATE, kind=options.RATES)]
Prepare = Annotated[bool, shared(_PREPARE, "--prepare", panel=options.WHERE)]
Device = Annotated[str | None, shared(_DEVICE, kind=choice("cpu", "cuda"), panel=options.WHERE)]
Backend = Annotated[Any, shared(_BACKEND, kind=choice("gloo", "nccl"), panel=options.WHERE)]


def place_of(ranks: int, box: int | None, rate: Sequence[int] | None) -> "Place":
    """Where the ranks run, by the options above. Raises ``InputError`` where they do not fit together."""
    from sim.validator.launch import Place

    if box is None and rate is None:
        return Place(ranks=ranks)
    if box is None or rate is None:
        raise InputError("box: --box and --rate go together; give both, such as --box 2 --rate 4gbit")
    Legal(least=1).take("box", box)
    rates = tuple(rate) * (box if len(rate) == 1 else 1)
    if len(rates) != box:
        raise InputError(f"rate: {len(rate)} rates are not legal for {box} hosts; give one, or one a host")
    return Place(rates_bits=rates)


def choose_device(
    asked: str | None, job: str | None, ranks: int | None, *, elsewhere: bool = False, only_cpu: bool = False
) -> Any:
    """Where tensors lie: as ``asked``, else as the ``job`` has it, where that can be; said if not obvious.

    Args:
        job: what the job trains on; None: nothing says it, and GPUs are taken where there are enough.
        ranks: how many take a GPU each; None: one's own model runs, which on the CPU would be another job.
        elsewhere: somebody else starts the ranks, on machines that need not be like this one.
        only_cpu: what else was asked for takes the CPU's tensors alone.

    Raises:
        MachineError: there is no GPU where one is asked for, or the job's own model was on one.
    """
    from sim.validator.installed import gpus_here

    if asked == "cuda" and not elsewhere and not gpus_here():
        raise MachineError("--device: cuda is not here: torch sees no GPU; run it where there is one")
    if asked is not None or job == "cpu" or (only_cpu and job is None):
        return asked or "cpu"
    gpus = 0 if only_cpu else gpus_here()
    if ranks is None and job == "cuda" and not (elsewhere or gpus):
        no = "torch sees no GPU here; run it where there is one"
        no = "these options take gloo on the CPU; leave them out" if only_cpu else no
        raise MachineError(
            f"device: the job was recorded on cuda, and {no}, or give --device cpu to measure another job, "
            f"the same model on the CPU"
        )
    ranks, device, why = ranks or 1, "cpu", ""  # where there is nothing else, nothing is said
    if (elsewhere and (job or gpus) and not only_cpu) or gpus >= ranks:
        device, why = "cuda", "as the job was recorded" if job else "as torch sees GPUs here"
    elif only_cpu:
        why = "these options take gloo; the job itself was recorded on cuda"
    elif job or gpus:
        why = f"{ranks} ranks need a GPU each, of which torch sees {gpus} here; no link of GPUs"
    elif elsewhere:
        why = "torch sees no GPU here; for ranks that have one give --device cuda"
    if why:
        note(f"device: {device}: {why}")
    return device


def carrier_of(
    device: Any, backend: Any, job: Workload | None, emulated: Hardware | None = None
) -> "Carrier":
    """What sums up tensors on ``device``: as asked, else as the ``job`` had it there; said if not obvious."""
    from sim.validator.jobs import Carrier

    its = None if job is None or emulated else (device_of_job(job), job.provenance.get("backend"))
    if backend is None and its == (device, "gloo") == ("cuda", "gloo"):
        backend = "gloo"
        note("backend: gloo: as the job was recorded")
    return Carrier(device=device, backend=backend, emulated=emulated)


def to_gather(job_file: Path, *words: object) -> Answer:
    """How to run a prepared job, and on stderr what comes then."""
    from sim.validator.jobs import commands, read_job

    lines, (_, world_size) = commands(job_file), read_job(job_file)
    then = printing.line("gather", job_file.parent, *words)
    note(f"wrote {job_file}; run one of these on {world_size} ranks, then: {then}")
    return Answer(lines, lambda: emit("\n".join(lines)))


# record, estimate


@options.answers
def record(
    factory: str = argument(
        "An importable function that returns (model, batch), with model(*batch) a scalar loss; such as "
        "my.module:factory.",
        "MODULE:FACTORY",
    ),
    output: Path = file_option("Write the workload here."),
    arg: options.Arguments = None,
    name: str | None = option("Name of the workload; default: the class of the model."),
    device: Device = None,
    dtype: options.Dtype = None,
    repeats: int = option("Iterations that are recorded.", default=10),
    warmup: int = option("Iterations before these, which are not.", default=3),
) -> Answer:
    """Run a real model and write down when backward makes each gradient ready."""
    from sim.recorder.models import load_factory
    from sim.recorder.training_step import record as record_step

    arguments = as_dict(arg, "--arg")
    made = load_factory(factory, arguments=arguments)
    with progress("recording") as report:
        workload = record_step(
            made,
            name=name,
            device=choose_device(device, None, None),
            dtype=dtype,
            warmup=warmup,
            repeats=repeats,
            progress=report,
            factory_spec=factory,
            arguments=arguments,
        )
    return _recorded(workload, output)


@options.answers
def estimate(
    factory: str = argument("An importable function that returns (model, batch).", "MODULE:FACTORY"),
    output: Path = file_option("Write the workload here."),
    words: list[Pair] | None = argument(
        "Arguments of the factory.", "[KEY=VALUE]...", default=None, kind=options.PAIR
    ),
    backward_ms: int | None = option("Backward without communication, as measured.", kind=MS),
    step_ms: int | None = option(
        "A whole step on one device: what is left of it goes to the times that are not given.", kind=MS
    ),
    forward_ms: int | None = option(
        "Forward; left out: computed from backward by their FLOPs and bytes.", kind=MS
    ),
    optimizer_ms: int | None = option(
        "Optimizer; left out: computed from the bytes of a fused AdamW.", kind=MS
    ),
    gpu: str | None = option(
        f"The GPU, for the weights of operators: {', '.join(GPUS)}; or short: v100, rtx4090."
    ),
    dtype: options.Dtype = None,
    autocast: str | None = option("Forward under autocast: bfloat16 or float16.", panel=options.MODEL),
    name: str | None = option("Name of the workload; default: the class of the model."),
) -> Answer:
    """Estimate when backward makes each gradient ready, from a model's code and one known time."""
    from sim.recorder.estimate import estimate as estimate_step

    workload = estimate_step(
        factory,
        arguments=as_dict(words),
        name=name,
        backward_ns=backward_ms,
        step_ns=step_ms,
        forward_ns=forward_ms,
        optimizer_ns=optimizer_ms,
        gpu=gpu,
        dtype=dtype,
        autocast=autocast,
    )
    return _recorded(workload, output)


def _recorded(workload: Workload, output: Path) -> Answer:
    """What was recorded, or estimated, in a file; what it is, from what, and how far to trust it."""
    options.write_measured(output, workload)
    return Answer(workload, lambda: _print_workload(workload), printing.to_calibrate(output))


def _print_workload(workload: Workload) -> None:
    say(
        f"{workload.name}: {len(workload.gradients)} gradients, {workload.total_bytes / 1e6:.1f} MB; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}"
    )
    facts = workload.provenance
    if workload.estimated:
        say(f"operators weighed by {facts['roofline']['device']}")
        for part in ("forward", "backward", "optimizer"):
            say(f"{part}: {facts['times'][f'{part}_ns']}")
    if workload.band is not None:
        low, high = workload.band
        say(f"estimated, not recorded; a band of {low:.2f} to {high:.2f}: {facts['band']}")


# calibrate, gather


@options.answers
def calibrate(
    output: Path = option(
        "Write the hardware here; with --prepare a directory.", "-o", "--output", default=...
    ),
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    workload: Path | None = option("Measure no larger messages than this workload sends: faster."),
    largest: int | None = option(
        "Largest message. Default: what --workload sends at most, else 256MiB.",
        kind=Kind("SIZE", parse_size),
    ),
    rounds: int = option("Rounds; each measures every size once.", min=1, default=5),
    budget: float = option("Seconds for further rounds of the sizes that still scatter.", min=0, default=120),
    mode: Literal["paced", "model"] = option(
        "paced: collectives alone; model: also how they and computing on the CPU slow each other down.",
        kind=choice("paced", "model"),
        default="paced",
    ),
    prepare: Prepare = False,
    device: Device = None,
    backend: Backend = None,
) -> Answer:
    """Measure what a link carries: how long collectives of each size take, between GPUs where they are."""
    from sim.validator.calibrate import calibrate as measure
    from sim.validator.calibrate import prepare_calibration
    from sim.validator.jobs import CalibrationJob, sizes_to

    if box is not None and device not in (None, "cpu"):
        raise typer.BadParameter("--box: its wires carry the CPU's tensors; leave out --device")
    if prepare and (box is not None or rate is not None or wants_json.get()):
        raise typer.BadParameter(
            "--prepare: torchrun or srun starts the ranks; leave out --box, --rate, --json"
        )
    (check_directory if prepare else check_writable)(output, "--output")
    sent, place = None if workload is None else sim.load_workload(workload), place_of(ranks, box, rate)
    if largest is None:  # the power of two in which all its gradients together fit
        largest = 256 << 20 if sent is None else max(4096, 1 << (sent.total_bytes - 1).bit_length())
    job_on = None if sent is None else device_of_job(sent)
    chosen = choose_device(device, job_on, place.world_size, elsewhere=prepare, only_cpu=box is not None)
    job = CalibrationJob(
        sizes=sizes_to(largest),
        rounds=rounds,
        budget_s=budget,
        computes=mode == "model",
        carrier=carrier_of(chosen, backend, sent),
    )
    if prepare:
        return to_gather(prepare_calibration(job, output, ranks), "-o", "wire.json")
    with progress("calibrating") as report:
        hardware = measure(job, place, progress=report)
    return _measured(hardware, output)


def _measured(hardware: Hardware, output: Path) -> Answer:
    """A hardware that was measured, in a file, and what is in it."""
    options.write_measured(output, hardware)
    ahead = printing.to_tune(printing.WORKLOAD, output)
    return Answer(hardware, lambda: _print_hardware(hardware), ahead)


def _print_hardware(hardware: Hardware) -> None:
    least, top = hardware.all_reduce[0], hardware.all_reduce[-1]
    say(
        f"{hardware.name}: {top.num_bytes / top.duration_ns:.2f} GB/s at {format_size(top.num_bytes)}, "
        f"{format_ms(least.duration_ns)} at {format_size(least.num_bytes)}, launch "
        f"{hardware.launch_cost_ns / 1e3:.0f} us; of two all-reduces at once each takes "
        f"{hardware.channel_slowdown:.2f} times as long"
    )
    for one in hardware.provenance["doubtful"]:
        note(f"doubtful: {format_size(one['num_bytes'])} {one['why']}; a longer --budget measures it better")


@options.answers
def gather(
    directory: Path = argument("What validate, ab or calibrate --prepare wrote, after it ran.", "DIRECTORY"),
    output: Path | None = file_option(
        "Write the hardware that calibrate's ranks measured here.", default=None
    ),
    max_error: options.MaxError = None,
) -> Answer:
    """Read what ranks of torchrun or srun measured: a hardware file, or a scored record."""
    from sim.cli.validating import gather_ab_test
    from sim.validator.calibrate import gather_calibration
    from sim.validator.jobs import JOB, CalibrationJob, ReplayJob, read_job
    from sim.validator.replay import gather_record

    job = read_job(directory / JOB)[0] if (directory / JOB).is_file() else None
    measures, tests = isinstance(job, CalibrationJob), isinstance(job, ReplayJob) and job.is_ab
    if measures != (output is not None):
        raise typer.BadParameter("--output: give it for what calibrate --prepare left, and only for that")
    if max_error is not None and (measures or tests):
        raise typer.BadParameter("--max-error belongs to records, which are compared with a prediction")
    if output is not None:
        return _measured(gather_calibration(directory), output)
    if isinstance(job, ReplayJob) and job.is_ab:
        return gather_ab_test(job, directory)
    gather_record(directory)
    return judge([directory], max_error)
